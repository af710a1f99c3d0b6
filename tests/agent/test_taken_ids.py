"""Tests of answers whose message id exists already, as with LangChain's cache: they get a new id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from tests.agent.talking import ROOM, config_of, input_of
from tests.limits import HANG_SECONDS
from tests.outages import Outage
from tests.web.services import opened_app, settings_for
from threadkeep import Memory, MemoryOptions, SessionMemory, memory_node, open_memory, recorded, session_turn
from threadkeep.records import Receipt, Turn
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel

CONFIG: Any = config_of()


@pytest.fixture
def cached() -> Iterator[None]:
    """Enable LangChain's cache, which returns each answer with its first id."""
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


def alike() -> ScriptedModel:
    """Return a model whose answers all have one id."""
    return ScriptedModel([AIMessage(text, id="fixed") for text in ("one", "two", "three")])


def graph_of(memory: Memory, kind: str) -> Any:
    """Return a graph that answers with a model whose answers all have one id."""
    if kind == "agent":
        return create_agent(alike(), [], middleware=[SessionMemory(memory)])
    if kind == "checkpointer":
        return create_agent(alike(), [], middleware=[SessionMemory(memory)], checkpointer=InMemorySaver())
    if kind == "recorded":
        return recorded(create_agent(alike(), []), memory)
    builder: Any = StateGraph(MessagesState)
    builder.add_node("chat", memory_node(memory, alike()))
    builder.add_edge(START, "chat")
    return builder.compile()


@pytest.mark.parametrize("kind", ["agent", "checkpointer", "recorded", "node"])
async def test_each_question_keeps_its_own_answer(small_memory: Memory, kind: str) -> None:
    graph, session = graph_of(small_memory, kind), small_memory.session(ROOM)
    for number, text in enumerate(["one", "two", "three"]):
        state = await graph.ainvoke(input_of(f"q{number}", f"m{number}"), CONFIG)
        [asked, answer] = await session.tail(2)
        assert (asked.content, answer.content, answer.status) == (f"q{number}", text, "complete")
        assert (state["messages"][-1].text, state["messages"][-1].id) == (text, answer.id)
        assert answer.answers == f"m{number}"
    assert await session.count() == 6
    again = await graph.ainvoke(input_of("q1", "m1"), CONFIG)
    assert again["messages"][-1].text == "two"
    assert await session.count() == 6


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_each_partial_answer_of_a_question_replaces_the_one_before(
    database_url: str, memory_options: MemoryOptions, transcripts: Any
) -> None:
    """The provider gives all answers one id, and the question is asked again after each of them."""
    replies: list[Any] = [[AIMessage(text, id="fixed"), Gate()] for text in ("It ", "It is ", "Well ")]
    async with open_memory(database_url, options=replace(memory_options, transcripts=transcripts)) as memory:
        agent: Any = create_agent(ScriptedModel([*replies, "blue"]), [], middleware=[SessionMemory(memory)])
        for partial in ("It ", "It is ", "Well "):
            reading = agent.astream(input_of("q", "m1"), CONFIG, stream_mode="messages")
            await anext(reading)
            await reading.aclose()
            [_, stored] = await memory.session(ROOM).tail(9)
            assert (stored.content, stored.status) == (partial, "interrupted")
        await agent.ainvoke(input_of("q", "m1"), CONFIG)
        [_, stored] = await memory.session(ROOM).tail(9)
        assert (stored.content, stored.status) == ("blue", "complete")
        assert len(await memory.session(ROOM).tail(9, view="history")) == 5


async def test_session_turn_returns_the_stored_id(small_memory: Memory) -> None:
    for number in range(2):
        async with session_turn(small_memory, [HumanMessage(f"q{number}")], CONFIG) as turn:
            turn.answer(AIMessage(f"a{number}", id="fixed"))
        stored = (await small_memory.session(ROOM).tail(1))[0]
        assert isinstance(turn.reply, AIMessage)
        assert (turn.reply.text, turn.reply.id) == (stored.content, stored.id) == (f"a{number}", stored.id)


@pytest.mark.usefixtures("cached")
async def test_a_cached_answer_is_stored_each_time(small_memory: Memory) -> None:
    model = FakeListChatModel(responses=["r1", "r2"])
    agent: Any = create_agent(model, [], middleware=[SessionMemory(small_memory, max_messages=0)])
    session = small_memory.session(ROOM)
    for _ in range(2):
        await agent.ainvoke(input_of("q"), CONFIG)
    assert [message.content for message in await session.tail(9)] == ["q", "r1", "q", "r1"]
    for _ in range(2):
        state = await agent.ainvoke(await session.regenerate(), CONFIG)
        assert state["messages"][-1].text == "r1"
        assert [message.content for message in await session.tail(9)] == ["q", "r1", "q", "r1"]
    assert len(await session.tail(9, view="history")) == 6
    await session.reset()
    await agent.ainvoke(input_of("q"), CONFIG)
    assert [message.content for message in await session.tail(2)] == ["q", "r1"]


