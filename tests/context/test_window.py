"""Tests of windows: exact cases, and properties for any rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.cut import CUT_MARK
from threadkeep.context.tokens import TokenCounter, chars4, estimate
from threadkeep.context.window import Cut, Exclusion, Extent, Limits, Window, WindowChooser, with_superseded
from threadkeep.errors import InvalidInput
from threadkeep.records import Message, Role


def user(seq: int, content: str = "hello", tokens: int | None = None) -> Message:
    """Return a stored user message."""
    return Message(role="user", content=content, seq=seq, tokens=tokens)


def assistant(seq: int, content: str = "hi there", tokens: int | None = None) -> Message:
    """Return a stored assistant message."""
    return Message(role="assistant", content=content, seq=seq, tokens=tokens)


def dialogue(count: int, *, tokens: int | None = None) -> list[Message]:
    """Return messages 1 to `count`, newest first, alternately by user and assistant."""
    return [(user if seq % 2 else assistant)(seq, f"message {seq}", tokens) for seq in range(count, 0, -1)]


def choose(
    rows: Sequence[Message], limits: Limits, *, newest_user: Message | None = None, extent: Extent | None = None
) -> Window:
    """Return the window over rows that are given newest first."""
    chooser = WindowChooser(limits, newest_user=newest_user)
    chooser.add(rows)
    return chooser.window(extent)


def odd_counter(text: str) -> int:
    """Return a count that does not grow with the text."""
    return len(text) + (7 if len(text) % 3 else 0)


def test_the_window_of_ten_equal_messages_is_the_newest_two_that_fit() -> None:
    rows = [user(n, f"This is message {n}. " * 50) for n in range(10, 0, -1)]
    window = choose(rows, Limits(max_tokens=500, counter=chars4))
    assert [message.seq for message in window.messages] == [9, 10]
    assert window.tokens == 487
    assert window.manifest.excluded == (Exclusion(1, 8, "over_budget"),)
    assert window.manifest.counter == "chars4"


def test_no_older_message_follows_one_that_does_not_fit() -> None:
    rows = [user(4, tokens=180), assistant(3, tokens=150), user(2, tokens=200), assistant(1, tokens=1)]
    window = choose(rows, Limits(max_tokens=500))
    assert [message.seq for message in window.messages] == [3, 4]
    assert window.tokens == 330
    assert window.manifest.dropped == 2


def test_twenty_of_twenty_five_are_numbers_6_to_25_oldest_first() -> None:
    window = choose(dialogue(25)[:20], Limits(max_messages=20))
    assert [message.seq for message in window.messages] == list(range(6, 26))
    assert window.manifest.excluded == (Exclusion(1, 5, "over_limit"),)
    assert window.manifest.dropped == 5


@pytest.mark.parametrize("limits", [Limits(max_messages=0), Limits(max_tokens=0)])
def test_a_limit_of_zero_yields_an_empty_window(limits: Limits) -> None:
    window = choose(dialogue(3), limits, newest_user=user(4))
    assert window.messages == ()
    assert window.tokens == 0
    assert window.manifest.dropped == 4


@pytest.mark.parametrize("value", [-1, True])
def test_limits_below_zero_are_refused(value: int) -> None:
    with pytest.raises(InvalidInput, match="max_messages must be a whole number from 0"):
        Limits(max_messages=value)
    with pytest.raises(InvalidInput, match="max_tokens must be a whole number from 0"):
        Limits(max_tokens=value)


def test_a_newest_user_message_over_the_budget_is_cut() -> None:
    """The manifest has the original and the remaining token count of the cut message."""
    rows = [assistant(3), user(2, "x" * 1000), user(1)]
    window = choose(rows, Limits(max_tokens=100, counter=chars4))
    (only,) = window.messages
    assert only.content == "x" * (len(only.content) - len(CUT_MARK)) + CUT_MARK
    assert window.tokens == only.tokens == chars4(only.content) == 100
    assert window.manifest.cuts == (Cut(2, 250, 100),)
    assert window.manifest.excluded == (Exclusion(1, 1, "over_budget"), Exclusion(3, 3, "over_budget"))


def test_a_budget_below_the_mark_excludes_the_message() -> None:
    window = choose([user(1, "x" * 1000)], Limits(max_tokens=3, counter=len))
    assert window.messages == ()
    assert window.manifest.excluded == (Exclusion(1, 1, "over_budget"),)


def test_the_newest_user_message_is_reserved_first() -> None:
    """An older newest user message is included, and messages between it and the newest ones are excluded."""
    rows = [assistant(seq, "y" * 10) for seq in range(9, 4, -1)]
    window = choose(rows, Limits(max_messages=3, max_tokens=100, counter=len), newest_user=user(2, "question"))
    assert [message.seq for message in window.messages] == [2, 8, 9]
    assert window.tokens == 28
    assert window.manifest.excluded == (Exclusion(1, 1, "over_limit"), Exclusion(3, 7, "over_limit"))


def test_the_newest_user_message_fills_a_limit_of_one() -> None:
    window = choose([assistant(3)], Limits(max_messages=1), newest_user=user(2))
    assert [message.seq for message in window.messages] == [2]


def test_a_huge_newest_answer_is_cut_instead_of_emptying_the_history() -> None:
    window = choose([assistant(2, "z" * 500), user(1, "why?")], Limits(max_tokens=50, counter=len))
    assert window.messages[0].content == "why?"
    assert window.messages[1].content.endswith("z" + CUT_MARK)
    assert window.tokens == 50
    assert window.manifest.cuts == (Cut(2, 500, 46),)
    assert window.manifest.excluded == ()


def test_a_huge_answer_is_excluded_if_its_mark_does_not_fit() -> None:
    window = choose([assistant(2, "z" * 500), user(1, "why?")], Limits(max_tokens=10, counter=len))
    assert [message.seq for message in window.messages] == [1]
    assert window.manifest.excluded == (Exclusion(2, 2, "over_budget"),)


def test_stored_counts_are_trusted_unless_a_counter_is_given() -> None:
    rows = [user(2, "abcd", tokens=40), assistant(1, "abcd", tokens=40)]
    assert [m.seq for m in choose(rows, Limits(max_tokens=50)).messages] == [2]
    assert [m.seq for m in choose(rows, Limits(max_tokens=50, counter=estimate)).messages] == [1, 2]


def test_a_cut_follows_the_stored_count() -> None:
    window = choose([user(1, "word " * 100, tokens=1000)], Limits(max_tokens=500))
    assert 0 < window.tokens <= 500
    assert 150 < len(window.messages[0].content) < 300


def test_messages_before_a_reset_are_excluded_as_reset() -> None:
    window = choose(dialogue(12)[:2], Limits(max_messages=2), extent=Extent(first_seq=3, reset_seq=8))
    assert window.manifest.excluded == (Exclusion(3, 8, "reset"), Exclusion(9, 10, "over_limit"))
    assert window.manifest.dropped == 2


def test_archived_messages_are_excluded_as_archived() -> None:
    rows, limits = dialogue(12)[:2], Limits(max_messages=2)
    window = choose(rows, limits, extent=Extent(first_seq=3, reset_seq=4, archived_seq=8))
    named = (Exclusion(3, 4, "reset"), Exclusion(5, 8, "archived"), Exclusion(9, 10, "over_limit"))
    assert window.manifest.excluded == named
    assert window.manifest.dropped == 2
    window = choose(rows, limits, extent=Extent(first_seq=9, reset_seq=4, archived_seq=8))
    assert window.manifest.excluded == (Exclusion(9, 10, "over_limit"),)
    window = choose(rows, limits, extent=Extent(reset_seq=8, archived_seq=8))
    assert window.manifest.excluded == (Exclusion(1, 8, "reset"), Exclusion(9, 10, "over_limit"))


def test_nothing_is_excluded_from_a_session_that_fits() -> None:
    """System rows between messages are not listed as excluded."""
    window = choose([user(4), assistant(2)], Limits(max_messages=20, max_tokens=4000))
    assert window.manifest.excluded == ()
    assert window.manifest.dropped == 0


def test_an_empty_session_has_an_empty_window() -> None:
    assert choose([], Limits(max_messages=20)).messages == ()


def test_a_user_message_newer_than_the_rows_is_last() -> None:
    window = choose(dialogue(2), Limits(max_messages=2), newest_user=user(3))
    assert [message.seq for message in window.messages] == [2, 3]


@pytest.mark.parametrize("row", [Message(role="system", content="note", seq=1), Message(role="user", content="hi")])
def test_system_and_unstored_rows_are_refused(row: Message) -> None:
    with pytest.raises(InvalidInput):
        choose([row], Limits())


def test_pages_yield_the_same_window_as_one_list() -> None:
    rows = dialogue(100, tokens=10)
    chooser = WindowChooser(Limits(max_tokens=255))
    pages = [rows[start : start + 10] for start in range(0, 100, 10)]
    read = 0
    while chooser.wants_more and pages:
        chooser.add(pages.pop(0))
        read += 1
    assert read == 3
    assert chooser.window() == choose(rows, Limits(max_tokens=255))


roles: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant"])
contents = st.text(max_size=60)
sizes = st.none() | st.integers(0, 120)
counters: st.SearchStrategy[TokenCounter | None] = st.sampled_from([None, len, chars4, odd_counter])


@st.composite
def stored_rows(draw: st.DrawFn) -> list[Message]:
    """Draw the rows of a session, newest first."""
    pairs = draw(st.lists(st.tuples(roles, contents, st.none() | st.integers(0, 90)), max_size=12))
    return [Message(role=r, content=c, seq=n + 1, tokens=t) for n, (r, c, t) in enumerate(pairs)][::-1]


@given(rows=stored_rows(), max_messages=sizes, max_tokens=sizes, counter=counters)
def test_the_rules_hold_for_any_rows(
    rows: list[Message], max_messages: int | None, max_tokens: int | None, counter: TokenCounter | None
) -> None:
    """A window keeps its limits and the order, and its manifest accounts for each row once."""
    limits = Limits(max_messages, max_tokens, counter)
    window = choose(rows, limits)
    seqs = [message.seq or 0 for message in window.messages]
    assert seqs == sorted(set(seqs)) == list(window.manifest.included)
    assert max_messages is None or len(seqs) <= max_messages
    assert max_tokens is None or window.tokens <= max_tokens
    if counter is not None:
        assert window.tokens == sum(counter(message.content) for message in window.messages)
    users = [row.seq for row in rows if row.role == "user"]
    run = [seq for seq in seqs if not users or seq != users[0]]
    assert not run or run == [s for s in range(run[0], len(rows) + 1) if not users or s != users[0]]
    out = [place for gap in window.manifest.excluded for place in range(gap.first_seq, gap.last_seq + 1)]
    assert sorted([*out, *seqs]) == list(range(1, len(rows) + 1))
    assert window.manifest.dropped == len(out)
    assert window == choose(rows, limits)


@given(rows=stored_rows(), max_messages=st.none() | st.integers(1, 9), max_tokens=st.none() | st.integers(15, 120))
def test_every_window_has_the_newest_user_message(
    rows: list[Message], max_messages: int | None, max_tokens: int | None
) -> None:
    window = choose(rows, Limits(max_messages, max_tokens, len))
    newest = next((row for row in rows if row.role == "user"), None)
    if newest is None:
        return
    found = next(message for message in window.messages if message.seq == newest.seq)
    if max_tokens is None or len(newest.content) <= max_tokens:
        assert found == newest
    else:
        assert found.content.endswith(CUT_MARK)
        assert len(window.messages) == 1


@given(rows=stored_rows(), max_messages=sizes, max_tokens=sizes, split=st.integers(0, 12))
def test_reading_the_newest_user_message_separately_yields_the_same_window(
    rows: list[Message], max_messages: int | None, max_tokens: int | None, split: int
) -> None:
    limits = Limits(max_messages, max_tokens, len)
    newest = next((row for row in rows if row.role == "user"), None)
    read = rows if max_messages is None else rows[: max(max_messages, 1)]
    assert choose(read, limits, newest_user=newest) == choose(rows, limits)


def test_messages_that_fill_the_budget_exactly_are_included() -> None:
    rows = [user(3, tokens=40), assistant(2, tokens=60), user(1, tokens=1)]
    window = choose(rows, Limits(max_tokens=100))
    assert [message.seq for message in window.messages] == [2, 3]
    assert window.tokens == 100
    assert window.manifest.excluded == (Exclusion(1, 1, "over_budget"),)


def test_a_newest_user_message_that_fills_the_budget_exactly_stays_whole() -> None:
    window = choose([user(1, "x" * 100)], Limits(max_tokens=100, counter=len))
    assert window.messages[0].content == "x" * 100
    assert window.manifest.cuts == ()


def test_superseded_ranges_are_separated_from_those_over_the_limit() -> None:
    window = with_superseded(choose(dialogue(10)[:2], Limits(max_messages=2)), [(3, 4)])
    assert window.manifest.excluded == (
        Exclusion(1, 2, "over_limit"),
        Exclusion(3, 4, "superseded"),
        Exclusion(5, 8, "over_limit"),
    )
    assert window.manifest.dropped == 6
