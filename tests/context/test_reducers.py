"""Tests of bounding a run's messages by kinds and lengths alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.agent.reducers import Bounded, TrimReport, bound
from threadkeep.context.cut import CUT_MARK, middle_mark
from threadkeep.context.trim import Item

SYSTEM, USER, ASSISTANT = Item("system"), Item("user"), Item("assistant")


def bounded(
    items: Sequence[Item], lengths: Sequence[int], max_messages: int = 100, max_chars: int = 0
) -> tuple[tuple[int, ...], TrimReport]:
    """Return the indexes of the kept items, and the report."""
    chosen = bound(items, lengths, max_messages=max_messages, max_chars=max_chars)
    return chosen.kept, chosen.report


def test_characters_go_first_and_are_not_counted_twice() -> None:
    kept, report = bounded([USER, ASSISTANT] * 2 + [USER], [10] * 5, max_messages=2, max_chars=35)
    assert kept == (3, 4)
    assert report == TrimReport(before=5, after=2, trimmed_by_chars=20, trimmed_by_count=1)


def test_system_messages_are_kept_over_the_limit() -> None:
    kept, report = bounded([USER, SYSTEM, ASSISTANT, SYSTEM, USER], [1] * 5, max_messages=1)
    assert kept == (1, 3, 4)
    assert report.trimmed_by_count == 2


def test_the_newest_user_message_stays_before_many_answers() -> None:
    kept, _ = bounded([USER, USER, *[ASSISTANT] * 5], [1] * 7, max_messages=3)
    assert kept == (1, 5, 6)


def test_an_empty_memory_is_empty() -> None:
    assert bounded([], [], 8, 8000) == ((), TrimReport(0, 0, 0, 0))


def test_a_result_without_its_call_is_a_message_like_others() -> None:
    assert bounded([USER, Item("tool"), USER], [1, 1, 1], max_messages=2)[0] == (1, 2)


@pytest.mark.parametrize(("max_messages", "expected"), [(-7, 1), (0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_message_limit_below_one_keeps_one(max_messages: int, expected: int) -> None:
    kept, report = bounded([USER, ASSISTANT, USER], [1, 1, 1], max_messages)
    assert len(kept) == expected
    assert report.trimmed_by_count == 3 - expected


@st.composite
def memories(draw: st.DrawFn) -> tuple[list[Item], list[int]]:
    """Draw kinds and lengths of a run's messages with tool loops."""
    items: list[Item] = []
    for kind in draw(st.lists(st.sampled_from(["system", "user", "assistant", "orphan", "step"]), max_size=10)):
        leader = len(items)
        if kind == "step":
            items += [Item("assistant", leader), *[Item("tool", leader)] * draw(st.integers(1, 3))]
        else:
            items.append({"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "orphan": Item("tool")}[kind])
    return items, [draw(st.sampled_from([0, 1, 9, 40, 300])) for _ in items]


def lengths_left(chosen: Bounded, lengths: Sequence[int]) -> int:
    """Return the number of characters of the kept items."""
    return sum(chosen.cuts.get(index, lengths[index]) for index in chosen.kept)


@given(memory=memories(), max_messages=st.integers(-1, 12), max_chars=st.integers(0, 400))
def test_the_rules_hold_for_any_memory(memory: tuple[list[Item], list[int]], max_messages: int, max_chars: int) -> None:
    """System messages, the newest user message and whole groups are kept within the limits, deterministically."""
    items, lengths = memory
    chosen = bound(items, lengths, max_messages=max_messages, max_chars=max_chars)
    assert chosen == bound(items, lengths, max_messages=max_messages, max_chars=max_chars)
    kept = set(chosen.kept)
    assert list(chosen.kept) == sorted(kept)
    system = {index for index, item in enumerate(items) if item.kind == "system"}
    users = [index for index, item in enumerate(items) if item.kind == "user"]
    assert system <= kept
    assert set(users[-1:]) <= kept
    for leader in {item.group for item in items if item.group is not None}:
        group = {index for index, item in enumerate(items) if item.group == leader}
        assert group <= kept or not group & kept
    assert not system & set(chosen.cuts)
    assert all(chosen.cuts[index] < lengths[index] for index in chosen.cuts)
    pinned = len(system) + len(users[-1:])
    newest = max((item.group for item in items if item.group is not None), default=None)
    loop = [index for index, item in enumerate(items) if newest is not None and item.group == newest]
    assert len(kept) <= max(max_messages, 1, pinned + len(loop))
    smallest = sum(lengths[index] for index in system) + len(CUT_MARK)
    if max_chars >= smallest:
        assert lengths_left(chosen, lengths) <= max_chars


@given(memory=memories(), max_messages=st.integers(1, 12), max_chars=st.integers(0, 400))
def test_dropped_items_are_older_than_kept_ones(
    memory: tuple[list[Item], list[int]], max_messages: int, max_chars: int
) -> None:
    items, lengths = memory
    chosen = bound(items, lengths, max_messages=max_messages, max_chars=max_chars)
    newest_user = max((index for index, item in enumerate(items) if item.kind == "user"), default=None)
    loose = [index for index, item in enumerate(items) if item.kind != "system" and index != newest_user]
    stayed = [index in chosen.kept for index in loose]
    assert stayed == sorted(stayed)


@given(memory=memories(), max_messages=st.integers(1, 12), max_chars=st.integers(0, 400))
def test_the_report_adds_up(memory: tuple[list[Item], list[int]], max_messages: int, max_chars: int) -> None:
    items, lengths = memory
    unlimited = bound(items, lengths, max_messages=len(items) + 1, max_chars=max_chars)
    chosen = bound(items, lengths, max_messages=max_messages, max_chars=max_chars)
    assert chosen.report.before == len(items)
    assert chosen.report.after == len(chosen.kept)
    assert chosen.report.trimmed_by_chars == unlimited.report.trimmed_by_chars
    assert chosen.report.trimmed_by_chars == sum(lengths) - lengths_left(unlimited, lengths)
    assert chosen.report.trimmed_by_count == len(unlimited.kept) - len(chosen.kept)


def test_a_tool_result_may_be_cut_to_its_mark() -> None:
    """A result is cut down to its mark, because its call cannot be cut."""
    items = [USER, Item("assistant", 1), Item("tool", 1)]
    chosen = bound(items, [5, 0, 1000], max_messages=8, max_chars=100)
    assert chosen.kept == (0, 1, 2)
    assert len(middle_mark(1000)) <= chosen.cuts[2] <= 95