async def test_a_pending_answer_with_an_existing_id_is_stored_once_after_an_outage(
    tmp_path: Path, memory_options: MemoryOptions
) -> None:
    outage = Outage(tmp_path / "threadkeep.db")
    pending = replace(memory_options.pending, write_timeout_seconds=0.3, first_pause_seconds=60.0)
    async with open_memory(outage.url, options=replace(memory_options, pending=pending)) as memory:
        agent: Any = create_agent(alike(), [], middleware=[SessionMemory(memory)])
        await agent.ainvoke(input_of("q0", "m0"), CONFIG)
        async with outage():
            await agent.ainvoke(input_of("q1", "m1"), CONFIG)
            assert memory.pending.count
            [*_, waiting] = memory.pending.entries
        memory.pending.options = replace(pending, write_timeout_seconds=HANG_SECONDS)
        assert await memory.pending.deliver()
        expected = [("q0", None), ("one", "m0"), ("q1", None), ("two", "m1")]
        session = memory.session(ROOM)
        assert [(message.content, message.answers) for message in await session.tail(9)] == expected
        await session.record(list(waiting.turn.messages), answers="m1")
        assert [(message.content, message.answers) for message in await session.tail(9)] == expected


async def test_the_chat_returns_the_stored_id(tmp_path: Path) -> None:
    async with opened_app(alike(), settings_for(tmp_path, database_url=f"sqlite:///{tmp_path}/threadkeep.db")) as app:
        for number, text in enumerate(["one", "two"]):
            answer = await app.chat.ask(
                RunRequest(workflow="chat", text=f"q{number}", session_id="room:1", message_id=f"m{number}")
            )
            stored = (await app.memory.session("room:1").tail(1))[0]
            assert (answer.response, answer.answer_id) == (text, stored.id) == (stored.content, stored.id)


class FailsOnce(AgentMiddleware):
    """Middleware whose hook after the agent fails at its first call."""

    failed = False

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Fail at the first call."""
        if not self.failed:
            self.failed = True
            raise RuntimeError("not now")


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_an_answer_of_a_failed_run_that_is_continued_is_stored_once(
    database_url: str, memory_options: MemoryOptions, transcripts: Any
) -> None:
    """The run fails after its model's answer, which is stored as interrupted. The continued run supersedes that row."""
    model = ScriptedModel(["one", "two"])
    async with open_memory(database_url, options=replace(memory_options, transcripts=transcripts)) as memory:
        middleware: Any = [SessionMemory(memory), FailsOnce()]
        agent: Any = create_agent(model, [], middleware=middleware, checkpointer=InMemorySaver())
        with pytest.raises(RuntimeError, match="not now"):
            await agent.ainvoke(input_of("q", "m1"), CONFIG)
        session = memory.session(ROOM)
        assert [(message.content, message.status) for message in await session.tail(9)][1:] == [("one", "interrupted")]
        state = await agent.ainvoke(None, CONFIG)
        [_, answer] = await session.tail(9)
        assert (answer.content, answer.status, answer.id) == ("one", "complete", state["messages"][-1].id)
        await agent.ainvoke(input_of("q2", "m2"), CONFIG)
        assert [message.text for message in model.calls[-1]] == ["q", "one", "q2"]


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_no_reader_sees_the_incomplete_answer_beside_the_complete_one(
    database_url: str, memory_options: MemoryOptions, transcripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each write of the continued run, the session has one answer, so a crash in between leaves one too."""
    seen: list[list[str]] = []
    async with open_memory(database_url, options=replace(memory_options, transcripts=transcripts)) as memory:
        middleware: Any = [SessionMemory(memory), FailsOnce()]
        agent: Any = create_agent(ScriptedModel(["one"]), [], middleware=middleware, checkpointer=InMemorySaver())
        with pytest.raises(RuntimeError, match="not now"):
            await agent.ainvoke(input_of("q", "m1"), CONFIG)
        session = memory.session(ROOM)
        writing = type(session._transcripts)  # noqa: SLF001 - a process may die after each of its writes
        append = writing.append

        async def append_and_read(store: Any, turn: Turn) -> Receipt:
            receipt = await append(store, turn)
            seen.append([message.content for message in await session.tail(9)])
            return receipt

        monkeypatch.setattr(writing, "append", append_and_read)
        await agent.ainvoke(None, CONFIG)
        assert seen
        assert all(contents == ["q", "one"] for contents in seen)
        [_, incomplete, answer] = await session.tail(9, view="history")
        assert (incomplete.status, incomplete.superseded_by) == ("interrupted", answer.id)
