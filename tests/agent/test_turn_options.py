"""Tests of invalid options, which raise an error when an agent is built."""

from __future__ import annotations

from typing import Any

import pytest

from threadkeep import BudgetTooSmall, InvalidInput, Memory, MemoryOptions, SessionMemory
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.plan import ContextPlan


@pytest.mark.parametrize("limits", [(-1, 4_000), (20, -5), (True, None), (2.5, None), (20, "many")])
async def test_invalid_limits_are_refused(sqlite_memory: Memory, limits: tuple[int, int]) -> None:
    most_messages, most_tokens = limits
    with pytest.raises(InvalidInput, match=r"max_(messages|tokens) must be a whole number from 0"):
        SessionMemory(sqlite_memory, max_messages=most_messages, max_tokens=most_tokens)


def test_a_window_without_room_for_a_prompt_is_refused() -> None:
    with pytest.raises(BudgetTooSmall, match=r"4000 tokens, less 4000 for the reply and 512"):
        TurnOptions(context_window=4_000, max_output_tokens=4_000)


@pytest.mark.parametrize("share", ["half", float("nan"), True, 1.5, -0.1, None])
def test_invalid_shares_and_steps_are_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        ContextPlan(shares={"window": share})
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        ContextPlan(step=share)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"plan": 5}, "plan"),
        ({"sources": [5]}, "sources"),
        ({"compression": "abc"}, "compression"),
        ({"counter": 5}, "counter"),
        ({"window": "sideways"}, "window"),
    ],
)
def test_options_of_a_wrong_type_are_refused(sqlite_memory: Memory, options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        SessionMemory(sqlite_memory, **options)


@pytest.mark.parametrize(("name", "value"), [("counter", 5), ("clock", "noon"), ("transcripts", "table")])
def test_memory_options_of_a_wrong_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        MemoryOptions(**{name: value})
