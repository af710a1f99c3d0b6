"""Tests of the anchor, the stable beginning of history, which moves in steps."""

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
    """Return a plan over alternate user and assistant messages that end with a user message."""
    first = len(sizes) % 2
    items = [USER if (number + first) % 2 else ASSISTANT for number in range(len(sizes))]
    return plan(items, lambda n: Size(sizes[n], min(sizes[n], 2)), budget, max_messages=max_messages, anchor=anchor)


def test_messages_before_the_anchor_are_excluded() -> None:
    chosen = planned([5] * 9, 100, Anchor(2, set=True))
    assert chosen.kept == (2, 3, 4, 5, 6, 7, 8)
    assert chosen.excluded == ((0, "before_anchor"), (1, "before_anchor"))
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (2, False, False)


def test_history_that_does_not_fit_is_cut_to_half() -> None:
    chosen = planned([10] * 11, 100, SET)
    assert chosen.kept == (6, 7, 8, 9, 10)
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (6, True, True)
    assert chosen.excluded == tuple((number, "over_budget") for number in range(6))


def test_the_fraction_determines_how_much_remains() -> None:
    assert planned([10] * 21, 200, replace(SET, fraction=0.34)).begin == 16
    assert planned([10] * 21, 200, replace(SET, fraction=0.9)).begin == 4


def test_history_over_the_message_limit_is_cut_to_half() -> None:
    assert planned([1] * 21, 100, SET, max_messages=20).begin == 0
    chosen = planned([1] * 23, 100, SET, max_messages=20)
    assert (chosen.begin, len(chosen.kept)) == (14, 9)


def test_without_an_anchor_history_is_what_fits() -> None:
    chosen = planned([10] * 21, 100, Anchor())
    assert chosen.kept == tuple(range(11, 21))
    assert (chosen.cut_back, chosen.lasting) == (True, True)


def test_overflowing_cuts_history_that_fits() -> None:
    chosen = planned([10] * 9, 100, replace(SET, overflowing=True))
    assert (chosen.begin, chosen.excluded[0]) == (4, (0, "over_budget"))
    assert planned([10] * 9, 100, SET).begin == 0


def test_the_last_exchange_is_kept_if_it_fits() -> None:
    assert planned([5, 5, 5, 5, 30, 40, 10], 90, SET).kept == (4, 5, 6)


def test_the_newest_message_is_cut_if_history_would_be_empty() -> None:
    """The newest message of the history is cut if it would be dropped alone and more than its mark fits."""
    chosen = planned([5, 500, 10], 60, SET)
    assert (chosen.kept, chosen.cuts) == ((1, 2), {1: 50})
    assert planned([5, 500, 10], 25, SET).kept == (2,)
    assert planned([500, 5, 5, 5, 10], 60, SET).kept == (2, 3, 4)


def looped(history: int, steps: Sequence[int]) -> list[tuple[Item, int]]:
    """Return items of a history, a question and steps whose results have the given tokens."""
    items = [(USER if number % 2 == 0 else ASSISTANT, 10) for number in range(history + 1)]
    for tokens in steps:
        items += [(Item("assistant", len(items)), 1), (Item("tool", len(items)), tokens)]
    return items


def planned_loop(items: Sequence[tuple[Item, int]], budget: int) -> Plan:
    """Return the plan of items with an anchor."""
    return plan([item for item, _ in items], lambda n: Size(items[n][1], min(items[n][1], 2)), budget, anchor=SET)


def test_a_step_that_fits_after_the_usual_cut_moves_the_anchor() -> None:
    """A step that fits after the usual cut moves the anchor permanently."""
    assert not planned_loop(looped(8, []), 100).cut_back
    chosen = planned_loop(looped(8, [20]), 100)
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (4, True, True)


def test_a_big_step_moves_the_anchor_for_its_turn_only() -> None:
    chosen = planned_loop(looped(8, [58]), 100)
    assert (chosen.begin, chosen.cut_back, chosen.lasting) == (6, True, False)
    chosen = planned_loop(looped(8, [500]), 100)
    assert chosen.kept == (8, 9, 10)
    assert (chosen.cuts, chosen.cut_back, chosen.lasting) == ({10: 89}, True, False)


def test_all_messages_of_a_question_are_kept() -> None:
    """All messages of a question are kept, and cut if the budget is tight."""
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
def test_a_cut_history_keeps_the_newest_exchange(
    sizes: list[int], budget: int, fraction: float, max_messages: int | None, overflowing: bool
) -> None:
    """A cut history is contiguous, keeps both limits and contains the newest exchange."""
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
def test_a_growing_session_seldom_moves_the_anchor(turns: list[tuple[int, int]], max_messages: int | None) -> None:
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
