"""Where history begins: an anchor that stays from call to call, and moves in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.trim import Anchor, Item, Plan, Size, plan
from threadkeep.errors import BudgetTooSmall

USER, ASSISTANT = Item("user"), Item("assistant")
SET = Anchor(set=True)


def planned(sizes: Sequence[int], budget: int, anchor: Anchor, *, max_messages: int | None = None) -> Plan:
    """A plan over user and assistant in turn, the newest being a user message."""
    first = len(sizes) % 2
    items = [USER if (number + first) % 2 else ASSISTANT for number in range(len(sizes))]
    return plan(items, lambda n: Size(sizes[n], min(sizes[n], 2)), budget, max_messages=max_messages, anchor=anchor)


def test_what_fits_from_the_anchor_is_kept() -> None:
    """Nothing of before it is, although there would be room."""
    chosen = planned([5] * 9, 100, Anchor(2, set=True))
    assert chosen.kept == (2, 3, 4, 5, 6, 7, 8)
    assert chosen.excluded == ((0, "before_anchor"), (1, "before_anchor"))
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (2, False, False)


def test_what_does_not_fit_is_cut_back_to_half_from_a_question_on() -> None:
    """The question in progress counts as of the window."""
    chosen = planned([10] * 11, 100, SET)
    assert chosen.kept == (6, 7, 8, 9, 10)
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (6, True, True)
    assert chosen.excluded == tuple((number, "over_budget") for number in range(6))


def test_the_fraction_says_how_far() -> None:
    """From a third to nine tenths."""
    assert planned([10] * 21, 200, replace(SET, fraction=0.34)).begin == 16
    assert planned([10] * 21, 200, replace(SET, fraction=0.9)).begin == 4


def test_too_many_messages_are_cut_back_as_well() -> None:
    """Of twenty, ten are there when the turn is over."""
    assert planned([1] * 21, 100, SET, max_messages=20).begin == 0
    chosen = planned([1] * 23, 100, SET, max_messages=20)
    assert (chosen.begin, len(chosen.kept)) == (14, 9)


def test_where_no_call_has_set_it_history_is_the_newest_that_fits() -> None:
    """A session that was long before its first call loses no more than it must."""
    chosen = planned([10] * 21, 100, Anchor())
    assert chosen.kept == tuple(range(11, 21))
    assert (chosen.cut_back, chosen.lasting) == (True, True)


def test_what_was_not_even_handed_in_moves_it_too() -> None:
    """More than was read has come since: the window is cut back although what was read fits."""
    chosen = planned([10] * 9, 100, replace(SET, overflowing=True))
    assert (chosen.begin, chosen.excluded[0]) == (4, (0, "over_budget"))
    assert planned([10] * 9, 100, SET).begin == 0


def test_the_last_exchange_is_never_stepped_over() -> None:
    """It is more than half of the room, but it fits."""
    assert planned([5, 5, 5, 5, 30, 40, 10], 90, SET).kept == (4, 5, 6)


def test_the_newest_of_history_is_cut_where_nothing_else_would_be_there() -> None:
    """To what is left; not to a mark with nothing before it."""
    chosen = planned([5, 500, 10], 60, SET)
    assert (chosen.kept, chosen.cuts) == ((1, 2), {1: 50})
    assert planned([5, 500, 10], 25, SET).kept == (2,)
    assert planned([500, 5, 5, 5, 10], 60, SET).kept == (2, 3, 4)


def looped(history: int, steps: Sequence[int]) -> list[tuple[Item, int]]:
    """History of so many messages of ten tokens, a question of ten, and steps whose results have these tokens."""
    items = [(USER if number % 2 == 0 else ASSISTANT, 10) for number in range(history + 1)]
    for tokens in steps:
        items += [(Item("assistant", len(items)), 1), (Item("tool", len(items)), tokens)]
    return items


def planned_loop(items: Sequence[tuple[Item, int]], budget: int) -> Plan:
    """Its plan."""
    return plan([item for item, _ in items], lambda n: Size(items[n][1], min(items[n][1], 2)), budget, anchor=SET)


def test_a_step_that_the_usual_cut_makes_room_for_moves_it_for_good() -> None:
    """As if the turn had come a little later: the next one begins there too."""
    assert not planned_loop(looped(8, []), 100).cut_back
    chosen = planned_loop(looped(8, [20]), 100)
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (4, True, True)


def test_a_big_step_pushes_history_out_of_its_own_turn_only() -> None:
    """What it leaves is halved again, for the steps to come."""
    chosen = planned_loop(looped(8, [58]), 100)
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (6, True, False)
    chosen = planned_loop(looped(8, [500]), 100)
    assert chosen.kept == (8, 9, 10)
    assert (chosen.cuts, chosen.cut_back, chosen.lasting) == ({10: 89}, True, False)


def test_a_question_in_several_messages_is_all_of_the_turn() -> None:
    """No limit of what came before leaves out a part of it; where it is tight, none goes before it is cut."""
    items = [USER, ASSISTANT, USER, USER, Item("assistant", 4), Item("tool", 4)]
    for max_messages, kept in ((None, (0, 1, 2, 3, 4, 5)), (0, (2, 3, 4, 5))):
        assert plan(items, lambda _: Size(10, 2), 100, max_messages=max_messages, turn=2).kept == kept
    assert plan(items, lambda _: Size(10, 2), 100, max_messages=0).kept == (3, 4, 5)
    assert plan(items, lambda _: Size(10, 2), 45, turn=2).kept == (2, 3, 4, 5)
    chosen = plan(items, lambda _: Size(10, 2), 35, turn=2)
    assert (chosen.kept, chosen.cuts) == ((2, 3, 4, 5), {2: 7, 4: 9, 5: 9})
    assert plan(items[:4], lambda _: Size(30, 2), 40, turn=2).cuts == {2: 10}


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    budget=st.integers(10, 300),
    fraction=st.floats(0.05, 0.95),
    max_messages=st.none() | st.integers(1, 20),
    overflowing=st.booleans(),
)
def test_a_step_back_leaves_room_and_keeps_the_newest(
    sizes: list[int], budget: int, fraction: float, max_messages: int | None, overflowing: bool
) -> None:
    """Contiguous up to the question, within both limits, and what is out is out for one reason."""
    anchor = Anchor(set=True, overflowing=overflowing, fraction=fraction)
    try:
        chosen = planned(sizes, budget, anchor, max_messages=max_messages)
    except BudgetTooSmall:
        return
    assert chosen.kept == tuple(range(chosen.kept[0], len(sizes)))
    assert [index for index, _ in chosen.excluded] == list(range(chosen.kept[0]))
    assert chosen.tokens <= budget
    assert max_messages is None or len(chosen.kept) <= max_messages + 1
    newest = planned(sizes, budget, Anchor(), max_messages=max_messages)
    assert set(chosen.kept) <= set(newest.kept)
    if not chosen.cut_back:
        assert chosen == newest
    elif len(newest.kept) > 1:
        assert len(chosen.kept) > 1


@given(
    turns=st.lists(st.tuples(st.integers(1, 25), st.integers(1, 60)), min_size=60, max_size=120),
    max_messages=st.none() | st.just(20),
)
@pytest.mark.slow
def test_a_growing_history_keeps_its_beginning_most_of_the_time(
    turns: list[tuple[int, int]], max_messages: int | None
) -> None:
    """Turn after turn of at most 85 tokens, in a room of 1,000: it moves in at most one of five."""
    sizes: list[int] = []
    begin = moved = 0
    for question, answer in turns:
        sizes.append(question)
        chosen = plan(
            [USER if number % 2 == 0 else ASSISTANT for number in range(len(sizes))],
            lambda n: Size(sizes[n], min(sizes[n], 2)),
            1_000,
            max_messages=max_messages,
            anchor=Anchor(begin, set=begin > 0),
        )
        moved += chosen.begin != begin
        begin = chosen.begin if chosen.lasting else begin
        sizes.append(answer)
    assert moved <= len(turns) / 5 + 1
