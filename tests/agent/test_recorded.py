"""Tests of recorded graphs: what a graph without its own memory receives, and what is stored."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from tests.agent.talking import ROOM, add, adding, config_of, input_of, kept, numbered, seen
from tests.limits import HANG_SECONDS
from tests.outages import locked
from threadkeep import Memory, MemoryOptions, Message, SessionMemory, TurnOptions, open_memory, recorded
from threadkeep.agent.provider_messages import NO_ANSWER, OPENING
from threadkeep.records import Summary
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import Gate, ScriptedModel


def graph_of(memory: Memory, *replies: Any, **options: Any) -> tuple[Any, ScriptedModel]:
    """Return a recorded agent, and its model."""
    model = ScriptedModel(list(replies))
    return recorded(create_agent(model, []), memory, TurnOptions(**options)), model


async def test_a_call_that_begins_with_an_answer_gets_a_mark(memory: Memory) -> None:
    await memory.session(ROOM).append(numbered(6))
    graph, model = graph_of(memory, "one", max_messages=3)
    state = await graph.ainvoke(input_of("hi"), config_of())
    texts = ["message 4", "message 5", "message 6"]
    assert [message.text for message in model.calls[0]] == [OPENING, *texts, "hi"]
    assert model.calls[0][0].type == "human"
    assert [message.text for message in state["messages"]] == ["hi", "one"]
    assert OPENING not in [text for _, text in await kept(memory)]


async def test_the_last_event_has_only_the_messages_of_its_turn(memory: Memory) -> None:
    """The events of `astream_events` end with the output that `ainvoke` returns."""
    graph, _ = graph_of(memory, "one", "two")
    await graph.ainvoke(input_of("hi"), config_of())
    events = [event async for event in graph.astream_events(input_of("go on"), config_of(), version="v2")]
    assert events[-1]["event"] == "on_chain_end"
    assert seen(events[-1]["data"]["output"]["messages"]) == [("human", "go on"), ("ai", "two")]


async def test_a_question_without_an_answer_is_marked(memory: Memory) -> None:
    graph, model = graph_of(memory, ConnectionError("down"), "two", "three")
    for words in ("one?", "two?", "three?"):
        with suppress(ConnectionError):
            await graph.ainvoke(input_of(words), config_of())
    unanswered = [("human", "one?"), ("ai", NO_ANSWER), ("human", "two?")]
    assert seen(model.calls[1]) == unanswered
    assert seen(model.calls[2]) == [*unanswered, ("ai", "two"), ("human", "three?")]
    assert await kept(memory) == [
        ("user", "one?"), ("user", "two?"), ("assistant", "two"), ("user", "three?"), ("assistant", "three")
    ]  # fmt: skip


async def test_an_answer_before_an_added_human_message_is_stored(sqlite_memory: Memory) -> None:
    model = ScriptedModel(["one", "two"])
    graph = StateGraph(MessagesState)
    graph.add_node("agent", create_agent(model, []))
    graph.add_node("note", lambda state: {"messages": [HumanMessage("note")]})
    graph.add_edge(START, "agent")
    graph.add_edge("agent", "note")
    notes: Any = recorded(graph.compile(), sqlite_memory)
    for _ in range(2):
        await notes.ainvoke(input_of("hi", "m-1"), config_of())
    assert len(model.calls) == 1
    assert await kept(sqlite_memory) == [("user", "hi"), ("assistant", "one")]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_direct_result_of_a_tool_is_the_answer_of_the_graph(sqlite_memory: Memory, checkpointed: bool) -> None:
    """A repeat gets the stored result; the tool and the model are not called again."""

    @tool(return_direct=True)
    def look_up() -> str:
        """Look up a price."""
        return "five euros"

    call = AIMessage("", tool_calls=[{"name": "look_up", "args": {}, "id": "call-1"}])
    saver = InMemorySaver() if checkpointed else None
    agent = create_agent(ScriptedModel([call]), [look_up], name="clerk", checkpointer=saver)
    graph = recorded(agent, sqlite_memory)
    states = [await graph.ainvoke(input_of("how much?", "m-1"), config_of()) for _ in range(2)]
    assert [state["messages"][-1].text for state in states] == ["five euros"] * 2
    assert await kept(sqlite_memory) == [("user", "how much?"), ("assistant", "five euros")]
    assert [message.author for message in await sqlite_memory.session(ROOM).tail(9)] == [None, "clerk"]


async def test_a_summary_replaces_its_messages(sqlite_memory: Memory) -> None:
    session = sqlite_memory.session(ROOM)
    await session.append(numbered(5))
    assert await sqlite_memory.summaries.add(Summary(ROOM, 1, 4, "They counted to four.", "m", "1", 5))
    graph, model = graph_of(sqlite_memory, "six")
    await graph.ainvoke(input_of("go on"), config_of())
    (_, summary), *rest = seen(model.calls[0])
    assert "They counted to four." in summary
    assert rest == [("human", "message 5"), ("human", "go on")]


async def test_a_graph_answers_while_the_database_does_not(memory_options: MemoryOptions, tmp_path: Path) -> None:
    """Without a database, the graph answers without history and stores its turn later; a repeat does not run it."""
    pending = dataclasses.replace(memory_options.pending, write_timeout_seconds=0.3, first_pause_seconds=60.0)
    options = dataclasses.replace(memory_options, pending=pending, store=StoreOptions(lock_timeout_seconds=0.2))
    async with open_memory(f"sqlite:///{tmp_path}/t.db", options=options) as memory:
        await memory.session(ROOM).append([Message("user", "before"), Message("assistant", "yes")])
        graph, model = graph_of(memory, "hello", "never")
        lock = locked(tmp_path / "t.db")
        await asyncio.to_thread(lock.__enter__)
        try:
            states = [await graph.ainvoke(input_of("hi", "m-1"), config_of()) for _ in range(2)]
        finally:
            lock.__exit__(None, None, None)
        memory.pending.options = dataclasses.replace(pending, write_timeout_seconds=HANG_SECONDS)
        assert await memory.pending.deliver()
        states.append(await graph.ainvoke(input_of("hi", "m-1"), config_of()))
        assert [state["messages"][-1].text for state in states] == ["hello"] * 3
        assert len(model.calls) == 1
        assert (await kept(memory))[2:] == [("user", "hi"), ("assistant", "hello")]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_superseded_messages_are_removed_from_the_state(
    tmp_path: Path, memory_options: MemoryOptions, is_sync: bool
) -> None:
    model = ScriptedModel([f"a{number}" for number in range(9)])
    agent = create_agent(model, [], name="team", checkpointer=InMemorySaver())
    url = f"sqlite:///{tmp_path}/threadkeep.db"
    async with open_memory(url, options=memory_options) as memory:
        graph, session = recorded(agent, memory), memory.session(ROOM)

        async def ask(given: Any) -> list[str]:
            await (
                asyncio.to_thread(graph.invoke, given, config_of()) if is_sync else graph.ainvoke(given, config_of())
            )
            return [message.text for message in model.calls[-1]]

        for words in ("q0", "q1"):
            await ask(input_of(words, words))
        assert await ask(await session.regenerate()) == ["q0", "a0", "q1"]
        edited = HumanMessage("q1!", id="q1b", response_metadata={"edits": "q1"})
        assert await ask({"messages": [edited]}) == ["q0", "a0", "q1!"]
        await session.take_back(2)
        assert await ask(input_of("q2")) == ["q0", "a0", "q2"]
        await session.reset()
        assert await ask(input_of("q3")) == ["q3"]
        assert await ask(input_of("q4")) == ["q3", "a5", "q4"]


def graph_with(memory: Memory, *replies: Any, gate: Gate | None = None) -> tuple[Any, ScriptedModel]:
    """Return a recorded graph with a gate before an agent with memory, and the agent's model."""
    model = ScriptedModel(list(replies))

    async def wait(_: MessagesState) -> None:
        if gate is not None:
            await gate.pass_through()

    builder: Any = StateGraph(MessagesState)
    builder.add_node(wait).add_edge(START, "wait").add_edge("wait", "clerk")
    builder.add_node("clerk", create_agent(model, [add], middleware=[SessionMemory(memory)], name="clerk"))
    return recorded(builder.compile(), memory), model


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("mode", ["messages", "values", "updates"])
async def test_an_unread_stream_does_not_delay_the_next_turn(memory: Memory, mode: str, closed: bool) -> None:
    """After a reader stops at any point of a stream, closed or not, the next question is answered."""
    for stop in range(4):
        room = f"telegram:{stop}"
        graph, model = graph_with(memory, adding(), ["one ", "two ", "three"], "fine")
        parts = graph.astream(input_of("count"), config_of(room), stream_mode=mode)
        number = 0
        async for _ in parts:
            if number == stop:
                break
            number += 1
        if closed:
            await parts.aclose()
        calls = len(model.calls)
        del parts
        async with asyncio.timeout(HANG_SECONDS):
            state = await graph.ainvoke(input_of("and now?"), config_of(room))
        assert not closed or all(("human", "and now?") in seen(call) for call in model.calls[calls:])
        assert state["messages"][-1].text == (await kept(memory, room))[-1][1]
        assert [text for role, text in await kept(memory, room) if role == "user"] == ["count", "and now?"]


async def test_a_graph_called_during_another_stream_has_its_own_turn(memory: Memory) -> None:
    gate = Gate()
    graph, _ = graph_with(memory, "hello", gate=gate)
    agent: Any = create_agent(ScriptedModel([["one ", "two"]]), [])
    call: asyncio.Task[Any] | None = None
    async for _ in agent.astream(input_of("count"), stream_mode="messages"):
        if call is None:
            call = asyncio.create_task(graph.ainvoke(input_of("hi"), config_of()))
            await gate.reached()
    gate.open()
    assert call is not None
    async with asyncio.timeout(HANG_SECONDS):
        await call
    assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]
