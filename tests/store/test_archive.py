"""Tests of restoring exported sessions on every database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from threadkeep.errors import InvalidKey, WrongUser
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.memory import Memory
from threadkeep.records import Message, SessionInfo, Summary
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.summaries import ArchivedSummary
from threadkeep.testing import SettableClock

_START = datetime(2025, 3, 4, 5, 6, 7, 89, tzinfo=UTC)


def _info(session_id: str = "telegram:1", *, user_id: str | None = "u1", reset_seq: int = 0) -> SessionInfo:
    return SessionInfo(
        session_id=session_id,
        user_id=user_id,
        title="A title of its own",
        last_message=None,
        message_count=0,
        last_seq=0,
        reset_seq=reset_seq,
        active=False,
        tags=("a", "b"),
        metadata={"topic": "tea"},
        created_at=_START,
        updated_at=_START + timedelta(hours=1),
    )


def _messages(first: int, last: int) -> tuple[Message, ...]:
    return tuple(
        Message(
            role="user" if seq % 2 else "assistant",
            content=f"Message {seq}.",
            id=f"m{seq}",
            seq=seq,
            sent_at=_START + timedelta(seconds=seq),
            created_at=_START + timedelta(seconds=seq, microseconds=7),
            tokens=seq * 10,
            status="interrupted" if seq == 2 else "complete",
            confidence=0.5,
            escalated=True,
            run_id=f"r{seq}",
            metadata={"n": seq},
            original={"type": "human", "z": 1, "a": [1.0, None]},
        )
        for seq in range(first, last + 1)
    )


async def _restore(memory: Memory, info: SessionInfo, messages: Sequence[Message]) -> Restored | WrongUser:
    [outcome] = await memory.restore([ArchivedPart(info, tuple(messages))])
    return outcome


async def test_a_session_is_restored_with_all_fields(memory: Memory) -> None:
    """The last message is the newest one with a text, as after appends."""
    *first, last = _messages(1, 5)
    messages = (*first, last.with_fields(content=""))
    assert await _restore(memory, _info(reset_seq=2), messages[:3]) == Restored(stored=3)
    assert await _restore(memory, _info(reset_seq=2), messages[3:]) == Restored(stored=2)

    session = memory.session("telegram:1", user_id="u1")
    assert tuple(await session.tail(10)) == messages
    expected = replace(_info(reset_seq=2), last_message="Message 4.", message_count=5, last_seq=5)
    assert await session.info() == expected
    assert [m.seq for m in (await session.window()).messages] == [3, 4, 5]


async def test_a_conversation_of_an_agent_is_restored_below_its_session(memory: Memory) -> None:
    """The conversation is deleted with its parent session."""
    own = replace(_info("own:1"), parent_session_id="telegram:1", agent="searcher")
    await memory.restore([ArchivedPart(_info(), _messages(1, 2)), ArchivedPart(own, _messages(1, 2))])
    assert (await memory.session("own:1").info()).agent == "searcher"
    await memory.session("telegram:1").delete()
    assert [info async for info in memory.sessions()] == []


async def test_an_erased_message_is_restored_unchanged(memory: Memory) -> None:
    erased = Message("user", "", "m1", seq=1, created_at=_START, tokens=0, status="erased", superseded_at=_START)
    for home in (memory, await memory.namespace(GraphLayout(("agents",)))):
        await _restore(home, _info(), [erased, *_messages(2, 3)])
        first, *_ = await home.session("telegram:1").tail(9, view="history")
        assert first == erased


async def test_the_same_part_twice_changes_nothing(memory: Memory) -> None:
    """Messages are recognized by their ids."""
    await _restore(memory, _info(reset_seq=1), _messages(1, 4))
    before = await memory.session("telegram:1").info()

    again = replace(_info(reset_seq=1), title="Another title", tags=())
    assert await _restore(memory, again, _messages(1, 4)) == Restored(known=4)
    assert await memory.session("telegram:1").info() == before


async def test_one_id_twice_in_a_part_is_one_message(memory: Memory) -> None:
    first, second = _messages(1, 2)
    assert await _restore(memory, _info(), [first, second.with_fields(id="m1")]) == Restored(stored=1, known=1)
    assert await memory.session("telegram:1").tail(10) == [first]


async def test_messages_are_restored_after_existing_ones(memory: Memory) -> None:
    """An existing session keeps its title and messages; a restored reset follows its message to the new seq."""
    session = memory.session("telegram:1", user_id="u1")
    await session.append([Message(role="user", content="Here already.", id="mine")])

    outcome = await _restore(memory, _info(reset_seq=2), _messages(1, 3))

    assert outcome == Restored(stored=3, moved=3)
    assert [(m.seq, m.id) for m in await session.tail(10)] == [(1, "mine"), (2, "m1"), (3, "m2"), (4, "m3")]
    info = await session.info()
    assert (info.title, info.message_count, info.reset_seq) == ("Here already.", 4, 3)


async def test_a_later_reset_is_kept(memory: Memory) -> None:
    await _restore(memory, _info(reset_seq=1), _messages(1, 4))
    await memory.session("telegram:1").reset()
    await _restore(memory, _info(reset_seq=1), _messages(1, 4))
    assert (await memory.session("telegram:1").info()).reset_seq == 4


async def test_a_session_of_another_user_is_skipped(memory: Memory) -> None:
    await memory.session("telegram:1", user_id="u2").append([Message(role="user", content="Mine.")])

    parts = [ArchivedPart(_info(), _messages(1, 2)), ArchivedPart(_info("telegram:2"), _messages(1, 2))]
    refused, stored = await memory.restore(parts)

    assert isinstance(refused, WrongUser)
    assert stored == Restored(stored=2)
    assert await memory.session("telegram:1").count() == 1


async def test_a_restored_session_can_be_continued(memory: Memory, clock: SettableClock) -> None:
    """New turns get the next seq, and update the last activity."""
    await _restore(memory, _info(), _messages(1, 3))
    session = memory.session("telegram:1", user_id="u1")
    receipt = await session.append([Message(role="assistant", content="Welcome back.")])
    assert receipt.first_seq == 4
    assert (await session.info()).updated_at == clock()


async def test_missing_times_and_ids_are_added(memory: Memory, clock: SettableClock) -> None:
    """A transcript of another program may have fewer fields than an export."""
    outcome = await _restore(memory, _info(), [Message(role="user", content="Nul \x00 here.")])
    assert outcome == Restored(stored=1, cleaned=1)
    [message] = await memory.session("telegram:1").tail(1)
    assert (message.content, message.created_at) == ("Nul \ufffd here.", clock())
    assert message.id
    assert message.tokens


async def test_a_session_without_messages_is_restored(memory: Memory) -> None:
    assert await _restore(memory, _info(), []) == Restored()
    assert (await memory.session("telegram:1").info()).title == "A title of its own"


async def test_an_invalid_session_id_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidKey):
        await memory.restore(
            [ArchivedPart(_info("fine"), _messages(1, 1)), ArchivedPart(_info("not\nfine"), _messages(1, 1))]
        )
    assert await memory.session("fine").count() == 0


async def test_restored_messages_are_found_by_search(memory: Memory) -> None:
    await _restore(memory, _info(), _messages(1, 3))
    assert [hit.message.id for hit in await memory.search("Message 2")] == ["m2"]


def _archived(first: int, last: int, *, left: int | None = None, id_: str = "s1") -> ArchivedSummary:
    """Return a summary of some of the messages above; `left` is the number of those still stored."""
    summary = Summary("telegram:1", first, last, "Tea.", "test-model", "1", 3, id=id_, created_at=_START)
    messages = last - first + 1 if left is None else left
    ends = (f"m{last - messages + 1}", f"m{last}") if messages else (None, None)
    return ArchivedSummary(summary, messages, *ends)


async def _restore_summaries(
    memory: Memory, messages: Sequence[Message], *summaries: ArchivedSummary, reset_seq: int = 0
) -> tuple[int, int]:
    """Restore messages and summaries; return the numbers of stored and skipped summaries."""
    [outcome] = await memory.restore([ArchivedPart(_info(reset_seq=reset_seq), tuple(messages), summaries)])
    assert isinstance(outcome, Restored)
    return outcome.summaries, outcome.summaries_left_out


async def test_summaries_are_restored_with_their_messages(memory: Memory) -> None:
    """The messages may be in earlier parts; restoring again changes nothing."""
    first, second = _archived(1, 3), _archived(4, 5, id_="s2")
    assert await _restore_summaries(memory, _messages(1, 4), first) == (1, 0)
    assert await _restore_summaries(memory, _messages(5, 6), second) == (1, 0)
    assert await memory.summaries.active("telegram:1") == [first.summary, second.summary]
    assert await memory.summaries.for_export("telegram:1") == [first, second]
    assert await _restore_summaries(memory, _messages(1, 6), first, second) == (0, 0)
    assert await memory.summaries.all_of("telegram:1") == [first.summary, second.summary]


async def test_a_summary_after_a_reset_is_restored(memory: Memory) -> None:
    assert await _restore_summaries(memory, _messages(1, 6), _archived(3, 5), reset_seq=2) == (1, 0)
    assert await _restore_summaries(memory, (), _archived(1, 2, id_="s2"), reset_seq=2) == (0, 1)


async def test_a_restored_summary_follows_its_messages(memory: Memory) -> None:
    session = memory.session("telegram:1", user_id="u1")
    await session.append([Message(role="user", content="Here already.", id="mine")])
    await memory.summaries.add(Summary("telegram:1", 1, 1, "Here.", "test-model", "1", 3))
    assert await _restore_summaries(memory, _messages(1, 4), _archived(1, 3)) == (1, 0)
    ranges = [(each.first_seq, each.last_seq) for each in await memory.summaries.active("telegram:1")]
    assert ranges == [(1, 1), (2, 4)]


async def test_a_summary_of_other_messages_is_not_restored(memory: Memory) -> None:
    """A summary is skipped if its range has a gap, another message, or an uncovered message before it."""
    assert await _restore_summaries(memory, [*_messages(1, 2), *_messages(4, 5)], _archived(1, 5)) == (0, 1)
    assert await _restore_summaries(memory, _messages(3, 3), _archived(1, 3)) == (0, 1)
    assert await _restore_summaries(memory, (), _archived(2, 2, id_="s2")) == (0, 1)
    assert await _restore_summaries(memory, (), _archived(1, 9)) == (0, 1)
    assert await memory.summaries.all_of("telegram:1") == []


async def test_a_summary_of_deleted_messages_needs_a_session_without_them(memory: Memory) -> None:
    """In another session the summary would cover other messages with the same seqs."""
    await memory.session("telegram:1", user_id="u1").append(
        [Message(role="user", content=f"Mine {number}.") for number in range(2)]
    )
    assert await _restore_summaries(memory, _messages(3, 4), _archived(1, 4, left=2)) == (0, 1)
    assert await _restore_summaries(memory, (), _archived(1, 2, left=0)) == (0, 1)
    assert await memory.summaries.all_of("telegram:1") == []
