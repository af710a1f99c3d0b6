"""Tests of pending writes in combined failures: cancelled callers, turns that raise, and no disk."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, PendingOptions, StoreUnavailable, open_memory
from threadkeep.errors import PendingFolderUnusable, TurnInMemoryOnly
from threadkeep.history.pending import folder_of
from threadkeep.history.pending_files import unreadable_turns
from threadkeep.records import Turn
from threadkeep.store.address import parse_address
from threadkeep.store.driver import StoreOptions
from threadkeep.store.spool import PendingTurn, SpoolFile, read_entries, spool_files

_LOCK_SECONDS = 0.05
_POISON = "<|poison|>"


def says(words: str) -> list[Message]:
    """Return a turn of one message."""
    return [Message(role="user", content=words)]


def count_or_raise(text: str) -> int:
    """Count characters, or raise as an application's counter may."""
    if text == _POISON:
        raise ValueError("a special token")
    return len(text)


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    """Return outages of the database of `memory`."""
    return Outage(tmp_path / "threadkeep.db")


@pytest.fixture
def options(memory_options: MemoryOptions) -> MemoryOptions:
    """Return options with a very short lock timeout and a counter that can raise."""
    store = StoreOptions(lock_timeout_seconds=_LOCK_SECONDS)
    return replace(memory_options, store=store, counter=count_or_raise)


