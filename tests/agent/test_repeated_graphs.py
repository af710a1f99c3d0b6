"""Tests of repeated message ids in graphs whose state has earlier answers: no model call, no new message."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel

from tests.agent.talking import ROOM, ask, config_of, input_of, kept, make_agent, seen
from tests.agent.test_several_agents import in_line, said
from threadkeep import Memory, SessionMemory, memory_node, rebuild
from threadkeep.testing import ScriptedModel


class Place(BaseModel):
    """A structured response."""

    city: str


def agent(memory: Memory, model: ScriptedModel, name: str | None = None, **options: Any) -> Any:
    """Return an agent with memory."""
    return create_agent(model, options.pop("tools", []), middleware=[SessionMemory(memory)], name=name, **options)


async def test_agents_called_one_after_the_other_each_answer(small_memory: Memory) -> None:
    """Agents that run one after the other in Python each answer and store one message."""
    models = [ScriptedModel(["draft"]), ScriptedModel(["remarks"]), ScriptedModel(["final"])]
    names = ["writer", "critic", "writer"]
    state: Any = input_of("q")
    for model, name in zip(models, names, strict=True):
        state = await agent(small_memory, model, name).ainvoke(state, config_of())
    assert [message.text for message in state["messages"]] == ["q", "draft", "remarks", "final"]
    assert await said(small_memory) == [(None, "q"), ("writer", "draft"), ("critic", "remarks"), ("writer", "final")]
    assert [message.text for message in models[1].calls[0]] == ["q", "draft"]
    assert [message.text for message in models[2].calls[0]] == ["q", "draft", "remarks"]


async def test_an_agent_that_receives_its_final_state_returns_it(small_memory: Memory) -> None:
    model = ScriptedModel(["hello", "again"])
    one = agent(small_memory, model, "a")
    state = await one.ainvoke(input_of("q", "m1"), config_of())
    again = await one.ainvoke(state, config_of())
    assert [message.id for message in again["messages"]] == [message.id for message in state["messages"]]
    assert len(model.calls) == 1


@pytest.mark.parametrize("count", [2, 3])
async def test_each_agent_returns_its_stored_answer_on_repeat(small_memory: Memory, count: int) -> None:
    models = [ScriptedModel([f"a{number}", "new"]) for number in range(count)]
    agents = [agent(small_memory, model, f"n{number}") for number, model in enumerate(models)]
    graph = in_line(*agents, saver=InMemorySaver())
    states = [await graph.ainvoke(input_of("q", "m1"), config_of()) for _ in range(3)]
    seen = [[(message.id, message.text, message.name) for message in state["messages"]] for state in states]
    assert seen[0] == seen[1] == seen[2]
    assert await said(small_memory) == [(None, "q"), *((f"n{number}", f"a{number}") for number in range(count))]
    assert [len(model.calls) for model in models] == [1] * count


async def test_an_agent_that_answered_twice_repeats_both_answers(small_memory: Memory) -> None:
    writes, criticises = ScriptedModel(["draft", "final", "new"]), ScriptedModel(["remarks", "new"])
    writer = agent(small_memory, writes, "writer")
    graph = in_line(writer, agent(small_memory, criticises, "critic"), writer, saver=InMemorySaver())
    states = [await graph.ainvoke(input_of("q", "m1"), config_of()) for _ in range(2)]
    assert [[message.text for message in state["messages"]] for state in states] == [
        ["q", "draft", "remarks", "final"]
    ] * 2
    assert (len(writes.calls), len(criticises.calls)) == (2, 1)
    assert len(await said(small_memory)) == 4


class Form(MessagesState):
    """A state with the text of a question."""

    text: str


def put_question(state: Form) -> dict[str, Any]:
    """Add the question, always with the same id."""
    return {"messages": [HumanMessage(state["text"], id="m1")]}


@pytest.mark.parametrize("sent", [{}, {"messages": []}], ids=["absent", "empty"])
async def test_a_question_that_a_node_adds_to_a_saved_state_is_answered_once(
    small_memory: Memory, sent: dict[str, Any]
) -> None:
    """An input with other values does not continue the run, although its list of messages is empty."""
    models = [ScriptedModel(["draft", "second"]), ScriptedModel(["remarks", "more"])]
    agents = [agent(small_memory, model, name) for model, name in zip(models, ("writer", "critic"), strict=True)]
    graph = in_line(put_question, *agents, state=Form, saver=InMemorySaver())
    states = [await graph.ainvoke({"text": "q", **sent}, config_of()) for _ in range(2)]
    assert [[message.text for message in state["messages"]] for state in states] == [["q", "draft", "remarks"]] * 2
    assert [len(model.calls) for model in models] == [1, 1]


async def test_each_memory_node_returns_its_stored_answer_on_repeat(small_memory: Memory) -> None:
    models = [ScriptedModel([f"a{number}", "new"]) for number in range(2)]
    graph = in_line(*(memory_node(small_memory, model) for model in models), saver=InMemorySaver())
    states = [await graph.ainvoke(input_of("q", "m1"), config_of()) for _ in range(2)]
    assert [[message.text for message in state["messages"]] for state in states] == [["q", "a0", "a1"]] * 2
    assert [len(model.calls) for model in models] == [1, 1]


async def test_a_task_for_another_agent_is_not_stored_on_repeat(small_memory: Memory) -> None:
    """A task for another agent that follows the question in the state is not stored on repeat."""

    @tool
    def delegate() -> Command[Any]:
        """Give the member a task."""
        task = Send("member", {"messages": [HumanMessage("do this")]})
        return Command(goto=[task], graph=Command.PARENT)

    call = AIMessage("", tool_calls=[{"name": "delegate", "args": {}, "id": "call-1"}])
    chief = agent(small_memory, ScriptedModel([call, "it is done"]), "chief", tools=[delegate])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("chief", chief, destinations=("member",))
    graph.add_node("member", agent(small_memory, ScriptedModel(["done"]), "member"))
    graph.add_edge(START, "chief")
    compiled = graph.compile(checkpointer=InMemorySaver())
    for _ in range(2):
        await compiled.ainvoke(input_of("q", "m1"), config_of())
    assert await said(small_memory) == [(None, "q"), ("chief", "it is done")]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("kind", ["agent", "node"])
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("subgraphs", [False, True])
async def test_a_repeated_answer_is_streamed(
    small_memory: Memory, checkpointed: bool, kind: str, blocking: bool, subgraphs: bool
) -> None:
    model = ScriptedModel(["one", "never"])
    speaker: Any = agent(small_memory, model, "speaker") if kind == "agent" else memory_node(small_memory, model)
    graph = in_line(speaker, saver=InMemorySaver() if checkpointed else None)
    await graph.ainvoke(input_of("q", "m1"), config_of())

    given: Any = {"stream_mode": "messages", "subgraphs": subgraphs}
    for _ in range(2):
        if blocking:
            parts = await asyncio.to_thread(lambda: [*graph.stream(input_of("q", "m1"), config_of(), **given)])
        else:
            parts = [part async for part in graph.astream(input_of("q", "m1"), config_of(), **given)]
        assert [(part[-1] if subgraphs else part)[0].text for part in parts] == ["one"]
    assert len(model.calls) == 1


class Votes(TypedDict):
    """Messages and votes."""

    messages: Annotated[list[Any], operator.add]


async def test_branches_return_their_stored_answers_on_repeat(small_memory: Memory) -> None:
    votes, judges = ScriptedModel(["v1", "v2", "v3", "new"]), ScriptedModel(["judged", "new"])
    graph: Any = StateGraph(Votes)
    voter, judge = agent(small_memory, votes, "voter"), agent(small_memory, judges, "judge")

    async def vote(state: Any) -> Any:
        return {"messages": (await voter.ainvoke(state))["messages"][-1:]}

    graph.add_node("vote", vote)
    graph.add_node("judge", judge)
    graph.add_conditional_edges(START, lambda state: [Send("vote", {"messages": state["messages"][:1]})] * 3, ["vote"])
    graph.add_edge("vote", "judge")
    compiled = graph.compile(checkpointer=InMemorySaver())
    told = [(await compiled.ainvoke(input_of("q", "m1"), config_of()))["messages"][-1].text for _ in range(2)]
    assert told == ["judged", "judged"]
    assert (len(votes.calls), len(judges.calls)) == (3, 1)


@pytest.mark.parametrize("text", ["", "here"])
@pytest.mark.parametrize("saved", [False, True])
async def test_a_repeat_returns_the_structured_response(small_memory: Memory, text: str, saved: bool) -> None:
    call = AIMessage(text, tool_calls=[{"name": "Place", "args": {"city": "Rome"}, "id": "c1"}])
    model = ScriptedModel([call, call])
    saver = InMemorySaver() if saved else None
    one = agent(small_memory, model, "a", response_format=ToolStrategy(Place), checkpointer=saver)
    states = [await one.ainvoke(input_of("q", "m1"), config_of()) for _ in range(2)]
    assert [state["structured_response"] for state in states] == [Place(city="Rome")] * 2
    assert [message.additional_kwargs for state in states for message in state["messages"] if message.type == "ai"] == [
        {}
    ] * 2
    assert len(model.calls) == 1
    assert len(await said(small_memory)) == 2


async def test_a_repeat_does_not_move_structured_responses(small_memory: Memory) -> None:
    calls = [
        AIMessage("", tool_calls=[{"name": "Place", "args": {"city": city}, "id": city}]) for city in ("Rome", "Bern")
    ]
    models = [ScriptedModel([call]) for call in calls]
    agents = [
        agent(small_memory, one, f"n{place}", response_format=ToolStrategy(Place)) for place, one in enumerate(models)
    ]
    graph = in_line(*agents, saver=InMemorySaver())
    states = [await graph.ainvoke(input_of("q", "m1"), config_of()) for _ in range(2)]
    assert states[0] == states[1]


async def test_a_repeat_returns_the_direct_result_of_a_tool(small_memory: Memory) -> None:
    @tool(return_direct=True)
    def look() -> str:
        """Look."""
        return "direct"

    model = ScriptedModel([AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c1"}]), "again"])
    one = agent(small_memory, model, "a", tools=[look], checkpointer=InMemorySaver())
    told = [(await one.ainvoke(input_of("q", "m1"), config_of()))["messages"][-1].text for _ in range(3)]
    assert told == ["direct"] * 3
    assert len(model.calls) == 1


async def test_an_older_message_gets_its_own_answer(small_memory: Memory) -> None:
    model = ScriptedModel(["a1", "a2", "a3"])
    one = agent(small_memory, model, "a", checkpointer=InMemorySaver())
    asked = [HumanMessage("q1", id="m1"), HumanMessage("q2", id="m2"), HumanMessage("q1", id="m1")]
    told = [(await one.ainvoke({"messages": [each]}, config_of()))["messages"][-1].text for each in asked]
    assert told == ["a1", "a2", "a1"]
    assert await said(small_memory, ROOM) == [(None, "q1"), ("a", "a1"), (None, "q2"), ("a", "a2")]


async def test_nodes_give_older_messages_their_own_answers(memory: Memory) -> None:
    models = [ScriptedModel([f"a{number}", f"b{number}", f"c{number}"]) for number in range(2)]
    graph = in_line(*(memory_node(memory, model) for model in models), saver=InMemorySaver())
    for message_id, last in (("m1", "a1"), ("m2", "b1"), ("m1", "a1"), ("m1", "a1"), ("m2", "b1"), ("m3", "c1")):
        state = await graph.ainvoke(input_of(f"q{message_id}", message_id), config_of())
        assert state["messages"][-1].text == last
    before = [("human", "qm1"), ("ai", "a0"), ("ai", "a1"), ("human", "qm2"), ("ai", "b0"), ("ai", "b1")]
    assert seen(models[0].calls[-1]) == [*before, ("human", "qm3")]
    assert len(await said(memory)) == 9


@pytest.mark.parametrize("kind", ["agent", "node"])
async def test_a_newer_message_gets_its_own_answer_after_an_older_one(memory: Memory, kind: str) -> None:
    """A repeat returns its own answer, although an older message's later answer is last in the state."""
    model = ScriptedModel([ConnectionError(), "two", "one"])
    speaker: Any = agent(memory, model, "speaker") if kind == "agent" else memory_node(memory, model)
    graph = in_line(speaker, saver=InMemorySaver())
    for message_id, answer in (("m1", None), ("m2", "two"), ("m1", "one"), ("m2", "two"), ("m1", "one")):
        with contextlib.suppress(ConnectionError):
            state = await graph.ainvoke(input_of(message_id, message_id), config_of())
            assert state["messages"][-1].text == answer
    assert len(model.calls) == 3


async def test_repeats_of_several_older_messages_get_their_own_answers(memory: Memory) -> None:
    model = ScriptedModel(["one", "two", "three"])
    agent = make_agent(model, [SessionMemory(memory)], checkpointer=InMemorySaver())
    for _ in range(2):
        assert [await ask(agent, words, message_id=words) for words in ("1?", "2?")] == ["one", "two"]
    await ask(agent, "3?")
    assert seen(model.calls[2]) == [("human", "1?"), ("ai", "one"), ("human", "2?"), ("ai", "two"), ("human", "3?")]
    assert len(await kept(memory)) == 6
    for stored, call in zip(await memory.manifests.of_session(ROOM), reversed(model.calls), strict=True):
        assert seen(await rebuild(stored)) == seen(call)
