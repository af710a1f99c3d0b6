"""Tests of the budgets of runs, and of tools that must not run twice."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from tests.limits import HANG_SECONDS
from tests.runs.desk import LEAVING, QUICK, RunDesk, carried_out
from threadkeep.errors import BudgetSpent, InvalidInput, RunNotFound
from threadkeep.observe import BudgetCrossed
from threadkeep.records.runs import RunBudget
from threadkeep.runs.options import read_prices
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.resources import RunContext, is_idempotent, not_idempotent
from threadkeep.workflows.state import WorkflowState

STEPS = """\
schema: 1
name: %s
options: {%s}
nodes:
  first: {kind: model, answers: false, next: second}
  second: {kind: %s, next: end}
"""
MANY = AIMessage("many", usage_metadata={"input_tokens": 60, "output_tokens": 40, "total_tokens": 100})
PAID: list[str] = []


@not_idempotent
@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(str(amount))
    if amount == 13:
        raise TimeoutError
    return f"paid {amount}"


@not_idempotent
@tool
def pay_when_sure(amount: int) -> str:
    """Pay an amount when a person is sure."""
    sure = interrupt("sure?")
    PAID.append(f"{amount} {sure}")
    return f"paid {amount}"


@tool
def leave(amount: int) -> str:
    """Exit with a code."""
    sys.exit(amount)


async def leaving_node(state: WorkflowState) -> WorkflowState:
    """Exit the process from a coroutine."""
    sys.exit(3)


def leaving_blocking_node(state: WorkflowState) -> WorkflowState:
    """Exit the process from a thread."""
    sys.exit(3)


def exiting(node: Any) -> Workflow:
    """Return a workflow with one node, which exits."""
    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    builder.add_node("leave", node)
    builder.add_edge(START, "leave")
    return python_workflow("till", builder)


def paying(*tools: BaseTool) -> Workflow:
    """Return a workflow whose agent has tools that pay."""
    builder: StateGraph[WorkflowState, RunContext, WorkflowState, WorkflowState] = StateGraph(
        WorkflowState, context_schema=RunContext
    )
    node: object = AgentNode(tools=tools or (pay, pay_when_sure))
    builder.add_node("till", node)  # type: ignore[call-overload]
    builder.add_edge(START, "till")
    return python_workflow("till", builder)


def marked_in_its_metadata(marked: BaseTool) -> BaseTool:
    """Mark a tool that must not run twice without `not_idempotent`."""
    marked.metadata = {"idempotent": False}
    return marked


class StartedCalls(AsyncCallbackHandler):
    """A callback that counts the model calls that begin or are refused."""

    def __init__(self) -> None:
        self.count = 0

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Count a call."""
        self.count += 1


