"""Tests of messages and their index in partitions by session: in a new database, or converted in use."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from tests.children import run_store_suites
from tests.databases import driver_of, execute, migrated_driver, query
from threadkeep import (
    InvalidInput,
    InvalidSettings,
    Memory,
    MemoryOptions,
    Message,
    Retention,
    RetentionLimits,
    open_memory,
)
from threadkeep.records import Turn
from threadkeep.settings import load_settings
from threadkeep.store import partitions
from threadkeep.store.condition import check_integrity
from threadkeep.store.driver import Connection, Parameters, RowLocked, StoreOptions
from threadkeep.store.migrations import migrate
from threadkeep.store.partitions import abandon, partition, partition_state
from threadkeep.store.statements import for_psycopg, load_statements
from threadkeep.store.transcripts import END

_COLUMNS = (
    "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = '{}' ORDER BY 1"
)
_CHECKS = (
    "SELECT contype::text, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE conrelid = 'chat_messages'::regclass AND contype IN ('c', 'f', 'p') ORDER BY 1, 2"
)
_INDEXES = (
    "SELECT indexname, regexp_replace(indexdef, ' ON (ONLY )?', ' ON ') FROM pg_indexes "
    "WHERE tablename IN ('chat_messages', 'chat_search') AND indexname <> 'chat_messages_document_key' ORDER BY 1"
)
_MESSAGES = "SELECT * FROM {} ORDER BY session_id, seq"
_PLAIN_TEXTS = (
    "SELECT m.session_id, m.seq, m.document, f.terms FROM chat_search f JOIN chat_messages m "
    "ON m.document = f.document ORDER BY 1, 2"
)
_TEXTS = "SELECT session_id, seq, document, terms FROM {} ORDER BY 1, 2"
SESSIONS, TURNS = 60, 25


def nothing(done: int, total: int, copied: int) -> None:
    """Report no progress."""


async def fill(memory: Memory, sessions: int = SESSIONS, turns: int = TURNS) -> None:
    """Write sessions of two users with every kind of row; some of it is not indexed yet."""
    for number in range(sessions):
        room = memory.session(f"room {number}", user_id=f"u{number % 2}")
        await room.append(
            [
                Message("assistant" if n % 2 else "user", f"canary {number} {n} 退款", id=f"m{n}", metadata={"n": n})
                for n in range(2 * turns)
            ]
        )
    await memory.session("room 1").edit("m2", "in other words")
    await memory.session("room 2").take_back()
    await memory.session("room 3").reset()
    await memory.session("room 4").branch(session_id="a branch")
    archive, delete = RetentionLimits(max_messages=7), RetentionLimits(max_messages=5)
    await memory.retention.prune(Retention(archive=archive), session_ids=("room 5",))
    await memory.retention.prune(Retention(delete=delete), session_ids=("room 6",))
    await memory.search("canary")
    await memory.session("room 7").append([Message("user", "later")])


def test_partitions_on_sqlite_are_refused(sqlite_url: str, memory_options: MemoryOptions) -> None:
    with pytest.raises(InvalidSettings, match="SQLite has no partitions") as refused:
        load_settings(database_url=sqlite_url, partitions=4)
    assert refused.value.variable == "THREADKEEP_PARTITIONS"

    async def start() -> None:
        async with open_memory(sqlite_url, options=replace(memory_options, store=StoreOptions(partitions=4))):
            pass

    with pytest.raises(InvalidSettings, match="SQLite has no partitions"):
        asyncio.run(start())


async def test_a_new_database_has_the_partitions_that_the_setting_names(
    empty_postgres_url: str, postgres_url: str, memory_options: MemoryOptions
) -> None:
    """Both tables have hash partitions, with the columns, checks and indexes of plain ones."""
    options = replace(memory_options, store=StoreOptions(partitions=4))
    for _ in range(2):
        async with open_memory(empty_postgres_url, options=options) as memory:
            await memory.session("room").append([Message("user", "hello")])
    assert query(empty_postgres_url, "SELECT partrelid::regclass::text, partstrat::text, pg_get_partkeydef(partrelid) "
        "FROM pg_partitioned_table ORDER BY 1"
    ) == [
        ("chat_messages", "h", "HASH (session_id)"),
        ("chat_search", "h", "HASH (session_id)"),
    ]  # fmt: skip
    async with driver_of(empty_postgres_url) as driver:
        assert (await partition_state(driver)).partitions == 4
        assert await partition(driver, 4, report=nothing) is False
        with pytest.raises(InvalidInput, match="has 4 partitions"):
            await partition(driver, 8, report=nothing)
    for what in (_COLUMNS.format("chat_messages"), _CHECKS):
        assert query(empty_postgres_url, what) == query(postgres_url, what)
    made, plain = ({row[0]: row[1] for row in query(url, _INDEXES)} for url in (empty_postgres_url, postgres_url))
    assert made.keys() == plain.keys()
    made.pop("chat_search_pkey"), plain.pop("chat_search_pkey")
    assert made == plain


async def test_the_setting_does_not_convert_an_existing_database(
    postgres_url: str, memory_options: MemoryOptions
) -> None:
    async with open_memory(postgres_url, options=replace(memory_options, store=StoreOptions(partitions=4))):
        pass
    async with driver_of(postgres_url) as driver:
        assert (await partition_state(driver)).partitions == 0


async def test_each_row_is_the_same_after_an_interrupted_call_and_another(
    postgres_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_RANGES", 20)
    async with open_memory(postgres_url, options=replace(memory_options, background=False)) as memory:
        await fill(memory)
        messages, texts = query(postgres_url, _MESSAGES.format("chat_messages")), query(postgres_url, _PLAIN_TEXTS)
        assert len(messages) > 3_000
        steps: list[tuple[int, int, int]] = []

        def break_off(done: int, total: int, copied: int) -> None:
            steps.append((done, total, copied))
            if done > total // 2:
                raise ConnectionAbortedError

        async with driver_of(postgres_url) as driver:
            with pytest.raises(ConnectionAbortedError):
                await partition(driver, 4, report=break_off)
            state = await partition_state(driver)
            assert (state.partitions, state.copied_into, state.is_begun) == (0, 4, True)
            assert query(postgres_url, _MESSAGES.format("chat_messages")) == messages
            with pytest.raises(InvalidInput, match="4 partitions were begun"):
                await partition(driver, 8, report=nothing)
            # These messages are copied again, but the number of messages in the copy does not change.
            execute(postgres_url, "UPDATE chat_messages SET content = content WHERE session_id = 'room 0'")
            left, copied = steps[-1][1] - steps[-1][0] + 50, steps[-1][2]
            assert await partition(driver, 4, report=lambda *step: steps.append(step)) is True
            assert steps[-1] == (left, left, len(messages) - copied)
            assert await partition(driver, 4, report=nothing) is False
            state = await partition_state(driver)
            assert (state.partitions, state.copied_into, state.is_begun) == (4, 0, False)
            assert (await check_integrity(driver, transcripts=True)).gaps == ()
        assert query(postgres_url, _MESSAGES.format("chat_messages")) == messages
        assert query(postgres_url, _TEXTS.format("chat_search")) == texts
        spread = query(postgres_url, "SELECT tableoid, count(*) FROM chat_messages GROUP BY 1")
        assert len(spread) == 4
        # The memory that was open before continues, with new document numbers.
        [(newest,)] = query(postgres_url, "SELECT max(document) FROM chat_messages")
        await memory.session("room 1", user_id="u1").append([Message("user", "canary at last")])
        [(document,)] = query(postgres_url, "SELECT document FROM chat_messages WHERE content = 'canary at last'")
        assert document > newest  # type: ignore[operator]
        assert [hit.session_id for hit in await memory.search("canary last")] == ["room 1"]
        assert len(await memory.search("canary", user_id="u1", limit=10_000)) == sum(
            1 for row in query(postgres_url, "SELECT m.session_id FROM chat_messages m JOIN chat_sessions s "
                "ON s.session_id = m.session_id WHERE m.content LIKE '%canary%' AND m.seq > s.archived_seq "
                "AND m.superseded_at IS NULL AND s.user_id = 'u1'")
        )  # fmt: skip
        await memory.session("room 8").delete()
        assert query(postgres_url, "SELECT count(*) FROM chat_search WHERE session_id = 'room 8'") == [(0,)]
        assert (await memory.erase(user_id="u0")).complete
        assert {row[0] for row in query(postgres_url, "SELECT DISTINCT session_id FROM chat_search")} <= {
            row[0] for row in query(postgres_url, "SELECT session_id FROM chat_sessions")
        }


async def test_changes_during_the_copy_are_copied_too(
    postgres_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns, edits, retention, erasure and deletion during the copy: both tables are equal at the swap."""
    monkeypatch.setattr(partitions, "_RANGES", 5)
    run, copy, compared = partitions._run, partitions._copy, []  # noqa: SLF001
    options = replace(memory_options, background=False)
    async with open_memory(postgres_url, options=options) as memory, driver_of(postgres_url) as driver:
        await fill(memory, 20, 12)
        begun, works = False, work(memory)

        async def copy_and_work(connection: Connection) -> tuple[int, int]:
            for _ in range(10 if begun else 0):
                await anext(works, None)
            return await copy(connection)

        async def compare(connection: Connection, name: str) -> None:
            nonlocal begun
            begun = name == "create" or (begun and name != "hold")
            if name == "swap":
                old = await connection.fetch(_MESSAGES.format("chat_messages"), {})
                assert await connection.fetch(_MESSAGES.format("chat_messages_new"), {}) == old
                texts = await connection.fetch(_PLAIN_TEXTS, {})
                assert await connection.fetch(_TEXTS.format("chat_search_new"), {}) == texts
                compared.append(sum(row[3:5] == ("assistant", "canary answered") for row in old))
            await run(connection, name)

        monkeypatch.setattr(partitions, "_run", compare)
        monkeypatch.setattr(partitions, "_copy", copy_and_work)
        assert await partition(driver, 4, report=nothing) is True
        assert compared == [20]
        assert (await check_integrity(driver, transcripts=True)).gaps == ()
        for number in range(40, 60):
            assert [message.content for message in await memory.session(f"room {number}").tail(9)] == [
                "canary asked", "canary asked again", "canary answered",
            ]  # fmt: skip
        assert {hit.session_id for hit in await memory.search("canary again", limit=100)} == {
            f"room {number}" for number in range(40, 60)
        }


