"""Tests of pending work that is stored when a memory closes or when its caller is cancelled."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from contextlib import AsyncExitStack

import pytest

from tests.agent.talking import ROOM, ask, kept, make_agent, stream
from tests.limits import HANG_SECONDS
from threadkeep import Memory, MemoryOptions, Message, SessionMemory, WrongUser, open_memory
from threadkeep.testing import Gate, ScriptedModel


class Speaker:
    """A participant that records a text, or fails, when the memory closes."""

    def __init__(self, memory: Memory, said: list[str], error: Exception | None = None) -> None:
        self._said = said
        self._error = error
        memory.before_closing(self)

    async def settle_all(self) -> None:
        """Record the text, or raise the error."""
        if self._error is not None:
            raise self._error
        self._said.append("last words")

    async def settle_run(self, run_id: str, *, elsewhere: bool) -> None:
        """Do nothing."""


async def test_a_participant_that_fails_at_closing_does_not_stop_the_others(
    memory_options: MemoryOptions, sqlite_url: str
) -> None:
    said: list[str] = []
    gate = Gate()

    async def unfinished() -> None:
        await gate.pass_through()
        said.append("unfinished")

    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(open_memory(sqlite_url, options=memory_options))
        speakers = [Speaker(memory, said), Speaker(memory, said, WrongUser("s")), Speaker(memory, said)]
        caller = asyncio.create_task(memory.finish(unfinished))
        await gate.reached()
        caller.cancel()
        gate.open()
        with pytest.raises(WrongUser):
            await stack.aclose()
    assert sorted(said) == ["last words", "last words", "unfinished"]
    del speakers  # the memory holds only weak references to them


async def test_unused_participants_are_not_referenced(memory_options: MemoryOptions, sqlite_url: str) -> None:
    said: list[str] = []
    async with open_memory(sqlite_url, options=memory_options) as memory:
        for _ in range(10):
            Speaker(memory, said)
        gc.collect()
    assert said == []


async def test_finish_returns_the_result_or_raises_the_error(small_memory: Memory) -> None:
    session = small_memory.session("telegram:1", user_id="ann")
    receipt = await small_memory.finish(session.record, [Message(role="user", content="hi")])
    assert receipt is not None
    assert receipt.last_seq == 1
    other = small_memory.session("telegram:1", user_id="bob")
    with pytest.raises(WrongUser):
        await small_memory.finish(other.record, [Message(role="user", content="hi")])


async def test_a_question_whose_caller_is_cancelled_is_stored(sqlite_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(sqlite_url, options=memory_options) as memory:
        agent = make_agent(ScriptedModel(["never"]), [SessionMemory(memory)])
        path = sqlite_url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await ask(agent, "hi")
        connection.execute("ROLLBACK")
        connection.close()
    async with open_memory(sqlite_url, options=memory_options) as memory:
        await memory.pending.deliver()
        assert await kept(memory) == [("user", "hi")]


class Patient(Speaker):
    """A participant that waits for an event when the memory closes."""

    def __init__(self, memory: Memory, ends: asyncio.Event) -> None:
        super().__init__(memory, [])
        self._ends = ends

    async def settle_all(self) -> None:
        """Wait for the event."""
        await self._ends.wait()


@pytest.mark.timeout(HANG_SECONDS)
@pytest.mark.parametrize("rounds", range(6))
async def test_a_memory_closes_whether_work_or_participant_ends_first(rounds: int) -> None:
    ends = asyncio.Event()

    async def work() -> None:
        await ends.wait()
        for _ in range(rounds):
            await asyncio.sleep(0)

    memory = await Memory.open("sqlite://")
    speaker = Patient(memory, ends)
    working = asyncio.create_task(memory.finish(work))
    asyncio.get_running_loop().call_later(0.05, ends.set)
    await memory.close()
    await working
    del speaker  # the memory holds only a weak reference to it


async def test_closing_stores_the_partial_answer_of_an_open_model_call(
    memory_options: MemoryOptions, sqlite_url: str
) -> None:
    gate = Gate()
    async with open_memory(sqlite_url, options=memory_options) as memory:
        agent = make_agent(ScriptedModel([["once ", "upon ", gate, "a time"]]), [SessionMemory(memory)])
        reading = asyncio.create_task(stream(agent, "a story, please"))
        await gate.reached()
    reading.cancel()
    await asyncio.wait([reading])
    async with open_memory(sqlite_url, options=memory_options) as memory:
        words = [(message.content, message.status) for message in await memory.session(ROOM).tail(9)]
    assert words == [("a story, please", "complete"), ("once upon ", "interrupted")]
