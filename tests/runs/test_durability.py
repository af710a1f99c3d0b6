"""How soon a run's progress is kept: by what it would cost to begin anew."""

from __future__ import annotations

import pytest
from langchain_core.tools import tool
from langgraph.types import Durability

from tests.runs.desk import RunDesk, asking_twice, carried_out
from threadkeep import not_idempotent
from threadkeep.graphs.built_in import chat_workflow
from threadkeep.graphs.definition import Workflow
from threadkeep.graphs.loading import read_workflow
from threadkeep.runs.durability import durability_of, keeps_each_step
from threadkeep.runs.requests import RunRequest

_GREETING = """\
schema: 1
name: greeting
nodes:
  hello: {kind: template, text: Hello, next: answer}
  answer: {kind: agent, next: end}
"""
_TWO_MODELS = _GREETING.replace("{kind: template, text: Hello,", "{kind: model, answers: false,")
_WITH_A_TOOL = _GREETING.replace("agent,", "agent, tools: ['tests.graphs.tools:find_order'],")


@not_idempotent
@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


_WITH_A_PAYMENT = chat_workflow(tools=[pay])


@pytest.mark.parametrize(
    ("workflow", "expected", "each_step"),
    [
        (chat_workflow(), "exit", False),
        (read_workflow(_GREETING), "exit", False),
        (read_workflow(_TWO_MODELS), "async", False),
        (read_workflow(_WITH_A_TOOL), "async", False),
        (_WITH_A_PAYMENT, "sync", False),
        (asking_twice(), "sync", True),
    ],
)
def test_progress_is_kept_where_it_is_worth_something(
    workflow: Workflow, expected: Durability, each_step: bool
) -> None:
    """One model call begins anew at its own cost; what may not run twice are marked tools, and code of others."""
    assert (durability_of(workflow), keeps_each_step(workflow)) == (expected, each_step)


async def test_a_run_that_failed_before_it_kept_anything_goes_on(desk: RunDesk) -> None:
    """Its question is stored once, and so is the answer of the second try."""
    desk.model = type(desk.model)([ConnectionError("away"), "back"])
    async with desk.open(_GREETING) as service:
        result = await carried_out(service, RunRequest(workflow="greeting", text="hi", session_id="room"))
    assert (result.status, result.text) == ("done", "back")
    assert await desk.transcript("room") == [("user", "hi"), ("assistant", "back")]