async def work(memory: Memory) -> AsyncIterator[None]:
    """Make the changes of running services, step by step."""
    delete, archive = RetentionLimits(max_messages=10), RetentionLimits(max_messages=14)
    for number in range(40, 60):
        room = memory.session(f"room {number}", user_id="u3")
        await room.append([Message("user", "canary asked", id="q1")])
        yield
        await room.append([Message("user", "canary asked a second time", id="q2")])
        await room.edit("q2", "canary asked again", new_id="q3")
        yield
        await room.append([Message("assistant", "canary answered", answers="q3")])
        await memory.search("canary")
        yield
        old = memory.session(f"room {number - 40}")
        # Rooms with odd numbers belong to u1, who is erased below.
        if number % 2 == 0:
            await old.take_back()
            yield
            rules = Retention(archive=archive) if number % 4 else Retention(delete=delete)
            await memory.retention.prune(rules, session_ids=(old.session_id,))
        yield
        if number % 4 == 0:
            await old.delete()
        if number == 45:
            await memory.erase(user_id="u1")
        yield


async def test_tables_that_others_keep_locked_are_replaced_later(
    postgres_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call raises instead of blocking all services; the copy stays and follows the tables."""
    monkeypatch.setattr(partitions, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(partitions, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(partitions, "_MOST_TRIES", 2)
    run, held = partitions._run, list[str]()  # noqa: SLF001
    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(open_memory(postgres_url, options=memory_options))
        driver = await stack.enter_async_context(driver_of(postgres_url))
        await memory.session("room").append([Message("user", "one")])
        other = await stack.enter_async_context(await psycopg.AsyncConnection.connect(postgres_url))

        async def hold(connection: Connection, name: str) -> None:
            if name == "hold" and not held:
                held.append(name)
                await other.execute("SELECT count(*) FROM chat_messages")
            await run(connection, name)

        monkeypatch.setattr(partitions, "_run", hold)
        with pytest.raises(RowLocked):
            await partition(driver, 4, report=nothing)
        await memory.session("room").append([Message("user", "two")])
        await other.rollback()
        assert await partition(driver, 4, report=nothing) is True
        assert [message.content for message in await memory.session("room").tail(9)] == ["one", "two"]


async def test_abandoning_a_copy_removes_it(postgres_url: str, memory_options: MemoryOptions) -> None:
    """`abandon` also removes the triggers of the copy."""
    names = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION SELECT tgname FROM pg_trigger"
    )

    def stop(*_: int) -> None:
        raise ConnectionAbortedError

    async with open_memory(postgres_url, options=memory_options) as memory, driver_of(postgres_url) as driver:
        await memory.session("room").append([Message("user", "one")])
        before = sorted(query(postgres_url, names))
        with pytest.raises(ConnectionAbortedError):
            await partition(driver, 4, report=stop)
        assert await abandon(driver) is True
        assert await abandon(driver) is False
        found = sorted(query(postgres_url, names))
        # The names of foreign key triggers have numbers in them.
        assert [name for name in found if "RI_" not in str(name)] == [name for name in before if "RI_" not in str(name)]
        assert await partition(driver, 8, report=nothing) is True
        assert await abandon(driver) is False


async def test_an_abandoned_copy_stops_the_call_that_fills_it(
    postgres_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_RANGES", 1)
    begun = asyncio.Event()

    async def remove() -> bool:
        await begun.wait()
        return await abandon(driver)

    async with open_memory(postgres_url, options=memory_options) as memory, driver_of(postgres_url) as driver:
        for number in range(20):
            await memory.session(f"room {number}").append([Message("user", "one")])
        call = partition(driver, 4, report=lambda *_: begun.set())
        outcome, removed = await asyncio.gather(call, remove(), return_exceptions=True)
        assert (removed, type(outcome), "has removed the copy" in str(outcome)) == (True, InvalidInput, True)
        assert not (await partition_state(driver)).is_begun


async def test_concurrent_calls_return_which_of_them_replaced_the_tables(
    postgres_url: str, empty_postgres_url: str
) -> None:
    for url, number in ((postgres_url, 4), (empty_postgres_url, 8)):
        async with migrated_driver(url) as driver, driver_of(url) as other:
            calls = (partition(driver, 4, report=nothing), partition(other, number, report=nothing))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            [other_outcome] = [outcome for outcome in outcomes if outcome is not True]
            assert other_outcome is False if number == 4 else isinstance(other_outcome, InvalidInput)


async def test_views_are_refused_and_grants_are_kept(postgres_url: str) -> None:
    execute(postgres_url, "CREATE VIEW mine AS SELECT content FROM chat_messages")
    execute(postgres_url, "DO $$ BEGIN CREATE ROLE analyst; EXCEPTION WHEN duplicate_object THEN END $$")
    execute(postgres_url, "GRANT SELECT, INSERT ON chat_messages TO analyst")
    async with driver_of(postgres_url) as driver:
        with pytest.raises(InvalidInput, match="use the tables: mine; drop"):
            await partition(driver, 4, report=nothing)
        assert not (await partition_state(driver)).is_begun
        execute(postgres_url, "DROP VIEW mine")
        assert await partition(driver, 4, report=nothing) is True
        rights = "SELECT has_table_privilege('analyst', 'chat_messages', '{}')"
        assert [query(postgres_url, rights.format(right)) for right in ("SELECT", "INSERT", "DELETE")] == [
            [(True,)], [(True,)], [(False,)],
        ]  # fmt: skip
        assert query(postgres_url, "SELECT has_sequence_privilege('analyst', 'chat_messages_document', 'USAGE')") == [
            (True,)
        ]
        execute(postgres_url, "REVOKE ALL ON chat_messages FROM analyst")
        assert await migrate(driver, datetime.now(UTC)) == []


async def plan_of(url: str, sql: str, parameters: Parameters) -> str:
    """Return the plan of a statement, with sequential scans disabled."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SET enable_seqscan = off")
        cursor = await connection.execute(f"EXPLAIN {for_psycopg(sql)}".encode(), parameters)
        return "\n".join(row[0] for row in await cursor.fetchall())


