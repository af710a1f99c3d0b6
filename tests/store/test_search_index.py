"""Tests of the search index: it matches the transcript, whichever process updates it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from tests.children import run_together
from tests.databases import migrated_driver, query
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, StoreUnavailable, open_memory
from threadkeep.history.pending import PendingOptions
from threadkeep.observe import IndexingBegan, IndexingDone
from threadkeep.records import Turn
from threadkeep.store.address import parse_address
from threadkeep.store.driver import Connection, Driver, Parameters, Row
from threadkeep.store.postgres_connection import PostgresConnection
from threadkeep.store.search import SearchIndex
from threadkeep.store.statements import load_statements
from threadkeep.store.tables import TableTranscripts, delete_session, deletion_statements
from threadkeep.testing import SettableClock


async def found(memory: Memory, words: str) -> set[str]:
    """Return the sessions in which some words are found."""
    return {hit.session_id for hit in await memory.search(words, limit=100)}


@pytest.mark.parametrize(
    "text",
    [
        "needle " + "hay stack " * 100_000,
        "needle " + " ".join(sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(20_000)),
        "needle " + "x" * 1_000_000,
        "needle " + "针".join("草" * 300 for _ in range(1000)),
        "needle " + " ".join(chr(0x4E00 + n) + chr(0x9000 + n % 500) for n in range(20_000)),
    ],
    ids=["prose", "hashes", "one-word", "chinese", "many-pairs"],
)
@pytest.mark.slow
async def test_a_huge_text_is_indexed(memory: Memory, text: str) -> None:
    await memory.session("room").append([Message(role="user", content=text)])
    await memory.session("room").append([Message(role="assistant", content="what follows")])
    assert await found(memory, "needle") == {"room"}
    assert await found(memory, "follows") == {"room"}


@pytest.mark.slow
async def test_a_search_does_not_wait_for_an_import_to_be_indexed(
    shared_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its timeout a search returns the indexed matches, also while the background task indexes."""
    monkeypatch.setattr("threadkeep.history.memory_parts._TIMEOUT_SECONDS", 0.05)
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as memory:
        texts = [" ".join(f"word{n}x{m}" for m in range(300)) for n in range(1000)]
        for start in range(0, 1000, 200):
            turn = [Message(role="user", content=text, tokens=1) for text in texts[start : start + 200]]
            await memory.session("imported").append(turn)
        background = asyncio.ensure_future(memory.keep_index())
        await memory.search("word1x1")
        assert query(shared_url, "SELECT 1 FROM chat_sessions WHERE indexed_seq < last_seq")
        monkeypatch.setattr("threadkeep.history.memory_parts._TIMEOUT_SECONDS", 60)
        assert await found(memory, "word999x299") == {"imported"}
        background.cancel()


