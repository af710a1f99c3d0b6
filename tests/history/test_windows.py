"""Tests of `session.window`: exact cases, and any transcript against the plain rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.context.test_window import choose
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, Message, Session
from threadkeep.context.cut import CUT_MARK
from threadkeep.context.window import Cut, Exclusion, Extent, Limits, Window
from threadkeep.errors import InvalidInput
from threadkeep.observe import HistoryTruncated
from threadkeep.records import Role
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import Recent


def user(content: str, tokens: int | None = None) -> Message:
    """Return a message of the user."""
    return Message(role="user", content=content, tokens=tokens)


def assistant(content: str, tokens: int | None = None) -> Message:
    """Return a message of the assistant."""
    return Message(role="assistant", content=content, tokens=tokens)


def dialogue(count: int) -> list[Message]:
    """Return `count` messages, user and assistant in turn."""
    return [(user if number % 2 else assistant)(f"message {number}") for number in range(1, count + 1)]


def seqs(window: Window) -> list[int | None]:
    """Return the seq of each message of a window."""
    return [message.seq for message in window.messages]


async def test_twenty_of_twenty_five_messages(memory: Memory) -> None:
    """The newest 20 messages are included, oldest first; the manifest lists the other five."""
    session = memory.session("room")
    for message in dialogue(25):
        await session.append([message])
    window = await session.window(max_messages=20, max_tokens=None)
    assert [message.content for message in window.messages] == [f"message {number}" for number in range(6, 26)]
    assert window.manifest.excluded == (Exclusion(1, 5, "over_limit"),)
    assert window.manifest.included == tuple(range(6, 26))


async def test_ten_long_messages_by_four_characters_a_token(memory: Memory) -> None:
    """With 500 tokens at `len // 4`, messages 9 and 10 fit, with 237 + 250 tokens."""
    session = memory.session("room")
    await session.append([user(f"This is message {number}. " * 50) for number in range(1, 11)])
    window = await session.window(max_messages=20, max_tokens=500, counter="chars4")
    assert seqs(window) == [9, 10]
    assert window.tokens == 487
    assert window.manifest.counter == "chars4"


async def test_a_window_ends_at_the_first_message_that_does_not_fit(memory: Memory) -> None:
    session = memory.session("room")
    await session.append([user("small", 1), user("old", 200), assistant("middle", 150), user("new", 180)])
    window = await session.window(max_tokens=500)
    assert seqs(window) == [3, 4]
    assert window.tokens == 330


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(530, [1, 2, 3]), (529, [2, 3]), (330, [2, 3]), (329, [3]), (180, [3])]
)
async def test_messages_that_take_exactly_the_budget_fit(memory: Memory, max_tokens: int, expected: list[int]) -> None:
    """With one token less, the oldest message is excluded; no message is cut."""
    session = memory.session("room")
    await session.append([user("old", 200), assistant("middle", 150), user("new", 180)])
    window = await session.window(max_tokens=max_tokens)
    assert (seqs(window), window.manifest.cuts) == (expected, ())


@pytest.mark.parametrize(("max_messages", "max_tokens"), [(0, 4000), (20, 0), (0, 0), (0, None)])
async def test_a_limit_of_0_gives_an_empty_window(memory: Memory, max_messages: int, max_tokens: int | None) -> None:
    session = memory.session("room")
    await session.append(dialogue(4))
    window = await session.window(max_messages=max_messages, max_tokens=max_tokens)
    assert (window.messages, window.tokens) == ((), 0)


async def test_a_window_without_limits_has_all_messages(memory: Memory) -> None:
    """A window without limits may have more than one page of rows."""
    session = memory.session("room")
    await session.append(dialogue(450))
    window = await session.window(max_messages=None, max_tokens=None)
    assert seqs(window) == list(range(1, 451))
    assert window.manifest.excluded == ()


@pytest.mark.parametrize(("max_messages", "max_tokens"), [(-1, 10), (10, -1)])
async def test_limits_below_0_are_refused(memory: Memory, max_messages: int, max_tokens: int) -> None:
    with pytest.raises(InvalidInput, match=r"max_(messages|tokens) must be a whole number"):
        await memory.session("room").window(max_messages=max_messages, max_tokens=max_tokens)


async def test_a_newest_user_message_over_the_budget_is_cut(memory: Memory) -> None:
    """The message is alone in the window, ends with the mark, and fits the budget; the stored one stays whole."""
    session = memory.session("room")
    await session.append([*dialogue(4), user("word " * 1000)])
    window = await session.window(max_tokens=50, counter="chars4")
    [message] = window.messages
    assert message.content.endswith(CUT_MARK)
    assert message.content.startswith("word word")
    assert len(message.content) // 4 <= 50
    [cut] = window.manifest.cuts
    assert cut == Cut(seq=5, tokens_before=1250, tokens_after=window.tokens)
    [stored] = await session.tail(1)
    assert len(stored.content) == 5000


async def test_system_messages_neither_count_nor_appear(memory: Memory) -> None:
    session = memory.session("room")
    for message in dialogue(20):
        notes = [Message(role="system", content="a note") for _ in range(5)]
        await session.append([*notes, message])
    window = await session.window(max_messages=20, max_tokens=None)
    assert [message.content for message in window.messages] == [f"message {number}" for number in range(1, 21)]


async def test_windows_start_after_the_last_reset(memory: Memory) -> None:
    """The manifest lists the range before the reset, also if no message has followed."""
    session = memory.session("room")
    await session.append(dialogue(6))
    await session.reset()
    nothing = await session.window()
    assert nothing.messages == ()
    assert nothing.manifest.excluded == (Exclusion(1, 6, "reset"),)
    assert nothing.manifest.dropped == 0
    await session.append(dialogue(2))
    window = await session.window()
    assert seqs(window) == [7, 8]
    assert window.manifest.excluded == (Exclusion(1, 6, "reset"),)
    assert await session.count() == 8


async def test_thirty_assistant_messages_after_the_last_user_message(memory: Memory) -> None:
    """The last user message is included first and counts; the gap after it is listed."""
    session = memory.session("room")
    await session.append([user("old question"), assistant("old answer"), user("the question")])
    await session.append([assistant(f"step {number}") for number in range(1, 31)])
    window = await session.window(max_messages=20, max_tokens=None)
    assert seqs(window) == [3, *range(15, 34)]
    assert window.messages[0].content == "the question"
    assert window.manifest.excluded == (Exclusion(1, 2, "over_limit"), Exclusion(4, 14, "over_limit"))


async def test_before_gives_the_window_of_an_earlier_call(memory: Memory) -> None:
    session = memory.session("room")
    await session.append([user("first"), *[assistant(f"step {number}") for number in range(30)]])
    then = await session.window(max_messages=20, max_tokens=None)
    await session.append([user("second"), *[assistant(f"later {number}") for number in range(30)]])
    window = await session.window(max_messages=20, max_tokens=None, before=32)
    assert window == then
    assert window.messages[0].content == "first"
    assert (await session.window(before=1)).messages == ()


async def test_stored_token_counts_are_used(memory: Memory) -> None:
    session = memory.session("room")
    await session.append([user("x" * 400, tokens=7), assistant("y" * 40)])
    stored = await session.tail(2)
    assert (await session.window()).tokens == 7 + (stored[1].tokens or 0)
    assert (await session.window(counter="chars4")).tokens == 110
    assert (await session.window(counter=len)).tokens == 440


async def test_another_user_has_an_empty_window(memory: Memory) -> None:
    """The manifest does not reveal that the session has messages."""
    await memory.session("room", user_id="u1").append(dialogue(4))
    window = await memory.session("room", user_id="u2").window()
    assert (window.messages, window.manifest.excluded, window.manifest.dropped) == ((), (), 0)


async def test_a_truncated_window_is_reported(memory: Memory, events: RecordedEvents) -> None:
    """Each window with excluded messages emits one event, which has numbers only."""
    session = memory.session("telegram:1")
    await session.append([*dialogue(25), user("z" * 9000)])
    await session.window(max_messages=None, max_tokens=None)
    assert events.of(HistoryTruncated) == []
    await session.window(max_messages=20, max_tokens=None)
    await session.window(max_messages=20, max_tokens=100)
    assert events.of(HistoryTruncated) == [
        HistoryTruncated(channel="telegram", dropped=6, cut=False, session_id="telegram:1"),
        HistoryTruncated(channel="telegram", dropped=25, cut=True, session_id="telegram:1"),
    ]


@pytest.mark.parametrize(
    ("max_messages", "max_tokens", "rows"), [(20, 4000, 20), (None, 100, 200), (1000, 100, 200), (1, None, 1)]
)
async def test_a_window_reads_no_more_than_it_needs(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, max_messages: int | None, max_tokens: int | None, rows: int
) -> None:
    """A window reads one page, with at most as many rows as it may have messages."""
    session = memory.session("room")
    for _ in range(5):
        await session.append(dialogue(200))
    read: list[int] = []
    recent = TableTranscripts.recent

    async def counting(
        self: TableTranscripts, session_id: str, *, limit: int, before: int, after: int, user_id: str | None
    ) -> Recent:
        found = await recent(self, session_id, limit=limit, before=before, after=after, user_id=user_id)
        read.append(len(found.messages))
        return found

    monkeypatch.setattr(TableTranscripts, "recent", counting)
    await session.window(max_messages=max_messages, max_tokens=max_tokens)
    assert read == [rows]


_ROLES: Sequence[Role] = ("user", "assistant", "system")
_MESSAGES = st.lists(st.tuples(st.sampled_from(_ROLES), st.integers(0, 40), st.booleans()), max_size=16)
_LIMIT = st.none() | st.integers(0, 8)
_BUDGET = st.none() | st.integers(0, 90)


@given(messages=_MESSAGES, max_messages=_LIMIT, max_tokens=_BUDGET, data=st.data(), page_rows=st.integers(1, 4))
async def test_any_window_matches_the_plain_rules(
    sqlite_memory: Memory,
    messages: list[tuple[Role, int, bool]],
    max_messages: int | None,
    max_tokens: int | None,
    data: st.DataObject,
    page_rows: int,
) -> None:
    session = sqlite_memory.session("room")
    await session.delete()
    reset_seq = 0
    for place, (role, size, then_reset) in enumerate(messages, start=1):
        await session.append([Message(role=role, content="w" * size)])
        if then_reset and place % 3 == 0:
            await session.reset()
            reset_seq = place
    before = data.draw(st.none() | st.integers(1, len(messages) + 1))
    limits = Limits(max_messages, max_tokens, len)
    expected = await by_the_rules(session, limits, reset_seq, before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threadkeep.history.recollection.PAGE_ROWS", page_rows)
        window = await session.window(max_messages, max_tokens, counter=len, before=before)
    assert window == expected


async def by_the_rules(session: Session, limits: Limits, reset_seq: int, before: int | None) -> Window:
    """Return the window that the plain rules choose from all stored rows."""
    stored = (await session.page(before=before, limit=100)).messages
    rows = [row for row in reversed(stored) if row.role != "system" and (row.seq or 0) > reset_seq]
    return choose(rows, limits, extent=Extent(reset_seq=reset_seq))