async def partitions_in_plan(url: str, sql: str, parameters: Parameters) -> set[str]:
    """Return the partitions that the plan of a statement names."""
    return set(re.findall(r" on (chat_\w+_part_\d+) ", await plan_of(url, sql, parameters)))


async def test_reads_of_one_session_touch_one_partition(partitioned_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(partitioned_url, options=memory_options) as memory:
        await fill(memory, 8, 10)
    place = {"session_id": "room 1", "before": END, "after": 0, "limit": 21, "user_id": None, "id": "m1", "upto": 9}
    given: Sequence[tuple[str, Sequence[str]]] = (
        ("transcripts.sql", ("newest", "newest_of_history", "recent", "message_with_id")),
        ("retention.sql", ("sizes", "extent", "delete_messages")),
        ("search.sql", ("texts",)),
        ("postgres/partitioned_search.sql", ("forget_range",)),
    )
    found = {
        name: await partitions_in_plan(partitioned_url, load_statements(path)[name], place)
        for path, names in given
        for name in names
    }
    [tail] = found["newest"]
    index = tail.replace("messages", "search")
    assert found.pop("forget_range") == {index}
    assert set(map(frozenset, found.values())) == {frozenset({tail})}
    search = load_statements("postgres/search.sql", "postgres/partitioned_search.sql")
    sql = f"WITH found AS MATERIALIZED ({search['found_of_session']}) {search['ranked']}"
    wanted = {"terms": [1], "patterns": ["canary"], "words": ["canary"], "candidates": 9}
    assert await partitions_in_plan(partitioned_url, search["found_of_session"], {**place, **wanted}) == {index}
    # Each message that is found is looked up in its partition.
    plan = await plan_of(partitioned_url, sql, {**place, **wanted})
    assert re.search(r"Index Scan using chat_messages_part_0_\w+ on chat_messages_part_0 ", plan)
    assert "session_id = found.session_id" in plan
    assert "Seq Scan on chat_messages" not in plan


async def test_a_message_id_is_unique_in_its_session(partitioned_url: str, memory_options: MemoryOptions) -> None:
    """A message id can be used in two sessions, and once in each."""
    async with open_memory(partitioned_url, options=memory_options) as memory:
        for name in ("a", "b"):
            turn = Turn(name, (Message("user", "hello", id="same"),))
            assert (await memory.session(name).append(turn.messages)).duplicates == ()
            assert (await memory.session(name).append(turn.messages)).duplicates == ("same",)


@pytest.mark.suites
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("suites")
def test_the_suites_of_the_store_run_on_partitions() -> None:
    """Run the tests of `tests/store`, `tests/graph_store` and `tests/history` that use PostgreSQL.

    Excluded: a stored database is plain, and an empty partition keeps the planner's statistics.
    """
    but = "not stored_database_has_the_schema and not leaves_no_byte_in_postgresqls_files and not test_partitions"
    run_store_suites(f"postgres and {but}", THREADKEEP_TEST_PARTITIONS="4")