async def test_a_search_first_indexes_the_session_or_user(
    shared_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search in a session or of a user is complete; a search in all sessions reports the unindexed messages."""
    monkeypatch.setattr("threadkeep.history.memory_parts._TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr("threadkeep.store.search._STEP_MESSAGES", 2)
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as memory:
        for number in range(6):
            turn = [Message(role="user", content="a needle"), Message(role="assistant", content="found")]
            await memory.session(f"room:{number}", user_id=f"u{number}").append(turn)
        alone = await memory.search_result("needle", session_id="room:4")
        assert ([hit.session_id for hit in alone.hits], alone.unindexed) == (["room:4"], 0)
        own = await memory.search_result("needle", user_id="u2")
        assert ([hit.session_id for hit in own.hits], own.unindexed) == (["room:2"], 0)
        some = await memory.search_result("needle")
        assert (len(some.hits), some.unindexed) == (3, 6)
        monkeypatch.setattr("threadkeep.history.memory_parts._TIMEOUT_SECONDS", 60)
        everything = await memory.search_result("needle")
        assert (len(everything.hits), everything.unindexed) == (6, 0)


async def test_a_locked_database_can_be_searched(sqlite_url: str, memory_options: MemoryOptions) -> None:
    store = replace(memory_options.store, lock_timeout_seconds=0.05)
    async with open_memory(sqlite_url, options=replace(memory_options, store=store, background=False)) as memory:
        await memory.session("a").append([Message(role="user", content="old words")])
        assert await found(memory, "words") == {"a"}
        await memory.session("b").append([Message(role="user", content="new words")])
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            result = await memory.search_result("words")
        assert ([hit.session_id for hit in result.hits], result.unindexed) == (["a"], 1)
        assert await found(memory, "words") == {"a", "b"}


async def test_a_long_catch_up_is_reported_once(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.history.memory_parts.MUCH_UNINDEXED", 2)
    monkeypatch.setattr("threadkeep.history.memory_parts._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("threadkeep.history.memory_parts._TIMEOUT_SECONDS", 0.0)
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as memory:
        await memory.session("room").append([Message(role="user", content=f"word {n}") for n in range(3)])
    catch_up, rounds = SearchIndex.catch_up, iter([StoreUnavailable("The disk is full.")])

    async def failing_once(index: SearchIndex, *, seconds: float | None = None) -> bool:
        if seconds is not None:
            return False
        for error in rounds:
            raise error
        return await catch_up(index)

    monkeypatch.setattr(SearchIndex, "catch_up", failing_once)
    async with open_memory(shared_url, options=memory_options, observers=[events]) as memory:
        await events.until(lambda: bool(events.of(IndexingDone)))
    [began], [done] = events.of(IndexingBegan), events.of(IndexingDone)
    assert (began.messages, done.messages) == (3, 3)
    assert query(shared_url, "SELECT indexed_seq FROM chat_sessions") == [(3,)]


async def test_a_session_that_is_deleted_while_it_is_indexed_leaves_nothing(database_url: str) -> None:
    """If a session is deleted and created again after its texts were read, only new words are indexed."""
    async with migrated_driver(database_url) as driver:
        transcripts = TableTranscripts(driver, count=len, clock=SettableClock())
        await transcripts.append(Turn("room", tuple(Message(role="user", content=f"old {n}") for n in range(10))))

        async def begin_anew() -> None:
            await transcripts.delete("room")
            await transcripts.append(Turn("room", (Message(role="user", content="new words"),)))

        index = SearchIndex(BeforeWriting(driver, begin_anew))
        await index.catch_up()
        await transcripts.append(Turn("room", (Message(role="user", content="more words"),)))
        await index.catch_up()
        assert [hit.message.content for hit in await index.search("old", limit=5)] == []
        assert len(await index.search("words", limit=5)) == 2
        await transcripts.close()


@pytest.mark.parametrize("deleted_at", [2, 3])
@pytest.mark.parametrize("begun_at", [2, 3])
async def test_a_session_created_again_while_it_is_indexed_is_found(
    database_url: str, deleted_at: int, begun_at: int
) -> None:
    """The session is created again before its texts are read (the second use of the database) or after."""
    async with migrated_driver(database_url) as driver:
        transcripts = TableTranscripts(driver, count=len, clock=SettableClock())
        await transcripts.append(Turn("room", tuple(Message(role="user", content=f"old {n}") for n in range(10))))

        async def meanwhile(use: int) -> None:
            if use == deleted_at:
                await transcripts.delete("room")
            if use == begun_at:
                await transcripts.append(Turn("room", (Message(role="user", content="new words"),)))

        await SearchIndex(BeforeEach(driver, meanwhile)).catch_up()
        await transcripts.append(Turn("room", (Message(role="user", content="more words"),)))
        index = SearchIndex(driver)
        await index.catch_up()
        words = await transcripts.newest("room", limit=20)
        assert len(await index.search("words", limit=5)) == sum("words" in one.content for one in words.messages)
        await transcripts.close()


async def test_a_session_created_during_a_deletion_stays(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with migrated_driver(postgres_url) as driver:
        transcripts = TableTranscripts(driver, count=len, clock=SettableClock())
        execute = PostgresConnection.execute

        async def begins_after(connection: PostgresConnection, sql: str, parameters: Parameters) -> int:
            monkeypatch.undo()
            changed = await execute(connection, sql, parameters)
            await transcripts.append(Turn("room", (Message(role="user", content="new words"),)))
            await SearchIndex(driver).catch_up()
            return changed

        monkeypatch.setattr(PostgresConnection, "execute", begins_after)
        async with driver.writing() as connection:
            assert not await delete_session(connection, deletion_statements("postgres"), "room")
        assert [hit.session_id for hit in await SearchIndex(driver).search("words", limit=5)] == ["room"]
        assert await transcripts.delete("room")
        await transcripts.close()
    assert query(postgres_url, "SELECT document FROM chat_search") == []


_ENDLESS = {
    "sqlite": "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n WHERE x < 0",
    "postgres": "SELECT pg_sleep(60)",
}


def endless(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> SearchIndex:
    """Return an index whose searches never end."""
    index = SearchIndex(driver)
    names = ("match", "ranked", "match_short", "match_short_of_user")
    statements = load_statements("search.sql", f"{driver.backend}/search.sql")
    monkeypatch.setattr(index, "_sql", {**statements, **dict.fromkeys(names, _ENDLESS[driver.backend])})
    return index


async def test_endless_searches_block_no_reads(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless searches leave connections for other reads, and raise an error with the cure."""
    async with migrated_driver(shared_url) as driver, asyncio.timeout(HANG_SECONDS):
        index = endless(driver, monkeypatch)
        searches = [asyncio.ensure_future(index.search("a", limit=5, user_id=user)) for user in [None, "u1"] * 5]
        for _ in range(5):
            async with driver.reading() as one, driver.reading() as another:
                assert await one.fetch("SELECT 1", {}) == await another.fetch("SELECT 1", {}) == [(1,)]
        assert not any(search.done() for search in searches)
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        with monkeypatch.context() as hurried:
            hurried.setattr("threadkeep.store.search._SEARCH_SECONDS", 0.1)
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="use a longer"):
                    await index.search("a", limit=5)
        assert await SearchIndex(driver).search("a", limit=5) == []


