"""Tests of conversations in graph store tables: many processes, plain readers, and writers without locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langgraph.store.base import BaseStore, Op, Result
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from tests.children import run_together
from tests.databases import execute, query
from tests.graph_store.damaging import rewrite
from tests.graph_store.opening import graph_transcripts, open_store, transcripts_of
from threadkeep.graph_store.items import ConversationChanged, Items, Value, Writing
from threadkeep.graph_store.langgraph_stores import items_of
from threadkeep.graph_store.layout import ItemKey
from threadkeep.graph_store.writing import Beginning
from threadkeep.records import Receipt
from threadkeep.store.address import parse_address
from threadkeep.store.driver import RowLocked
from threadkeep.store.transcripts import SessionChanges
from threadkeep.testing.transcript_source import assistant, contents, seqs, turn, user

HISTORY = ("agent_chat_history",)
_PROCESSES = 5
_WRITERS = 4


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database of each engine without tables."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url"))


@asynccontextmanager
async def plain_store(url: str) -> AsyncIterator[BaseStore]:
    """Open LangGraph's own store on the same database, and close it after the block."""
    address = parse_address(url)
    if address.dsn is not None:
        async with AsyncPostgresStore.from_conn_string(address.dsn) as postgres:
            yield postgres
    else:
        async with AsyncSqliteStore.from_conn_string(str(address.path)) as sqlite:
            yield sqlite


@pytest.mark.process
@pytest.mark.slow
def test_twenty_writers_in_five_processes(empty_url: str) -> None:
    """40 distinct messages get the seqs 1 to 40, each turn is whole, and no writer fails."""
    written = run_together(write, [(empty_url, n) for n in range(_PROCESSES)])
    assert written == [_WRITERS] * _PROCESSES

    async def all_messages() -> None:
        async with graph_transcripts(empty_url) as transcripts:
            page = await transcripts.newest("room:1", limit=50)
            assert seqs(page.messages) == list(range(1, 41))
            assert len({message.id for message in page.messages}) == 40
            pairs = list(zip(page.messages[::2], page.messages[1::2], strict=True))
            assert all((first.role, second.role) == ("user", "assistant") for first, second in pairs)
            assert all(first.content == second.content for first, second in pairs)
            info = await transcripts.session("room:1")
            assert info is not None
            assert (info.message_count, info.last_seq) == (40, 40)

    asyncio.run(all_messages())


def write(url: str, process: int) -> int:
    """Append turns concurrently, as each of the processes does; return how many were stored."""

    async def work() -> int:
        async with graph_transcripts(url) as transcripts:
            names = [f"{process}-{n}" for n in range(_WRITERS)]
            turns = [turn(user(name, f"q{name}"), assistant(name, f"a{name}")) for name in names]
            receipts = await asyncio.gather(*map(transcripts.append, turns))
            return sum(isinstance(receipt, Receipt) and not receipt.duplicates for receipt in receipts)

    return asyncio.run(work())


async def test_the_plain_langgraph_store_reads_conversations(empty_url: str) -> None:
    async with graph_transcripts(empty_url) as transcripts:
        await transcripts.append(turn(user("Hi 😀 中"), assistant("Hello")))
    async with plain_store(empty_url) as store:
        metadata = await store.aget(HISTORY, "room:1__meta__")
        assert metadata is not None
        assert metadata.value["last_seq"] == 2
        found = await store.asearch(HISTORY, filter={"chunk_key": "chunk:000000"})
        [messages] = [item.value["messages"] for item in found]
        assert [(message["seq"], message["content"]) for message in messages] == [(1, "Hi 😀 中"), (2, "Hello")]
        await store.aput(("users",), "ann", {"colour": "green"})


async def test_a_wrong_search_fails_alone(empty_url: str) -> None:
    """Operations of other callers at the same time succeed; LangGraph's stores execute them in one batch."""
    async with open_store(empty_url) as store:
        results = await asyncio.gather(
            store.aput(("users",), "ann", {"colour": "green"}),
            store.asearch(("users",), filter={"colour": {"is": "green"}}),
            store.aget(("users",), "bob"),
            store.asearch(("users",), filter={"colour": {"$eq": "red"}}),
            return_exceptions=True,
        )
        stored = await store.aget(("users",), "ann")
    assert [type(result) for result in results] == [type(None), ValueError, type(None), list]
    assert stored is not None


