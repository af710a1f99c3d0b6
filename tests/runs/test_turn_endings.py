"""Tests of runs that end early: their messages are in the session, in order and before the next turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langgraph.graph import START, StateGraph

from tests.runs.desk import LEAVING, RunDesk, carried_out
from threadkeep.agent.provider_messages import NO_ANSWER
from threadkeep.errors import RunNotFound
from threadkeep.observe import RunFinished
from threadkeep.records.runs import DELETE, NewRun
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.resources import RunContext, RunOptions
from threadkeep.workflows.state import WorkflowState

FIRST = RunRequest(workflow="slow", text="my name is Ann", session_id="room", message_id="m1")
SECOND = RunRequest(workflow="slow", text="who am I?", session_id="room", message_id="m2")
AGENT = "schema: 1\nname: slow\nnodes:\n  answer: {kind: agent, next: end}\noptions: {double_texting: interrupt}"


def slow(gate: Gate, agent: AgentNode | None = None) -> Workflow:
    """Return a workflow with a node before its agent, in which a newer message interrupts the turn."""

    async def look_up(state: WorkflowState) -> WorkflowState:
        await gate.pass_through()
        return {}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    nodes: list[tuple[str, Any]] = [("look_up", look_up), ("answer", agent or AgentNode())]
    builder.add_sequence(nodes)
    builder.add_edge(START, "look_up")
    return python_workflow("slow", builder, version="1", options=RunOptions(double_texting="interrupt"))


class AfterAnswer(AgentMiddleware[Any, Any, Any]):
    """A middleware that waits after the model answered and before anything is stored."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """Wait for the gate."""
        await self._gate.pass_through()


async def test_the_message_of_a_turn_that_is_interrupted_at_once_is_stored(every_desk: RunDesk) -> None:
    """A message whose turn was interrupted before its agent is stored, and the next model call sees it."""
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
    sent = [message.text for message in every_desk.model.calls[0]]
    assert [text for text in sent if text != NO_ANSWER] == [text for _, text in said[:2]]


async def test_a_run_whose_execution_is_cancelled_twice_is_released(every_desk: RunDesk) -> None:
    """The run is queued without an owner, and its message is stored."""
    gate = Gate()
    every_desk.model = ScriptedModel([[gate, "never"]])
    async with every_desk.open(AGENT) as service:
        first = await service.submit(FIRST, mode="background")
        await gate.reached()
        [executing] = [one for one in asyncio.all_tasks() if "Worker.execute " in repr(one.get_coro())]
        for _ in range(2):
            executing.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([executing])
        released = await every_desk.memory.runs.run(first.run_id)
        assert released is not None
        assert (released.status, released.owner) == ("queued", None)
    assert await every_desk.transcript("room") == [("user", "my name is Ann")]


async def test_an_end_that_is_being_stored_is_reported_although_the_execution_is_cancelled(
    every_desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The execution ends after its run. For example, the process closes while the database is slow."""
    gate, end = Gate(), every_desk.memory.runs.end

    async def late(*arguments: Any) -> Any:
        await gate.pass_through()
        return await end(*arguments)

    monkeypatch.setattr(every_desk.memory.runs, "end", late)
    every_desk.model = ScriptedModel([ValueError()])
    async with every_desk.open(AGENT) as service:
        await service.submit(FIRST, mode="background")
        await gate.reached()
        [executing] = [one for one in asyncio.all_tasks() if "Worker.execute " in repr(one.get_coro())]
        executing.cancel()
        await asyncio.sleep(0)
        gate.open()
        await asyncio.wait([executing])
        assert [ended.status for ended in every_desk.events.of(RunFinished)] == ["failed"]


async def test_the_message_of_a_run_that_is_cancelled_before_its_begin_is_stored(every_desk: RunDesk) -> None:
    """The message of a queued run is stored when the run is cancelled. A run without a session stores nothing."""
    queued = [
        NewRun(run_id="r1", workflow="slow", input={"text": "my name is Ann"}, session_id="room", message_id="m1"),
        NewRun(run_id="r2", workflow="slow", input={"text": "hello"}),
    ]
    for new in queued:
        await every_desk.memory.runs.order.add(new)
    async with every_desk.open(AGENT) as service:
        for new in queued:
            assert await service.cancel(new.run_id) == [new.run_id]
            run = (await service.result(new.run_id)).run
            assert (run.status, run.cancel_reason) == ("cancelled", "requested")
            assert await service.cancel(new.run_id) == []
    assert await every_desk.transcript("room") == [("user", "my name is Ann")]
    assert every_desk.model.calls == []