def calling(name: str, amount: int) -> AIMessage:
    """Return a model answer that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": {"amount": amount}, "id": "c1"}])


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    """Clear the list of payments before each test."""
    PAID.clear()


@pytest.mark.parametrize(
    ("limit", "budget", "calls"),
    [
        ("max_tokens: 100", RunBudget(), 1),
        ("max_tokens: 1000", RunBudget(max_tokens=100), 1),
        ("max_cost: 1", RunBudget(max_cost=1.5), 1),
        ("max_cost: 1", RunBudget(max_tokens=101), 1),
        ("max_tokens: 101", RunBudget(max_cost=200), 2),
    ],
)
async def test_a_run_stops_at_its_budget(every_desk: RunDesk, limit: str, budget: RunBudget, calls: int) -> None:
    """The tighter of the workflow's and the request's budget applies, and no model call is made beyond it.

    Other callbacks, such as tracers, also see the start of the call that is refused.
    """
    every_desk.model, started = ScriptedModel([MANY, MANY]), StartedCalls()
    every_desk.model.callbacks = [started]
    options = replace(QUICK, prices=read_prices(["unnamed=20000/0"]))
    async with every_desk.open(STEPS % ("costly", limit, "model"), options=options) as service:
        result = await carried_out(service, RunRequest(workflow="costly", text="go", budget=budget))
        [usage] = await service.usage(result.run.run_id)
    assert (result.status, result.run.error) == (("done", None) if calls == 2 else ("failed", "BudgetSpent"))
    assert (len(every_desk.model.calls), usage.tokens, usage.cost) == (calls, 100 * calls, 1.2 * calls)
    assert started.count == 2


@pytest.mark.parametrize(("limit", "crossed"), [(150, True), (199, True), (200, False), (201, False), (None, False)])
async def test_a_budget_that_the_last_call_crossed_is_reported(
    every_desk: RunDesk, limit: int | None, crossed: bool
) -> None:
    """A run whose last call exceeds the budget is done; the trace and an event report the numbers."""
    every_desk.model = ScriptedModel([MANY, MANY])
    async with every_desk.open(STEPS % ("costly", "", "model")) as service:
        request = RunRequest(workflow="costly", text="go", budget=RunBudget(max_tokens=limit))
        result = await carried_out(service, request)
        told = [event.data for event in await service.trace(result.run.run_id) if event.kind == "budget_crossed"]
    assert (result.status, result.text) == ("done", "many")
    numbers = {"run_id": result.run.run_id, "limit": "max_tokens", "used": 200, "allowed": limit}
    assert told == ([numbers] if crossed else [])
    events = [(event.limit, event.used, event.allowed) for event in every_desk.events.of(BudgetCrossed)]
    assert events == ([("max_tokens", 200, limit)] if crossed else [])


async def test_a_budget_counts_estimates_where_nothing_is_reported(desk: RunDesk) -> None:
    """Estimated usage counts against the budget; the trace and the error mark it as estimated."""
    silent: Any = FakeListChatModel(responses=["many words", "more"])
    desk.model = silent
    async with desk.open(STEPS % ("costly", "max_tokens: 1", "model")) as service:
        result = await carried_out(service, RunRequest(workflow="costly", text="go"))
        [usage] = await service.usage(result.run.run_id)
        calls = [event.data for event in await service.trace(result.run.run_id) if event.kind == "model_called"]
    assert (result.run.error, usage.estimated) == ("BudgetSpent", True)
    assert [call["estimated"] for call in calls] == [True]
    spent = BudgetSpent("r", limit="max_tokens", used=usage.tokens, allowed=1, estimated=True)
    assert f"has used about {usage.tokens} of 1 (max_tokens)" in str(spent)


async def test_a_cost_is_limited_only_where_something_has_a_price(desk: RunDesk) -> None:
    async with desk.open(STEPS % ("costly", "", "model")) as service:
        with pytest.raises(InvalidInput, match="THREADKEEP_PRICES"):
            await service.submit(RunRequest(workflow="costly", text="go", budget=RunBudget(max_cost=1)))


async def test_a_child_spends_the_budget_of_its_parent(desk: RunDesk) -> None:
    """The calls of a child count once against the budget of its parent.

    The parent fails with `BudgetSpent`, not with `ChildFailed`.
    """
    child = STEPS % ("helper", "", "model")
    parent = (STEPS % ("costly", "max_tokens: 250", "subworkflow")).replace("next: end", "workflow: helper, next: end")
    desk.model = ScriptedModel([MANY, MANY, MANY, MANY])
    async with desk.open(child, parent) as service:
        result = await carried_out(service, RunRequest(workflow="costly", text="go"))
        assert (result.status, result.run.error) == ("done", None)
        parent = parent.replace("250", "200").replace("costly", "poor")
    async with desk.open(child, parent) as service:
        desk.model = ScriptedModel([MANY, MANY, MANY, MANY])
        result = await carried_out(service, RunRequest(workflow="poor", text="go"))
        _, below = await service.tree(result.run.run_id)
    assert (result.status, result.run.error, below.error) == ("failed", "BudgetSpent", "BudgetSpent")


async def test_a_run_that_used_up_its_budget_is_retried_with_a_larger_one(every_desk: RunDesk) -> None:
    """The budget of a retry replaces the workflow's limit, and earlier usage still counts against it."""
    every_desk.model = ScriptedModel([MANY, MANY])
    async with every_desk.open(STEPS % ("costly", "max_tokens: 100, max_cost: 9", "model")) as service:
        run_id = (await carried_out(service, RunRequest(workflow="costly", text="go"))).run.run_id
        await service.retry(run_id)
        assert (await service.result(run_id)).run.error == "BudgetSpent"
        await service.retry(run_id, budget=RunBudget(max_tokens=101))
        result = await service.result(run_id)
        [usage] = await service.usage(run_id)
    assert (result.status, result.run.budget, usage.tokens) == ("done", RunBudget(101, 9), 200)


async def test_a_retried_child_has_the_current_limit_of_its_workflow(desk: RunDesk) -> None:
    parent = (STEPS % ("costly", "", "subworkflow")).replace("next: end", "workflow: helper, next: end")
    desk.model = ScriptedModel([MANY, MANY, MANY])
    async with desk.open(STEPS % ("helper", "max_tokens: 100", "model"), parent) as service:
        run_id = (await carried_out(service, RunRequest(workflow="costly", text="go"))).run.run_id
    async with desk.open(STEPS % ("helper", "max_tokens: 1000", "model"), parent) as service:
        await service.retry(run_id)
        assert (await service.result(run_id)).status == "done"


def test_not_idempotent_marks_a_tool_or_its_function() -> None:
    @not_idempotent
    def function(text: str) -> str:
        """Do something."""
        return text

    @tool
    def harmless(text: str) -> str:
        """Do something."""
        return text

    assert [is_idempotent(one) for one in (pay, tool(function), harmless)] == [False, False, True]
    assert not is_idempotent(marked_in_its_metadata(harmless))


