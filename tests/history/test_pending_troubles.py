"""Pending writes when everything goes wrong at once: callers who leave, turns with a trouble of their own, no disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, StoreUnavailable, open_memory
from threadkeep.store.driver import StoreOptions
from threadkeep.store.spool import SpoolFile, read_entries, spool_files

_LOCK_SECONDS = 0.05
_POISON = "<|poison|>"


def says(words: str) -> list[Message]:
    """A turn of one message."""
    return [Message(role="user", content=words)]


def count_or_raise(text: str) -> int:
    """A counter of somebody's own that cannot count everything."""
    if text == _POISON:
        raise ValueError("a special token")
    return len(text)


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    """Ways to take the database of `memory` away."""
    return Outage(tmp_path / "threadkeep.db")


@pytest.fixture
def options(memory_options: MemoryOptions) -> MemoryOptions:
    """Options of a memory that finds a locked database locked very soon."""
    store = StoreOptions(lock_timeout_seconds=_LOCK_SECONDS)
    return replace(memory_options, store=store, counter=count_or_raise)


@pytest.fixture
async def memory(outage: Outage, options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """A memory over a SQLite file, with its schema."""
    async with open_memory(outage.url, observers=[events], options=options) as opened:
        yield opened


async def test_a_turn_with_a_trouble_of_its_own_holds_up_its_session_only(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """Whatever it raises: the turns of all other sessions are written, and what holds it up can be read."""
    async with outage():
        await memory.session("other").record(says("finds out"))
        await memory.session("poisoned").record(says(_POISON))
        await memory.session("room").record(says("hi"))
    await events.until(lambda: len(memory.pending.entries) == 1)
    assert await memory.session("room").record(says("again")) is not None
    [entry] = memory.pending.entries
    await events.until(lambda: entry.error == "ValueError")
    assert [message.content for message in await memory.session("room").tail(5)] == ["hi", "again"]


async def test_a_caller_who_is_cancelled_loses_nothing(
    memory: Memory, outage: Outage, events: RecordedEvents, options: MemoryOptions
) -> None:
    """Wherever in the recording it is: the turn waits on disk, and is written."""
    session = memory.session("room")
    async with outage():
        for steps in range(8):
            task = asyncio.create_task(session.record(says(str(steps))))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        # The first one was cancelled before it had begun.
        await events.until(lambda: len([entry for entry in memory.pending.entries if entry.file]) == 7)
        assert options.pending.folder is not None
        on_disk = [entry for path in options.pending.folder.rglob("*.jsonl") for entry in read_entries(path)]
        assert len(on_disk) == 7
    await events.until(lambda: not memory.pending.entries)
    assert sorted(message.content for message in await session.tail(20)) == [str(number) for number in range(1, 8)]


async def test_what_waited_in_memory_goes_to_disk_when_there_is_one_again(
    outage: Outage, options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses once, and the process ends before the database is back: both turns are there for the next."""
    create = SpoolFile.create
    refusals = iter([OSError(28, "No space left on device")])

    def refusing_once(folder: Path) -> SpoolFile:
        for refusal in refusals:
            raise refusal
        return create(folder)

    monkeypatch.setattr(SpoolFile, "create", refusing_once)
    async with outage_after_opening(outage, options) as memory:
        await memory.session("room").record(says("one"))
        assert memory.pending.entries[0].file is None
        await memory.session("room").record(says("two"))
    assert options.pending.folder is not None
    [folder] = options.pending.folder.iterdir()
    [path] = spool_files(folder)
    assert [entry.turn.messages[0].content for entry in read_entries(path)] == ["one", "two"]


async def test_a_reset_covers_what_was_waiting(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    """A turn that waits is written before the reset, and no later window shows it."""
    session = memory.session("room")
    await session.append(says("before"))
    async with outage():
        await session.record(says("waiting"))
    await session.reset()
    await session.append(says("after"))
    assert [message.content for message in (await session.window()).messages] == ["after"]
    assert [message.content for message in (await session.recall()).messages] == ["after"]


async def test_a_deletion_that_fails_leaves_what_waits(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    """The session is still there, and so is the turn."""
    session = memory.session("room")
    await session.append(says("one"))
    async with outage():
        await session.record(says("two"))
        with pytest.raises(StoreUnavailable):
            await session.delete()
        assert len(memory.pending.entries) == 1
    await events.until(lambda: not memory.pending.entries)
    assert [message.content for message in await session.tail(5)] == ["one", "two"]


async def test_words_of_a_refused_turn_are_shown_to_nobody(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """Another user's turn that waited for this session is not part of it, whoever reads."""
    await memory.session("room", user_id="ann").append(says("mine"))
    async with outage():
        await memory.session("room", user_id="bob").record(says("not mine"))
    await events.until(lambda: bool(memory.pending.entries) and memory.pending.entries[0].refused)
    assert [message.content for message in (await memory.session("room").recall()).messages] == ["mine"]


@contextlib.asynccontextmanager
async def outage_after_opening(outage: Outage, options: MemoryOptions) -> AsyncIterator[Memory]:
    """A memory whose database goes away after it was opened, and stays away until it is closed."""
    async with contextlib.AsyncExitStack() as away, open_memory(outage.url, options=options) as memory:
        await away.enter_async_context(outage())
        yield memory
