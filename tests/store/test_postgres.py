"""Tests of the PostgreSQL driver: broken connections, locks, a full pool, and the options of the DSN."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from tests.databases import driver_of, execute, query
from tests.limits import HANG_SECONDS
from tests.servers import Postgres
from threadkeep import MemoryOptions, Message, StoreError, StoreUnavailable, open_memory
from threadkeep.errors import StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.runs.options import RunServiceOptions
from threadkeep.store.address import parse_address
from threadkeep.store.driver import DuplicateRow, RowLocked, Statement, StoreOptions
from threadkeep.store.postgres import TRUSTED_SECONDS, PostgresDriver, open_dict_pool


@pytest.fixture
async def memory(postgres_url: str, memory_options: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory on PostgreSQL, and close it after the test."""
    async with open_memory(postgres_url, options=memory_options) as opened:
        yield opened


@pytest.fixture
async def driver(postgres_url: str) -> AsyncIterator[PostgresDriver]:
    """Open a driver with one connection, and close it after the test."""
    opened = await PostgresDriver.open(postgres_url, StoreOptions(pool_max_size=1))
    yield opened
    await opened.close()


def says(words: str) -> list[Message]:
    """Return a turn of one message."""
    return [Message(role="user", content=words)]


async def test_connections_ended_by_the_server_are_replaced(memory: Memory, postgres_url: str) -> None:
    session = memory.session("room")
    for round_ in range(3):
        receipt = await session.append(says(f"round {round_}"))
        assert (receipt.first_seq, receipt.last_seq) == (round_ + 1, round_ + 1)
        await end_connections(postgres_url)
        await end_connections(postgres_url)
        assert len(await session.tail(5)) == round_ + 1
    assert [message.content for message in await session.tail(5)] == ["round 0", "round 1", "round 2"]


def test_the_queries_of_an_idle_worker_are_not_preceded_by_a_check() -> None:
    """An idle worker uses its connection again before the driver would check it."""
    assert RunServiceOptions().owner_check_seconds < TRUSTED_SECONDS


async def test_a_pool_of_ended_connections_is_replaced_without_pauses(memory: Memory, postgres_url: str) -> None:
    """After a restart of the server, all connections are replaced at once, for readers and writers."""
    sessions = [memory.session(f"room:{n}") for n in range(30)]
    await asyncio.gather(*(session.append(says("one")) for session in sessions))
    await asyncio.gather(*(session.tail(5) for session in sessions))
    await end_connections(postgres_url)
    async with asyncio.timeout(9):
        found = await asyncio.gather(*(session.tail(5) for session in sessions))
        await asyncio.gather(*(session.append(says("two")) for session in sessions))
    assert all(len(messages) == 1 for messages in found)


async def test_a_connection_that_breaks_in_a_transaction_stores_the_turn_once(
    memory: Memory, postgres_url: str
) -> None:
    """The connection is ended while it waits for a row lock; the retry stores the whole turn."""
    session = memory.session("room")
    await session.append(says("first"))
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute("SELECT 1 FROM chat_sessions FOR UPDATE")
        appending = asyncio.ensure_future(session.append([*says("second"), *says("third")]))
        await until_a_lock_is_waited_for(other)
        await end_connections(postgres_url, only="wait_event_type = 'Lock'")
        await other.rollback()
    receipt = await appending
    assert (receipt.first_seq, receipt.last_seq) == (2, 3)
    assert [message.content for message in await session.tail(5)] == ["first", "second", "third"]


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 10, 20])
async def test_a_cancelled_write_leaves_no_lock_behind(memory: Memory, steps: int) -> None:
    session = memory.session("room")
    await session.append(says("first"))
    task = asyncio.ensure_future(session.reset())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(HANG_SECONDS):
        assert (await session.append(says("second"))).first_seq == 2


