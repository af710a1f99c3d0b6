"""The SQLite driver: its settings, its locks, and what it says when a file cannot be used."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from tests.outages import locked_meanwhile
from threadkeep import MemoryOptions, Message, StoreError, StoreUnavailable, open_memory
from threadkeep.errors import StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.store.driver import Connection, StoreOptions
from threadkeep.store.sqlite import SqliteDriver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file that `memory` of this module has open."""
    return tmp_path / "threadkeep.db"


@pytest.fixture
async def memory(path: Path, memory_options: MemoryOptions) -> AsyncIterator[Memory]:
    """A memory over a file."""
    async with open_memory(f"sqlite:///{path}", options=memory_options) as opened:
        yield opened


def write_elsewhere(path: Path) -> None:
    """Another process takes the write lock and gives it back."""
    with closing(sqlite3.connect(path, timeout=5)) as other, other:
        other.execute("BEGIN IMMEDIATE")


def says(words: str) -> list[Message]:
    """A turn of one message."""
    return [Message(role="user", content=words)]


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
async def test_a_file_is_opened_for_many_processes_and_for_power_cuts(
    path: Path, synchronous: Literal["FULL", "NORMAL"], number: int
) -> None:
    """WAL, foreign keys, and the durability that was asked for, on reading and writing connections."""
    driver = SqliteDriver(path, StoreOptions(synchronous=synchronous))
    async with driver.writing() as writer, driver.reading() as reader:
        for connection in (writer, reader):
            assert await _pragma(connection, "journal_mode") == "wal"
            assert await _pragma(connection, "foreign_keys") == 1
            assert await _pragma(connection, "synchronous") == number
    await driver.close()


async def test_full_durability_is_the_default() -> None:
    """Nobody has to ask for it."""
    assert StoreOptions().synchronous == "FULL"


async def test_a_writer_does_not_stop_readers(memory: Memory, path: Path) -> None:
    """While another process writes, what was stored is read."""
    await memory.session("room").append(says("hi"))
    async with locked_meanwhile(path):
        assert len(await memory.session("room").tail(5)) == 1


async def test_a_lock_held_too_long_is_told_and_forgotten(path: Path, memory_options: MemoryOptions) -> None:
    """The append fails with the cure when the timeout is over; the next one after the lock is gone succeeds."""
    async with open_memory(f"sqlite:///{path}", options=_patient(memory_options, 0.05)) as memory:
        async with locked_meanwhile(path):
            with pytest.raises(StoreUnavailable, match="Another process holds its lock for too long"):
                await memory.session("room").append(says("hi"))
        receipt = await memory.session("room").append(says("hi"))
        assert receipt.first_seq == 1


@pytest.mark.parametrize("steps", range(12))
async def test_a_write_cancelled_while_it_waits_for_the_lock_leaves_no_lock_behind(
    memory: Memory, path: Path, steps: int
) -> None:
    """Whenever its caller gives up: this process and all others write on afterwards."""
    await memory.session("room").append(says("hi"))
    async with locked_meanwhile(path):
        task = asyncio.ensure_future(memory.session("room").reset())
        for _ in range(steps):
            await asyncio.sleep(0)
            await asyncio.to_thread(int)
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(write_elsewhere, path)
    await memory.session("room").append(says("again"))
    assert await memory.session("room").count() == 2


async def test_a_cancelled_write_leaves_the_next_one_its_transaction() -> None:
    """Wherever a caller is cancelled, also between asking for a transaction and getting it, the next write works."""
    async with open_memory("sqlite://") as memory:
        session = memory.session("room:1")
        await session.append([Message("user", "one")])
        for steps in range(12):
            task = asyncio.create_task(session.reset())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await session.append([Message("user", f"after {steps} steps")])
        assert await session.count() == 13


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_read_leaves_the_readers_usable(memory: Memory, steps: int) -> None:
    """Many reads begun and given up; the next ones answer."""
    session = memory.session("room")
    await session.append(says("hi"))
    tasks = [asyncio.ensure_future(session.tail(5)) for _ in range(20)]
    for _ in range(steps):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    found = await asyncio.gather(*(session.tail(5) for _ in range(20)))
    assert all(len(messages) == 1 for messages in found)


@pytest.mark.parametrize(
    ("content", "says_so"),
    [
        (b"This is a text and no database. " * 200, "not an SQLite database"),
        (b"SQLite format 3\x00" + b"\xff" * 8000, "not an SQLite database|damaged"),
    ],
)
async def test_a_file_that_is_no_database_is_told(
    path: Path, memory_options: MemoryOptions, content: bytes, says_so: str
) -> None:
    """With the cure, and without touching the file."""
    await asyncio.to_thread(path.write_bytes, content)
    with pytest.raises(StoreUnavailable, match=says_so):
        async with open_memory(f"sqlite:///{path}", options=memory_options):
            pass
    assert await asyncio.to_thread(path.read_bytes) == content


async def test_a_folder_in_the_files_place_is_told(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """It cannot be opened, and the sentence says what to check."""
    with pytest.raises(StoreUnavailable, match="that the path is no folder itself"):
        async with open_memory(f"sqlite:///{tmp_path}", options=memory_options):
            pass


async def test_folders_on_the_way_are_made(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """A first start needs nothing prepared."""
    async with open_memory(f"sqlite:///{tmp_path}/a/b/threadkeep.db", options=memory_options) as memory:
        await memory.session("room").append(says("hi"))
    assert (tmp_path / "a" / "b" / "threadkeep.db").is_file()


async def test_a_closed_memory_says_that_it_is_closed(path: Path, memory_options: MemoryOptions) -> None:
    """Reads and writes after the block, with the cure."""
    async with open_memory(f"sqlite:///{path}", options=memory_options) as memory:
        session = memory.session("room")
        await session.append(says("hi"))
    for attempt in (session.append(says("late")), session.tail(5), session.reset(), memory.search("hi")):
        with pytest.raises(StoreClosed, match="inside its `async with"):
            await attempt


async def test_a_missing_table_is_an_error_of_the_store(memory: Memory, path: Path) -> None:
    """Whatever the engine says becomes one of our errors, so that callers can tell it from their own mistakes."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DROP TABLE chat_messages")
    with pytest.raises(StoreError):
        await memory.session("room").append(says("hi"))
    with pytest.raises(StoreError):
        await memory.session("room").tail(5)


async def test_the_engines_library_logs_no_words(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    """aiosqlite would write every parameter into its debug log."""
    with caplog.at_level(logging.DEBUG):
        await memory.session("room").append(says("canary-of-the-driver"))
        await memory.session("room").tail(5)
    assert "canary" not in caplog.text


async def _pragma(connection: Connection, name: str) -> object:
    [(value,)] = await connection.fetch(f"PRAGMA {name}", {})
    return value


def _patient(options: MemoryOptions, seconds: float) -> MemoryOptions:
    return MemoryOptions(store=StoreOptions(lock_timeout_seconds=seconds), pending=options.pending, clock=options.clock)
