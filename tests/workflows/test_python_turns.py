"""Tests of Python graphs without nodes of Threadkeep: their turns are stored as those of YAML workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from tests.workflows import steps
from tests.workflows.desk import Desk
from threadkeep import Memory
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.definition import python_workflow
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.turn_ends import Graph

ROOM = "room"


def said(text: str) -> dict[str, Any]:
    """Return the state update of a node that answers."""
    return {"messages": [AIMessage(text)]}


def graph_of(*, starts: Callable[[Any], Any] | None = None, **nodes: Any) -> Graph:
    """Return a graph of functions in sequence, or with a conditional start."""
    builder: Graph = StateGraph(MessagesState)
    for name, node in nodes.items():
        builder.add_node(name, node)
    if starts is not None:
        builder.add_conditional_edges(START, starts, [*nodes, END])
        return builder
    for first, second in zip([START, *nodes], [*nodes, END], strict=True):
        builder.add_edge(first, second)
    return builder


def request(text: str = "Hi", message_id: str | None = "m:1", **more: Any) -> RunRequest:
    """Return a message to the workflow `steps`."""
    return RunRequest(workflow="steps", text=text, session_id=ROOM, message_id=message_id, **more)


async def test_a_graph_without_threadkeep_nodes_stores_its_turn(memory: Memory, events: RecordedEvents) -> None:
    """A run of the graph stores the user message and the answer once, with confidence and escalation."""
    [workflow] = [one for one in Workflows.load(["steps=tests.workflows.steps:graph"]).all() if one.name == "steps"]
    assert set(steps.graph.nodes) == {"answer"}
    desk = RunDesk(memory, ScriptedModel([]), events)
    async with desk.open(workflow) as service:
        result, _ = [await carried_out(service, request()) for _ in range(2)]
        assert (result.status, result.text, result.confidence, result.escalated) == ("done", "You said Hi", 0.4, True)
        await carried_out(service, request("Bye", "m:2"))
    messages = await memory.session(ROOM).tail(9)
    assert [(one.role, one.content) for one in messages] == [
        ("user", "Hi"),
        ("assistant", "You said Hi"),
        ("user", "Bye"),
        ("assistant", "You said Bye"),
    ]
    assert (messages[0].id, messages[1].confidence, messages[1].escalated) == ("m:1", 0.4, True)
    assert messages[0].run_id == messages[1].run_id != messages[2].run_id


@pytest.mark.parametrize(
    "builder",
    [
        graph_of(first=lambda _: said("draft"), last=lambda _: said("final")),
        graph_of(starts=lambda _: "b", a=lambda _: said("no"), b=lambda _: Command(goto=END, update=said("final"))),
        graph_of(starts=lambda _: ["a", "b"], a=lambda _: {}, b=lambda _: said("final")),
        graph_of(record_question=lambda _: said("final")),
    ],
)
async def test_graphs_with_different_starts_and_ends(desk: Desk, builder: Graph) -> None:
    """The last message is stored as the answer, with edges, conditional edges, branches and commands."""
    desk.use(python_workflow("steps", builder))
    await desk.run("steps", "Hi", session_id=ROOM)
    assert await desk.transcript(ROOM) == [("user", "Hi"), ("assistant", "final")]


async def test_a_graph_without_an_answer_stores_the_user_message(desk: Desk) -> None:
    def fail(_: MessagesState) -> dict[str, Any]:
        raise ValueError("no")

    desk.use(python_workflow("steps", graph_of(fail=fail)))
    with pytest.raises(ValueError, match="no"):
        await desk.run("steps", "Hi", session_id=ROOM)
    desk.use(python_workflow("steps", graph_of(nothing=lambda _: {})))
    await desk.run("steps", "Hello?", session_id=ROOM)
    assert await desk.transcript(ROOM) == [("user", "Hi"), ("user", "Hello?")]


async def test_a_graph_that_asks_a_person_stores_its_answer_after_it(memory: Memory, events: RecordedEvents) -> None:
    builder = graph_of(ask=lambda _: said(f"You chose {interrupt('Which?')}"))
    desk = RunDesk(memory, ScriptedModel([]), events)
    async with desk.open(python_workflow("steps", builder)) as service:
        waiting = await carried_out(service, request())
        assert (waiting.status, await desk.transcript(ROOM)) == ("waiting", [("user", "Hi")])
        await service.resume(waiting.run.run_id, "tea")
        await service.result(waiting.run.run_id)
    assert await desk.transcript(ROOM) == [("user", "Hi"), ("assistant", "You chose tea")]


async def test_a_cancelled_run_stores_the_user_message(memory: Memory, events: RecordedEvents) -> None:
    gate = Gate()

    async def wait(_: MessagesState) -> dict[str, Any]:
        await gate.pass_through()
        return said("late")

    desk = RunDesk(memory, ScriptedModel([]), events)
    async with desk.open(python_workflow("steps", graph_of(wait=wait))) as service:
        submitted = await service.submit(request())
        await gate.reached()
        await service.cancel(submitted.run_id)
        assert (await service.result(submitted.run_id)).status == "cancelled"
    assert await desk.transcript(ROOM) == [("user", "Hi")]


async def test_a_graph_whose_turn_is_not_stored_is_not_changed(desk: Desk) -> None:
    """A graph without messages or with deferred nodes is not changed. A run without a session stores nothing."""

    class Other(TypedDict):
        text: str

    other: Graph = StateGraph(Other)
    other.add_node("answer", lambda _: {"text": "yes"})
    other.add_edge(START, "answer")
    assert python_workflow("steps", other).builder is other
    deferred: Graph = StateGraph(MessagesState)
    deferred.add_node("last", lambda _: said("last"), defer=True)
    deferred.add_edge(START, "last")
    assert python_workflow("steps", deferred).builder is deferred
    desk.use(python_workflow("steps", graph_of(answer=lambda _: said("yes"))))
    state = await desk.run("steps", "Hi")
    assert [message.text for message in state["messages"]] == ["Hi", "yes"]
    assert [info async for info in desk.memory.sessions()] == []


async def test_simultaneous_runs_of_a_graph_answer_in_order(memory: Memory, events: RecordedEvents) -> None:
    desk = RunDesk(memory, ScriptedModel([]), events)
    async with desk.open(python_workflow("steps", steps.graph)) as service:
        asked = [request(f"q{n}", f"m:{n}") for n in range(5)]
        await asyncio.gather(*(carried_out(service, one) for one in asked))
    texts = [text for _, text in await desk.transcript(ROOM)]
    assert texts == [text for question in texts[::2] for text in (question, f"You said {question}")]
