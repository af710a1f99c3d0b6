"""Tests of when a run stores checkpoints: the more a repetition would cost, the earlier."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import Durability

from tests.runs.desk import QUICK, RunDesk, asking_twice, carried_out
from threadkeep import not_idempotent
from threadkeep.runs.endings import ActiveRun
from threadkeep.runs.progress import thread_of
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.worker import Worker
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.built_in import chat_workflow
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.loading import read_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

_GREETING = """\
schema: 1
name: greeting
nodes:
  hello: {kind: template, text: Hello, next: answer}
  answer: {kind: agent, next: end}
"""
_TWO_MODELS = _GREETING.replace("{kind: template, text: Hello,", "{kind: model, answers: false,")
_WITH_A_TOOL = _GREETING.replace("agent,", "agent, tools: ['tests.workflows.tools:find_order'],")


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
def test_durability_depends_on_the_nodes(workflow: Workflow, expected: Durability, each_step: bool) -> None:
    """One model call may be repeated. Calls of marked tools and of other people's code must not be."""
    assert (workflow.durability, workflow.keeps_each_step) == (expected, each_step)


def with_own_steps(look: Any) -> Workflow:
    """Return a workflow with two custom steps, an agent, and one more custom step."""
    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    answer: Any = AgentNode()
    builder.add_sequence([("first", look), ("second", look), ("answer", answer), ("last", look)])
    builder.add_edge(START, "first")
    return python_workflow("own", builder)


async def test_a_custom_step_finds_each_step_before_it_stored(desk: RunDesk) -> None:
    """A custom step finds the checkpoints of all steps before it stored.

    Steps inside the built-in nodes may be stored later.
    """
    kept: list[set[int]] = []

    async def look(state: WorkflowState, config: RunnableConfig) -> WorkflowState:
        place = thread_of(config["configurable"]["thread_id"])
        stored = [
            one async for one in desk.saver.alist({"configurable": {**place["configurable"], "checkpoint_ns": ""}})
        ]
        kept.append({one.metadata["step"] for one in stored} - {-1})
        return {}

    workflow = with_own_steps(look)
    async with desk.open(workflow, options=replace(QUICK, progress_seconds=3600.0)) as service:
        assert (await carried_out(service, RunRequest(workflow="own", text="go", session_id="room"))).status == "done"
    assert kept == [{0}, {0, 1}, {0, 1, 2, 3}]
    beside = workflow.is_stored_in_background
    assert (beside(""), beside("first:1"), beside("answer:1|tools:2")) == (False, False, True)
    assert _WITH_A_PAYMENT.is_stored_in_background("")


def test_what_is_known_of_a_workflow_does_not_keep_it_alive() -> None:
    """A process may replace its workflows often, for example a development server."""
    workflow = read_workflow(_GREETING)
    known = weakref.ref(workflow)
    assert (workflow.durability, workflow.speaker, workflow.known_conversations) == ("exit", None, ())
    assert workflow.is_stored_in_background("")
    del workflow
    gc.collect()
    assert known() is None


async def test_a_marked_tool_waits_until_the_lease_is_renewed(desk: RunDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage, a run may reach its tool before the process has renewed its lease."""
    holds, calls = Worker.holds, count(1)
    monkeypatch.setattr(Worker, "holds", lambda worker, run_id: next(calls) > 10 and holds(worker, run_id))
    call = AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": 7}, "id": "c1"}])
    desk.model = ScriptedModel([call, "well"])
    async with desk.open(replace(_WITH_A_PAYMENT, name="till")) as service:
        result = await carried_out(service, RunRequest(workflow="till", text="go", session_id="room"))
    assert (result.run.error, result.text) == (None, "well")


async def test_an_ended_run_is_freed_at_once(desk: RunDesk) -> None:
    """No cycle of references keeps a run in memory until the garbage collector runs."""
    async with desk.open() as service:
        gc.disable()
        try:
            requests = [RunRequest(workflow="chat", text=f"go {number}", session_id="room") for number in range(3)]
            first, second, _ = [(await carried_out(service, request)).run.run_id for request in requests]
            left = {one.run.run_id for one in gc.get_objects() if isinstance(one, ActiveRun)}
            assert not left & {first, second}
        finally:
            gc.enable()


async def test_a_run_that_failed_before_its_first_checkpoint_is_retried(desk: RunDesk) -> None:
    """A retry without a stored checkpoint stores the user message and the answer once."""
    desk.model = type(desk.model)([ConnectionError("away"), "back"])
    async with desk.open(_GREETING) as service:
        result = await carried_out(service, RunRequest(workflow="greeting", text="hi", session_id="room"))
    assert (result.status, result.text) == ("done", "back")
    assert await desk.transcript("room") == [("user", "hi"), ("assistant", "back")]