async def test_an_error_in_a_pipeline_is_raised_and_nothing_is_logged(
    driver: PostgresDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled call logs nothing either, and the connection stays usable."""
    with pytest.raises(StoreError, match="22012"):
        # The server answers the first statement while the second one is sent.
        await driver.write([("SELECT 1 / 0", {}), ("SELECT length(:text)", {"text": "x" * 10_000_000})])
    waiting = asyncio.ensure_future(driver.write([("SELECT pg_sleep(30)", {}), ("SELECT 1", {})]))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(HANG_SECONDS):
        assert await driver.write([("SELECT 1", {})]) == [[(1,)]]
    assert caplog.records == []


async def test_the_error_of_a_full_pool_names_the_setting(postgres_url: str) -> None:
    # Opening the first connection has the same timeout, and a busy machine needs that long.
    driver = await PostgresDriver.open(postgres_url, StoreOptions(pool_max_size=1, pool_timeout_seconds=2))
    try:
        async with driver.reading():
            with pytest.raises(StoreUnavailable, match="THREADKEEP_POSTGRES_POOL_MAX_SIZE"):
                async with driver.reading():
                    pass
    finally:
        await driver.close()


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("/test_", "/nothing_"), 'database "nothing_.*" does not exist'),
        (("postgres:", "nobody:secret"), 'role "nobody" does not exist'),
    ],
)
async def test_a_mistake_in_the_url_is_reported_without_a_retry(
    postgres_url: str,
    memory_options: MemoryOptions,
    *,
    change: tuple[str, str],
    reason: str,
    background: bool,
) -> None:
    nowhere = postgres_url.replace(*change)
    options = replace(memory_options, background=background, store=StoreOptions(pool_timeout_seconds=2 * HANG_SECONDS))
    with pytest.raises(StoreUnavailable, match=f"{reason}.*Check the URL postgresql://") as raised:
        async with asyncio.timeout(HANG_SECONDS), open_memory(nowhere, options=options):
            pass
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@asynccontextmanager
async def refusing(sentence: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that refuses each connection with an error; yield the host with its port, and the requests."""
    words = f"SFATAL\0C28000\0M{sentence}\0\0".encode()
    requests: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.read(1024))
        writer.write(b"E" + (4 + len(words)).to_bytes(4) + words)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server, asyncio.timeout(HANG_SECONDS):
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


@pytest.mark.parametrize(
    "sentence",
    [
        'password authentication failed for user "ada"',
        'pg_hba.conf rejects connection for host "127.0.0.1", user "ada", database "db", no encryption',
    ],
)
async def test_a_final_refusal_is_reported_without_a_retry(sentence: str) -> None:
    options = StoreOptions(pool_timeout_seconds=2 * HANG_SECONDS, waits_for_server=True)
    async with refusing(sentence) as (host, _):
        url = f"postgresql://ada:secret@{host}/db?sslmode=disable&gssencmode=disable"
        with pytest.raises(StoreUnavailable, match=sentence) as raised:
            await PostgresDriver.open(url, options)
        with pytest.raises(StoreUnavailable, match=sentence):
            async with open_dict_pool(url, options):
                pass
    assert "secret" not in str(raised.value)


async def test_a_final_refusal_of_all_hosts_is_reported_without_a_retry() -> None:
    options = StoreOptions(pool_timeout_seconds=2 * HANG_SECONDS, waits_for_server=True)
    sentence = 'password authentication failed for user "ada"'
    async with refusing(sentence) as (host, _), refusing(sentence) as (other, _):
        with pytest.raises(StoreUnavailable, match=sentence):
            await PostgresDriver.open(f"postgresql://ada@{host},{other}/db?sslmode=disable&gssencmode=disable", options)


