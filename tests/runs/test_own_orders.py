"""Tests of the order of turns in conversations whose key an agent determines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.graph import START, StateGraph

from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out, eventually
from tests.workflows.test_agent_history import BOT, said_in, telegram
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.errors import SessionBusy
from threadkeep.history.all_sessions import AllSessions
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.definition import Workflow, python_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

KEY = "telegram:b:7"
CALLBACKS = 24
IN_TABLES, IN_STORE = "transcripts in tables", "transcripts in the graph store"


def callback(text: str, *, chat_id: int = 7, workflow: str = "bot", **more: Any) -> RunRequest:
    """Return a message of one chat, in its own session."""
    results = telegram(bot_id="b", chat_id=chat_id)
    return RunRequest(workflow=workflow, text=text, results=results, trigger="webhook", **more)


async def echo(messages: Sequence[BaseMessage]) -> str:
    """Answer after other requests had time to arrive."""
    await asyncio.sleep(0.005)
    return f"to {messages[-1].text}"


def bot(policy: str = "enqueue") -> str:
    """Return a workflow whose agent stores its conversations in the graph store."""
    return f"{BOT % ''}\noptions: {{double_texting: {policy}}}"


@pytest.fixture(params=[IN_TABLES, IN_STORE])
async def own_desk(
    request: pytest.FixtureRequest, shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> AsyncIterator[RunDesk]:
    """Return a desk for each shared database, with the sessions in tables and in the graph store."""
    options = replace(memory_options, transcripts="graph_store" if request.param == IN_STORE else "tables")
    async with open_memory(shared_url, observers=[events], options=options) as memory:
        yield RunDesk(memory, ScriptedModel([echo] * 99), events, store=await memory.graph_store())


async def spoken(memory: Memory, desk: RunDesk, key: str = KEY) -> list[str]:
    """Return the texts of a conversation."""
    return [text for _, _, text in await said_in(desk.store, key)]


@pytest.mark.slow
async def test_parallel_callbacks_of_one_key_are_answered_in_turn(own_desk: RunDesk) -> None:
    """Each message is followed by its answer, with the runs in different sessions and without a session."""
    async with own_desk.open(bot()) as service:
        requests = [callback(f"question {n}", sessionless=n % 3 == 0) for n in range(CALLBACKS)]
        results = await asyncio.gather(*(carried_out(service, one) for one in requests))
    assert [result.text for result in results] == [f"to question {n}" for n in range(CALLBACKS)]
    said = await spoken(own_desk.memory, own_desk)
    assert len(said) == 2 * CALLBACKS
    assert said[1::2] == [f"to {question}" for question in said[::2]]


async def test_other_keys_do_not_wait(own_desk: RunDesk) -> None:
    gate = Gate()
    own_desk.model = ScriptedModel([["one", gate], "of another chat"])
    async with own_desk.open(bot()) as service:
        first = await service.submit(callback("one"))
        await gate.reached()
        assert (await carried_out(service, callback("two", chat_id=8))).text == "of another chat"
        gate.open()
        await service.result(first.run_id)


async def test_messages_during_a_turn_are_refused(own_desk: RunDesk) -> None:
    """With `reject`, a message during a turn of the same key is refused, in any session.

    The error names the running run.
    """
    gate = Gate()
    own_desk.model = ScriptedModel([["one", gate], "two"])
    async with own_desk.open(bot("reject")) as service:
        first = await service.submit(callback("one", session_id="room:1"))
        await gate.reached()
        for more in ({"session_id": "room:2"}, {"sessionless": True}):
            with pytest.raises(SessionBusy) as refused:
                await service.submit(callback("two", **more))
            assert refused.value.run_id == first.run_id
        gate.open()
        await service.result(first.run_id)
        assert (await carried_out(service, callback("two", session_id="room:2"))).text == "two"


async def test_a_newer_message_cancels_the_running_turn(own_desk: RunDesk) -> None:
    """With `interrupt`, a newer message cancels the running turn, whose user message stays."""
    gate = Gate()
    own_desk.model = ScriptedModel([["one", gate], "two"])
    async with own_desk.open(bot("interrupt")) as service:
        first = await service.submit(callback("first"))
        await gate.reached()
        second = await carried_out(service, callback("second"))
        assert (await service.result(first.run_id)).status == "cancelled"
        assert (second.status, second.text) == ("done", "two")
    said = await spoken(own_desk.memory, own_desk)
    assert (said[0], said[-2:]) == ("first", ["second", "two"])


async def test_waiting_messages_become_one_turn(own_desk: RunDesk) -> None:
    """With `coalesce`, messages without a session join any waiting turn of the key.

    Others join a turn of their session.
    """
    gate = Gate()
    own_desk.model = ScriptedModel([["one", gate], "two and three", "four"])
    async with own_desk.open(bot("coalesce")) as service:
        first = await service.submit(callback("one"))
        await gate.reached()
        second = await service.submit(callback("two"))
        third = await service.submit(callback("three"))
        fourth = await service.submit(callback("four", session_id="room:4"))
        assert (third.run_id, third.outcome) == (second.run_id, "joined")
        assert fourth.outcome == "new"
        gate.open()
        assert (await service.result(third.run_id)).text == "two and three"
        assert (await service.result(fourth.run_id)).text == "four"
        await service.result(first.run_id)
    assert await spoken(own_desk.memory, own_desk) == ["one", "one", "two", "three", "two and three", "four", "four"]


@pytest.mark.slow
async def test_a_session_and_a_key_that_are_one_conversation_have_one_order(
    memory_options: MemoryOptions, shared_url: str, events: RecordedEvents
) -> None:
    """With all transcripts in the graph store, a turn of the session waits for a turn of the key, and vice versa."""
    options = replace(memory_options, transcripts="graph_store")
    async with open_memory(shared_url, observers=[events], options=options) as memory:
        desk = RunDesk(memory, ScriptedModel([echo] * 99), events, store=await memory.graph_store())
        agent = "schema: 1\nname: plain\nnodes:\n  answer: {kind: agent, next: end}"
        async with desk.open(bot(), agent) as service:
            requests = [callback(f"key {n}") for n in range(8)]
            requests += [RunRequest(workflow="plain", text=f"session {n}", session_id=KEY) for n in range(8)]
            await asyncio.gather(*(carried_out(service, one) for one in requests))
        said = [message.content for message in await memory.session(KEY).tail(100)]
    assert len(said) == 32
    assert said[1::2] == [f"to {question}" for question in said[::2]]


def finding_workflow() -> Workflow:
    """Return a workflow whose key is determined by a node during the run."""

    async def find(state: WorkflowState) -> Mapping[str, Any]:
        return {"results": {"resolve_history_key": {"session_key": state["inputs"]["room"]}}}

    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    agent: Any = AgentNode(use_graph_chat_history=True)
    nodes: list[Any] = [("resolve_history_key", find), ("answer", agent)]
    builder.add_sequence(nodes)
    builder.add_edge(START, "resolve_history_key")
    return python_workflow("finder", builder)


@pytest.mark.slow
async def test_a_key_that_a_node_determines_has_an_order(own_desk: RunDesk) -> None:
    """A run whose node determines the key waits there for the earlier turns of the conversation."""
    async with own_desk.open(finding_workflow()) as service:
        requests = [
            RunRequest(workflow="finder", text=f"question {n}", inputs={"room": "vip"}) for n in range(CALLBACKS)
        ]
        await asyncio.gather(*(carried_out(service, one) for one in requests))
    said = await spoken(own_desk.memory, own_desk, "vip")
    assert len(said) == 2 * CALLBACKS
    assert said[1::2] == [f"to {question}" for question in said[::2]]


async def test_a_conversation_that_is_erased_has_no_order(own_desk: RunDesk) -> None:
    own_desk.model = ScriptedModel([ValueError("no")])
    memory, key = own_desk.memory, "vip"
    async with own_desk.open(finding_workflow()) as service:
        failed = await carried_out(service, RunRequest(workflow="finder", text="hi", inputs={"room": key}))
        assert failed.status == "failed"
        [place] = await memory.runs.positions.of(failed.run.run_id)
        assert key in place
        await AllSessions(memory).erase(key)
    assert await memory.runs.positions.of(failed.run.run_id) == []


async def test_runs_that_wait_for_each_other_are_both_answered(every_desk: RunDesk) -> None:
    """Two runs that enter two conversations in opposite order are both answered, because one gives up its position."""
    both = Gate()
    arrived = 0

    async def meet(messages: Sequence[BaseMessage]) -> Any:
        nonlocal arrived
        arrived += 1
        if arrived == 2:
            both.open()
        return ["met", both] if arrived <= 2 else "met"

    every_desk.model = ScriptedModel([meet] * 9)

    async def find(state: WorkflowState) -> Mapping[str, Any]:
        return {"results": {"find": {"key": state["inputs"]["second"]}}}

    first: Any = AgentNode(use_graph_chat_history=True, history_key_candidates=("{{inputs.first}}",))
    second: Any = AgentNode(use_graph_chat_history=True, history_key_candidates=("{{results.find.key}}",))
    builder: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
    nodes: list[Any] = [("one", first), ("find", find), ("two", second)]
    builder.add_sequence(nodes)
    builder.add_edge(START, "one")
    async with every_desk.open(python_workflow("crossing", builder)) as service:
        inputs = [{"first": "left", "second": "right"}, {"first": "right", "second": "left"}]
        requests = [RunRequest(workflow="crossing", text="hi", inputs=one, sessionless=True) for one in inputs]
        results = await asyncio.gather(*(carried_out(service, one) for one in requests))
    assert [result.status for result in results] == ["done", "done"]


async def test_a_child_in_the_conversation_of_its_parent_does_not_wait_for_it(every_desk: RunDesk) -> None:
    parent = """schema: 1
