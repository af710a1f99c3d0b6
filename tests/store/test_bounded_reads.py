"""Tests of the rows that PostgreSQL reads for a window, and of the indexes that SQLite uses for frequent reads."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from random import Random
from string import ascii_letters
from typing import Any, cast

import psycopg
import pytest

from tests.databases import migrated_driver
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.records.runs import RunQuery
from threadkeep.store.driver import Backend, Driver, Parameters, Row
from threadkeep.store.runs.rows import RunRecords
from threadkeep.store.statements import for_psycopg, for_values, load_statements
from threadkeep.store.transcripts import END, SessionQuery, TableSessions

LONG = 4_000
LIMIT = 20
FEW = 3 * LIMIT


async def fill(memory: Memory, messages: int) -> None:
    """Store a long session among many short ones."""
    said = [Message("assistant" if n % 2 else "user", "said") for n in range(messages)]
    await memory.session("long", user_id="u1").append(said)
    for number in range(30):
        await memory.session(f"short:{number}", user_id="u1").append(said[:2])


def steps(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all steps of a plan."""
    yield plan
    for step in plan.get("Plans", ()):
        yield from steps(step)


async def most_rows(url: str, statement: str, parameters: Parameters, *, file: str = "transcripts.sql") -> int:
    """Return the largest number of rows that one step of a statement read or filtered out."""
    return await most_rows_of(url, load_statements(file)[statement], parameters)


