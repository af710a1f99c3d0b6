"""Tests of migrations: each runs once with concurrent starts, and a newer schema is refused."""

from __future__ import annotations

import asyncio
import gzip
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from tests.children import run_together
from tests.conftest import STORED_DATABASES
from tests.databases import driver_of, execute, query
from tests.limits import HANG_SECONDS
from threadkeep import MemoryOptions, Message, SchemaTooNew, StoreError, StoreUnavailable, open_memory
from threadkeep.history.pending import PendingOptions
from threadkeep.records.runs import RunQuery
from threadkeep.store.address import parse_address
from threadkeep.store.driver import StoreOptions
from threadkeep.store.migrations import known_migrations, migrate, schema_version
from threadkeep.store.sqlite import SqliteDriver
from threadkeep.store.sqlite_connection import translated

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_STARTERS = 8
_OLDEST = 20
_MAKE_TOO_NEW = "INSERT INTO threadkeep_migrations (version, name, applied_at) VALUES (9999, 'from the future', '')"
_TABLES = (
    "chat_active_sessions",
    "chat_anchors",
    "chat_channel_sessions",
    "chat_channel_state",
    "chat_claims",
    "chat_context_texts",
    "chat_deleted_ids",
    "chat_duties",
    "chat_embeddings",
    "chat_fact_evidence",
    "chat_fact_learning",
    "chat_fact_proposals",
    "chat_facts",
    "chat_graph_consents",
    "chat_graph_deliveries",
    "chat_graph_groups",
    "chat_graph_trust",
    "chat_graph_turns",
    "chat_manifests",
    "chat_messages",
    "chat_outbox",
    "chat_person_names",
    "chat_persons",
    "chat_procedures",
    "chat_recall_indexes",
    "chat_run_checkpoints",
    "chat_run_events",
    "chat_run_messages",
    "chat_run_places",
    "chat_run_tool_calls",
    "chat_run_traces",
    "chat_run_usage",
    "chat_runs",
    "chat_sessions",
    "chat_steps",
    "chat_summaries",
    "chat_token_factors",
    "chat_workflows",
    "threadkeep_migrations",
)

type Column = tuple[str, str, bool]


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database of each engine without tables."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url"))


def test_eight_first_starts_at_once_make_one_schema(empty_url: str, tmp_path: Path) -> None:
    starts = [(empty_url, str(tmp_path / "pending"), f"writer {n}") for n in range(_STARTERS)]
    assert sorted(run_together(start_and_write, starts)) == list(range(1, _STARTERS + 1))
    backend = parse_address(empty_url).backend
    rows = query(empty_url, "SELECT version, name FROM threadkeep_migrations ORDER BY version")
    assert rows == known_migrations(backend)


def start_and_write(url: str, folder: str, words: str) -> int:
    """Store a turn, as each of the processes does; return its seq."""

    async def write() -> int:
        options = MemoryOptions(pending=PendingOptions(folder=Path(folder)))
        async with open_memory(url, options=options) as memory:
            return (await memory.session("room").append([Message(role="user", content=words)])).first_seq

    return asyncio.run(write())


