"""Tests of reading the condition of a database without changing it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from threadkeep import MemoryOptions
from threadkeep.errors import StoreUnavailable
from threadkeep.memory import open_memory
from threadkeep.records import Message
from threadkeep.store.address import parse_address
from threadkeep.store.condition import lock_holders, read_condition
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.migrations import migrate
from threadkeep.store.opening import open_database

_IMPATIENT = StoreOptions(lock_timeout_seconds=0.05)


@pytest.fixture
async def driver(database_url: str) -> AsyncIterator[Driver]:
    """Open an empty database of each engine, and close it after the test."""
    async with open_database(parse_address(database_url), _IMPATIENT) as opened:
        yield opened


async def test_the_condition_of_an_up_to_date_database(driver: Driver) -> None:
    await migrate(driver, datetime.now(UTC))
    condition = await read_condition(driver)
    assert condition.schema == condition.newest >= 1
    assert (condition.sessions, condition.messages, condition.unindexed) == (0, 0, 0)
    names = {"sqlite": {"version", "journal_mode", "synchronous"}, "postgres": {"server_version", "fsync"}}
    assert names[driver.backend] <= set(condition.engine)
    await driver.write([])


async def test_sessions_and_messages_are_counted(shared_url: str) -> None:
    async with open_memory(shared_url, options=MemoryOptions(background=False)) as memory:
        await memory.session("a").append([Message(role="user", content="hi"), Message(role="assistant", content="ho")])
    async with open_database(parse_address(shared_url), _IMPATIENT) as driver:
        condition = await read_condition(driver)
    assert (condition.sessions, condition.messages, condition.unindexed) == (1, 2, 2)


async def test_an_empty_database_stays_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    async with open_database(parse_address(f"sqlite:///{path}"), _IMPATIENT) as driver:
        condition = await read_condition(driver)
    assert (condition.schema, condition.sessions) == (0, None)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


async def test_the_rows_of_a_newer_schema_are_not_counted(driver: Driver) -> None:
    """The tables of a newer schema are unknown."""
    await migrate(driver, datetime.now(UTC))
    async with driver.writing() as connection:
        await connection.execute("INSERT INTO threadkeep_migrations VALUES (999, 'x', 'now')", {})
    condition = await read_condition(driver)
    assert (condition.schema, condition.messages) == (999, None)


async def test_the_holder_of_a_long_transaction_is_named(postgres_url: str) -> None:
    """The threshold in seconds uses the server's clock, so the test sets it to zero."""
    from threadkeep.store import condition as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LONG_SECONDS", 0.0)
        with psycopg.connect(postgres_url, application_name="nightly-report") as other:
            other.execute("SELECT 1")
            async with open_database(parse_address(postgres_url), _IMPATIENT) as driver:
                [holder] = (await read_condition(driver)).holders
    assert holder.name == "nightly-report"
    assert holder.doing == "idle in transaction"
    assert holder.seconds is not None


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists locks in /proc")
async def test_processes_that_use_the_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "threadkeep.db"
    async with open_memory(f"sqlite:///{path}"):
        pass
    writing, reading = _holding(path, "BEGIN IMMEDIATE"), _holding(path, "SELECT count(*) FROM chat_sessions")
    try:
        async with open_database(parse_address(f"sqlite:///{path}"), _IMPATIENT) as driver:
            with pytest.raises(StoreUnavailable, match="locked"):
                await driver.write([])
            holders = lock_holders(path)
    finally:
        for process in (writing, reading):
            process.kill()
            process.communicate()
    assert [(holder.pid, holder.doing) for holder in holders] == [(writing.pid, "writing"), (reading.pid, "open")]
    assert holders[0].name.startswith("python")


def _holding(path: Path, statement: str) -> subprocess.Popen[str]:
    """Start a process that runs a statement on a file and then waits."""
    code = (
        "import sqlite3, sys\n"
        f"connection = sqlite3.connect({str(path)!r}, isolation_level=None)\n"
        f"connection.execute({statement!r}).fetchall()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_locks_are_unknown_without_a_list_of_the_kernel(tmp_path: Path) -> None:
    """Without a list of locks no process is named; unknown lines are skipped."""
    path = tmp_path / "threadkeep.db"
    path.touch()
    assert lock_holders(path, locks=tmp_path / "nowhere") == ()
    strange = tmp_path / "locks"
    inode = path.stat().st_ino
    strange.write_text(
        f"1: POSIX  ADVISORY  WRITE 0 fd:01:{inode} 1073741825 EOF\n"
        f"1: -> POSIX  ADVISORY  WRITE 7 fd:01:{inode} 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE 7 fd:01:{inode} 0 EOF\n\n"
    )
    [holder] = lock_holders(path, locks=strange)
    assert (holder.pid, holder.name, holder.doing) == (None, "", "writing")
