"""Tests of the forms in which a caller gives a recorded graph its input, its context and its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from tests.agent.talking import ROOM, config_of, input_of, kept
from tests.agent.test_several_agents import in_line
from threadkeep import Memory, MiddlewareWarning, TurnOptions, recorded
from threadkeep.testing import ScriptedModel


class Modelled(BaseModel):
    """A state that is a Pydantic model."""

    messages: Annotated[list[AnyMessage], add_messages]
    count: int = 0


@dataclass
class Listed:
    """A state that is a dataclass."""

    messages: Annotated[list[AnyMessage], add_messages]
    count: int = 0


def counting(state: Any) -> dict[str, Any]:
    """Return the number of messages as the answer."""
    return {"messages": [AIMessage(f"{len(state.messages)} seen")], "count": state.count + 1}


@pytest.mark.parametrize("state", [Modelled, Listed])
async def test_the_question_in_a_state_object_is_stored(small_memory: Memory, state: type) -> None:
    builder: Any = StateGraph(state)
    builder.add_node("count", counting)
    builder.add_edge(START, "count")
    graph = recorded(builder.compile(), small_memory)
    await graph.ainvoke(state(messages=[HumanMessage("one")]), config_of())
    end = await graph.ainvoke(state(messages=[HumanMessage("two")], count=4), config_of())
    assert end["count"] == 5
    assert [message.text for message in end["messages"]] == ["two", "3 seen"]
    assert await kept(small_memory) == [
        ("user", "one"), ("assistant", "1 seen"), ("user", "two"), ("assistant", "3 seen")
    ]  # fmt: skip


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize(
    "overwriting",
    [Overwrite, lambda new: {"__overwrite__": new}, lambda new: {"value": new, "type": "__overwrite__"}],
    ids=["object", "key", "json"],
)
async def test_an_input_may_overwrite_the_messages_of_the_state(
    small_memory: Memory, overwriting: Callable[[object], object], saves: bool
) -> None:
    """LangGraph accepts the object and two forms of it in JSON."""
    saver = InMemorySaver() if saves else None
    graph = recorded(create_agent(ScriptedModel(["one", "two"]), [], checkpointer=saver), small_memory)
    await graph.ainvoke(input_of("q1", "m1"), config_of())
    await small_memory.session(ROOM).take_back(1)
    end = await graph.ainvoke({"messages": overwriting([HumanMessage("q2", id="m2")])}, config_of())
    assert [message.text for message in end["messages"]] == ["q2", "two"]
    assert (await kept(small_memory))[-2:] == [("user", "q2"), ("assistant", "two")]


async def test_a_function_that_takes_a_text_may_be_in_a_chain(small_memory: Memory) -> None:
    @entrypoint()
    async def shout(text: str) -> str:
        """Return the text in capitals."""
        return text.upper()

    chain = RunnableLambda[str, str](lambda text: f"{text}!") | recorded(shout, small_memory)
    with pytest.warns(MiddlewareWarning, match="stored no answer"):
        assert await chain.ainvoke("hi", config_of()) == "HI!"


async def test_a_pair_of_a_role_and_a_text_is_one_message(small_memory: Memory) -> None:
    graph = recorded(create_agent(ScriptedModel(["hello"]), []), small_memory)
    state = await graph.ainvoke({"messages": ("user", "hi")}, config_of())
    assert [message.text for message in state["messages"]] == ["hi", "hello"]
    assert await kept(small_memory) == [("user", "hi"), ("assistant", "hello")]


async def test_a_function_of_the_functional_api_is_recorded_if_it_has_messages(small_memory: Memory) -> None:
    """If it takes and returns a text, a warning names the form that can be recorded."""

    @entrypoint()
    async def shout(text: str) -> str:
        return text.upper()

    @entrypoint()
    async def count(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [*state["messages"], AIMessage(f"{len(state['messages'])} seen")]}

    with pytest.warns(MiddlewareWarning, match=r"'messages': \[\.\.\.\]"):
        assert await recorded(shout, small_memory).ainvoke("hi", config_of()) == "HI"
    for words in ("one", "two"):
        await recorded(count, small_memory).ainvoke(input_of(words), config_of())
    assert await kept(small_memory) == [
        ("user", "one"), ("assistant", "1 seen"), ("user", "two"), ("assistant", "3 seen")
    ]  # fmt: skip


async def test_the_context_of_a_call_names_the_session(small_memory: Memory) -> None:
    graph = recorded(create_agent(ScriptedModel(["hello"]), []), small_memory)
    await graph.ainvoke(input_of("hi"), context={"session_id": ROOM, "user_id": "ann"})
    assert await kept(small_memory) == [("user", "hi"), ("assistant", "hello")]
    assert (await small_memory.session(ROOM).info()).user_id == "ann"


async def test_a_question_that_a_command_adds_is_stored(memory: Memory) -> None:
    graph = recorded(create_agent(ScriptedModel(["one", "two", "three"]), [], checkpointer=InMemorySaver()), memory)
    await graph.ainvoke(input_of("q1"), config_of())
    await graph.ainvoke(Command(update=input_of("q2"), goto="model"), config_of())
    await graph.aupdate_state(config_of(), input_of("q3"), as_node="__start__")
    await graph.ainvoke(None, config_of())
    answers = [("assistant", answer) for answer in ("one", "two", "three")]
    questions = [("user", question) for question in ("q1", "q2", "q3")]
    assert await kept(memory) == [row for pair in zip(questions, answers, strict=True) for row in pair]


@pytest.mark.parametrize("outer", [None, InMemorySaver()], ids=["none", "saver"])
async def test_a_graph_with_a_checkpointer_may_be_a_node(small_memory: Memory, outer: InMemorySaver | None) -> None:
    """LangGraph does not use the checkpointer of a nested graph, so the graph gets the earlier turns."""
    model = ScriptedModel(["one", "two"])
    team = recorded(create_agent(model, [], checkpointer=InMemorySaver()), small_memory)
    graph = in_line(team, saver=outer)
    for words in ("q1", "q2"):
        await graph.ainvoke(input_of(words), config_of())
    assert [message.text for message in model.calls[1]] == ["q1", "one", "q2"]
    assert [text for _, text in await kept(small_memory)] == ["q1", "one", "q2", "two"]


OPTIONS: list[dict[str, Any]] = [
    {"stream_mode": "values"},
    {"stream_mode": ["updates", "values"]},
    {"stream_mode": "values", "subgraphs": True},
    {"stream_mode": ["values"], "version": "v2"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["one mode", "modes", "subgraphs", "v2"])
async def test_streamed_states_do_not_have_the_earlier_turns(small_memory: Memory, options: Any) -> None:
    model = ScriptedModel(["one", "two", "three"])
    graph = recorded(in_line(create_agent(model, [])), small_memory)
    await graph.ainvoke(input_of("q1"), config_of())
    parts = [part async for part in graph.astream(input_of("q2"), config_of(), **options)]
    assert "two" in str(parts[-1])
    assert "q1" not in str(parts)


async def test_an_output_of_earlier_turns_only_is_empty(small_memory: Memory) -> None:
    """A function that returns no message of its own does not return those that were inserted."""

    @entrypoint()
    async def without_question(state: dict[str, Any]) -> Modelled:
        return Modelled(messages=state["messages"][:-1])

    await recorded(create_agent(ScriptedModel(["one"]), []), small_memory).ainvoke(input_of("q1"), config_of())
    graph = recorded(without_question, small_memory)
    with pytest.warns(MiddlewareWarning, match="stored no answer"):
        assert (await graph.ainvoke(input_of("q2"), config_of())).messages == []
    modes: Any = ["updates", "values"]
    with pytest.warns(MiddlewareWarning, match="stored no answer"):
        parts = [part async for part in graph.astream(input_of("q3"), config_of(), stream_mode=modes)]
    assert "q1" not in str(parts)


async def test_a_recorded_graph_is_drawn_as_the_graph(small_memory: Memory) -> None:
    agent: Any = in_line(create_agent(ScriptedModel([]), []))
    graph = recorded(agent, small_memory)
    assert graph.get_graph(xray=True).nodes.keys() == agent.get_graph(xray=True).nodes.keys()


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["none", "saver"])
async def test_a_retried_recorded_graph_stores_a_question_without_id_once(
    small_memory: Memory, saver: InMemorySaver | None
) -> None:
    """A later call with an equal text asks another question."""
    model = ScriptedModel([ConnectionError("down"), "one", "two"])
    graph = recorded(create_agent(model, [], checkpointer=saver), small_memory)
    retried = graph.with_retry(wait_exponential_jitter=False)
    question = {"messages": [("user", "q1")]}

    async def twice(_: object) -> None:
        await retried.ainvoke(question, config_of())
        await retried.ainvoke(question, config_of())

    await RunnableLambda(twice).ainvoke("")
    assert [message.text for message in model.calls[1]] == ["q1"]
    assert [text for _, text in await kept(small_memory)] == ["q1", "one", "q1", "two"]


async def test_an_output_of_messages_only_is_recorded(small_memory: Memory) -> None:
    graph = recorded(create_agent(ScriptedModel(["one", "two"]), []), small_memory)
    told = [
        await graph.ainvoke(input_of(words, words), config_of(), output_keys="messages") for words in ("q1", "q2", "q2")
    ]
    assert [[message.text for message in one] for one in told] == [["q1", "one"], ["q2", "two"], ["q2", "two"]]
    assert [text for _, text in await kept(small_memory)] == ["q1", "one", "q2", "two"]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_config_of_a_bound_graph_names_the_session(small_memory: Memory, wrapped: bool) -> None:
    agent: Any = create_agent(ScriptedModel(["one", "two"]), [], checkpointer=InMemorySaver())
    bound = (agent.with_retry() if wrapped else agent).with_config(configurable={"thread_id": ROOM})
    for words in ("q1", "q2"):
        await recorded(bound, small_memory).ainvoke(input_of(words, words))
    told = await recorded(bound, small_memory).ainvoke(input_of("q2", "q2"))
    assert [message.text for message in told["messages"]] == ["q1", "one", "q2", "two"]
    assert [text for _, text in await kept(small_memory)] == ["q1", "one", "q2", "two"]


async def test_the_config_of_a_bound_graph_replaces_that_of_an_outer_graph(small_memory: Memory) -> None:
    inner = create_agent(ScriptedModel(["one"]), []).with_config(configurable={"thread_id": "inner"})
    graph = recorded(inner, small_memory)

    async def node(_: object) -> Any:
        return await graph.ainvoke(input_of("q1", "q1"))

    outer: Any = StateGraph(Modelled)
    outer.add_node("node", node).add_edge(START, "node")
    await outer.compile().ainvoke(input_of("q0", "q0"), config_of())
    assert [text for _, text in await kept(small_memory, "inner")] == ["q1", "one"]


async def test_unordered_graphs_with_one_input_each_answer_it(small_memory: Memory) -> None:
    options = TurnOptions(ordered=False)
    first, second = (recorded(create_agent(ScriptedModel([one]), []), small_memory, options) for one in ("one", "two"))
    chain = RunnableParallel(first=first, second=second)
    states = await chain.ainvoke({"messages": [("user", "q1")]}, config_of())
    assert [states[name]["messages"][-1].text for name in ("first", "second")] == ["one", "two"]


async def test_a_graph_with_other_messages_returns_its_output(small_memory: Memory) -> None:
    """An output that cannot be recorded is not lost."""
    builder: Any = StateGraph(dict)
    builder.add_node("node", lambda _: {"messages": [{"text": "no role"}]}).add_edge(START, "node")
    graph = recorded(builder.compile(), small_memory)
    with pytest.warns(MiddlewareWarning, match="stored no answer"):
        assert await graph.ainvoke({"q": "hi"}, config_of()) == {"messages": [{"text": "no role"}]}
