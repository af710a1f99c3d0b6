"""Tests of memory in plain graphs: `session_turn` around a model call, and `memory_node`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt

from tests.agent.talking import (
    ROOM,
    Agent,
    add,
    adding,
    ask,
    config_of,
    input_of,
    kept,
    kept_with_status,
    numbered,
    seen,
    stream,
)
from tests.limits import HANG_SECONDS
from threadkeep import (
    BudgetTooSmall,
    InvalidKey,
    Memory,
    SessionMemory,
    TurnOptions,
    WrongUser,
    bounded_messages,
    count_tokens,
    memory_node,
    session_turn,
)
from threadkeep.testing import Gate, ScriptedModel

type Node = Runnable[Any, Any] | Callable[[Any, RunnableConfig], Awaitable[Any]]


def graph_of(node: Node, saver: BaseCheckpointSaver[str] | None = None, state: type[Any] = MessagesState) -> Agent:
    """Return a graph of one node."""
    builder: Any = StateGraph(state)
    builder.add_node("chat", node)
    builder.add_edge(START, "chat")
    graph: Agent = builder.compile(checkpointer=saver)
    return graph


def talking(memory: Memory, model: ScriptedModel, options: TurnOptions | None = None) -> Node:
    """Return a node with `session_turn`, as users write it."""

    async def chat(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        async with session_turn(memory, state["messages"], config, options) as turn:
            reply: BaseMessage = turn.answered or await model.ainvoke(await turn.messages())
            turn.answer(reply)
        return {"messages": [reply]}

    return chat


def ready(memory: Memory, model: ScriptedModel, options: TurnOptions | None = None) -> Node:
    """Return a `memory_node`."""
    return memory_node(memory, model, options=options)


both = pytest.mark.parametrize("node", [talking, ready])
with_and_without = pytest.mark.parametrize("checkpointed", [False, True])


@both
@with_and_without
async def test_the_second_call_contains_the_first_turn_once(
    memory: Memory, node: Callable[..., Node], checkpointed: bool
) -> None:
    model = ScriptedModel(["hello Ann", "you are Ann"])
    graph = graph_of(node(memory, model), InMemorySaver() if checkpointed else None)
    await ask(graph, "I am Ann")
    assert await ask(graph, "who am I?") == "you are Ann"
    assert seen(model.calls[1]) == [("human", "I am Ann"), ("ai", "hello Ann"), ("human", "who am I?")]
    assert await kept(memory) == [
        ("user", "I am Ann"),
        ("assistant", "hello Ann"),
        ("user", "who am I?"),
        ("assistant", "you are Ann"),
    ]


async def test_a_node_keeps_to_its_limits(small_memory: Memory) -> None:
    """A call has the system message first and the question last, and never exceeds the budget."""
    await small_memory.session(ROOM).append(numbered(25))
    model = ScriptedModel(["fine"])
    options = TurnOptions(max_messages=20, max_tokens=60)
    await ask(graph_of(memory_node(small_memory, model, system_prompt="be kind", options=options)), "and now?")
    said = seen(model.calls[0])
    assert (said[0], said[-1]) == (("system", "be kind"), ("human", "and now?"))
    assert said[-2] == ("human", "message 25")
    assert 3 < len(said) < 22
    assert count_tokens(model.calls[0]) <= 60
    with pytest.raises(BudgetTooSmall):
        await ask(graph_of(memory_node(small_memory, model, system_prompt="be kind " * 99, options=options)), "hi")


async def test_a_node_accepts_a_system_message_as_agents_do(sqlite_memory: Memory) -> None:
    model = ScriptedModel(["fine"])
    parts = SystemMessage([{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}])
    await ask(graph_of(memory_node(sqlite_memory, model, system_prompt=parts)), "hi")
    assert model.calls[0][0].content == parts.content


def test_a_node_without_room_for_a_prompt_raises_an_error(sqlite_memory: Memory) -> None:
    with pytest.raises(BudgetTooSmall, match=r"4000.*3488.*512"):
        memory_node(sqlite_memory, ScriptedModel(), options=TurnOptions(context_window=4000, max_output_tokens=3488))
    with pytest.raises(BudgetTooSmall, match=r"128000.*500000"):
        memory_node(sqlite_memory, ScriptedModel(), options=TurnOptions(max_output_tokens=500_000))


async def test_a_bounded_state_does_not_bound_the_history(small_memory: Memory) -> None:
    class Small(TypedDict):
        messages: Annotated[list[AnyMessage], bounded_messages(max_messages=2)]

    model = ScriptedModel(["one", "two", "three"])

    async def chat(state: Small, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        async with session_turn(small_memory, state["messages"], config) as turn:
            reply = await model.ainvoke(await turn.messages())
            turn.answer(reply)
        return {"messages": [reply]}

    graph = graph_of(chat, InMemorySaver(), Small)
    for n in range(3):
        await ask(graph, f"question {n}")
    assert [text for _, text in seen(model.calls[2])] == ["question 0", "one", "question 1", "two", "question 2"]
    assert len((await graph.aget_state(config_of())).values["messages"]) == 2


@both
async def test_the_question_of_a_failed_model_call_is_stored(memory: Memory, node: Callable[..., Node]) -> None:
    model = ScriptedModel([ConnectionError("down"), "hello"])
    graph = graph_of(node(memory, model))
    with pytest.raises(ConnectionError):
        await ask(graph, "hi", message_id="telegram:1")
    assert await kept(memory) == [("user", "hi")]
    assert await ask(graph, "hi", message_id="telegram:1") == "hello"
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]


async def test_a_partial_answer_before_a_failure_is_stored_as_failed(small_memory: Memory) -> None:
    model = ScriptedModel([["Let me ", ConnectionError("down")], "hello"])
    graph = graph_of(talking(small_memory, model))
    with pytest.raises(ConnectionError):
        await stream(graph, "hi", message_id="telegram:1")
    assert (await kept_with_status(small_memory))[1:] == [("assistant", "Let me ", "failed")]
    assert await ask(graph, "hi", message_id="telegram:1") == "hello"
    assert (await kept_with_status(small_memory))[2:] == [("assistant", "hello", "complete")]


@both
@with_and_without
async def test_a_cancelled_stream_stores_its_partial_answer(
    small_memory: Memory, node: Callable[..., Node], checkpointed: bool
) -> None:
    gate = Gate()
    model = ScriptedModel([["once upon ", gate, "a time"], "fine"])
    graph = graph_of(node(small_memory, model), InMemorySaver() if checkpointed else None)
    task = asyncio.create_task(stream(graph, "a story"))
    await gate.reached()
    task.cancel()
    await asyncio.wait([task])
    assert (await kept_with_status(small_memory))[1:] == [("assistant", "once upon ", "interrupted")]
    await ask(graph, "go on")
    assert seen(model.calls[1]) == [("human", "a story"), ("ai", "once upon "), ("human", "go on")]


@both
@with_and_without
async def test_a_repeated_message_id_returns_the_stored_answer(
    memory: Memory, node: Callable[..., Node], checkpointed: bool
) -> None:
    model = ScriptedModel(["hello"])
    graph = graph_of(node(memory, model), InMemorySaver() if checkpointed else None)
    for _ in range(2):
        assert await ask(graph, "hi", message_id="telegram:1") == "hello"
    assert len(model.calls) == 1
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]


async def test_two_concurrent_runs_of_one_message_id_are_one_turn(memory: Memory) -> None:
    gates = [Gate(), Gate()]
    model = ScriptedModel([["hell", gates[0], "o"], ["hell", gates[1], "o"]])
    graph = graph_of(talking(memory, model, TurnOptions(ordered=False)))
    tasks: list[asyncio.Task[str]] = []
    for gate in gates:
        tasks.append(asyncio.create_task(ask(graph, "hi", message_id="telegram:1")))
        await gate.reached()
    for gate in gates:
        gate.open()
    await asyncio.gather(*tasks)
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]


async def test_twenty_concurrent_turns_lose_nothing(memory: Memory) -> None:
    graph = graph_of(talking(memory, ScriptedModel([lambda said: f"answer to {said[-1].text}"] * 20)))
    await asyncio.gather(*(ask(graph, f"question {n}") for n in range(20)))
    said = [text for _, text in await kept(memory)]
    assert sorted(said) == sorted([f"question {n}" for n in range(20)] + [f"answer to question {n}" for n in range(20)])


async def test_an_interrupt_in_the_node(memory: Memory) -> None:
    """A node that starts again after an interrupt stores its question and its answer once."""
    model = ScriptedModel(["done"])

    async def chat(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        async with session_turn(memory, state["messages"], config) as turn:
            sure = interrupt("sure?")
            reply = turn.answered or await model.ainvoke([*await turn.messages(), HumanMessage(sure)])
            turn.answer(reply)
        return {"messages": [reply]}

    graph = graph_of(chat, InMemorySaver())
    await memory.session(ROOM).append(numbered(2))
    await graph.ainvoke(input_of("do it"), config_of())
    assert (await kept(memory))[2:] == [("user", "do it")]
    await graph.ainvoke(Command(resume="yes"), config_of())
    assert [text for _, text in seen(model.calls[0])] == ["message 1", "message 2", "do it", "yes"]
    assert (await kept(memory))[2:] == [("user", "do it"), ("assistant", "done")]


async def test_messages_without_ids_are_not_doubled(memory: Memory) -> None:
    model = ScriptedModel(["hello", "fine"])
    for n, words in enumerate(("hi", "and now?")):
        async with session_turn(memory, [SystemMessage("be kind"), HumanMessage(words)], config_of()) as turn:
            turn.answer(await model.ainvoke(await turn.messages()))
        assert len(await kept(memory)) == 2 * (n + 1)
    assert seen(model.calls[1]) == [("system", "be kind"), ("human", "hi"), ("ai", "hello"), ("human", "and now?")]


async def test_an_answer_without_a_model_gets_an_id(small_memory: Memory) -> None:
    async def echo(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        async with session_turn(small_memory, state["messages"], config) as turn:
            reply = AIMessage(f"{len(await turn.messages())} messages")
            turn.answer(reply)
        return {"messages": [reply]}

    graph = graph_of(echo, InMemorySaver())
    assert [await ask(graph, "hi") for _ in range(3)] == ["1 messages", "3 messages", "5 messages"]
    assert len(await kept(small_memory)) == 6


async def test_a_block_without_an_answer_stores_the_question(small_memory: Memory) -> None:
    async with session_turn(small_memory, [HumanMessage("hi")], config_of()):
        pass
    assert await kept(small_memory) == [("user", "hi")]


async def test_text_is_an_answer_too(small_memory: Memory) -> None:
    async with session_turn(small_memory, [HumanMessage("hi")], config_of()) as turn:
        turn.answer("hello")
    assert await kept(small_memory) == [("user", "hi"), ("assistant", "hello")]


async def test_the_session_and_the_user_come_from_the_config(small_memory: Memory) -> None:
    """A missing session id and a wrong user raise an error before the block; an option can derive the session id."""
    with pytest.raises(InvalidKey, match="thread_id"):
        async with session_turn(small_memory, [HumanMessage("hi")], {"configurable": {}}):
            pytest.fail("the block must not begin")
    async with session_turn(small_memory, [HumanMessage("hi")], config_of(user_id="ann")) as turn:
        turn.answer("hello")
    with pytest.raises(WrongUser):
        async with session_turn(small_memory, [HumanMessage("hi")], config_of(user_id="bob")):
            pytest.fail("the block must not begin")
    options = TurnOptions(session_id=lambda config: f"room:{config['configurable']['chat']}")
    async with session_turn(small_memory, [HumanMessage("hi")], {"configurable": {"chat": 7}}, options) as turn:
        turn.answer("hello")
    assert len(await kept(small_memory, "room:7")) == 2


@both
@with_and_without
async def test_text_beside_a_tool_call_is_no_answer(
    memory: Memory, node: Callable[..., Node], checkpointed: bool
) -> None:
    model = ScriptedModel([adding(content="Let me see."), "three"])
    builder: Any = StateGraph(MessagesState)
    builder.add_node("chat", node(memory, model))
    builder.add_node("tools", ToolNode([add]))
    builder.add_edge(START, "chat")
    builder.add_conditional_edges("chat", tools_condition)
    builder.add_edge("tools", "chat")
    graph = builder.compile(checkpointer=InMemorySaver() if checkpointed else None)
    for _ in range(2):
        state = await graph.ainvoke(input_of("1 + 2?", "m1"), config_of())
        assert state["messages"][-1].text == "three"
        assert await kept(memory) == [("user", "1 + 2?"), ("assistant", "three")]
    assert len(model.calls) == 2


@both
async def test_each_branch_of_a_node_answers(memory: Memory, node: Callable[..., Node]) -> None:
    model = ScriptedModel(["one", "two", "three"])
    builder: Any = StateGraph(MessagesState)
    builder.add_node("chat", node(memory, model))
    builder.add_conditional_edges(START, lambda state: [Send("chat", state)] * 3, ["chat"])
    graph = builder.compile()
    for _ in range(2):
        state = await graph.ainvoke(input_of("go", "m1"), config_of())
        assert sorted(message.text for message in state["messages"]) == ["go", "one", "three", "two"]
    assert sorted(text for _, text in await kept(memory)) == ["go", "one", "three", "two"]
    assert len(model.calls) == 3


async def test_a_block_accepts_the_forms_of_messages_that_graphs_accept(small_memory: Memory) -> None:
    given: list[Any] = [{"role": "user", "content": "one"}, ("user", "two")]
    async with session_turn(small_memory, given, config_of()) as turn:
        turn.answer("hello")
    assert await kept(small_memory) == [("user", "one"), ("user", "two"), ("assistant", "hello")]


async def test_the_config_is_optional_inside_a_graph(small_memory: Memory) -> None:
    async def chat(state: MessagesState) -> dict[str, list[BaseMessage]]:
        async with session_turn(small_memory, state["messages"]) as turn:
            turn.answer(reply := AIMessage("hello"))
        return {"messages": [reply]}

    await ask(graph_of(chat), "hi")  # type: ignore[arg-type]
    assert len(await kept(small_memory)) == 2


async def test_agents_and_graphs_share_sessions(small_memory: Memory) -> None:
    from langchain.agents import create_agent

    agent: Agent = create_agent(ScriptedModel(["hello Ann"]), middleware=[SessionMemory(small_memory)])
    await ask(agent, "I am Ann")
    model = ScriptedModel(["Ann"])
    await ask(graph_of(ready(small_memory, model)), "who am I?")
    assert len(model.calls[0]) == 3


async def test_a_generator_that_is_dropped_releases_its_session(small_memory: Memory) -> None:
    async def parts() -> AsyncIterator[str]:
        async with session_turn(small_memory, [HumanMessage("one")], config_of()) as turn:
            yield "part"
            turn.answer("never")

    reading = parts()
    assert await anext(reading) == "part"
    del reading
    async with asyncio.timeout(HANG_SECONDS):
        async with session_turn(small_memory, [HumanMessage("two")], config_of()) as turn:
            turn.answer("second")
    assert await kept(small_memory) == [("user", "one"), ("user", "two"), ("assistant", "second")]


# The interpreter ends a dropped generator on the event loop, which must not wait for itself.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("dropped", [False, True])
async def test_each_part_of_a_generator_may_run_in_another_context(small_memory: Memory, dropped: bool) -> None:
    """Starlette reads synchronous generators in this way."""

    def parts() -> Iterator[str]:
        with session_turn(small_memory, [HumanMessage("one")], config_of()) as turn:
            yield "part"
            turn.answer("first")
            yield "end"

    reading = parts()
    for _ in range(1 if dropped else 3):
        await asyncio.to_thread(lambda: next(reading, None))
    reading = iter(())  # drop the generator
    async with asyncio.timeout(HANG_SECONDS):
        async with session_turn(small_memory, [HumanMessage("two")], config_of()) as turn:
            turn.answer("second")
    first = [("user", "one")] if dropped else [("user", "one"), ("assistant", "first")]
    assert await kept(small_memory) == [*first, ("user", "two"), ("assistant", "second")]
