"""Tests of `ContextPlan`: sections, shares, and the order in which sections yield."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.manifest import Section
from threadkeep.context.plan import EXTRAS, ContextPlan
from threadkeep.errors import InvalidInput


def test_a_plan_has_the_order_of_sections() -> None:
    """By default facts precede the window, and sections that depend on the input follow it."""
    plan = ContextPlan()
    assert plan.order[0] == "system"
    assert plan.extras_before_window == ("facts",)
    assert plan.extras_before_input == ("snippets", "selected")
    assert plan.extras_after_input == ()
    assert plan.most("summary", 4_000) == 1_000


def test_the_order_of_extras_is_the_callers_to_choose() -> None:
    order: tuple[Section, ...] = ("system", "facts", "summary", "window", "snippets", "input", "selected")
    plan = ContextPlan(order=order)
    assert plan.extras_before_window == ("facts",)
    assert plan.extras_before_input == ("snippets",)
    assert plan.extras_after_input == ("selected",)


def test_extras_get_at_most_their_shares() -> None:
    plan = ContextPlan()
    assert plan.rooms(4_000, 500, EXTRAS) == {"facts": 400, "snippets": 800, "selected": 1_300}
    assert plan.rooms(4_000, 500, ["selected"]) == {"selected": 2_500}
    assert plan.rooms(40_000, 500, ["selected"], shared=16_000) == {"selected": 4_000}
    assert plan.rooms(4_000, 500, []) == {}


def test_the_window_keeps_half_if_the_newest_messages_are_long() -> None:
    plan = ContextPlan()
    assert plan.rooms(4_000, 500, ["selected"], newest=1_000) == {"selected": 2_500}
    assert plan.rooms(4_000, 500, ["selected"], newest=1_001) == {"selected": 1_500}


def test_extras_yield_in_their_order() -> None:
    """The window's share is reserved first, then sections get room in the reverse order of `yields`."""
    plan = ContextPlan()
    assert plan.rooms(4_000, 1_800, EXTRAS) == {"facts": 400, "snippets": 800, "selected": 0}
    assert plan.rooms(4_000, 2_700, EXTRAS) == {"facts": 300, "snippets": 0, "selected": 0}
    assert plan.rooms(4_000, 3_900, EXTRAS) == {"facts": 0, "snippets": 0, "selected": 0}
    turned = ContextPlan(yields=("facts", "snippets", "selected"))
    assert turned.rooms(4_000, 2_500, EXTRAS) == {"selected": 500, "snippets": 0, "facts": 0}


def test_shares_that_are_not_given_stay() -> None:
    plan = ContextPlan(shares={"selected": 0.5})
    assert plan.shares["selected"] == 0.5
    assert plan.shares["summary"] == ContextPlan().shares["summary"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"order": ("system", "window", "input")}, "order must name each of these sections once"),
        (
            {"order": ("summary", "system", "window", "input", "facts", "snippets", "selected")},
            "order must name each of these sections once, system first",
        ),
        (
            {"order": ("system", "window", "summary", "input", "facts", "snippets", "selected")},
            "the summary must come before the window",
        ),
        ({"yields": ("facts",)}, "yields must name each of these sections once"),
        ({"shares": {"input": 0.5}}, "input has no share"),
        ({"shares": {"facts": 1.5}}, "from 0 to 1"),
        ({"shares": {"facts": float("nan")}}, "from 0 to 1"),
        ({"window": "rolling"}, "'anchored' or 'sliding'"),
        ({"step": 0.0}, "between 0 and 1"),
        ({"step": 1.0}, "between 0 and 1"),
    ],
)
def test_a_plan_that_cannot_be_laid_out_is_refused(given: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ContextPlan(**given)


@given(
    budget=st.integers(0, 200_000),
    fixed=st.integers(0, 200_000),
    wanted=st.sets(st.sampled_from(EXTRAS)),
    yields=st.permutations(EXTRAS),
    shares=st.fixed_dictionaries({section: st.floats(0, 1) for section in (*EXTRAS, "window")}),
)
def test_sections_never_take_the_share_of_the_window(
    budget: int, fixed: int, wanted: set[Section], yields: list[Section], shares: dict[Section, float]
) -> None:
    """Sections stay within the remaining budget and their shares, and a later one in `yields` is served first."""
    plan = ContextPlan(yields=tuple(yields), shares=shares)
    rooms = plan.rooms(budget, fixed, wanted)
    assert set(rooms) == wanted
    left = budget - fixed - int(plan.shares["window"] * budget)
    assert sum(rooms.values()) <= max(left, 0)
    assert all(0 <= room <= int(plan.shares[section] * budget) for section, room in rooms.items())
    served = [section for section in reversed(yields) if section in wanted]
    short = [section for section in served if rooms[section] < int(plan.shares[section] * budget)]
    assert all(rooms[section] == 0 for section in served[served.index(short[0]) + 1 :]) if short else True