@pytest.fixture
async def memory(outage: Outage, options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """Open a memory on a SQLite file, and close it after the test."""
    async with open_memory(outage.url, observers=[events], options=options) as opened:
        yield opened


async def test_a_turn_that_raises_blocks_only_its_session(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    async with outage():
        await memory.session("other").record(says("finds out"))
        await memory.session("poisoned").record(says(_POISON))
        await memory.session("room").record(says("hi"))
    await events.until(lambda: len(memory.pending.entries) == 1)
    assert await memory.session("room").record(says("again")) is not None
    [entry] = memory.pending.entries
    await events.until(lambda: entry.error == "ValueError")
    assert [message.content for message in await memory.session("room").tail(5)] == ["hi", "again"]


async def test_a_cancelled_record_loses_nothing(
    memory: Memory, outage: Outage, events: RecordedEvents, options: MemoryOptions
) -> None:
    """`record` can be cancelled at any step: the turn is pending on disk and is written later."""
    session = memory.session("room")
    async with outage():
        for steps in range(8):
            task = asyncio.create_task(session.record(says(str(steps))))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        # The first task was cancelled before it began.
        await events.until(lambda: len([entry for entry in memory.pending.entries if entry.file]) == 7)
        assert options.pending.folder is not None
        on_disk = [entry for path in options.pending.folder.rglob("*.jsonl") for entry in read_entries(path)]
        assert len(on_disk) == 7
    await events.until(lambda: not memory.pending.entries)
    assert sorted(message.content for message in await session.tail(20)) == [str(number) for number in range(1, 8)]


async def test_a_turn_pending_in_memory_goes_to_disk_later(
    outage: Outage, options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets an error while the turn is on no disk; the next write puts both turns on disk."""
    create = SpoolFile.create
    refusals = iter([OSError(28, "No space left on device")])

    def refusing_once(folder: Path) -> SpoolFile:
        for refusal in refusals:
            raise refusal
        return create(folder)

    monkeypatch.setattr(SpoolFile, "create", refusing_once)
    async with outage_after_opening(outage, options) as memory:
        with pytest.raises(TurnInMemoryOnly, match="in memory only"):
            await memory.session("room").record(says("one"))
        assert memory.pending.entries[0].file is None
        assert await memory.session("room").record(says("two")) is None
    assert options.pending.folder is not None
    [folder] = options.pending.folder.iterdir()
    [path] = spool_files(folder)
    assert [entry.turn.messages[0].content for entry in read_entries(path)] == ["one", "two"]


async def test_a_reset_covers_pending_turns(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    session = memory.session("room")
    await session.append(says("before"))
    async with outage():
        await session.record(says("waiting"))
    await session.reset()
    await session.append(says("after"))
    assert [message.content for message in (await session.window()).messages] == ["after"]
    assert [message.content for message in (await session.recall()).messages] == ["after"]


async def test_a_failed_deletion_keeps_pending_turns(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    session = memory.session("room")
    await session.append(says("one"))
    async with outage():
        await session.record(says("two"))
        with pytest.raises(StoreUnavailable):
            await session.delete()
        assert len(memory.pending.entries) == 1
    await events.until(lambda: not memory.pending.entries)
    assert [message.content for message in await session.tail(5)] == ["one", "two"]


async def test_a_refused_turn_is_not_recalled(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    await memory.session("room", user_id="ann").append(says("mine"))
    async with outage():
        await memory.session("room", user_id="bob").record(says("not mine"))
    await events.until(lambda: bool(memory.pending.entries) and memory.pending.entries[0].refused)
    assert [message.content for message in (await memory.session("room").recall()).messages] == ["mine"]


@contextlib.asynccontextmanager
async def outage_after_opening(outage: Outage, options: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory whose database is unavailable from then on until it is closed."""
    async with contextlib.AsyncExitStack() as away, open_memory(outage.url, options=options) as memory:
        await away.enter_async_context(outage())
        yield memory


@pytest.mark.parametrize("what", ["the file", "the folder", "the file, and another is in its place"])
async def test_a_removed_pending_file_is_written_again(
    memory: Memory, outage: Outage, options: MemoryOptions, what: str
) -> None:
    """If the pending file was removed or replaced, a new file has this turn and the earlier pending turns."""
    assert options.pending.folder is not None
    folder = folder_of(parse_address(outage.url), options.pending.folder)
    async with outage():
        assert await memory.session("room").record(says("one")) is None
        [path] = spool_files(folder)
        path.unlink()
        if what == "the folder":
            shutil.rmtree(folder)
        elif "another" in what:
            path.touch()
        assert await memory.session("room").record(says("two")) is None
        kept = [entry.turn.messages[0].content for file in spool_files(folder) for entry in read_entries(file)]
        assert kept == ["one", "two"]
        shutil.rmtree(folder)
        folder.touch()
        with pytest.raises(TurnInMemoryOnly):
            await memory.session("room").record(says("three"))
        folder.unlink()


@pytest.mark.parametrize("how", ["file", "read-only parent"])
async def test_an_unusable_pending_folder_is_refused_at_start(tmp_path: Path, options: MemoryOptions, how: str) -> None:
    place = tmp_path / "no-folder"
    place.write_text("not a folder")
    folder = place if how == "file" else place / "below"
    options = replace(options, pending=replace(options.pending, folder=folder))
    with pytest.raises(PendingFolderUnusable, match="THREADKEEP_PENDING_DIR"):
        async with open_memory(f"sqlite:///{tmp_path}/threadkeep.db", options=options):
            pass


async def test_the_pending_folder_can_be_a_text(tmp_path: Path) -> None:
    folder: Any = str(tmp_path / "pending")
    options = MemoryOptions(pending=PendingOptions(folder=folder))
    async with open_memory(f"sqlite:///{tmp_path}/threadkeep.db", options=options):
        assert (tmp_path / "pending").is_dir()


async def test_a_stray_directory_is_no_pending_file(outage: Outage, options: MemoryOptions) -> None:
    assert options.pending.folder is not None
    folder = folder_of(parse_address(outage.url), options.pending.folder)
    (folder / "stray.pending.jsonl").mkdir(parents=True)
    async with open_memory(outage.url, options=options) as memory:
        assert memory.pending.count == 0


async def test_damaged_lines_are_kept_until_a_person_drops_them(outage: Outage, options: MemoryOptions) -> None:
    """Eight of ten turns are written; the two damaged ones are listed, also after a restart."""
    assert options.pending.folder is not None
    folder = folder_of(parse_address(outage.url), options.pending.folder)
    spool = SpoolFile.create(folder)
    for number in range(10):
        message = Message(role="user", content=str(number), id=f"m{number}")
        spool.keep(PendingTurn(f"entry-{number}", Turn("room", (message,)), datetime.now(UTC)))
    spool.close()
    lines = spool.path.read_bytes().splitlines(keepends=True)
    lines[2], lines[5] = b"\x00\xff" + lines[2][2:], lines[5][: len(lines[5]) // 2] + b"\n"
    spool.path.write_bytes(b"".join(lines))

    for _ in range(2):
        async with open_memory(outage.url, options=options) as memory:
            assert await memory.pending.deliver()
            told = [message.content for message in await memory.session("room").tail(20)]
            assert told == ["0", "1", "3", "4", "6", "7", "8", "9"]
            assert len(await memory.pending.damaged()) == 2
    damaged = unreadable_turns(folder)
    assert sorted(turn.path.read_bytes() for turn in damaged) == sorted(line.rstrip() for line in (lines[2], lines[5]))

    async with open_memory(outage.url, options=options) as memory:
        assert await memory.pending.drop(damaged[0].entry_id)
        assert [turn.entry_id for turn in await memory.pending.damaged()] == [damaged[1].entry_id]


async def test_a_repaired_line_is_delivered_by_the_next_start(outage: Outage, options: MemoryOptions) -> None:
    assert options.pending.folder is not None
    folder = folder_of(parse_address(outage.url), options.pending.folder)
    spool = SpoolFile.create(folder)
    spool.keep(PendingTurn("entry", Turn("room", (Message(role="user", content="hi", id="m1"),)), datetime.now(UTC)))
    spool.close()
    spool.path.write_bytes(b"#" + spool.path.read_bytes())
    async with open_memory(outage.url, options=options) as memory:
        [damaged] = await memory.pending.damaged()
        assert await memory.session("room").count() == 0
    damaged.path.write_bytes(damaged.path.read_bytes().removeprefix(b"#"))
    async with open_memory(outage.url, options=options) as memory:
        assert await memory.pending.deliver()
        assert [message.content for message in await memory.session("room").tail(5)] == ["hi"]
        assert await memory.pending.damaged() == []


async def test_a_busy_session_leaves_the_pending_state(
    outage: Outage, options: MemoryOptions, events: RecordedEvents
) -> None:
    """After an outage, a session with steady new turns returns to direct writes."""
    options = replace(options, pending=replace(options.pending, first_pause_seconds=0.5))
    async with outage_after_opening(outage, options) as memory:
        await memory.session("room").record(says("during the outage"))
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        spooled = 0
        for number in range(60):
            spooled += await memory.session("room").record(says(str(number))) is None
            await asyncio.sleep(0.02)
            if not memory.pending.count:
                break
        assert memory.pending.count == 0
        assert await memory.session("room").record(says("the last")) is not None


async def test_closing_makes_a_last_delivery(outage: Outage, options: MemoryOptions) -> None:
    """A turn that waits for its retry is written before the process ends."""
    options = replace(options, pending=replace(options.pending, first_pause_seconds=60))
    async with open_memory(outage.url, options=options) as memory, outage():
        await memory.session("room").record(says("hi"))
    async with open_memory(outage.url, options=replace(options, background=False)) as memory:
        assert [message.content for message in await memory.session("room").tail(5)] == ["hi"]