async def test_a_cancelled_search_is_stopped(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with migrated_driver(shared_url) as driver, asyncio.timeout(HANG_SECONDS):
        index = endless(driver, monkeypatch)
        for steps in range(20):
            search = asyncio.ensure_future(index.search("a", limit=5))
            for _ in range(steps):
                await asyncio.sleep(0)
                await asyncio.to_thread(int)
            search.cancel()
            await asyncio.gather(search, return_exceptions=True)
        assert await SearchIndex(driver).search("a", limit=5) == []


@pytest.mark.parametrize("name", ["match", "match_short_of_user"])
async def test_a_search_for_a_user_reads_that_users_messages_only(sqlite_url: str, name: str) -> None:
    """SQLite's query plan reads the sessions of the user before the texts."""
    parameters = {
        "user_id": "u1",
        "session_id": None,
        "after": 0,
        "expression": '"refund"',
        "patterns": "[]",
        "words": "[]",
        "limit": 10,
        "candidates": 10,
    }
    async with migrated_driver(sqlite_url) as driver, driver.reading() as connection:
        sql = load_statements("sqlite/search.sql")[name]
        steps = [row[3] for row in await connection.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    order = [step.split()[1] for step in steps if step.startswith(("SCAN", "SEARCH"))]
    assert order.index("s") < order.index("m"), steps
    assert name == "match" or "idx_chat_sessions_user_id" in steps[0]


async def test_a_deleted_session_leaves_no_document(shared_url: str, memory_options: MemoryOptions) -> None:
    """The index has no words without a text either."""
    async with open_memory(shared_url, options=memory_options) as memory:
        for number in range(3):
            turn = [Message(role="user", content=f"refund number {number} 退款 {part}") for part in range(5)]
            await memory.session(f"room:{number}").append(turn)
        assert await found(memory, "refund") == {"room:0", "room:1", "room:2"}
        await memory.session("room:1").delete()
        assert await asyncio.to_thread(documents, shared_url) == 10


async def test_a_long_session_is_deleted_in_steps(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other writers do not wait until all of its texts have left the index."""
    monkeypatch.setattr("threadkeep.store.tables._UNINDEXED_AT_ONCE", 10)
    async with open_memory(sqlite_url, options=MemoryOptions(background=False)) as memory:
        long = memory.session("long")
        await long.append([Message(role="user", content=f"refund {number}") for number in range(200)])
        assert await found(memory, "refund") == {"long"}
        deleting = asyncio.create_task(long.delete())
        indexed = "SELECT indexed_seq FROM chat_sessions WHERE session_id = 'long'"
        while (rows := query(sqlite_url, indexed)) == [(200,)]:  # noqa: ASYNC110 - a commit has no event
            await asyncio.sleep(0)
        assert rows, "the whole session was deleted at once"
        await memory.session("short").append([Message(role="user", content="a refund")])
        assert await deleting
        assert await found(memory, "refund") == {"short"}
    assert documents(sqlite_url) == 1


async def test_a_session_whose_deletion_is_refused_is_still_found(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.store.tables._UNINDEXED_AT_ONCE", 10)
    session = memory.session("long")
    await session.append([Message(role="user", content=f"refund {number}") for number in range(50)])
    assert len(await memory.search("refund", limit=100)) == 50
    assert not await session.delete(run_id="no such run")
    assert len(await memory.search("refund", limit=100)) == 50


async def test_a_deletion_waits_for_the_indexer_of_the_session(postgres_url: str) -> None:
    """On PostgreSQL, a running indexer commits first, so that its documents are deleted too."""
    async with migrated_driver(postgres_url) as driver, await psycopg.AsyncConnection.connect(postgres_url) as indexer:
        transcripts = TableTranscripts(driver, count=len, clock=SettableClock())
        await transcripts.append(Turn("room", (Message(role="user", content="old"),)))
        await indexer.execute("UPDATE chat_sessions SET indexed_seq = 1")
        await indexer.execute("INSERT INTO chat_search SELECT document, '{1}' FROM chat_messages")
        deleting = asyncio.ensure_future(transcripts.delete("room"))
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        async with asyncio.timeout(HANG_SECONDS):
            while not deleting.done() and not await (await indexer.execute(waiting)).fetchone():
                pass
        await indexer.commit()
        assert await deleting
        await transcripts.close()
    assert query(postgres_url, "SELECT 1 FROM chat_search") == []


class BeforeWriting:
    """A driver that runs a callback before its first write."""

    def __init__(self, driver: Driver, happens: Callable[[], Awaitable[None]]) -> None:
        self._driver = driver
        self._happens: Callable[[], Awaitable[None]] | None = happens
        self.loop = driver.loop
        self.backend = driver.backend
        self.reading = driver.reading
        self.fetch = driver.fetch
        self.append = driver.append
        self.write = driver.write
        self.transaction = driver.transaction
        self.check_file = driver.check_file
        self.close = driver.close

    @asynccontextmanager
    async def writing(self, *, lock_timeout_seconds: float | None = None) -> AsyncIterator[Connection]:
        """Run the callback, then open a transaction."""
        happens, self._happens = self._happens, None
        if happens:
            await happens()
        async with self._driver.writing(lock_timeout_seconds=lock_timeout_seconds) as connection:
            yield connection


class BeforeEach(BeforeWriting):
    """A driver that runs a callback before each use of the database, with the number of the use."""

    def __init__(self, driver: Driver, happens: Callable[[int], Awaitable[None]]) -> None:
        async def next_one() -> None:
            self._uses += 1
            self._happens = next_one
            await happens(self._uses)

        super().__init__(driver, next_one)
        self._uses = 0
        self._next = next_one
        self.reading = self._reading
        self.fetch = self._fetch

    async def _fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        await self._next()
        return await self._driver.fetch(sql, parameters)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Connection]:
        await self._next()
        async with self._driver.reading() as connection:
            yield connection


def test_processes_that_index_at_once_index_everything_once(shared_url: str, tmp_path: Path) -> None:
    asyncio.run(fill(shared_url, tmp_path))
    together = [(shared_url, str(tmp_path / "pending"))] * 4
    assert run_together(search_all, together) == [600] * 4
    assert documents(shared_url) == 600


async def fill(url: str, folder: Path) -> None:
    """Store sixty turns of ten messages without indexing them."""
    options = MemoryOptions(background=False, pending=PendingOptions(folder=folder))
    async with open_memory(url, options=options) as memory:
        for number in range(60):
            messages = [Message(role="user", content=f"refund number {number} part {part}") for part in range(10)]
            await memory.session(f"room:{number % 7}").append(messages)


def search_all(url: str, folder: str) -> int:
    """Search as each of the processes does; return the number of messages found."""

    async def search() -> int:
        options = MemoryOptions(pending=PendingOptions(folder=Path(folder)))
        async with open_memory(url, options=options) as memory:
            hits = await memory.search("refund number", limit=10_000)
            assert len({(hit.session_id, hit.message.seq) for hit in hits}) == len(hits)
            return len(hits)

    return asyncio.run(search())


def documents(url: str) -> int:
    """Return the number of documents in the index; SQLite also checks them against the texts."""
    if parse_address(url).dsn is not None:
        return len(query(url, "SELECT 1 FROM chat_search"))
    query(url, "INSERT INTO chat_search (chat_search, rank) VALUES ('integrity-check', 1)")
    return len(query(url, "SELECT 1 FROM chat_search_docsize"))