async def test_simultaneous_requests_end_a_queued_run_once(every_desk: RunDesk) -> None:
    runs = every_desk.memory.runs
    for number in range(5):
        asked = {"input": {"text": "hello"}, "session_id": f"room{number}", "message_id": f"m{number}"}
        await runs.order.add(NewRun(run_id=f"r{number}", workflow="slow", **asked))  # type: ignore[arg-type]
    async with every_desk.open(AGENT) as service:
        for number in range(5):
            await asyncio.gather(*(service.cancel(f"r{number}") for _ in range(4)))
            assert (await service.result(f"r{number}")).status == "cancelled"
    assert [await every_desk.transcript(f"room{number}") for number in range(5)] == [[("user", "hello")]] * 5


async def test_a_cancelled_message_stands_where_its_turn_would_have_been(every_desk: RunDesk) -> None:
    """The message of a cancelled queued run is stored after the answer of the turn before it."""
    gate = Gate()
    agent = AGENT.replace("interrupt", "enqueue")
    every_desk.model = ScriptedModel([[gate, "one"], "three"])
    async with every_desk.open(agent) as service:
        first = await service.submit(FIRST)
        await gate.reached()
        second = await service.submit(SECOND, mode="background")
        third = await service.submit(replace(SECOND, text="and now?", message_id="m3"))
        for _ in range(2):  # the second request is a repeat
            assert await service.cancel(second.run_id) == [second.run_id]
        gate.open()
        ends = [(await service.result(each.run_id)).status for each in (first, second, third)]
    assert ends == ["done", "cancelled", "done"]
    assert await every_desk.transcript("room") == [
        ("user", "my name is Ann"),
        ("assistant", "one"),
        ("user", "who am I?"),
        ("user", "and now?"),
        ("assistant", "three"),
    ]


async def test_only_the_newest_of_the_waiting_messages_is_answered(desk: RunDesk) -> None:
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


async def test_a_newer_message_does_not_cancel_a_waiting_deletion(desk: RunDesk) -> None:
    order = desk.memory.runs.order
    elsewhere = NewRun(run_id="r1", workflow="slow", input={"text": "wait"}, session_id="room")
    await order.add(elsewhere, owner="another process")
    async with desk.open(AGENT) as service:
        deletion = await service.submit(RunRequest(workflow=DELETE, session_id="room"))
        await service.submit(SECOND)
        assert await desk.memory.runs.finish("r1", "another process", "cancelled")
        with pytest.raises(RunNotFound):  # it was deleted with its session
            await service.result(deletion.run_id)


async def test_the_message_of_a_run_that_exceeds_its_deadline_is_stored(desk: RunDesk) -> None:
    async with desk.open(slow(Gate())) as service:
        late = await carried_out(service, replace(FIRST, deadline_seconds=0.01))
    assert late.run.error == "DeadlinePassed"
    assert await desk.transcript("room") == [("user", "my name is Ann")]


async def test_commands_and_messages_with_another_history_are_not_stored(desk: RunDesk) -> None:
    """A cancelled run stores neither a reset command nor a message of an agent with its own history."""
    for agent, text in ((AgentNode(reset_command="/new"), "/new"), (AgentNode(use_graph_chat_history=True), "hi")):
        gate = Gate()
        async with desk.open(slow(gate, agent)) as service:
            run = await service.submit(replace(FIRST, text=text, message_id=None, session_id="room"))
            await gate.reached()
            await service.cancel(run.run_id)
            assert (await service.result(run.run_id)).status == "cancelled"
        assert await desk.transcript("room") == []


async def test_an_interrupted_answer_is_stored_before_the_next_turn(every_desk: RunDesk) -> None:
    """An answer that was complete when its turn was interrupted is stored as interrupted, before the next turn."""
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


async def test_a_closing_process_leaves_the_answer_to_the_next_process(every_desk: RunDesk) -> None:
    """A process that closes after the model answered stores nothing. The next process stores that answer."""
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
