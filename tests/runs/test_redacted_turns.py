"""Tests of middleware that redacts messages: the service stores the redacted text only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from tests.runs.test_upkeep import BUSY
from threadkeep import Memory, SessionMemory
from threadkeep.records.runs import NewRun
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel, SettableClock
from threadkeep.workflows.definition import Workflow, python_workflow

ROOM, MAIL, HIDDEN = "room", "write to a@b.co", "write to [REDACTED_EMAIL]"
type Made = Callable[[ScriptedModel], Any]


def agent_of(model: ScriptedModel, *, strategy: Any = "redact", **more: Any) -> Any:
    """Return an agent that redacts its input and its output and has no memory."""
    pii = PIIMiddleware("email", strategy=strategy, apply_to_output=True)
    return create_agent(model, [], middleware=[pii, *more.pop("beside", ())], **more)


def as_the_graph(model: ScriptedModel) -> Any:
    """Return the agent's own graph."""
    return agent_of(model).builder


def as_a_node(model: ScriptedModel) -> Any:
    """Return a graph whose node is the agent, so that the agent's messages are in the state of the graph."""
    return one_node(agent_of(model))


def in_a_function(model: ScriptedModel) -> Any:
    """Return a graph whose function returns only the answer: the state of the graph keeps the original text."""
    agent = agent_of(model)

    async def answer(state: MessagesState) -> dict[str, Any]:
        found = await agent.ainvoke({"messages": state["messages"]})
        return {"messages": found["messages"][-1:]}

    return one_node(answer)


def in_a_blocking_function(model: ScriptedModel) -> Any:
    """Return a graph whose function runs in a thread and copies the user message."""
    agent = agent_of(model)

    def answer(state: MessagesState) -> dict[str, Any]:
        found = agent.invoke({"messages": [HumanMessage(state["messages"][-1].text)]})
        return {"messages": found["messages"][-1:]}

    return one_node(answer)


def one_node(node: Any) -> Any:
    """Return a graph with one node."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("answer", node)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder


class Answering:
    """A callable object with an agent, used as a node."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    async def __call__(self, state: MessagesState) -> dict[str, Any]:
        """Return the answer only."""
        return {"messages": (await self.agent.ainvoke({"messages": state["messages"]}))["messages"][-1:]}


def in_an_object(model: ScriptedModel) -> Any:
    """Return a graph whose node is an object with the agent as an attribute."""
    return one_node(Answering(agent_of(model)))


WAYS = [as_the_graph, as_a_node, in_a_function, in_a_blocking_function, in_an_object]


def request(text: str, message_id: str, **more: Any) -> RunRequest:
    """Return a message to the graph."""
    return RunRequest(workflow="steps", text=text, session_id=ROOM, message_id=message_id, **more)


async def stored(memory: Memory) -> list[tuple[str, str, str]]:
    """Return the messages of the session with their status."""
    return [(one.role, one.content, one.status) for one in await memory.session(ROOM).tail(50)]


def steps(builder: Any) -> Workflow:
    """Return a graph as a workflow."""
    return python_workflow("steps", builder, version="1")


@pytest.mark.parametrize("made", WAYS)
async def test_the_transcript_has_the_redacted_text(memory: Memory, events: RecordedEvents, made: Made) -> None:
    """The message, the answer, the title, the search and a repeat have the redacted text only."""
    model = ScriptedModel(["ask c@d.co", "done"])
    desk = RunDesk(memory, model, events)
    async with desk.open(steps(made(model))) as service:
        first = await carried_out(service, request(MAIL, "m:1"))
        again = await carried_out(service, request(MAIL, "m:1"))
        await carried_out(service, request("thanks", "m:2"))
    assert (first.text, again.text) == ("ask [REDACTED_EMAIL]", "ask [REDACTED_EMAIL]")
    assert await stored(memory) == [
        ("user", HIDDEN, "complete"),
        ("assistant", "ask [REDACTED_EMAIL]", "complete"),
        ("user", "thanks", "complete"),
        ("assistant", "done", "complete"),
    ]
    info = await memory.session(ROOM).info()
    assert info.title == HIDDEN
    assert not await memory.search("a@b.co")
    assert [message.text for message in model.calls[0]] == [HIDDEN]
    question = await memory.session(ROOM).find("m:1")
    assert question is not None
    assert "a@b.co" not in repr(question.to_dict())


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_an_agent_with_its_own_memory_stores_the_message_once(
    memory: Memory, events: RecordedEvents, first: bool
) -> None:
    """In either order of the middleware, an agent with its own memory stores the redacted message once."""
    model = ScriptedModel(["ask c@d.co", "done"])
    own = SessionMemory(memory, session_id=lambda config: str(config["configurable"]["session_id"]))
    pii = PIIMiddleware("email", apply_to_output=True)
    agent = create_agent(model, [], middleware=[pii, own] if first else [own, pii])
    async with RunDesk(memory, model, events).open(steps(one_node(agent))) as service:
        await carried_out(service, request(MAIL, "m:1"))
        await carried_out(service, request("thanks", "m:2"))
    assert [text for _, text, _ in await stored(memory)] == [HIDDEN, "ask [REDACTED_EMAIL]", "thanks", "done"]
    assert [message.text for message in model.calls[1]] == [HIDDEN, "ask [REDACTED_EMAIL]", "thanks"]


