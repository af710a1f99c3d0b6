"""Runs that are cut off: what was asked is in the session, and what was said stands before the next turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langgraph.graph import START, StateGraph

from tests.runs.desk import LEAVING, RunDesk, carried_out
from threadkeep.errors import RunNotFound
from threadkeep.graphs.definition import Workflow, python_workflow
from threadkeep.graphs.nodes import AgentNode
from threadkeep.graphs.options import RunOptions
from threadkeep.graphs.resources import RunContext
from threadkeep.graphs.state import WorkflowState
from threadkeep.records.runs import DELETE, NewRun
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate

FIRST = RunRequest(workflow="slow", text="my name is Ann", session_id="room", message_id="m1")
SECOND = RunRequest(workflow="slow", text="who am I?", session_id="room", message_id="m2")
AGENT = "schema: 1\nname: slow\nnodes:\n  answer: {kind: agent, next: end}\noptions: {double_texting: interrupt}"


def slow(gate: Gate, agent: AgentNode | None = None) -> Workflow:
    """Something is looked up before the agent is asked; a newer message ends the turn."""

    async def look_up(state: WorkflowState) -> WorkflowState:
        await gate.pass_through()
        return {}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    nodes: list[tuple[str, Any]] = [("look_up", look_up), ("answer", agent or AgentNode())]
    builder.add_sequence(nodes)
    builder.add_edge(START, "look_up")
    return python_workflow("slow", builder, version="1", options=RunOptions(double_texting="interrupt"))


class AfterAnswer(AgentMiddleware[Any, Any, Any]):
    """Stops where the model has answered and nothing is stored yet."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """Wait."""
        await self._gate.pass_through()


async def test_a_message_is_there_though_a_newer_one_ended_its_turn_at_once(every_desk: RunDesk) -> None:
    """No node had come to store it; the next turn sees it all the same."""
    gate = Gate()
    async with every_desk.open(slow(gate)) as service:
        first = await service.submit(FIRST)
        await gate.reached()
        second = await service.submit(SECOND)
        assert (await service.result(first.run_id)).status == "cancelled"
        gate.open()
        assert (await service.result(second.run_id)).status == "done"
    said = [("user", "my name is Ann"), ("user", "who am I?"), ("assistant", "reply 1")]
    assert await every_desk.transcript("room") == said
    assert [message.text for message in every_desk.model.calls[0]] == [text for _, text in said[:2]]


async def test_of_messages_that_wait_only_the_newest_is_answered(desk: RunDesk) -> None:
    """Each ends the turns before it, also those that have not begun; all that was said is there."""
    order = desk.memory.runs.order
    elsewhere = NewRun(run_id="r1", workflow="slow", input={"text": "wait"}, session_id="room")
    await order.add(elsewhere, owner="another process")
    async with desk.open(AGENT) as service:
        second, third = await service.submit(FIRST), await service.submit(SECOND)
        assert await desk.memory.runs.finish("r1", "another process", "cancelled")
        stopped = (await service.result(second.run_id)).run
        assert (await service.result(third.run_id)).text == "reply 1"
    assert (stopped.status, stopped.cancel_reason) == ("cancelled", "interrupted_by_message")
    said = [("user", "my name is Ann"), ("user", "who am I?"), ("assistant", "reply 1")]
    assert await desk.transcript("room") == said


async def test_a_newer_message_ends_no_deletion_that_waits_before_it(desk: RunDesk) -> None:
    """It is no turn: whoever asked for it has it done, after the turn that was at work."""
    order = desk.memory.runs.order
    elsewhere = NewRun(run_id="r1", workflow="slow", input={"text": "wait"}, session_id="room")
    await order.add(elsewhere, owner="another process")
    async with desk.open(AGENT) as service:
        deletion = await service.submit(RunRequest(workflow=DELETE, session_id="room"))
        await service.submit(SECOND)
        assert await desk.memory.runs.finish("r1", "another process", "cancelled")
        with pytest.raises(RunNotFound):  # it went with its session
            await service.result(deletion.run_id)


async def test_a_message_is_there_though_its_time_was_over(desk: RunDesk) -> None:
    """Nobody answers it, and it was said."""
    async with desk.open(slow(Gate())) as service:
        late = await carried_out(service, replace(FIRST, deadline_seconds=0.01))
    assert late.run.error == "DeadlinePassed"
    assert await desk.transcript("room") == [("user", "my name is Ann")]


async def test_what_is_no_question_is_not_kept(desk: RunDesk) -> None:
    """A command to begin anew, and the question of an agent whose history is elsewhere."""
    for agent, text in ((AgentNode(reset_command="/new"), "/new"), (AgentNode(use_graph_chat_history=True), "hi")):
        gate = Gate()
        async with desk.open(slow(gate, agent)) as service:
            run = await service.submit(replace(FIRST, text=text, message_id=None, session_id="room"))
            await gate.reached()
            await service.cancel(run.run_id)
            assert (await service.result(run.run_id)).status == "cancelled"
        assert await desk.transcript("room") == []


async def test_what_was_said_stands_before_the_next_turn(every_desk: RunDesk) -> None:
    """The model had answered when the newer message came."""
    gate = Gate()
    every_desk.middleware = (AfterAnswer(gate),)
    async with every_desk.open(AGENT) as service:
        first = await service.submit(FIRST)
        await gate.reached()
        second = await service.submit(SECOND)
        assert (await service.result(first.run_id)).status == "cancelled"
        gate.open()
        assert (await service.result(second.run_id)).status == "done"
    messages = await every_desk.memory.session("room").tail(10)
    assert [(one.content, one.status) for one in messages] == [
        ("my name is Ann", "complete"),
        ("reply 1", "interrupted"),
        ("who am I?", "complete"),
        ("reply 2", "complete"),
    ]


async def test_what_is_said_elsewhere_is_not_said_here(every_desk: RunDesk) -> None:
    """The process closed when the model had answered; whoever goes on ends the turn with that answer."""
    gate = Gate()
    every_desk.middleware = (AfterAnswer(gate),)
    async with every_desk.open(AGENT, options=LEAVING) as service:
        run = await service.submit(FIRST)
        await gate.reached()
    gate.open()
    async with every_desk.open(AGENT) as service:
        assert (await service.result(run.run_id)).status == "done"
    messages = await every_desk.memory.session("room").tail(10)
    assert [(one.content, one.status) for one in messages] == [("my name is Ann", "complete"), ("reply 1", "complete")]
