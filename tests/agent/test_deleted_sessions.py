"""Tests of sessions that are deleted during a model call: the answer does not create them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ROOM, Agent, Meanwhile, add, adding, ask, config_of, input_of, make_agent, numbered
from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, SessionMemory, open_memory
from threadkeep.errors import QuestionGone
from threadkeep.observe import AnswerDiscarded
from threadkeep.store.address import TranscriptLocation
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import ScriptedModel


def agent_with(memory: Memory, event: Callable[[], Awaitable[object]]) -> Agent:
    """Return an agent whose session is changed during its model call."""
    return make_agent(ScriptedModel(replies=["answer"]), [SessionMemory(memory), Meanwhile(event)])


async def test_an_answer_does_not_recreate_a_deleted_session(memory: Memory, events: RecordedEvents) -> None:
    session = memory.session(ROOM)
    await session.append(numbered(6))
    assert await ask(agent_with(memory, session.delete), "question") == "answer"
    assert [info async for info in memory.sessions()] == []
    assert [event.session_id for event in events.of(AnswerDiscarded)] == [ROOM]


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_an_answer_does_not_recreate_a_session_that_another_process_deleted(
    shared_url: str, memory_options: MemoryOptions, transcripts: TranscriptLocation
) -> None:
    options = replace(memory_options, transcripts=transcripts)
    async with open_memory(shared_url, options=options) as memory, open_memory(shared_url, options=options) as other:
        assert await ask(agent_with(memory, other.session(ROOM).delete), "question") == "answer"
        assert await memory.session(ROOM).count() == 0
        assert [info async for info in memory.sessions()] == []


async def test_a_resumed_run_does_not_recreate_a_deleted_session(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    saver = InMemorySaver()
    async with open_memory(shared_url, options=memory_options) as memory:
        model = ScriptedModel([adding()])
        waits = make_agent(model, [SessionMemory(memory)], [add], checkpointer=saver)
        await waits.ainvoke(input_of("1 + 2?"), config_of(), interrupt_before=["tools"])
        await memory.session(ROOM).delete()
    async with open_memory(shared_url, options=memory_options, observers=[events]) as memory:
        is_continued = make_agent(ScriptedModel(["3"]), [SessionMemory(memory)], [add], checkpointer=saver)
        state = await is_continued.ainvoke(None, config_of())
        assert state["messages"][-1].text == "3"
        assert await memory.session(ROOM).count() == 0
        assert len(events.of(AnswerDiscarded)) == 1


async def test_an_answer_is_not_stored_in_a_session_that_was_created_again(memory: Memory) -> None:
    session = memory.session(ROOM)

    async def delete_and_speak() -> None:
        await session.delete()
        await session.append([Message(role="user", content="hello again")])

    await ask(agent_with(memory, delete_and_speak), "question")
    assert [message.content for message in await session.tail(10)] == ["hello again"]


async def test_a_pending_answer_does_not_recreate_a_deleted_session(
    tmp_path: Path, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    outage = Outage(tmp_path / "threadkeep.db")
    options = replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05))
    elsewhere = replace(options, pending=replace(options.pending, folder=tmp_path / "elsewhere"))
    async with AsyncExitStack() as lock, open_memory(outage.url, options=options) as memory:
        agent = agent_with(memory, lambda: lock.enter_async_context(outage()))
        assert await ask(agent, "question") == "answer"
        assert [kept.turn.answers is not None for kept in memory.pending.entries] == [True]
    async with open_memory(outage.url, options=elsewhere) as other:
        await other.session(ROOM).delete()
    async with open_memory(outage.url, options=options, observers=[events]) as memory:
        await events.until(lambda: bool(events.of(AnswerDiscarded)))
        assert memory.pending.entries == ()
        assert await memory.session(ROOM).count() == 0


async def test_recording_an_answer_to_a_deleted_question_fails(memory: Memory) -> None:
    session = memory.session(ROOM)
    await session.record([Message(role="user", content="question", id="q")])
    await session.record([Message(role="assistant", content="answer")], answers="q")
    await session.delete()
    with pytest.raises(QuestionGone):
        await session.record([Message(role="assistant", content="late")], answers="q")
    assert await session.count() == 0