async def most_rows_of(url: str, sql: str, parameters: Parameters, *, in_loops: bool = False) -> int:
    """Return the same for a statement that is given as SQL. With `in_loops`, add up all executions of a step."""
    query = for_psycopg(sql)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode(), parameters)
        [(found,)] = await cursor.fetchall()
    plans = found if isinstance(found, list) else json.loads(found)
    removed = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return max(
        int(step.get(name, 0)) * (int(step["Actual Loops"]) if in_loops else 1)
        for step in steps(plans[0]["Plan"])
        for name in ("Actual Rows", *removed)
    )


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
async def test_a_window_reads_a_bounded_number_of_rows(
    postgres_url: str, memory_options: MemoryOptions, analyzed: bool
) -> None:
    bounds = {"before": END, "after": 0, "limit": LIMIT}
    parameters = {"session_id": "long", "user_id": "u1", **bounds}
    async with open_memory(postgres_url, options=memory_options) as memory:
        await fill(memory, LONG)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            await connection.execute("ANALYZE" if analyzed else "SELECT 1")
        for statement in ("newest", "newest_of_history"):
            assert await most_rows(postgres_url, statement, {**parameters, "user_id": None}) <= FEW
            assert await most_rows(postgres_url, statement, parameters) <= FEW
        for after in (0, LONG // 2, LONG - LIMIT // 2, LONG):
            assert await most_rows(postgres_url, "recent", {**parameters, "after": after}) <= FEW
        await memory.session("long").reset()
        assert await most_rows(postgres_url, "recent", parameters) <= FEW


async def test_the_poll_for_unindexed_messages_does_not_read_all_sessions(postgres_url: str) -> None:
    """Each service polls every five seconds, and nearly all sessions are indexed."""
    parameters: Parameters = {"user_id": None, "session_id": None, "limit": 100}
    async with migrated_driver(postgres_url):
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            await connection.execute(
                "INSERT INTO chat_sessions (session_id, created_at, updated_at)"
                " SELECT 'room:' || n, now(), now() FROM generate_series(1, 5000) AS n"
            )
            await connection.execute("ANALYZE chat_sessions")
        assert await most_rows(postgres_url, "to_index", parameters, file="search.sql") <= FEW


class RecordingConnection:
    """A connection to no database. It records the last statement, and returns no rows."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.statement: tuple[str, Parameters] = ("", {})

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[RecordingConnection]:
        """Lend this connection."""
        yield self

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """Record a statement."""
        self.statement = sql, parameters
        return []


_RUNS = """
INSERT INTO chat_runs
    (run_id, root_run_id, session_id, user_id, workflow, status, owner, trigger, created_at, set_aside)
SELECT
    'r' || n, 'r' || n, CASE WHEN n % 2 = 0 THEN 'long' ELSE 'room:' || n % 1999 END,
    CASE WHEN n % 2 = 0 THEN 'ann' ELSE 'u' || n % 1999 END,
    CASE WHEN n % 500 = 0 THEN 'rare' WHEN n % 3 = 0 THEN 'report' ELSE 'chat' END,
    CASE WHEN n % 1000 = 3 THEN 'running' WHEN n % 40 > 3 THEN 'done'
        ELSE (ARRAY['failed', 'queued', 'waiting', 'cancelled'])[n % 40 + 1] END,
    CASE WHEN n % 1000 = 3 THEN 'w' END, 'message', now() - n * interval '1 minute', n % 800 = 0
FROM generate_series(1, 20000) AS n
"""


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (RunQuery(turns=True), "idx_chat_runs_created_at"),
        (RunQuery(session_id="long"), "idx_chat_runs_session_id"),
        (RunQuery(session_id="long", user_id="ann", status="done"), "idx_chat_runs_session_id"),
        (RunQuery(user_id="ann", status="done", turns=True), "idx_chat_runs_user_id"),
        (RunQuery(status="failed"), "idx_chat_runs_status"),
        (RunQuery(status="interrupted"), "idx_chat_runs_status"),
        (RunQuery(status="queued"), "idx_chat_runs_queued"),
        (RunQuery(status="running"), "idx_chat_runs_owner"),
        (RunQuery(user_id="ann", status="waiting"), "idx_chat_runs_user_status"),
        (RunQuery(session_id="long", status="interrupted"), "idx_chat_runs_session_status"),
        (RunQuery(session_id="room:2", status="queued"), "idx_chat_runs_open"),
        (RunQuery(session_id="long", status="running"), "idx_chat_runs_open"),
        (RunQuery(session_id="long", set_aside=True), "idx_chat_runs_set_aside"),
    ],
    ids=str,
)
async def test_a_page_of_runs_is_read_by_the_index_of_its_filters(
    database_url: str, query: RunQuery, index: str
) -> None:
    """A session may have 100,000 runs, nearly all of them done. They are neither sorted nor read to find few others."""
    async with migrated_driver(database_url) as driver:
        recording = RecordingConnection(driver.backend)
        await RunRecords(cast("Driver", recording)).runs(query)
        sql, parameters = recording.statement
        if driver.backend == "sqlite":
            plan = [str(row[3]) for row in await driver.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            assert any(f"USING INDEX {index} " in f"{step} " for step in plan), plan
            assert any("FOR ORDER BY" in step for step in plan) == (
                index in ("idx_chat_runs_open", "idx_chat_runs_owner")
            )
            return
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            await connection.execute(_RUNS)
            await connection.execute("ANALYZE chat_runs")
        assert await most_rows_of(database_url, sql, parameters) <= 600


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
async def test_a_page_of_sessions_with_a_tag_reads_only_sessions_with_tags(database_url: str, analyzed: bool) -> None:
    """Of 5,000 sessions, 50 have tags, and none has the tag."""
    async with migrated_driver(database_url) as driver:
        recording = RecordingConnection(driver.backend)
        await TableSessions(cast("Driver", recording)).sessions(SessionQuery(tag="lost"))
        sql, parameters = recording.statement
        if driver.backend == "sqlite":
            plan = [str(row[3]) for row in await driver.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            assert any("idx_chat_sessions_tagged" in step for step in plan), plan
            return
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            await connection.execute(
                "INSERT INTO chat_sessions (session_id, tags, created_at, updated_at) SELECT 'room:' || n,"
                " CAST(CASE WHEN n % 100 = 0 THEN '[\"vip\"]' ELSE '[]' END AS JSONB), now(), now()"
                " FROM generate_series(1, 5000) AS n"
            )
            await connection.execute("ANALYZE chat_sessions" if analyzed else "SELECT 1")
        assert await most_rows_of(database_url, sql, parameters) <= 50


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
async def test_the_poll_for_ready_runs_reads_only_queued_runs(postgres_url: str, analyzed: bool) -> None:
    """Each worker polls for runs that may begin. 500 of the 20,000 runs are queued."""
    parameters: Parameters = {"before": "2999-01-01", "ahead": "2999-01-01", "limit": 20}
    async with migrated_driver(postgres_url):
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            await connection.execute(_RUNS)
            await connection.execute("UPDATE chat_runs SET arrival = substr(run_id, 2)::int")
            await connection.execute("ANALYZE" if analyzed else "SELECT 1")
        assert await most_rows(postgres_url, "ready", parameters, file="runs_order.sql") <= 2_000


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
async def test_the_poll_for_ready_runs_does_not_read_a_long_session_for_each_queued_run(
    postgres_url: str, analyzed: bool
) -> None:
    """The session has 10,000 runs that are done, and then 2,000 that are queued."""
    parameters: Parameters = {"before": "2999-01-01", "ahead": "2999-01-01", "limit": 20}
    async with migrated_driver(postgres_url):
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            await connection.execute(
                "INSERT INTO chat_runs"
                " (run_id, root_run_id, session_id, arrival, workflow, status, trigger, created_at)"
                " SELECT 'r' || n, 'r' || n, 'long', n, 'chat', CASE WHEN n > 10000 THEN 'queued' ELSE 'done' END,"
                " 'message', now() + n * interval '1 second' FROM generate_series(1, 12000) AS n"
            )
            await connection.execute("ANALYZE" if analyzed else "SELECT 1")
        sql = load_statements("runs_order.sql")["ready"]
        assert await most_rows_of(postgres_url, sql, parameters, in_loops=True) <= 20_000


async def test_postgres_plans_each_page_of_runs_for_its_filters(postgres_url: str) -> None:
    """A plan for any parameters, which PostgreSQL may use for a prepared statement, would sort long sessions."""
    async with migrated_driver(postgres_url) as driver:
        for number in range(10):
            await RunRecords(driver).runs(RunQuery(session_id=f"room:{number}"))
            await RunRecords(driver).counts()
        prepared = [str(sql) for (sql,) in await driver.fetch("SELECT statement FROM pg_prepared_statements", {})]
    assert [sql for sql in prepared if "'set_aside', count(*)" in sql]
    assert not [sql for sql in prepared if "ORDER BY r.created_at" in sql]


async def test_an_erase_looks_for_episodes_only_in_the_sessions_of_the_person(sqlite_url: str) -> None:
    """Graphiti's deliveries of other sessions are not read."""
    others: Parameters = {"session_id": None, "noted": None}
    sql, parameters = for_values(load_statements("erase.sql")["episodes_elsewhere"], "id", ["ann"], others)
    async with migrated_driver(sqlite_url) as driver:
        plan = [str(row[3]) for row in await driver.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    assert "SEARCH d USING INDEX idx_chat_graph_deliveries_session_id (session_id=?)" in plan


async def test_the_answer_of_a_question_is_found_far_into_a_session(
    postgres_url: str, memory_options: MemoryOptions
) -> None:
    """The seq may exceed a 16-bit integer."""
    async with open_memory(postgres_url, options=memory_options) as memory:
        session = memory.session("long")
        await session.append([Message("user", "said")] * 23_000)
        asked = [Message("user", "so?", id="q", run_id="r"), Message("assistant", "so", run_id="r")]
        await session.append(asked)
        question = await session.find("q")
        assert question is not None
        [answer] = await session.answers_to(question)
        assert answer.content == "so"


@pytest.mark.parametrize(
    ("file", "statement", "parameters", "index"),
    [
        ("persons.sql", "preferences", {"person_id": "ann"}, "idx_chat_facts_key (scope=? AND owner=?)"),
        ("runs_order.sql", "abandoned", {"disowned": "never", "limit": 50}, "idx_chat_runs_owner"),
        ("runs.sql", "has_following", {"session_id": "long", "run_id": "r1"}, "idx_chat_runs_open (session_id=?)"),
    ],
)
async def test_sqlite_reads_neither_the_facts_of_others_nor_finished_runs(
    sqlite_url: str, file: str, statement: str, parameters: Parameters, index: str
) -> None:
    """The first read is in each turn of a sender and in each row of a list, the second in each round of maintenance.

    The third is at the end of each run. Without statistics, SQLite prefers the index whose columns are narrower.
    """
    async with migrated_driver(sqlite_url) as driver:
        plan = await driver.fetch(f"EXPLAIN QUERY PLAN {load_statements(file)[statement]}", parameters)
    steps = [str(row[3]) for row in plan]
    assert any(index in step for step in steps), steps


async def test_the_runs_of_a_list_of_sessions_are_found_by_indexes(database_url: str) -> None:
    """A page of threads neither reads all runs of a session, to find those that wait, nor all sessions."""
    others: Parameters = {"user_id": None, "reset": "reset", "delete": "delete"}
    sessions = [f"room:{n}" for n in range(20)]
    sql, parameters = for_values(load_statements("runs_records.sql")["of_sessions"], "session_id", sessions, others)
    async with migrated_driver(database_url) as driver:
        if driver.backend == "sqlite":
            plan = [str(row[3]) for row in await driver.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
        else:
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
                await connection.execute(
                    "INSERT INTO chat_runs"
                    " (run_id, root_run_id, session_id, arrival, workflow, status, trigger, created_at)"
                    " SELECT 'r' || n, 'r' || n, 'room:' || n % 2000, n, 'chat',"
                    " CASE WHEN n % 7 = 0 THEN 'waiting' ELSE 'done' END, 'message', now()"
                    " FROM generate_series(1, 20000) AS n"
                )
                await connection.execute("ANALYZE chat_runs")
                cursor = await connection.execute(f"EXPLAIN {for_psycopg(sql)}".encode(), parameters)
                plan = [str(step) for (step,) in await cursor.fetchall()]
    for index in ("idx_chat_runs_arrival", "idx_chat_runs_open", "idx_chat_runs_session_status"):
        assert any(index in step for step in plan), plan
    assert not [step for step in plan if "Seq Scan on chat_runs" in step or step in ("SCAN r", "SCAN chat_runs")], plan


_ALIASES = {
    "chat_answered_messages": "a",
    "chat_channel_sessions": "h",
    "chat_fact_evidence": "e",
    "chat_graph_deliveries": "d",
    "chat_messages": "m",
    "chat_run_usage": "u",
    "chat_runs": "r",
}
_TARGET = {"id": "ann", "session_id": "s1", "noted": "erase:ann", "seq": 1, "run_id": "r1", "root_run_id": "r1"}


def newer_plan(database_url: str, sql: str) -> list[str]:
    """Return a plan of the newer SQLite in SQLCipher, whose planner may order joins differently; [] if not possible."""
    if not database_url.startswith("sqlite:///") or os.environ.get("TESTS_DATABASE_KEY"):
        return []  # no file can be opened, or the driver of the test uses SQLCipher itself
    if importlib.util.find_spec("sqlcipher3") is None:
        return []
    library = importlib.import_module("sqlcipher3.dbapi2")
    with closing(library.connect(database_url.removeprefix("sqlite:///"))) as connection:
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", _TARGET)]


@pytest.mark.parametrize(
    ("file", "statement", "table"),
    [
        ("erase.sql", "counts", "chat_fact_evidence"),
        ("erase.sql", "counts", "chat_graph_deliveries"),
        ("erase.sql", "counts", "chat_runs"),
        ("erase.sql", "counts", "chat_answered_messages"),
        ("erase.sql", "counts", "chat_outbox"),
        ("erase.sql", "counts", "chat_channel_sessions"),
        ("erase.sql", "delete_outgoing", "chat_outbox"),
        ("erase.sql", "delete_outgoing", "chat_channel_sessions"),
        ("erase.sql", "delete_channel_sessions", "chat_channel_sessions"),
        ("erase.sql", "threads", "chat_runs"),
        ("erase.sql", "shared_messages", "chat_messages"),
        ("erase.sql", "facts_of_sessions", "chat_fact_evidence"),
        ("erase.sql", "drop_facts_of_messages", "chat_fact_evidence"),
        ("erase.sql", "drop_facts_of_sessions", "chat_fact_evidence"),
        ("erase.sql", "drop_facts_of_runs", "chat_fact_evidence"),
        ("erase.sql", "retractions", "chat_graph_deliveries"),
        ("outbox.sql", "times", "chat_outbox"),
        ("outbox.sql", "open_counts", "chat_outbox"),
        ("retention.sql", "remember", "chat_runs"),
        ("runs_trace.sql", "usage_with_children", "chat_run_usage"),
    ],
)
async def test_an_erase_and_the_metrics_find_their_rows_by_index(
    database_url: str, file: str, statement: str, table: str
) -> None:
    """The evidence of all facts, delivered answers, confirmed deliveries and the runs of others are not read."""
    sql = load_statements(file)[statement]
    async with migrated_driver(database_url) as driver:
        if driver.backend == "sqlite":
            plan = [str(row[3]) for row in await driver.fetch(f"EXPLAIN QUERY PLAN {sql}", _TARGET)]
            plan += newer_plan(database_url, sql)
            whole = [
                step for step in plan if step == f"SCAN {table}" or step.split()[:2] == ["SCAN", _ALIASES.get(table)]
            ]
        else:
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
                await connection.execute("SET enable_seqscan = off")
                cursor = await connection.execute(f"EXPLAIN {for_psycopg(sql)}".encode(), _TARGET)
                plan = [str(step) for (step,) in await cursor.fetchall()]
            whole = [step for step in plan if f"Seq Scan on {table}" in step]
    assert not whole, plan
    assert any("idx_" in step for step in plan), plan


async def test_a_message_with_a_long_sender_is_stored(database_url: str, memory_options: MemoryOptions) -> None:
    """An entry of an index has at most 2,704 bytes on PostgreSQL; random text is not compressed below that."""
    sender = "".join(Random(1).choices(ascii_letters, k=6_000))
    async with open_memory(database_url, options=memory_options) as memory:
        await memory.session("room").append([Message("user", "said", metadata={"sender_id": sender})])
        [message] = await memory.session("room").tail(1)
    assert message.metadata["sender_id"] == sender