async def test_a_start_waits_for_the_migration_of_another_process(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite, a migration of a large file takes longer than the lock timeout of a turn."""
    refused = asyncio.Event()

    @contextmanager
    def watched(path: Path | None = None) -> Iterator[None]:
        try:
            with translated(path):
                yield
        except StoreUnavailable:
            refused.set()
            raise

    monkeypatch.setattr("threadkeep.store.sqlite.translated", watched)
    path = parse_address(sqlite_url).path
    assert path is not None
    driver = SqliteDriver(path, StoreOptions(lock_timeout_seconds=0.01))
    try:
        assert await schema_version(driver) == 0
        with closing(sqlite3.connect(path, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            starting = asyncio.ensure_future(migrate(driver, _NOW))
            async with asyncio.timeout(HANG_SECONDS):
                await refused.wait()
            another.execute("COMMIT")
        assert await starting == [version for version, _ in known_migrations("sqlite")]
    finally:
        await driver.close()


async def test_a_second_start_changes_nothing(empty_url: str) -> None:
    newest = [version for version, _ in known_migrations(parse_address(empty_url).backend)]
    async with driver_of(empty_url) as driver:
        assert await schema_version(driver) == 0
        assert await migrate(driver, _NOW) == newest
        before = query(empty_url, "SELECT * FROM threadkeep_migrations")
        assert await migrate(driver, _NOW.replace(year=2027)) == []
        assert query(empty_url, "SELECT * FROM threadkeep_migrations") == before
        assert await schema_version(driver) == newest[-1]


async def test_a_newer_schema_is_refused_and_left_unchanged(empty_url: str, memory_options: MemoryOptions) -> None:
    async with driver_of(empty_url) as driver:
        await migrate(driver, _NOW)
    execute(empty_url, _MAKE_TOO_NEW)
    before = columns_of(empty_url), query(empty_url, "SELECT * FROM threadkeep_migrations")
    with pytest.raises(SchemaTooNew) as refused:
        async with open_memory(empty_url, options=memory_options):
            pass
    known = known_migrations(parse_address(empty_url).backend)[-1][0]
    assert (refused.value.found, refused.value.known) == (9999, known)
    assert "upgrade Threadkeep" in str(refused.value)
    assert (columns_of(empty_url), query(empty_url, "SELECT * FROM threadkeep_migrations")) == before


async def test_a_failed_migration_is_rolled_back(empty_url: str) -> None:
    """A table of another program with the same name makes the migration fail, and no table is created."""
    execute(empty_url, "CREATE TABLE chat_runs (mine TEXT)")
    async with driver_of(empty_url) as driver:
        with pytest.raises(StoreError):
            await migrate(driver, _NOW)
        assert await schema_version(driver) == 0
    assert {table for table, *_ in columns_of(empty_url)} == {"chat_runs"}


@pytest.mark.parametrize("schema", [1, 19])
async def test_a_schema_from_before_the_first_migration_is_refused(empty_url: str, schema: int) -> None:
    """The error names the cure, and no table is created."""
    execute(empty_url, "CREATE TABLE threadkeep_migrations (version INTEGER PRIMARY KEY, name TEXT, applied_at TEXT)")
    execute(empty_url, f"INSERT INTO threadkeep_migrations VALUES ({schema}, 'old', '')")
    async with driver_of(empty_url) as driver:
        with pytest.raises(StoreError, match="export its sessions with the old version"):
            await migrate(driver, _NOW)
    assert {table for table, *_ in columns_of(empty_url)} == {"threadkeep_migrations"}


async def test_a_role_that_may_not_migrate_gets_the_cure(old_postgres_url: str, memory_options: MemoryOptions) -> None:
    """Rights on the tables do not suffice: only their owner can alter them."""
    rights = "SELECT, INSERT, UPDATE, DELETE, REFERENCES ON ALL TABLES IN SCHEMA public"
    execute(old_postgres_url, f"GRANT {rights} TO pg_read_all_settings")
    execute(old_postgres_url, "GRANT CREATE ON SCHEMA public TO pg_read_all_settings")
    with pytest.raises(StoreError, match="run `threadkeep migrate` as the role that owns the tables, and then grant"):
        async with open_memory(f"{old_postgres_url}&options=-crole%3Dpg_read_all_settings", options=memory_options):
            pass
    async with driver_of(old_postgres_url) as driver:
        assert await schema_version(driver) == _OLDEST


@pytest.fixture(params=["sqlite", "postgres"])
def stored_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database that the code of schema 20 created and filled."""
    if request.param == "sqlite":
        (tmp_path / "stored.db").write_bytes(gzip.decompress((STORED_DATABASES / "schema_0020.db.gz").read_bytes()))
        return f"sqlite:///{tmp_path}/stored.db"
    return str(request.getfixturevalue("old_postgres_url"))


async def test_a_database_of_schema_20_opens_with_all_data(stored_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(stored_url, options=memory_options) as memory:
        room = memory.session("telegram:1", user_id="u1")
        assert [message.content for message in await room.tail(20)] == [
            "question 1: 退款?", "answer 1", "question 2: 退款?", "answer 2", "question 3 in other words",
            "the newest answer",
        ]  # fmt: skip
        assert len(await room.tail(20, view="history")) == 8
        window = await memory.session("room").window()
        assert [message.content for message in window.messages] == ["after the reset"]
        assert {hit.message.content for hit in await memory.search("退款")} == {
            "question 1: 退款?",
            "question 2: 退款?",
        }
        assert [hit.session_id for hit in await memory.search("needle")] == ["unindexed"]
        assert [run.status for run in (await memory.runs.records.runs(RunQuery()))[0]] == ["done", "done"]
        receipt = await room.append([Message("user", "again", id="telegram:2"), Message("assistant", "new")])
        assert (receipt.duplicates, receipt.last_seq) == (("telegram:2",), 9)
    async with driver_of(stored_url) as driver:
        assert await schema_version(driver) == known_migrations(driver.backend)[-1][0]


@pytest.mark.parametrize("damage", [r"\q", "\n", r"\u0000", r"\ud800", r"\u12", "\\"])
async def test_a_damaged_address_stops_no_migration(
    stored_url: str, memory_options: MemoryOptions, damage: str
) -> None:
    """The rows of other persons are found by their addresses."""
    odd = r"\"é\u0001\\ "
    for name, user in (("one", damage), ("two", odd)):
        address = f'{{"user_id":"{user}","chat_id":1}}'
        row = f"'{name}', 'bot', '{address}', '2026-01-01 00:00:00'"
        execute(
            stored_url, f"INSERT INTO chat_channel_sessions (session_id, channel, address, heard_at) VALUES ({row})"
        )
    async with open_memory(stored_url, options=memory_options):
        pass
    query_two = "SELECT person_id FROM chat_channel_sessions WHERE session_id = 'two'"
    assert query(stored_url, query_two) == [('"é\x01\\ ',)]


async def test_a_start_that_waits_to_upgrade_logs_the_wait(
    stored_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning tells the limit of the wait, and appears while the lock is still held."""
    monkeypatch.setattr("threadkeep.store.migrations._LOCK_NOTE_SECONDS", 0.0)
    monkeypatch.setattr("threadkeep.store.partitions._PAUSE_SECONDS", 0.0)

    async def start() -> None:
        async with open_memory(stored_url, options=memory_options):
            pass

    address = parse_address(stored_url)
    locking = psycopg.connect(address.dsn) if address.dsn else sqlite3.connect(address.path or "", isolation_level=None)
    with closing(locking) as other:
        other.execute("SELECT * FROM chat_token_factors" if address.dsn else "BEGIN IMMEDIATE")
        starting = asyncio.ensure_future(start())
        async with asyncio.timeout(HANG_SECONDS):
            while not caplog.records:
                assert not starting.done()
                await asyncio.sleep(0.01)
            other.rollback()
            await starting
    [record] = [record for record in caplog.records if "upgrade of the database's schema" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert ("up to 150 seconds" if address.dsn else "without a limit") in record.getMessage()


async def test_a_single_token_factor_applies_to_all_scripts(stored_url: str, memory_options: MemoryOptions) -> None:
    """A stored single factor is the start of both factors, which are learned from there."""
    execute(stored_url, "INSERT INTO chat_token_factors VALUES ('grok-4', 1.5, 12, '2026-01-01T00:00:00+00:00')")
    async with open_memory(stored_url, options=memory_options) as memory:
        factor = await memory.learned_factors.of("grok-4")
        assert (factor.value, factor.samples, factor.other) == (1.5, 12, 1.5)
        memory.learned_factors.learn("grok-4", 1_000, 3_000, 900)
    async with open_memory(stored_url, options=memory_options) as memory:
        factor = await memory.learned_factors.of("grok-4")
        assert factor.samples == 13
        assert factor.other is not None
        assert 1.5 < factor.value < 1.6
        assert factor.other > 1.9


async def test_a_stored_database_has_the_schema_of_a_new_one(
    stored_url: str, memory_options: MemoryOptions, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """After the upgrade, tables and columns are equal; on SQLite also the definitions."""
    new = f"sqlite:///{tmp_path}/new.db"
    if parse_address(stored_url).dsn is not None:
        new = str(request.getfixturevalue("postgres_url"))
    for url in (stored_url, new):
        async with open_memory(url, options=memory_options):
            pass
    stored, made = columns_of(stored_url), columns_of(new)
    assert [column for column in stored if column[0].startswith("chat")] == [
        column for column in made if column[0].startswith("chat")
    ]
    if parse_address(stored_url).dsn is None:
        assert set(schema_of(new)) <= set(schema_of(stored_url))


def schema_of(url: str) -> list[tuple[str, str, str]]:
    """Return kind, name and definition of all objects of a SQLite database, without quotes and spaces."""
    found = query(url, "SELECT type, name, coalesce(sql, '') FROM sqlite_master ORDER BY type, name")
    return [(str(kind), str(name), re.sub(r'[\s"]', "", str(sql))) for kind, name, sql in found]


async def test_both_engines_have_the_same_tables(sqlite_url: str, postgres_url: str) -> None:
    """Columns have the same order and the same NOT NULL constraints, and indexes the same names."""
    async with driver_of(sqlite_url) as driver:
        await migrate(driver, _NOW)
    assert [column for column in columns_of(sqlite_url) if column[0] in _TABLES] == [
        column for column in columns_of(postgres_url) if column[0] in _TABLES
    ]
    in_sqlite = "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'idx%' ORDER BY name"
    in_postgres = "SELECT indexname FROM pg_indexes WHERE indexname LIKE 'idx_chat%' ORDER BY indexname"
    engines_own = ("idx_chat_search_terms",)
    assert query(sqlite_url, in_sqlite) == [row for row in query(postgres_url, in_postgres) if row != engines_own]


async def test_a_read_only_postgres_can_be_read(postgres_url: str, memory_options: MemoryOptions) -> None:
    """An up-to-date standby can be opened, read and searched; the error of an append names the cure."""
    async with open_memory(postgres_url, options=memory_options) as memory:
        await memory.session("room").append([Message(role="user", content="before the switch")])
        assert len(await memory.search("switch")) == 1
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with open_memory(postgres_url, options=memory_options) as memory:
        session = memory.session("room")
        assert [message.content for message in await session.tail(5)] == ["before the switch"]
        assert len(await memory.search("switch")) == 1
        with pytest.raises(StoreUnavailable, match="read-only here; name the primary"):
            await session.append([Message(role="user", content="after")])
        assert await session.count() == 1


def columns_of(url: str) -> list[Column]:
    """Return table, column and NOT NULL of all tables, except those of the search index."""
    if parse_address(url).dsn is not None:
        rows: Iterable[tuple[object, ...]] = query(
            url,
            "SELECT table_name, column_name, is_nullable = 'NO' FROM information_schema.columns "
            "WHERE table_schema = 'public' ORDER BY table_name, ordinal_position",
        )
    else:
        rows = query(
            url,
            'SELECT t.name, c.name, c."notnull" OR c.pk FROM sqlite_master t, pragma_table_xinfo(t.name) c '
            "WHERE t.type = 'table' ORDER BY t.name, c.cid",
        )
    return [(str(table), str(column), bool(required)) for table, column, required in rows]
