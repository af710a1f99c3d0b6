"""Tests of selecting messages for compression: sizes, the kept tail, parts and merged summaries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.compression import (
    Extent,
    Size,
    SummaryRoom,
    check_size,
    even_room,
    is_worth_it,
    kept_after,
    kept_from,
    part_length,
    reaches,
    to_merge,
)
from threadkeep.errors import InvalidInput
from threadkeep.records import Message, Role, Summary

_ROLES: dict[str, Role] = {"u": "user", "a": "assistant", "s": "system"}


def talk(letters: str, tokens: int = 10) -> list[Message]:
    """Return rows, newest first, from letters for their roles, oldest first: u, a and s."""
    rows = [
        Message(role=_ROLES[letter], content="words", seq=seq, tokens=tokens)
        for seq, letter in enumerate(letters, start=1)
    ]
    return rows[::-1]


def summary(first: int, last: int, tokens: int) -> Summary:
    """Return a summary of the given size."""
    return Summary("room", first, last, "text", "model", "1", tokens)


@pytest.mark.parametrize(
    "size",
    [
        ("tokens", 0),
        ("messages", -1),
        ("fraction", 0),
        ("fraction", 1.5),
        ("tokens", 1.5),
        ("words", 3),
        ("tokens",),
        ("messages", True),
        7,
    ],
)
def test_an_invalid_size_is_refused(size: Size) -> None:
    with pytest.raises(InvalidInput, match=r'^keep is \("tokens", n\)'):
        check_size("keep", size)


@pytest.mark.parametrize("size", [("tokens", 1), ("messages", 20), ("fraction", 0.5), ("fraction", 1)])
def test_all_three_kinds_of_size_are_accepted(size: Size) -> None:
    check_size("trigger", size)


def test_a_trigger_is_reached_by_its_own_unit() -> None:
    """A trigger is reached at its number; a fraction refers to the budget in tokens."""
    extent = Extent(messages=10, tokens=500)
    assert reaches(extent, ("messages", 10), 0)
    assert not reaches(extent, ("messages", 11), 0)
    assert reaches(extent, ("tokens", 500), 0)
    assert not reaches(extent, ("tokens", 501), 0)
    assert reaches(extent, ("fraction", 0.5), 1000)
    assert not reaches(extent, ("fraction", 0.5), 1002)


def test_a_small_range_is_not_compressed() -> None:
    """A small range is not compressed, so that not every turn costs a model call."""
    assert not is_worth_it(Extent(2, 2499), ("tokens", 20_000), 0)
    assert is_worth_it(Extent(2, 2500), ("tokens", 20_000), 0)
    assert is_worth_it(Extent(1, 1), ("messages", 3), 0)
    assert not is_worth_it(Extent(0, 0), ("messages", 3), 0)


@pytest.mark.parametrize(
    ("letters", "keep", "first"),
    [
        ("uauauaua", ("messages", 2), 7),
        ("uauauaua", ("messages", 3), 5),  # begins with the turn of the third message from the end
        ("uauauaua", ("messages", 8), 1),
        ("uauauaua", ("messages", 9), 1),
        ("uauauaua", ("tokens", 20), 7),
        ("uauauaua", ("tokens", 39), 5),
        ("uauauaua", ("tokens", 5), 7),  # the newest user message is always kept
        ("uauauaua", ("tokens", 1000), 1),
        ("uauauaua", ("fraction", 0.2), 7),
        ("uauauuua", ("messages", 2), 5),  # a question in three messages is one turn
        ("uaua" + "a" * 20, ("messages", 2), 3),  # the newest user message is always kept
        ("uasasuasa", ("messages", 2), 6),  # notes do not count
        ("aaaa", ("messages", 2), 3),  # no user message
    ],
)
def test_where_the_kept_tail_begins(letters: str, keep: Size, first: int) -> None:
    """The kept tail begins with a turn and has at least the size of `keep`."""
    assert kept_from(talk(letters), keep, 100, complete=True) == first


def test_the_kept_tail_is_none_until_the_rows_suffice() -> None:
    rows = talk("uauauaua")
    assert kept_from(rows[:2], ("messages", 2), 0, complete=False) is None
    assert kept_from(rows[:3], ("messages", 2), 0, complete=False) == 7
    assert kept_from(rows[:3], ("tokens", 30), 0, complete=False) is None
    assert kept_from([], ("messages", 2), 0, complete=True) is None


@pytest.mark.parametrize(
    ("letters", "upto", "first"),
    [
        ("uauauaua", 2, 3),
        ("uauauaua", 3, 5),
        ("uauauaua", 6, 7),
        ("uauauaua", 7, 7),
        ("uauaaaaa", 6, 3),
        ("aaaa", 2, 3),
    ],
)
def test_dropped_messages_are_compressed_to_the_end_of_their_turn(letters: str, upto: int, first: int) -> None:
    """Dropped messages are compressed to the end of their turn, without the newest user message."""
    assert kept_after(talk(letters), upto, complete=True) == first


def test_the_dropped_range_is_none_until_the_rows_suffice() -> None:
    assert kept_after(talk("uaaaa")[:3], 1, complete=False) is None


@given(st.text("uas", max_size=40), st.integers(1, 50), st.booleans(), st.integers(0, 40))
def test_a_tail_always_begins_with_a_turn(letters: str, size: int, by_tokens: bool, upto: int) -> None:
    rows = talk(letters)
    keep: Size = ("tokens", size * 10) if by_tokens else ("messages", size)
    spoken = [row for row in rows if row.role != "system"]
    for first in (kept_from(rows, keep, 0, complete=True), kept_after(rows, upto, complete=True)):
        if first is None:
            continue
        before = [row for row in spoken if (row.seq or 0) < first]
        kept = [row for row in spoken if (row.seq or 0) >= first]
        users = [row for row in spoken if row.role == "user"]
        assert not users or users[0] in kept
        if before and users:
            assert kept[-1].role == "user"
            assert before[0].role != "user"
    first = kept_from(rows, keep, 0, complete=True)
    if first is not None:
        assert len([row for row in spoken if (row.seq or 0) >= first]) >= min(size, len(spoken))


def test_parts_end_with_turns_where_they_can() -> None:
    rows = talk("uauauaua")[::-1]
    assert part_length(rows, [10] * 8, 1000) == 8
    assert part_length(rows, [10] * 8, 50) == 4
    assert part_length(rows, [10] * 8, 45) == 4
    assert part_length(rows, [10] * 8, 5) == 1
    assert part_length(talk("uaaaaaaa")[::-1], [10] * 8, 50) == 5


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
def test_parts_contain_all_rows(sizes: Sequence[int], room: int) -> None:
    rows = talk("ua" * len(sizes))[::-1][: len(sizes)]
    seen = 0
    while seen < len(sizes):
        length = part_length(rows[seen:], sizes[seen:], room)
        assert length >= 1
        assert length == 1 or sum(sizes[seen : seen + length]) <= room
        seen += length
    assert seen == len(sizes)


def test_parts_are_of_about_one_size() -> None:
    assert even_room(100, 100) == 100
    assert even_room(101, 100) == 51
    assert even_room(10, 100) == 100


def test_the_budget_of_summaries() -> None:
    """Summaries have about a quarter of a small budget, and one summary has half of that."""
    assert SummaryRoom.within(2000, 100_000, 30_000) == SummaryRoom(2000, 24_920, 1000, 600, 29_000)
    assert SummaryRoom.within(2000, 4000, 30_000) == SummaryRoom(860, 920, 430, 258, 29_570)
    assert SummaryRoom.within(2000, 10, 30_000) == SummaryRoom(100, 160, 50, 30, 29_950)
    assert SummaryRoom.within(2000, 100_000, 10) == SummaryRoom(2000, 24_920, 200, 120, 200)


def test_summaries_over_their_limit_are_merged() -> None:
    """Summaries over their limit are merged; the newest stays separate if two others remain."""
    room = SummaryRoom(all=100, framed=200, one=50, asked=30, record=500)
    one, two, three = summary(1, 10, 40), summary(11, 20, 40), summary(21, 30, 40)
    assert to_merge([one, two], room) == ()
    assert to_merge([one, two, three], room) == (one, two)
    big = summary(11, 20, 80)
    assert to_merge([one, big], room) == (one, big)
    assert to_merge([one, summary(12, 20, 80)], room) == ()
    assert to_merge([big], SummaryRoom(60, 200, 30, 20, 500)) == (big,)
    many = [summary(first, first + 9, 1) for first in range(1, 71, 10)]
    assert to_merge(many, room) == tuple(many[:-1])
    assert to_merge(many[:6], room) == ()
