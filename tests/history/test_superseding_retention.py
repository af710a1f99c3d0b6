"""Tests of retention with superseded messages: limits count active messages only."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.history.retaining import DAY, deleting, planned, seqs, window_seqs
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.retention import Amount, PlannedRemoval, Pruned
from threadkeep.records import Retention, RetentionLimits
from threadkeep.store import retention
from threadkeep.store.driver import Row
from threadkeep.testing import SettableClock


@pytest.fixture(params=["tables", "graph store"])
async def keeper(request: pytest.FixtureRequest, memory: Memory) -> Memory:
    """Return a memory with sessions in tables, or one with conversations of an agent."""
    if request.param == "tables":
        return memory
    return await memory.namespace(GraphLayout(chunk_size=3), await memory.graph_store())


async def test_the_limit_counts_active_messages(keeper: Memory) -> None:
    """Superseded messages do not count for the limit, and are deleted with older active ones."""
    session = keeper.session("room")
    await _say(keeper, *range(1, 11))
    await session.edit("m7", "new", new_id="m7b")
    await _say(keeper, 12)
    assert await seqs(keeper, "room") == [1, 2, 3, 4, 5, 6, 11, 12]
    assert await planned(keeper, deleting(max_messages=4)) == [PlannedRemoval("room", "delete", 1, 4, 4, 12)]
    assert await keeper.retention.prune(deleting(max_messages=4)) == Pruned(deleted=Amount(1, 4, 12))
    assert await seqs(keeper, "room") == [5, 6, 11, 12]
    assert await session.count() == 4
    assert await session.count(view="history") == 8
    assert await keeper.retention.prune(deleting(max_messages=2)) == Pruned(deleted=Amount(1, 6, 18))
    assert await seqs(keeper, "room") == [11, 12]
    assert (await session.count(), await session.count(view="history")) == (2, 2)
    assert (await session.info()).title == "new"
    assert await planned(keeper, deleting(max_messages=2)) == []


async def test_nothing_is_deleted_below_the_limit_of_active_messages(keeper: Memory) -> None:
    await _say(keeper, *range(1, 9))
    await keeper.session("room").take_back(5)
    assert await planned(keeper, deleting(max_messages=3)) == []
    assert await keeper.retention.prune(deleting(max_messages=3)) == Pruned()
    assert await seqs(keeper, "room") == [1, 2, 3]


async def test_messages_superseded_while_they_are_deleted_are_counted_once(
    shared_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes messages back after retention has read the number to delete."""
    counted = retention._of_one_step  # noqa: SLF001 - runs between a read and a write

    async def take_back() -> None:
        async with open_memory(shared_url, options=memory_options) as other:
            await other.session("room").take_back(6)

    def first_taken_back(rows: list[Row]) -> list[Row]:
        with ThreadPoolExecutor() as thread:
            thread.submit(asyncio.run, take_back()).result()
        return counted(rows)

    # `first_taken_back` blocks the event loop, so that background work of this memory could not release its locks.
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as memory:
        await _say(memory, *range(1, 11))
        with monkeypatch.context() as patched:
            patched.setattr(retention, "_of_one_step", first_taken_back)
            await memory.retention.prune(deleting(max_messages=4))
        info = await memory.session("room").info()
        assert (info.message_count, info.last_message, info.deleted_seq, info.last_seq) == (0, None, 6, 10)


async def test_a_session_without_active_messages_has_no_last_message(keeper: Memory, clock: SettableClock) -> None:
    """Remaining superseded messages are deleted by their age."""
    session = keeper.session("room")
    await _say(keeper, 1, 2)
    clock.advance(10 * DAY)
    await _say(keeper, 3)
    await session.take_back()
    await keeper.retention.prune(deleting(max_age_days=5))
    info = await session.info()
    assert (info.message_count, info.last_message, info.title, info.deleted_seq, info.last_seq) == (0, None, None, 2, 3)
    clock.advance(10 * DAY)
    await keeper.retention.prune(deleting(max_age_days=5))
    assert await session.tail(9, view="history") == []
    assert (await session.append([Message("user", "hi")])).first_seq == 4
    assert (await session.info()).message_count == 1


async def test_the_archive_limit_counts_active_messages(memory: Memory) -> None:
    """Archived messages still count as messages of the session."""
    session = memory.session("room")
    await _say(memory, *range(1, 9))
    await session.edit("m6", "new", new_id="m6b")
    rules = Retention(archive=RetentionLimits(max_messages=3))
    assert await memory.retention.prune(rules) == Pruned(archived=Amount(1, 3, 9))
    assert await window_seqs(memory, "room") == [4, 5, 9]
    assert await session.count() == 6
    await session.edit("m2", "newer", new_id="m2b")
    assert await window_seqs(memory, "room") == [10]
    assert await session.count() == 2


async def _say(keeper: Memory, *numbers: int) -> None:
    messages = [Message("user", f"text {number}", f"m{number}", tokens=3) for number in numbers]
    await keeper.session("room").append(messages)
