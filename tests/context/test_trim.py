"""Tests of planning a model call by kinds and sizes of messages alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.trim import Item, Plan, Size, plan
from threadkeep.errors import BudgetTooSmall

SYSTEM, USER, ASSISTANT = Item("system"), Item("user"), Item("assistant")


def planned(items: list[tuple[Item, int]], budget: int, *, minimum: int = 2, max_messages: int | None = None) -> Plan:
    """Return a plan over items with their tokens; only calls and system messages cannot be cut."""

    def measure(index: int) -> Size:
        item, tokens = items[index]
        whole = item.kind == "system" or (item.kind == "assistant" and item.group is not None)
        return Size(tokens, tokens if whole else min(tokens, minimum))

    return plan([item for item, _ in items], measure, budget, max_messages=max_messages)


def step(index: int, *results: int) -> list[tuple[Item, int]]:
    """Return an assistant message of one token with tool calls, and results with the given tokens."""
    return [(Item("assistant", index), 1), *((Item("tool", index), tokens) for tokens in results)]


def test_messages_that_fit_are_kept_whole() -> None:
    chosen = planned([(USER, 3), (SYSTEM, 5), (ASSISTANT, 4), (USER, 2)], 14)
    assert chosen == Plan(kept=(1, 0, 2, 3), tokens=14)


def test_history_is_dropped_from_its_oldest_message() -> None:
    chosen = planned([(USER, 1), (ASSISTANT, 50), (USER, 3), (ASSISTANT, 3), (USER, 2)], 10)
    assert chosen.kept == (2, 3, 4)
    assert chosen.excluded == ((0, "over_budget"), (1, "over_budget"))


def test_the_number_of_messages_bounds_history_only() -> None:
    items = [(USER, 1), (ASSISTANT, 1), (USER, 1), *step(3, 1), (ASSISTANT, 1), (USER, 1), *step(7, 1)]
    assert planned(items, 99, max_messages=2).kept == (2, 3, 4, 5, 6, 7, 8)
    assert planned(items, 99, max_messages=1).kept == (5, 6, 7, 8)
    assert planned(items, 99, max_messages=0).kept == (6, 7, 8)
    assert planned(items, 99, max_messages=0).excluded[0] == (0, "over_limit")


def test_a_call_and_its_results_go_together() -> None:
    items = [(USER, 1), *step(1, 4, 4), (ASSISTANT, 2), (USER, 2)]
    chosen = planned(items, 10)
    assert chosen.kept == (4, 5)
    assert {index for index, _ in chosen.excluded} == {0, 1, 2, 3}


def test_a_result_without_its_call_is_out() -> None:
    chosen = planned([(Item("tool"), 1), (USER, 1), (Item("tool", 7), 1)], 99)
    assert chosen.kept == (1,)
    assert chosen.excluded == ((0, "orphan_tool"), (2, "orphan_tool"))


def test_the_oldest_steps_of_a_long_loop_are_cut_first() -> None:
    """History is dropped before steps are cut; question and newest step stay whole."""
    items = [(USER, 1), (USER, 3), *step(2, 9), *step(4, 9), *step(6, 9)]
    chosen = planned(items, 24)
    assert chosen.kept == (1, 2, 3, 4, 5, 6, 7)
    assert chosen.cuts == {3: 2, 5: 6}
    assert chosen.excluded == ((0, "over_budget"),)


def test_a_step_is_dropped_if_its_mark_does_not_fit() -> None:
    """A step whose mark does not fit is dropped, oldest first; with `whole_steps`, no step is cut."""
    items = [(USER, 3), *step(1, 9), *step(3, 9), *step(5, 9)]
    assert planned(items, 11).kept == (0, 3, 4, 5, 6)
    chosen = plan([item for item, _ in items], lambda n: Size(items[n][1], 1), 24, whole_steps=True)
    assert (chosen.kept, chosen.cuts) == ((0, 3, 4, 5, 6), {})


def test_a_newest_step_that_does_not_fit_raises_an_error_with_the_numbers() -> None:
    """A newest step that does not fit raises an error: without it the model would repeat its call."""
    with pytest.raises(BudgetTooSmall, match=r"need at least 3 tokens .* the rest at least 2, and the budget is 4"):
        planned([(USER, 3), *step(1, 9)], 4)


def test_big_results_of_the_newest_step_are_cut_to_one_level() -> None:
    chosen = planned([(USER, 3), *step(1, 100, 4, 60)], 30)
    assert chosen.kept == (0, 1, 2, 3, 4)
    assert chosen.cuts == {2: 11, 4: 11}
    assert chosen.tokens == 30


def test_a_newest_user_message_that_alone_is_too_big_is_cut() -> None:
    chosen = planned([(SYSTEM, 10), (ASSISTANT, 5), (USER, 100)], 50)
    assert chosen.kept == (0, 2)
    assert chosen.cuts == {2: 40}


def test_a_big_question_leaves_a_quarter_to_the_newest_step() -> None:
    """A huge question leaves a quarter of the budget to the newest step, so that the loop can end."""
    chosen = planned([(USER, 100), *step(1, 100)], 40)
    assert chosen.kept == (0, 1, 2)
    assert chosen.cuts == {0: 30, 2: 9}
    assert planned([(USER, 100), *step(1, 1)], 40).cuts == {0: 38}


def test_a_question_that_fits_is_not_cut_for_a_huge_step() -> None:
    chosen = planned([(USER, 30), *step(1, 100)], 40)
    assert chosen.cuts == {2: 9}


def test_system_messages_over_the_budget_are_an_error_with_the_numbers() -> None:
    with pytest.raises(BudgetTooSmall, match="have 11 tokens and the budget is 10: shorten the system prompt"):
        planned([(SYSTEM, 6), (SYSTEM, 5), (USER, 1)], 10)
    with pytest.raises(
        BudgetTooSmall, match="needs at least 2 tokens, the system messages have 9 and the budget is 10"
    ):
        planned([(SYSTEM, 9), (USER, 5)], 10)


def test_without_a_user_message_the_newest_is_the_turn() -> None:
    assert planned([(ASSISTANT, 3), (ASSISTANT, 50)], 10).cuts == {1: 10}
    assert planned([], 10) == Plan(kept=(), tokens=0)


def test_only_the_newest_messages_are_measured() -> None:
    measured: set[int] = set()

    def measure(index: int) -> Size:
        measured.add(index)
        return Size(1, 1)

    plan([USER] * 10_000, measure, 10)
    assert measured == set(range(9_989, 10_000))


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[Item, int]]:
    """Draw messages with tool loops, results without calls and system messages, of any sizes."""
    items: list[tuple[Item, int]] = []
    for kind in draw(st.lists(st.sampled_from(["system", "user", "assistant", "step", "orphan"]), max_size=10)):
        tokens = draw(st.integers(0, 40))
        if kind == "step":
            items += step(len(items), *draw(st.lists(st.integers(0, 60), min_size=1, max_size=3)))
        elif kind == "orphan":
            items.append((Item("tool"), tokens))
        else:
            items.append(({"system": SYSTEM, "user": USER, "assistant": ASSISTANT}[kind], tokens // 4))
    return items


@given(items=conversations(), budget=st.integers(0, 150), max_messages=st.none() | st.integers(0, 6))
def test_the_rules_hold_for_any_conversation(
    items: list[tuple[Item, int]], budget: int, max_messages: int | None
) -> None:
    """A plan keeps the budget, system messages, the newest question, groups and order.

    It accounts for each item once.
    """
    kinds = [item.kind for item, _ in items]
    try:
        chosen = planned(items, budget, max_messages=max_messages)
    except BudgetTooSmall:
        system = sum(tokens for item, tokens in items if item.kind == "system")
        assert system > budget - 2 - 7  # the least sizes of a question, and of a call with three results
        return
    tokens = sum(chosen.cuts.get(index, items[index][1]) for index in chosen.kept)
    assert tokens == chosen.tokens <= budget
    assert sorted([*chosen.kept, *(index for index, _ in chosen.excluded)]) == list(range(len(items)))
    system_first = [index for index, kind in enumerate(kinds) if kind == "system"]
    rest = list(chosen.kept[len(system_first) :])
    assert list(chosen.kept[: len(system_first)]) == system_first
    assert rest == sorted(rest)
    for index in rest:
        group = items[index][0].group
        mates = [other for other, (item, _) in enumerate(items) if group is not None and item.group == group]
        assert set(mates) <= set(rest)
        assert kinds[index] != "tool" or group in rest
    users = [index for index, kind in enumerate(kinds) if kind == "user"]
    assert not users or users[-1] in rest
    since = [index for index, kind in enumerate(kinds) if kind == "assistant" and index > max(users, default=-1)]
    assert not since or since[-1] in rest
    assert planned(items, budget, max_messages=max_messages) == chosen
