"""Tests of sharing a turn's budget among its steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.trim import Size, Step, least_of, shares, whole_of


def steps_of(*results: int) -> list[Step]:
    """Return steps of a call with ten tokens and a result that can be cut to ten."""
    return [[Size(10, 10), Size(tokens, min(tokens, 10))] for tokens in results]


def test_steps_that_fit_are_whole() -> None:
    assert shares([], steps_of(20, 30, 40), 120) == [30, 40, 50]
    assert shares([], [], 120) == []


def test_the_newest_step_is_whole_and_the_oldest_is_cut() -> None:
    """The oldest step is cut to half of the budget at once, so that later steps fit."""
    assert shares([], steps_of(900), 1_000) == [910]
    assert shares([], steps_of(5_000), 1_000) == [1_000]
    assert shares([], steps_of(5_000, 20), 1_000) == [500, 30]
    assert shares([], steps_of(5_000, *[20] * 16), 1_000) == [500, *[30] * 16]
    assert shares([], steps_of(5_000, *[20] * 17), 1_000)[0] == 20


def test_a_huge_result_leaves_a_quarter_to_the_older_ones() -> None:
    assert shares([], steps_of(100, 90, 5_000), 1_000) == [110, 100, 790]
    assert shares([], steps_of(400, 5_000), 1_000) == [250, 750]
    assert shares([], steps_of(100, 90, 5_000, 20), 1_000) == [110, 100, 290, 30]


def test_a_question_in_parts_is_cut_after_the_older_steps() -> None:
    parts: list[Step] = [[Size(100, 5)]]
    assert shares(parts, steps_of(400, 600), 1_000) == [100, 290, 610]
    assert shares([[Size(400, 5)]], steps_of(300, 600), 1_000) == [255, 135, 610]
    assert shares([[Size(400, 5)]], [], 300) == [300]


def test_the_oldest_step_is_dropped_if_its_mark_does_not_fit() -> None:
    """The oldest step is dropped if its mark does not fit, even if the question cannot be cut."""
    assert shares([], steps_of(*[500] * 4), 100) == [20, 20, 20, 40]
    assert shares([], steps_of(*[500] * 5), 100) == [None, 20, 20, 20, 40]
    assert shares([[Size(90, 90)]], steps_of(500), 100) == [None, 100]


sizes = st.builds(lambda tokens, least: Size(tokens, min(tokens, least)), st.integers(0, 900), st.integers(0, 40))
groups: st.SearchStrategy[Step] = st.lists(sizes, min_size=1, max_size=3)


@given(parts=st.lists(groups, max_size=2), steps=st.lists(groups, min_size=1, max_size=12), room=st.integers(1, 3_000))
def test_any_steps_share_any_room(parts: Sequence[Step], steps: Sequence[Step], room: int) -> None:
    """Shares are within the budget and each step's sizes; only the oldest steps are dropped.

    A new step makes no older one longer.
    """
    if least_of(steps[-1]) > room:
        return
    granted = shares(parts, steps, room)
    assert sum(tokens or 0 for tokens in granted) <= room
    everything = [*parts, *steps]
    for step, tokens in zip(everything, granted, strict=True):
        assert tokens is None or least_of(step) <= tokens <= whole_of(step)
    for side in (granted[: len(parts)], granted[len(parts) :]):
        assert all(before is None or after is not None for before, after in itertools.pairwise(side))
    if sum(map(whole_of, everything)) <= room:
        assert granted == [whole_of(step) for step in everything]
    if len(steps) > 1 and least_of(steps[-2]) <= room:
        before = shares(parts, steps[:-1], room)
        if None not in (*before, *granted):
            assert all((now or 0) <= (then or 0) for then, now in zip(before, granted, strict=False))