@pytest.mark.parametrize(("answer", "paid"), [("again", 2), ("skip", 1), ("13 went out", 1)])
async def test_a_tool_is_not_run_twice_without_a_person(every_desk: RunDesk, answer: str, paid: int) -> None:
    """A run asks a person before it repeats a tool call whose result is unknown, and does what the person answers."""
    every_desk.model = ScriptedModel([calling("pay", 13), "thank you"])
    async with every_desk.open(paying()) as service:
        asked = await carried_out(service, RunRequest(workflow="till", text="pay", session_id="room"))
        assert (asked.status, PAID) == ("waiting", ["13"])
        [question] = asked.interrupts
        assert question["value"] == {
            "kind": "tool_begun_before",
            "tool": "pay",
            "args": {"amount": 13},
            "answers": ["again", "skip", "what it gave"],
        }
        await service.resume(asked.run.run_id, answer)
        result = await service.result(asked.run.run_id)
        if answer == "again":
            assert result.status == "waiting"
            await service.resume(result.run.run_id, "skip")
            result = await service.result(asked.run.run_id)
    assert (result.text, len(PAID)) == ("thank you", paid)
    told = str(every_desk.model.calls[-1][-1].text)
    assert told == answer if answer.startswith("13") else told.startswith("This tool call was started before")


async def test_checkpoints_are_stored_before_a_tool_call(desk: RunDesk) -> None:
    stored: list[CheckpointTuple | None] = []

    @not_idempotent
    @tool
    async def pay_by_card(amount: int, config: RunnableConfig) -> str:
        """Pay an amount."""
        thread = config["configurable"]["thread_id"]
        for place, checkpoint in config["configurable"]["checkpoint_map"].items():
            named = {"thread_id": thread, "checkpoint_ns": place, "checkpoint_id": checkpoint}
            stored.append(await desk.saver.aget_tuple({"configurable": named}))
        return f"paid {amount}"

    desk.model = ScriptedModel([calling("pay_by_card", 7), "thank you"])
    async with desk.open(paying(pay_by_card), options=replace(QUICK, progress_seconds=3600.0)) as service:
        result = await carried_out(service, RunRequest(workflow="till", text="pay", session_id="room"))
    assert result.text == "thank you"
    assert [one is not None and len(one.checkpoint["channel_values"]["messages"]) for one in stored] == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("node", [leaving_node, leaving_blocking_node, AgentNode(tools=(leave,))])
async def test_a_node_that_exits_ends_its_run_only(desk: RunDesk, node: object, stream: bool) -> None:
    desk.model = ScriptedModel([calling("leave", 4), calling("leave", 4)])
    async with desk.open(exiting(node)) as service:
        for _ in range(2):
            request = RunRequest(workflow="till", text="go", session_id="room", stream=stream)
            result = await carried_out(service, request)
            assert (result.status, result.run.error) == ("failed", "ExitRequested")


async def test_a_tool_that_asks_a_person_itself(desk: RunDesk) -> None:
    """A tool that interrupts runs once, after its answer, and the run asks no question of its own."""
    desk.model = ScriptedModel([calling("pay_when_sure", 7), "thank you"])
    async with desk.open(paying()) as service:
        asked = await carried_out(service, RunRequest(workflow="till", text="pay", session_id="room"))
        assert [one["value"] for one in asked.interrupts] == ["sure?"]
        await service.resume(asked.run.run_id, "yes")
        assert (await service.result(asked.run.run_id)).text == "thank you"
    assert PAID == ["7 yes"]


@pytest.mark.parametrize("marked", [not_idempotent, marked_in_its_metadata])
async def test_a_finished_tool_call_is_not_repeated(
    every_desk: RunDesk, marked: Callable[[BaseTool], BaseTool]
) -> None:
    """The next service does not repeat a finished tool call, even if the checkpoints after the call are lost."""
    begun: list[InMemorySaver] = []

    @marked
    @tool
    def pay_at_once(amount: int) -> str:
        """Pay an amount."""
        PAID.append(str(amount))
        begun.append(copy.deepcopy(saver))
        return f"paid {amount}"

    saver, gate = InMemorySaver(), Gate()
    every_desk.saver, every_desk.model = saver, ScriptedModel([calling("pay_at_once", 5), [gate, "never"]])
    async with every_desk.open(paying(pay_at_once), options=LEAVING) as service:
        run = await service.submit(RunRequest(workflow="till", text="pay", session_id="room"))
        await gate.reached()
    [every_desk.saver], every_desk.model = begun, ScriptedModel(["thank you"])
    async with every_desk.open(paying(pay_at_once)) as service:
        result = await service.result(run.run_id)
    assert (result.text, PAID) == ("thank you", ["5"])
    assert every_desk.model.calls[0][-1].text == "paid 5"


async def test_a_deleted_run_calls_no_tool(desk: RunDesk) -> None:
    """A run that was deleted with its session does not call a tool that must not run twice."""
    gate = Gate()
    desk.model = ScriptedModel([[gate, calling("pay", 9)], "thank you"])
    async with (
        desk.open(paying(), options=replace(QUICK, watch_seconds=3600.0, trace_seconds=3600.0)) as service,
        asyncio.timeout(HANG_SECONDS),
    ):
        run = await service.submit(RunRequest(workflow="till", text="pay", session_id="room"))
        await gate.reached()
        await desk.memory.session("room").delete()
        gate.open()
        with pytest.raises(RunNotFound):
            await service.result(run.run_id)
    assert PAID == []
