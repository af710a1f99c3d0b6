"""Tests of closing a memory: when its event loop ends, twice, and after a failure."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import pytest

from tests.limits import HANG_SECONDS
from threadkeep import Memory, MemoryOptions, Message, open_memory_sync
from threadkeep.boundary import WorkQueue
from threadkeep.memory.memory import Lifetime
from threadkeep.store.manifests import NotedManifest


def test_a_loop_that_ends_before_its_memory_is_closed(shared_url: str) -> None:
    """The memory closes its generators before asyncio closes all of them at the end of the loop."""
    troubles: list[dict[str, Any]] = []

    async def program() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
        memory = await Memory.open(shared_url)
        await memory.session("room").append([Message(role="user", content="hi")])

    for _ in range(3):
        asyncio.run(program())
    assert troubles == []
    with open_memory_sync(shared_url) as memory:
        assert memory.session("room").count() == 3


def test_a_loop_that_ends_begins_no_queued_work() -> None:
    """The end of the loop cancels the work in progress. If queued work began then, the memory would wait for it."""
    begun: list[str] = []

    async def program() -> None:
        first = asyncio.Event()

        async def work(session_id: str) -> None:
            begun.append(session_id)
            first.set()
            await asyncio.Event().wait()

        queue = WorkQueue(work, "work", most_at_once=1)
        for session_id in ("a", "b"):
            queue.put(session_id, session_id)
        await first.wait()

    asyncio.run(program())
    assert begun == ["a"]


async def test_a_memory_may_be_closed_twice_and_by_any_task(database_url: str) -> None:
    memory = await Memory.open(database_url)
    await asyncio.gather(memory.close(), memory.close())
    await memory.close()


async def test_a_memory_closes_while_another_process_locks_the_file(
    sqlite_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of model calls and token factors are written only if the lock is free soon."""
    monkeypatch.setattr("threadkeep.history.manifests._CLOSING_SECONDS", 0.05)
    monkeypatch.setattr("threadkeep.history.memory_parts._CLOSING_SECONDS", 0.05)
    options = replace(memory_options, store=replace(memory_options.store, lock_timeout_seconds=2 * HANG_SECONDS))
    memory = await Memory.open(sqlite_url, options=replace(options, background=False))
    await memory.session("room").append([Message(role="user", content="hi")])
    await memory.learned_factors.of("gpt-5")
    memory.learned_factors.learn("gpt-5", 1000, 1300)
    memory.manifests.queue(NotedManifest("room", "run", memory.clock(), dict))
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with asyncio.timeout(HANG_SECONDS):
            await memory.close()


async def test_a_cancelled_opening_leaves_nothing_open(database_url: str, memory_options: MemoryOptions) -> None:
    opening = asyncio.create_task(Memory.open(database_url, options=memory_options))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    memory = await Memory.open(database_url, options=memory_options)
    await memory.close()


async def test_failures_are_raised_to_the_caller() -> None:
    @asynccontextmanager
    async def failing(*, at_once: bool) -> AsyncIterator[int]:
        if at_once:
            raise ValueError("not opened")
        yield 1
        raise ValueError("not closed")

    with pytest.raises(ValueError, match="not opened"):
        async with Lifetime(failing(at_once=True)):
            pass
    with pytest.raises(ValueError, match="not closed"):
        async with Lifetime(failing(at_once=False)) as opened:
            assert opened == 1


async def test_a_memory_refuses_calls_on_another_event_loop(database_url: str) -> None:
    """Such a call could wait forever; on the loop of the memory, later calls work."""

    async def use() -> list[str]:
        session = memory.session("room")
        calls = (session.append([Message("user", "hi")]), session.tail(9), session.update(title="Hi"), session.info())
        return [str(one) for one in await asyncio.gather(*calls, return_exceptions=True)]

    memory = await Memory.open(database_url)
    try:
        await memory.session("room").append([Message("user", "hi")])
        async with asyncio.timeout(HANG_SECONDS):
            refused = await asyncio.to_thread(asyncio.run, use())
        assert all("another event loop" in one and "open_memory_sync" in one for one in refused)
        assert await memory.session("room").count() == 1
    finally:
        await memory.close()