async def test_a_blocked_message_is_stored_without_its_text(memory: Memory, events: RecordedEvents) -> None:
    """A message that the middleware blocks is stored as failed and empty; the run keeps its text."""
    agent = agent_of(ScriptedModel(["never"]), strategy="block")
    async with RunDesk(memory, ScriptedModel([]), events).open(steps(one_node(agent))) as service:
        ended = await carried_out(service, request(MAIL, "m:1"))
        assert (ended.status, ended.run.inputs[-1].values["text"]) == ("failed", MAIL)
    assert await stored(memory) == [("user", "", "failed")]


async def test_a_run_that_is_cancelled_in_its_model_call_has_stored_its_message(
    memory: Memory, events: RecordedEvents
) -> None:
    gate = Gate()
    async with RunDesk(memory, ScriptedModel([]), events).open(
        steps(in_a_function(ScriptedModel([gate, "late"])))
    ) as service:
        submitted = await service.submit(request(MAIL, "m:1"))
        await gate.reached()
        assert await stored(memory) == [("user", HIDDEN, "complete")]
        await service.cancel(submitted.run_id)
        assert (await service.result(submitted.run_id)).status == "cancelled"
    assert await stored(memory) == [("user", HIDDEN, "complete")]


async def test_a_run_whose_process_died_before_its_model_call_is_answered(
    memory: Memory, events: RecordedEvents, clock: SettableClock
) -> None:
    new = NewRun(run_id="r1", workflow="steps", input={"text": MAIL}, session_id=ROOM, message_id="m:1", version="1")
    await memory.runs.order.add(new, owner="dead")
    desk = RunDesk(memory, ScriptedModel([]), events)
    async with desk.open(steps(in_a_function(ScriptedModel(["done"]))), options=BUSY) as service:
        clock.advance(60)
        assert (await service.result("r1")).text == "done"
    assert await stored(memory) == [("user", HIDDEN, "complete"), ("assistant", "done", "complete")]


async def test_a_run_that_is_retried_after_its_agent_stores_no_original_text(
    memory: Memory, events: RecordedEvents
) -> None:
    """A retry that does not call the model stores the redacted message, although the state has the original."""
    agent, failures = agent_of(ScriptedModel(["done"])), [ValueError("no")]

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await agent.ainvoke({"messages": state["messages"]}))["messages"][-1:]}

    async def fail_once(state: MessagesState) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        return {}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_sequence([answer, fail_once])
    builder.add_edge(START, "answer")
    async with RunDesk(memory, ScriptedModel([]), events).open(steps(builder)) as service:
        failed = await carried_out(service, request(MAIL, "m:1"))
        assert failed.status == "failed"
        await service.retry(failed.run.run_id)
        assert (await service.result(failed.run.run_id)).text == "done"
    assert await stored(memory) == [("user", HIDDEN, "complete"), ("assistant", "done", "complete")]


async def test_a_graph_that_calls_no_model_stores_its_message_at_the_end(
    memory: Memory, events: RecordedEvents
) -> None:
    agent = agent_of(ScriptedModel(["never"]))

    async def answer(state: MessagesState) -> dict[str, Any]:
        return await agent.ainvoke(state) if "model" in state["messages"][-1].text else {}

    async with RunDesk(memory, ScriptedModel([]), events).open(steps(one_node(answer))) as service:
        await carried_out(service, request("hello", "m:1"))
    assert await stored(memory) == [("user", "hello", "complete")]