name: parent
nodes:
  answer: {kind: agent, use_graph_chat_history: true, next: below}
  below: {kind: subworkflow, workflow: bot, next: end}
"""
    child = BOT % f", history_key_candidates: ['{KEY}']"
    every_desk.model = ScriptedModel([echo] * 9)
    async with every_desk.open(parent, child) as service:
        result = await carried_out(service, callback("hello", workflow="parent"))
    assert result.status == "done"
    assert await spoken(every_desk.memory, every_desk) == ["hello", "to hello", "to hello", "to to hello"]


async def test_a_finished_run_has_no_position(every_desk: RunDesk) -> None:
    """A failed run keeps its position, is retried after the later turns, and then has no position."""
    every_desk.model = ScriptedModel([ValueError("no"), "two", "one"])
    async with every_desk.open(f"{BOT % ''}\noptions: {{max_tries: 1}}") as service:
        failed = await carried_out(service, callback("one", message_id="m1", session_id="room"))
        assert failed.status == "failed"
        assert (await carried_out(service, callback("two"))).text == "two"
        await service.retry(failed.run.run_id)
        assert (await service.result(failed.run.run_id)).text == "one"
        places = every_desk.memory.runs.positions

        async def gone() -> bool:
            return await every_desk.memory.runs.order.following(failed.run.run_id) == []

        await eventually(gone)
        assert await places.waits_for_itself(failed.run.run_id) is False