async def test_a_server_without_ssl_is_reported_without_a_retry() -> None:
    async def decline(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(b"N")
        await reader.read(1024)
        writer.close()

    async with await asyncio.start_server(decline, "127.0.0.1", 0) as server, asyncio.timeout(HANG_SECONDS):
        url = f"postgresql://127.0.0.1:{server.sockets[0].getsockname()[1]}/db?sslmode=require&gssencmode=disable"
        with pytest.raises(StoreUnavailable, match="server does not support SSL"):
            await PostgresDriver.open(url, StoreOptions(pool_timeout_seconds=2 * HANG_SECONDS, waits_for_server=True))


@pytest.mark.process
def test_a_missing_driver_is_named_with_its_extra() -> None:
    code = (
        "import asyncio, sys, threadkeep\n"
        "sys.modules['psycopg'] = None\n"
        "asyncio.run(threadkeep.open_memory('postgresql:///db').__aenter__())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS)  # noqa: PLW1510
    assert done.stderr.splitlines()[-1].endswith("; install it with: pip install 'threadkeep[postgres]'")


async def test_a_short_command_retries_a_server_that_has_no_free_connection() -> None:
    async with refusing("sorry, too many clients already") as (host, requests):
        url = f"postgresql://ada@{host}/db?sslmode=disable&gssencmode=disable"
        with pytest.raises(StoreUnavailable, match="too many clients"):
            await PostgresDriver.open(url, StoreOptions(pool_timeout_seconds=1))
    assert len(requests) > 1


async def test_the_final_refusal_of_one_of_several_hosts_is_retried() -> None:
    """A standby may lack the role while the primary is restarted."""
    async with refusing('role "ada" does not exist') as (host, requests):
        url = f"postgresql://ada@127.0.0.1:1,{host}/db?sslmode=disable&gssencmode=disable"
        with pytest.raises(StoreUnavailable, match='role "ada" does not exist'):
            await PostgresDriver.open(url, StoreOptions(pool_timeout_seconds=1, waits_for_server=True))
    assert len(requests) > 1


@pytest.mark.parametrize(
    ("host", "reason"), [("/nowhere", "No such file or directory"), ("nowhere.invalid", "failed to resolve host")]
)
async def test_a_short_command_does_not_wait_for_a_server(host: str, reason: str) -> None:
    options = MemoryOptions(background=False, store=StoreOptions(pool_timeout_seconds=2 * HANG_SECONDS))
    with pytest.raises(StoreUnavailable, match=f"{reason}.*Check the URL postgresql://"):
        async with asyncio.timeout(HANG_SECONDS), open_memory(f"postgresql:///db?host={host}", options=options):
            pass


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
async def test_a_short_command_does_not_wait_for_a_graph_store(transcripts: Literal["tables", "graph_store"]) -> None:
    options = MemoryOptions(
        background=False,
        transcripts=transcripts,
        graph_store=parse_address("postgresql:///db?host=/nowhere"),
        store=StoreOptions(pool_timeout_seconds=2 * HANG_SECONDS),
    )
    with pytest.raises(StoreUnavailable, match="No such file or directory"):
        async with asyncio.timeout(HANG_SECONDS), open_memory("sqlite://", options=options) as memory:
            await memory.graph_store()


async def test_a_memory_waits_for_a_server_that_starts_and_says_so_once(
    postgres_url: str, memory_options: MemoryOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = psycopg.conninfo.conninfo_to_dict(postgres_url)["host"]
    later = postgres_url.replace(f"host={folder}", f"host={tmp_path / 'run'}")

    async def start() -> None:
        while not caplog.messages:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.01)
        (tmp_path / "run").symlink_to(str(folder))

    starting = asyncio.create_task(start())
    async with asyncio.timeout(HANG_SECONDS), open_memory(later, options=memory_options) as memory:
        assert await memory.session("s").count() == 0
    await starting
    (said,) = caplog.messages
    assert "seconds for PostgreSQL (" in said


async def test_a_duplicate_row_raises_its_own_error(driver: PostgresDriver) -> None:
    row = {"version": 20, "name": "x", "now": ""}
    insert = "INSERT INTO threadkeep_migrations (version, name, applied_at) VALUES (:version, :name, :now)"
    before = "UPDATE threadkeep_migrations SET name = :name"
    with pytest.raises(DuplicateRow):  # noqa: PT012 - the row is refused inside the block, the block is rolled back
        async with driver.writing() as connection:
            await connection.execute(before, row)
            await connection.execute(insert, row)
    async with driver.reading() as reading:
        assert await reading.fetch("SELECT count(*) FROM threadkeep_migrations WHERE name = :name", row) == [(0,)]


async def test_an_error_of_the_server_is_raised_without_the_row(driver: PostgresDriver) -> None:
    """The server's message quotes the row; the error and its traceback do not."""
    insert = "INSERT INTO chat_sessions (session_id, created_at) VALUES (:words, :now)"
    with pytest.raises(StoreError) as refused:
        async with driver.writing() as connection:
            await connection.execute(insert, {"words": "canary-of-a-person", "now": datetime.now(UTC)})
    assert "NotNullViolation 23502" in str(refused.value)
    assert "canary" not in "".join(traceback.format_exception(refused.value))


async def test_a_second_database_is_not_created_before_the_first_in_the_search_path(
    postgres_url: str, memory_options: MemoryOptions
) -> None:
    """The default path begins with a schema of the role's name. If it is created later, sessions do not disappear."""
    execute(postgres_url, "CREATE SCHEMA chat")
    path = f"{postgres_url}&options=-csearch_path%3D"
    with pytest.raises(StoreError, match=r"schema chat has no tables of Threadkeep, but public has.* search_path"):
        async with open_memory(f"{path}chat,public", options=memory_options):
            pass
    assert query(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'chat'") == [(0,)]
    for schemas in ("public,chat", "chat", "chat,public"):
        async with open_memory(path + schemas, options=memory_options):
            pass


async def test_a_deadlock_is_reported_and_a_single_write_is_repeated(driver: PostgresDriver, postgres_url: str) -> None:
    """PostgreSQL ends the call of the driver, because the other transaction does not look for deadlocks."""
    execute(postgres_url, "CREATE TABLE pair AS SELECT unnest(ARRAY['a', 'b']) AS name")
    start, first, gate, second = (
        "SELECT pg_advisory_xact_lock(2)",
        "SELECT name FROM pair WHERE name = 'a' FOR UPDATE",
        "SELECT pg_advisory_xact_lock(1)",
        "SELECT name FROM pair WHERE name = 'b' FOR UPDATE",
    )
    patient = f"{postgres_url}&options=-cdeadlock_timeout%3D10min"

    async def waiting(count: int) -> None:
        while len(query(postgres_url, "SELECT 1 FROM pg_locks WHERE NOT granted")) < count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)

    async def write(other: psycopg.AsyncConnection) -> None:
        async with driver.writing() as connection:
            await connection.fetch(first, {})
            locking.append(asyncio.create_task(other.execute(first.encode())))
            await waiting(1)
            await connection.fetch(second, {})

    locking: list[asyncio.Task[object]] = []
    async with await psycopg.AsyncConnection.connect(patient) as other:
        await other.execute(second.encode())
        with pytest.raises(RowLocked, match="because of a deadlock"):
            await write(other)
        await locking.pop()
        await other.rollback()
    async with (
        await psycopg.AsyncConnection.connect(patient) as other,
        await psycopg.AsyncConnection.connect(patient) as before_repeat,
        await psycopg.AsyncConnection.connect(postgres_url) as gatekeeper,
    ):
        await other.execute(second.encode())
        await gatekeeper.execute(gate.encode())
        statements: list[Statement] = [(start, {}), (first, {}), (gate, {}), (second, {})]
        writing = asyncio.create_task(driver.write(statements))
        await waiting(1)
        locking.append(asyncio.create_task(other.execute(first.encode())))
        await waiting(2)
        # Gets the lock when the driver's call ends, so that the repetition cannot lock the row before the other does.
        locking.append(asyncio.create_task(before_repeat.execute(start.encode())))
        await waiting(3)
        await gatekeeper.rollback()
        await asyncio.gather(*locking)
        await other.rollback()
        await before_repeat.rollback()
        rows = await writing
    assert (rows[1], rows[3]) == ([("a",)], [("b",)])


async def test_a_missing_schema_gets_the_cure(empty_postgres_url: str, memory_options: MemoryOptions) -> None:
    with pytest.raises(StoreError, match="create the schema that the search_path names"):
        async with open_memory(f"{empty_postgres_url}&options=-csearch_path%3Dchat", options=memory_options):
            pass


async def test_a_role_without_rights_gets_the_cure(postgres_url: str, memory_options: MemoryOptions) -> None:
    with pytest.raises(StoreError, match=r"InsufficientPrivilege 42501: permission denied for .*\); .* grant the role"):
        async with open_memory(f"{postgres_url}&options=-crole%3Dpg_read_all_settings", options=memory_options):
            pass


async def test_a_schema_without_rights_gets_the_cure(empty_postgres_url: str, memory_options: MemoryOptions) -> None:
    """Since PostgreSQL 15, only the owner of a database may create tables in the schema public."""
    with pytest.raises(
        StoreError, match=r"permission denied for schema public\); .*GRANT USAGE, CREATE ON SCHEMA public"
    ):
        async with open_memory(f"{empty_postgres_url}&options=-crole%3Dpg_read_all_settings", options=memory_options):
            pass


async def test_a_full_disk_of_the_server_is_named(postgres_url: str) -> None:
    async with driver_of(postgres_url) as driver:
        with pytest.raises(StoreUnavailable, match="PostgreSQL's disk is full"):
            await driver.fetch("DO $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$", {})


async def test_the_options_of_the_dsn_are_used(postgres_url: str, memory_options: MemoryOptions) -> None:
    """A search path in the DSN puts the tables into another schema."""
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
        await other.execute("CREATE SCHEMA tenant")
    async with open_memory(f"{postgres_url}&options=-csearch_path%3Dtenant", options=memory_options) as memory:
        await memory.session("room").append(says("hi"))
        [found] = await memory.session("room").tail(1)
        assert found.created_at == memory_options.clock()
        assert found.created_at.isoformat().endswith("+00:00")
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        cursor = await other.execute("SELECT count(*) FROM tenant.chat_messages")
        assert await cursor.fetchone() == (1,)


async def test_a_list_ignores_case_with_the_locale_c(postgres_server: Postgres, memory_options: MemoryOptions) -> None:
    """The server's `lower` converts only ASCII letters with this locale."""
    url = postgres_server.url("locale_c")
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as server:
        server.execute("CREATE DATABASE locale_c TEMPLATE template0 LOCALE 'C'")
        try:
            async with open_memory(url, options=memory_options) as memory:
                await memory.session("room", user_id="u1").append([Message(role="user", content="ÄRZTE in Moskau")])
                for text in ("ärzte", "Ärzte"):
                    assert [info.session_id async for info in memory.sessions(query=text)] == ["room"]
                    assert [info.session_id async for info in memory.sessions("u1", query=text)] == ["room"]
        finally:
            server.execute("DROP DATABASE locale_c WITH (FORCE)")


async def test_a_closed_memory_says_that_it_is_closed(postgres_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(postgres_url, options=memory_options) as memory:
        session = memory.session("room")
        await session.append(says("hi"))
    for attempt in (session.append(says("late")), session.tail(5), session.reset(), memory.search("hi")):
        with pytest.raises(StoreClosed, match="inside its `async with"):
            await attempt


async def test_a_locked_session_blocks_no_other(memory: Memory, postgres_url: str) -> None:
    """Turns of other sessions are stored; turns of the locked one wait and keep their order."""
    await asyncio.gather(*(memory.session(name).append(says("first")) for name in ("locked", "free")))
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute("SELECT 1 FROM chat_sessions WHERE session_id = 'locked' FOR UPDATE")
        waiting = [asyncio.ensure_future(memory.session("locked").append(says("second")))]
        async with asyncio.timeout(9):
            for round_ in range(3):
                waiting.append(asyncio.ensure_future(memory.session("locked").append(says(f"more {round_}"))))
                await asyncio.gather(memory.session("free").append(says("x")), memory.session("new").append(says("y")))
        assert not any(task.done() for task in waiting)
        await other.rollback()
    receipts = await asyncio.gather(*waiting)
    assert [receipt.first_seq for receipt in receipts] == [2, 3, 4, 5]
    assert [m.content for m in await memory.session("locked").tail(5)] == [
        "first",
        "second",
        "more 0",
        "more 1",
        "more 2",
    ]


async def test_a_row_locked_too_long_raises(postgres_url: str, memory_options: MemoryOptions) -> None:
    """Each write to the session raises after the timeout, the memory can be closed, and later writes succeed."""
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        async with asyncio.timeout(HANG_SECONDS), open_memory(postgres_url, options=_hasty(memory_options)) as memory:
            session = memory.session("room")
            await session.append(says("hi"))
            await other.execute("SELECT 1 FROM chat_sessions FOR UPDATE")
            for attempt in (session.append(says("more")), session.reset(), session.delete()):
                with pytest.raises(StoreUnavailable, match="THREADKEEP_LOCK_TIMEOUT"):
                    await attempt
            repeated = [Message(role="user", content="one", id="1"), Message(role="user", content="two", id="2")]
            results = await asyncio.gather(
                session.append(repeated), memory.session("other").append(repeated), return_exceptions=True
            )
            assert isinstance(results[0], StoreUnavailable)
            assert not isinstance(results[1], BaseException)
            abandoned = asyncio.ensure_future(session.append(says("never stored")))
            await asyncio.sleep(0)
            abandoned.cancel()
        await other.rollback()
    async with open_memory(postgres_url, options=memory_options) as memory:
        assert (await memory.session("room").append(says("again"))).first_seq == 2


async def test_a_locked_table_raises_for_all_sessions(postgres_url: str, memory_options: MemoryOptions) -> None:
    """Many waiting sessions fail after one timeout, not one after the other."""
    async with (
        await psycopg.AsyncConnection.connect(postgres_url) as other,
        open_memory(postgres_url, options=_hasty(memory_options)) as memory,
    ):
        await other.execute("LOCK TABLE chat_sessions IN SHARE MODE")
        turns = [memory.session(f"room:{number}").append(says("hi")) for number in range(200)]
        async with asyncio.timeout(HANG_SECONDS):
            results = await asyncio.gather(*turns, return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results)


async def test_a_locked_session_does_not_stop_the_search(memory: Memory, postgres_url: str) -> None:
    await memory.session("locked").append(says("refund"))
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute("SELECT 1 FROM chat_sessions FOR UPDATE")
        await memory.session("of:another").append(says("refund"))
        async with asyncio.timeout(9):
            assert "of:another" in [hit.session_id for hit in await memory.search("refund")]


async def test_the_wait_for_a_migration_has_no_lock_timeout(
    empty_postgres_url: str, memory_options: MemoryOptions
) -> None:
    """The lock timeout is for rows; the migration of a large database takes longer."""
    async with await psycopg.AsyncConnection.connect(empty_postgres_url, autocommit=True) as other:
        await other.execute("SELECT pg_advisory_lock(7310865112)")
        opening = asyncio.ensure_future(_open_and_write(empty_postgres_url, _hasty(memory_options)))
        for _ in range(3):
            await other.execute("SELECT pg_sleep(0.2)")
        await until_a_lock_is_waited_for(other)
        await other.execute("SELECT pg_advisory_unlock(7310865112)")
        await opening


async def _open_and_write(url: str, options: MemoryOptions) -> None:
    async with open_memory(url, options=options) as memory:
        await memory.session("room").append(says("hi"))


def _hasty(options: MemoryOptions) -> MemoryOptions:
    return replace(options, store=StoreOptions(lock_timeout_seconds=0.2))


async def end_connections(url: str, only: str = "TRUE") -> None:
    """End all other connections of the database, and wait until the server has closed them."""
    others = f"pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND {only}"
    left = "SELECT pg_stat_clear_snapshot() FROM pg_stat_activity WHERE pid = ANY(%s)"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        ended = await (await other.execute(f"SELECT pid, pg_terminate_backend(pid) FROM {others}".encode())).fetchall()
        pids = [pid for pid, _ in ended]
        async with asyncio.timeout(HANG_SECONDS):
            while await (await other.execute(left, [pids])).fetchone():
                pass


async def until_a_lock_is_waited_for(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    """Wait until a statement of another connection waits for a lock."""
    waiting = (
        "SELECT pg_stat_clear_snapshot(), count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            found = await (await connection.execute(waiting)).fetchone()
            if found and found[1]:
                return


@pytest.mark.parametrize("steps", range(6))
async def test_a_call_that_is_cancelled_in_a_busy_process_loses_no_later_write(
    driver: PostgresDriver, postgres_url: str, steps: int
) -> None:
    """psycopg yields to other tasks after it enters pipeline mode, and stays in it if it is cancelled there.

    In that mode a statement returns its rows before the commit, and is rolled back with its connection.
    """
    await driver.write([("CREATE TABLE said (words TEXT)", {})])
    cancelled = asyncio.ensure_future(driver.write([("SELECT 1", {}), ("SELECT 2", {})]))
    for _ in range(steps):
        time.sleep(getattr(psycopg.waiting, "MAX_BUSY_TIME", 0.005))  # noqa: ASYNC251 - other tasks keep the process busy
        await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert await driver.fetch("INSERT INTO said VALUES (:words) RETURNING words", {"words": "kept"}) == [("kept",)]
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        assert await (await other.execute("SELECT words FROM said")).fetchall() == [("kept",)]


@pytest.mark.parametrize("steps", range(9))
async def test_a_write_of_many_rows_can_be_cancelled_in_a_busy_process(driver: PostgresDriver, steps: int) -> None:
    """A write that is cancelled at any time is stored whole or not at all."""
    await driver.write([("CREATE TABLE said (words TEXT)", {})])

    async def write() -> None:
        async with driver.writing() as connection:
            await connection.fetch("SELECT 1", {})
            time.sleep(getattr(psycopg.waiting, "MAX_BUSY_TIME", 0.005))  # noqa: ASYNC251 - other tasks keep the process busy
            await connection.execute_many("INSERT INTO said VALUES (:words)", [{"words": "one"}, {"words": "two"}])

    cancelled = asyncio.ensure_future(write())
    await asyncio.sleep(0.005 * steps)
    cancelled.cancel()
    [ended] = await asyncio.gather(cancelled, return_exceptions=True)
    stored = await driver.fetch("SELECT words FROM said ORDER BY words", {})
    whole = [("one",), ("two",)]
    assert stored == whole if ended is None else isinstance(ended, asyncio.CancelledError)
    assert stored in ([], whole)


async def test_checkpoints_are_not_written_in_the_pipeline_of_a_cancelled_call(postgres_url: str) -> None:
    """Connections of LangGraph's libraries leave pipeline mode too."""
    entering = asyncio.Event()
    async with open_dict_pool(postgres_url, StoreOptions(pool_min_size=1, pool_max_size=1)) as pool:

        async def ask() -> None:
            async with pool.connection() as raw:
                time.sleep(getattr(psycopg.waiting, "MAX_BUSY_TIME", 0.005))  # noqa: ASYNC251 - other tasks keep the process busy
                entering.set()
                async with raw.pipeline():
                    await raw.execute("SELECT 1")

        cancelled = asyncio.ensure_future(ask())
        await entering.wait()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        async with pool.connection() as raw:
            assert raw.info.pipeline_status == psycopg.pq.PipelineStatus.OFF


async def test_a_transaction_whose_connection_was_closed_is_not_taken_for_stored(driver: PostgresDriver) -> None:
    """psycopg ends the block of a closed connection without an error."""

    async def close_before_the_end() -> None:
        async with driver.writing() as connection:
            await connection.fetch("SELECT 1", {})
            await connection.raw.close()

    with pytest.raises(StoreUnavailable, match="PostgreSQL does not answer"):
        await close_before_the_end()