async def test_searches_of_one_moment_are_one_batch(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index embeds their queries at once. Searches with a filter, which can be wrong, are executed alone."""
    async with open_store(empty_url) as store:
        batches, abatch = list[int](), store.abatch

        async def counted(operations: Iterable[Op]) -> list[Result]:
            batches.append(len(found := list(operations)))
            return await abatch(found)

        monkeypatch.setattr(store, "abatch", counted)
        await asyncio.gather(*(store.asearch(("users",), offset=offset) for offset in range(20)))
        assert sum(batches) == 20
        assert len(batches) <= 2


async def test_a_conversation_of_the_plain_langgraph_store_is_continued(empty_url: str) -> None:
    async with open_store(empty_url):
        pass
    async with plain_store(empty_url) as store:
        said = [{"seq": 1, "role": "user", "content": "Hi"}]
        common = {"conversation_key": "room:1", "updated_at": "2026-02-26T20:30:00Z"}
        metadata = {**common, "last_seq": 1, "chunk_size": 200, "latest_chunk_key": "chunk:000000", "version": 1}
        chunk = {**common, "chunk_key": "chunk:000000", "start_seq": 1, "end_seq": 1, "messages": said}
        await store.aput(HISTORY, "room:1__meta__", metadata)
        await store.aput(HISTORY, "room:1:chunk:000000", chunk)
    async with graph_transcripts(empty_url) as transcripts:
        receipt = await transcripts.append(turn(user("again")))
        assert receipt.first_seq == 2
        assert contents((await transcripts.newest("room:1", limit=5)).messages) == ["Hi", "again"]
        assert await transcripts.delete("room:1")
    assert query(empty_url, "SELECT key FROM store") == []


async def test_fields_of_other_programs_survive(empty_url: str) -> None:
    theirs = {"topic": "refunds", "marks": {"a": [1.5, None]}}
    async with graph_transcripts(empty_url) as transcripts:
        await transcripts.append(turn(user("one"), assistant("two"), user("three")))
        for key in ("room:1__meta__", "room:1:chunk:000000"):
            await asyncio.to_thread(rewrite, empty_url, key, lambda value: {**value, **theirs})

        def mark(chunk: dict[str, Any]) -> object:
            return {**chunk, "messages": [{**message, **theirs} for message in chunk["messages"]]}

        await asyncio.to_thread(rewrite, empty_url, "room:1:chunk:000000", mark)
        await transcripts.append(turn(user("four")))
        await transcripts.change("room:1", SessionChanges(title="New"))
        await transcripts.reset("room:1")
        assert await transcripts.writer.delete_old("room:1", Beginning(0, 1), title=(None, None))
        assert contents((await transcripts.newest("room:1", limit=9)).messages) == ["two", "three", "four"]
        async with plain_store(empty_url) as store:
            metadata = await store.aget(HISTORY, "room:1__meta__")
            chunk = await store.aget(HISTORY, "room:1:chunk:000000")
    assert metadata is not None
    assert chunk is not None
    messages = chunk.value["messages"]
    for value in (metadata.value, chunk.value, *messages[:2]):
        assert {name: value[name] for name in theirs} == theirs
    assert "topic" not in messages[2]
    assert (metadata.value["title"], chunk.value["start_seq"], chunk.value["end_seq"]) == ("New", 2, 4)


async def test_a_rewritten_item_keeps_its_creation_time(empty_url: str) -> None:
    """LangGraph's SQLite store would change `created_at` at each put."""
    async with graph_transcripts(empty_url) as transcripts:
        await transcripts.append(turn(user("one")))
        execute(empty_url, "UPDATE store SET created_at = '2020-01-01 00:00:00+00:00'")
        await transcripts.append(turn(user("two")))
        async with plain_store(empty_url) as store:
            item = await store.aget(HISTORY, "room:1:chunk:000000")
            assert item is not None
            assert item.created_at.year == 2020
            assert item.updated_at.year > 2020


async def test_a_writer_without_a_lock_is_detected(empty_url: str) -> None:
    """If another writer changes the metadata between read and write, the turn is retried."""
    conflicts: list[str] = []
    async with open_store(empty_url) as store:
        items = ConflictingItems(items_of(store), times=2)
        transcripts = transcripts_of(items, conflicted=conflicts.append)
        await transcripts.append(turn(user("one")))
        receipt = await transcripts.append(turn(user("two")))
        assert (receipt.first_seq, conflicts) == (2, ["room:1"] * 2)
        assert contents((await transcripts.newest("room:1", limit=5)).messages) == ["one", "two"]


async def test_a_turn_that_still_conflicts_raises_row_locked(empty_url: str) -> None:
    """After three retries the turn raises RowLocked, which makes it pending, and nothing is written."""
    conflicts: list[str] = []
    async with open_store(empty_url) as store:
        transcripts = transcripts_of(ConflictingItems(items_of(store), times=99), conflicted=conflicts.append)
        await transcripts.append(turn(user("one")))
        with pytest.raises(ConversationChanged) as caught:
            await transcripts.append(turn(user("two")))
        assert isinstance(caught.value, RowLocked)
        assert conflicts == ["room:1"] * 4
        assert contents((await transcripts.newest("room:1", limit=5)).messages) == ["one"]


class ConflictingItems:
    """Items whose metadata another writer changes after a read, a given number of times."""

    def __init__(self, items: Items, *, times: int) -> None:
        self._items = items
        self._times = times
        self.backend = items.backend
        self.locks = items.locks
        self.get = items.get
        self.conversations = items.conversations

    @asynccontextmanager
    async def writing(self, metadata: ItemKey) -> AsyncIterator[Writing]:
        """Lock a conversation; the writes may still conflict."""
        async with self._items.writing(metadata) as writing:
            yield _ConflictingWriting(writing, self, metadata)

    def conflicts_now(self) -> bool:
        """Return whether the next write conflicts."""
        self._times -= 1
        return self._times >= 0


class _ConflictingWriting:
    def __init__(self, writing: Writing, items: ConflictingItems, metadata: ItemKey) -> None:
        self._writing = writing
        self.keys = writing.keys
        self.remove = writing.remove
        self._items = items
        self._metadata = metadata

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items."""
        return await self._writing.get(keys)

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write, or conflict by expecting another version than the one that was read."""
        if version is not None and self._items.conflicts_now():
            version -= 1
        await self._writing.put(metadata, others, version=version)
