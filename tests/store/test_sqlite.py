"""Tests of the SQLite driver: its settings, its locks, and its errors for unusable files."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import aiosqlite
import pytest

from tests.databases import migrated_driver
from tests.limits import HANG_SECONDS
from tests.outages import locked_meanwhile
from threadkeep import MemoryOptions, Message, StoreError, StoreUnavailable, open_memory
from threadkeep.errors import StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.store import private_files, sqlite
from threadkeep.store.address import parse_address
from threadkeep.store.driver import Connection, StoreOptions
from threadkeep.store.sqlite import SqliteDriver, open_sqlite

_COUNT = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
SELECT count(*) FROM n
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the file that `memory` of this module opens."""
    return tmp_path / "threadkeep.db"


@pytest.fixture
async def memory(path: Path, memory_options: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory on a SQLite file, and close it after the test."""
    async with open_memory(f"sqlite:///{path}", options=memory_options) as opened:
        yield opened


@asynccontextmanager
async def opened(path: Path | None) -> AsyncIterator[SqliteDriver]:
    """Open a driver on a file or in memory, and close it after the block."""
    driver = SqliteDriver(path, StoreOptions())
    try:
        yield driver
    finally:
        await driver.close()


def write_elsewhere(path: Path) -> None:
    """Take the write lock with another connection, and release it."""
    with closing(sqlite3.connect(path, timeout=5)) as other, other:
        other.execute("BEGIN IMMEDIATE")


def says(words: str) -> list[Message]:
    """Return a turn of one message."""
    return [Message(role="user", content=words)]


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
async def test_all_connections_use_wal_and_the_configured_durability(
    path: Path, synchronous: Literal["FULL", "NORMAL"], number: int
) -> None:
    driver = SqliteDriver(path, StoreOptions(synchronous=synchronous))
    async with driver.writing() as writer, driver.reading() as reader:
        for connection in (writer, reader):
            assert await _pragma(connection, "journal_mode") == "wal"
            assert await _pragma(connection, "foreign_keys") == 1
            assert await _pragma(connection, "synchronous") == number
    await driver.close()


async def test_full_durability_is_the_default() -> None:
    assert StoreOptions().synchronous == "FULL"


async def test_a_writer_does_not_stop_readers(memory: Memory, path: Path) -> None:
    await memory.session("room").append(says("hi"))
    async with locked_meanwhile(path):
        assert len(await memory.session("room").tail(5)) == 1


async def test_a_lock_held_too_long_raises(path: Path, memory_options: MemoryOptions) -> None:
    """The append raises after the timeout, with the cure; an append after the lock is released succeeds."""
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


async def test_a_write_after_a_cancelled_one_gets_its_transaction() -> None:
    """A caller can be cancelled at any step, also between asking for a transaction and getting it."""
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


@pytest.mark.parametrize("steps", range(6))
async def test_a_read_that_is_cancelled_while_its_file_is_opened_ends_as_cancelled(path: Path, steps: int) -> None:
    """If opening fails too, the cancel wins; otherwise a background task that handles errors would never stop."""
    async with opened(path) as driver:
        async with driver.writing() as writer:
            await writer.execute("CREATE TABLE a (b)", {})
        shutil.copy(path, path.with_suffix(".copy"))
        path.with_suffix(".copy").rename(path)
        task = asyncio.create_task(driver.fetch("SELECT 1", {}))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


@pytest.mark.parametrize("steps", range(6))
async def test_a_read_that_is_cancelled_twice_while_its_file_is_opened_closes_the_file(path: Path, steps: int) -> None:
    """A connection that stays open has a thread of its own."""
    before = threading.enumerate()
    async with opened(path) as driver:
        task = asyncio.create_task(driver.fetch("SELECT 1", {}))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    threads = [one for one in threading.enumerate() if one not in before and "connection" in one.name]
    for one in threads:
        await asyncio.to_thread(one.join, HANG_SECONDS)
    assert not [one for one in threads if one.is_alive()]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.slow
async def test_a_read_that_is_cancelled_twice_stops_no_other(
    path: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next reader gets the connection only after the cancelled query has ended."""
    monkeypatch.setattr("threadkeep.store.sqlite._STOP_SECONDS", 0.0)
    async with opened(None if in_memory else path) as driver:

        async def count(rows: int) -> object:
            async with driver.reading() as connection:
                [(found,)] = await connection.fetch(_COUNT, {"rows": rows})
                return found

        for _ in range(20):
            long = asyncio.create_task(count(10**9))
            await asyncio.sleep(0.01)
            long.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            long.cancel()
            assert await asyncio.gather(*(count(20_000) for _ in range(5))) == [20_000] * 5
            await asyncio.wait([long])
            assert long.cancelled()


@pytest.mark.parametrize(
    ("content", "says_so"),
    [
        (b"This is a text and no database. " * 200, "not an SQLite database"),
        (b"SQLite format 3\x00" + b"\xff" * 8000, "not an SQLite database|damaged"),
    ],
)
async def test_a_file_that_is_no_database_is_refused(
    path: Path, memory_options: MemoryOptions, content: bytes, says_so: str
) -> None:
    """The error has the cure, and the file stays unchanged."""
    await asyncio.to_thread(path.write_bytes, content)
    with pytest.raises(StoreUnavailable, match=says_so):
        async with open_memory(f"sqlite:///{path}", options=memory_options):
            pass
    assert await asyncio.to_thread(path.read_bytes) == content


async def test_a_folder_instead_of_the_file_is_refused(tmp_path: Path, memory_options: MemoryOptions) -> None:
    with pytest.raises(StoreUnavailable, match="that the path is not a folder"):
        async with open_memory(f"sqlite:///{tmp_path}", options=memory_options):
            pass


async def test_a_path_that_cannot_be_looked_up_is_refused(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """The error is the same for a folder without permissions, which do not apply to root."""
    with pytest.raises(StoreUnavailable, match="permissions"):
        async with open_memory(f"sqlite:///{tmp_path / ('long' * 100)}.db", options=memory_options):
            pass


async def test_missing_folders_are_created(tmp_path: Path, memory_options: MemoryOptions) -> None:
    async with open_memory(f"sqlite:///{tmp_path}/a/b/threadkeep.db", options=memory_options) as memory:
        await memory.session("room").append(says("hi"))
    assert (tmp_path / "a" / "b" / "threadkeep.db").is_file()


async def test_a_closed_memory_says_that_it_is_closed(path: Path, memory_options: MemoryOptions) -> None:
    async with open_memory(f"sqlite:///{path}", options=memory_options) as memory:
        session = memory.session("room")
        await session.append(says("hi"))
    for attempt in (session.append(says("late")), session.tail(5), session.reset(), memory.search("hi")):
        with pytest.raises(StoreClosed, match="inside its `async with"):
            await attempt


async def test_a_missing_table_is_an_error_of_the_store(memory: Memory, path: Path) -> None:
    """Errors of the engine are raised as StoreError, so that callers can tell them from their own mistakes."""
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


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_a_removed_file_accepts_no_turns(memory: Memory, path: Path, replaced: bool) -> None:
    """SQLite would commit to an unlinked file: the turns are pending instead, until the file is back."""
    session = memory.session("room")
    await session.append(says("before"))
    away = path.with_name("away.db")
    await asyncio.to_thread(path.rename, away)
    if replaced:
        await asyncio.to_thread(shutil.copy, away, path)
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        await session.append(says("lost"))
    assert await session.record(says("waits")) is None
    await asyncio.to_thread(away.rename, path)
    assert await memory.pending.deliver()
    assert [message.content for message in await session.tail(5)] == ["before", "waits"]


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """The path may come from a setting that its reader does not know."""
    (tmp_path / "taken").touch()
    with pytest.raises(StoreUnavailable, match=f"The SQLite database {tmp_path}/taken/threadkeep.db cannot"):
        async with open_memory(f"sqlite:///{tmp_path}/taken/threadkeep.db", options=memory_options):
            pass


async def test_a_database_on_a_read_only_mount_can_be_read(path: Path, memory_options: MemoryOptions) -> None:
    """Windows, search and copies work; a write raises."""
    async with open_memory(f"sqlite:///{path}", options=memory_options) as memory:
        await memory.session("room").append(says("hello there"))
        assert await memory.search("hello")
    with TemporaryDirectory() as elsewhere:
        shown = await asyncio.to_thread(read_on_read_only_mount, path, Path(elsewhere) / "copy.db")
        assert shown == "['hello there'] 1 StoreUnavailable"
        async with open_memory(f"sqlite:///{elsewhere}/copy.db", options=memory_options) as copied:
            assert len(await copied.session("room").tail(5)) == 1


_READ = """
import asyncio
from pathlib import Path
from threadkeep import Message, MemoryOptions, StoreUnavailable, open_memory
from threadkeep.store.backup import copy_sqlite

async def read():
    async with open_memory("sqlite:///{path}", options=MemoryOptions(background=False)) as memory:
        session = memory.session("room")
        told = [message.content for message in await session.tail(5)]
        found = len(await memory.search("hello"))
        try:
            await session.append([Message(role="user", content="no")])
        except StoreUnavailable as error:
            print(told, found, type(error).__name__)

asyncio.run(read())
copy_sqlite(Path("{path}"), Path("{copy}"))
"""


def read_on_read_only_mount(path: Path, copy: Path) -> str:
    """Return what a process reads with the folder mounted read-only; skip the test without the right to mount."""
    folder = path.parent
    mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("This process may not mount folders.")
    command = f'{mount} && exec "$0" -c "$1"'
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, sys.executable, _READ.format(path=path, copy=copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
async def test_only_the_user_of_the_process_may_read_the_files(
    tmp_path: Path, memory_options: MemoryOptions, existing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Files of earlier versions are changed, with a warning; other folders keep their permissions."""
    path = tmp_path / "data" / "threadkeep.db"
    await asyncio.to_thread(tmp_path.chmod, 0o755)
    if existing:
        async with open_memory(f"sqlite:///{path}", options=memory_options):
            await asyncio.to_thread(path.chmod, 0o644)
        await asyncio.to_thread(path.chmod, 0o644)
    async with open_memory(f"sqlite:///{path}", options=memory_options) as memory:
        await memory.session("room").append(says("hi"))
        modes = await asyncio.to_thread(modes_below, tmp_path)
        assert {"data/threadkeep.db", "data/threadkeep.db-wal"} <= modes.keys()
        assert {mode for name, mode in modes.items() if "threadkeep.db" in name} == {0o600}
    assert (modes["."], modes["data"]) == (0o755, 0o700)
    assert ("Other users of this machine" in caplog.text) == existing


async def test_a_wrong_path_keeps_its_permissions(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """A person may name a shared folder or another file by mistake."""
    folder, file = tmp_path / "shared", tmp_path / "notes.txt"
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread(file.write_text, "These are notes, and no database. " * 100)
    for path, mode in ((folder, 0o755), (file, 0o644)):
        await asyncio.to_thread(path.chmod, mode)
        with pytest.raises(StoreUnavailable):
            async with open_memory(f"sqlite:///{path}", options=memory_options):
                pass
        assert stat.S_IMODE((await asyncio.to_thread(path.stat)).st_mode) == mode


def modes_below(folder: Path) -> dict[str, int]:
    """Return the permissions of a folder and of everything in it, by relative path."""
    return {str(each.relative_to(folder)): stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.rglob("*"))}


def test_the_data_folder_of_earlier_versions_becomes_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data folder belongs to Threadkeep alone, unlike other folders."""
    own = tmp_path / "threadkeep"
    own.mkdir(mode=0o755)
    monkeypatch.setattr(private_files, "user_data_path", lambda _: own)
    private_files.make_private_folder(own / "pending" / "one")
    assert {stat.S_IMODE(each.stat().st_mode) for each in (own, own / "pending", own / "pending" / "one")} == {0o700}


async def test_further_connections_leave_the_locks_of_the_file_in_place(sqlite_url: str) -> None:
    """Without the locks, a process that closes the file would take itself for the last one and delete the WAL."""
    path = parse_address(sqlite_url).path
    # The bytes that every connection of SQLite locks for reading.
    try_it = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)"
    )
    async with migrated_driver(sqlite_url) as driver, driver.reading() as one, driver.reading() as another:
        for connection in (one, another):
            await connection.fetch("SELECT 1", {})
        tried = await asyncio.create_subprocess_exec(
            sys.executable, "-c", try_it, str(path), stderr=asyncio.subprocess.PIPE
        )
        _, error = await tried.communicate()
    assert b"BlockingIOError" in error


async def test_a_cancellation_while_a_failed_opening_ends_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a background task would handle the error and go on, and closing the memory would wait for ever."""
    began, ends, close = asyncio.Event(), asyncio.Event(), sqlite._close_opened  # noqa: SLF001

    async def close_slowly(connection: aiosqlite.Connection, opening: asyncio.Future[aiosqlite.Connection]) -> None:
        began.set()
        await ends.wait()
        await close(connection, opening)

    async def opening() -> None:
        async with open_sqlite(tmp_path / "garbage.db", StoreOptions()):
            pass

    (tmp_path / "garbage.db").write_bytes(b"no database" * 400)
    monkeypatch.setattr(sqlite, "_close_opened", close_slowly)
    task = asyncio.create_task(opening())
    await began.wait()
    task.cancel()
    await asyncio.sleep(0)
    ends.set()
    with pytest.raises(asyncio.CancelledError):
        await task
