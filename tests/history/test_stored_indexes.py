"""Tests of stored recall indexes: a restart does not index old messages again, and deleted words leave the index.

An index is a row if transcripts are in tables, and an item if they are in a graph store.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import psycopg
import pytest
from langgraph.store.memory import InMemoryStore

from tests.databases import driver_of, execute, query
from tests.graph_store.damaging import Change, rewrite
from tests.history.test_older_turns import ROOM, found, say
from tests.recorded_events import RecordedEvents
from tests.web.services import until
from threadkeep import Memory, MemoryOptions, Message, Retention, RetentionLimits, open_memory
from threadkeep.context.recall import Analysis, IndexedTurn, RecallIndex
from threadkeep.context.recall.packing import Packed, pack
from threadkeep.errors import StoreUnavailable
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history import older_turns, stored_indexes
from threadkeep.history.conversation_index import ConversationIndex, index_version
from threadkeep.history.older_turns import OlderTurns, Search
from threadkeep.history.stored_indexes import StoredIndexes
from threadkeep.observe import RecallIndexNotStored
from threadkeep.records import SessionInfo, Summary
from threadkeep.store.address import parse_address
from threadkeep.store.contexts import RecallIndexRows

VAULT = "The vault opens with 4711."
ROW: Final = "tables"
ITEM: Final = "graph_store"
INDEX_KEY = "recall-index:"

WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits so that an index of ten turns is stored."""
    monkeypatch.setattr(stored_indexes, "_LEAST_STORED", 10)
    monkeypatch.setattr(stored_indexes, "_LEAST_JOINED", 5)


@pytest.fixture(params=[ROW, ITEM])
def options(request: pytest.FixtureRequest, memory_options: MemoryOptions) -> MemoryOptions:
    """Return options of a memory with transcripts (and their indexes) in tables or in a graph store."""
    return replace(memory_options, transcripts=request.param)


def kept(url: str, options: MemoryOptions) -> list[tuple[str, int]]:
    """Return the sessions with a stored index, each with the last `seq` in it."""
    if options.transcripts == ROW:
        rows = query(url, "SELECT session_id, last_seq FROM chat_recall_indexes ORDER BY session_id")
        return [(str(session_id), int(str(last_seq))) for session_id, last_seq in rows]
    found: list[tuple[str, int]] = []
    for prefix, value in query(url, f"SELECT prefix, value FROM store WHERE key = '{INDEX_KEY}' ORDER BY prefix"):
        item = value if isinstance(value, dict) else json.loads(value)  # type: ignore[arg-type]
        found.append((str(prefix).partition(".")[2], item["last_seq"]))
    return found


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the `seq` of each message that is indexed from its text."""
    seqs: list[int] = []
    add = RecallIndex.add

    def noted(self: RecallIndex, turn: IndexedTurn, analysis: Analysis | None = None) -> None:
        seqs.append(int(turn.id.rpartition("#")[2]))
        add(self, turn, analysis)

    monkeypatch.setattr(RecallIndex, "add", noted)
    return seqs


async def stored(older: OlderTurns) -> None:
    """Wait until the index of the room is stored."""
    index = older.index("session", ROOM)
    assert index is not None
    if index.storing is not None:
        await asyncio.wait([index.storing])
        await index.storing


async def fill(memory: Memory) -> None:
    """Write a session of thirteen messages, and wait until its index is stored."""
    await say(memory, 6)
    await memory.session(ROOM).append([Message("user", VAULT, author="Ann")])
    await say(memory, 6)
    assert VAULT in await found(memory)
    await stored(memory.older_turns)


async def test_the_next_process_indexes_only_new_messages(
    shared_url: str, options: MemoryOptions, indexed: list[int]
) -> None:
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        assert kept(shared_url, options) == [(ROOM, 13)]
        before = [await found(memory, words) for words in ("the code of the vault", "word3", "what did Ann say?")]
        made = memory.older_turns.index("session", ROOM)
    indexed.clear()
    async with open_memory(shared_url, options=options) as memory:
        after = [await found(memory, words) for words in ("the code of the vault", "word3", "what did Ann say?")]
        assert (after, indexed) == (before, [])
        read = memory.older_turns.index("session", ROOM)
        assert made is not None
        assert read is not None
        assert (read.days, read.tokens, read.size) == (made.days, made.tokens, made.size)
        await memory.session(ROOM).append([Message("user", "The bees are on the roof.")])
        assert (await found(memory, "bees"))[0] == "The bees are on the roof."
        assert indexed == [14]
        await stored(memory.older_turns)
        await say(memory, 4)
        await found(memory)
        await stored(memory.older_turns)
        assert kept(shared_url, options) == [(ROOM, 18)]


async def test_an_index_is_stored_again_when_an_eighth_is_new(shared_url: str, options: MemoryOptions) -> None:
    """An index is written as a whole, so it is not stored after each message."""
    async with open_memory(shared_url, options=options) as memory:
        await say(memory, 16)
        await found(memory)
        await stored(memory.older_turns)
        assert kept(shared_url, options) == [(ROOM, 16)]
        for seq in (16, 18):
            await say(memory, 1)
            await found(memory)
            await stored(memory.older_turns)
            assert kept(shared_url, options) == [(ROOM, seq)]


def damage(url: str, options: MemoryOptions, number: int) -> None:
    """Damage the stored index: wrong version, cut off, empty, nested too deep, or no valid data."""
    empty, nested = pack([Packed({"tokens": []}, {})]), zlib.compress((10**6).to_bytes(8) + b"[" * 10**6)
    if options.transcripts == ROW:
        literal = "decode('{}', 'hex')" if url.startswith("postgres") else "x'{}'"
        values = [literal.format(data.hex()) for data in (empty, nested, b"")]
        changes = ("version = 'old'", "data = substr(data, 1, 30)", *(f"data = {data}" for data in values))
        execute(url, f"UPDATE chat_recall_indexes SET {changes[number]}")
        return
    items: tuple[Change, ...] = (
        lambda item: {**item, "version": "old"},
        lambda item: {**item, "data": item["data"][:30]},
        lambda item: {**item, "data": b64encode(empty).decode()},
        lambda item: {**item, "data": b64encode(nested).decode()},
        lambda item: {**item, "data": "é"},
    )
    rewrite(url, INDEX_KEY, items[number])


async def test_an_outdated_or_damaged_index_is_built_again(
    shared_url: str, options: MemoryOptions, indexed: list[int]
) -> None:
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
    for number in range(5):
        damage(shared_url, options, number)
        indexed.clear()
        async with open_memory(shared_url, options=options) as memory:
            assert VAULT in await found(memory)
            assert indexed == list(range(1, 14))
            await stored(memory.older_turns)
        indexed.clear()
        async with open_memory(shared_url, options=options) as memory:
            assert VAULT in await found(memory)
            assert indexed == []


async def test_superseded_and_reset_messages_are_not_found(shared_url: str, options: MemoryOptions) -> None:
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        session = memory.session(ROOM)
        [vault] = [message for message in await session.tail(20) if message.content == VAULT]
        assert vault.id is not None
        await session.edit(vault.id, "The vault is empty.")
    async with open_memory(shared_url, options=options) as memory:
        turns = await found(memory)
        assert VAULT not in turns
        assert turns[0] == "The vault is empty."
        await memory.session(ROOM).reset()
    async with open_memory(shared_url, options=options) as memory:
        assert await found(memory) == []


async def test_nothing_is_stored_of_a_session_that_was_erased_meanwhile(
    shared_url: str, options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erase deletes the stored index, and an index that was packed before the erase is not stored after it."""
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        await memory.session(ROOM).append([Message("user", "Zanzibar", metadata={"sender_id": "ann"})])
        packing, go_on = asyncio.Event(), asyncio.Event()

        async def slow(self: StoredIndexes, index: ConversationIndex, session_id: str) -> None:
            data, extent = pack(await index.dump()), index.extent_of(session_id)
            packing.set()
            await go_on.wait()
            await self._rows.save(session_id, index_version(), data, *extent)

        await say(memory, 4)
        with monkeypatch.context() as patched:
            patched.setattr(StoredIndexes, "save", slow)
            await found(memory, "Zanzibar")
            await packing.wait()
            index = memory.older_turns.index("session", ROOM)
            assert index is not None
            assert index.storing is not None
            storing = asyncio.shield(index.storing)
            async with open_memory(shared_url, options=options) as other:
                assert (await other.erase(user_id="ann")).complete
            assert kept(shared_url, options) == []
            go_on.set()
            await storing
        assert kept(shared_url, options) == []
        assert "Zanzibar" not in await found(memory, "Zanzibar")


async def test_an_index_is_not_stored_if_the_session_changed_while_it_waited_for_the_lock(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    if not shared_url.startswith("postgres"):
        pytest.skip("On SQLite a transaction locks the file.")
    options = replace(memory_options, background=False)
    async with open_memory(shared_url, options=options) as memory, driver_of(shared_url) as driver:
        await fill(memory)
        index = memory.older_turns.index("session", ROOM)
        assert index is not None
        rows_of_indexes = RecallIndexRows(driver)
        execute(shared_url, "DELETE FROM chat_recall_indexes")
        extent = index.extent_of(ROOM)
        for change, rows in (("active = active", [(ROOM, 13)]), ("revision = revision + 1", [])):
            with psycopg.connect(parse_address(shared_url).dsn or "") as other:
                other.execute(f"UPDATE chat_sessions SET {change} WHERE session_id = '{ROOM}'".encode())
                saving = asyncio.create_task(rows_of_indexes.save(ROOM, index_version(), b"data", *extent))
                await until(lambda: bool(query(shared_url, WAITING)))
            await saving
            assert kept(shared_url, options) == rows
            execute(shared_url, "DELETE FROM chat_recall_indexes")


async def test_an_index_that_cannot_be_stored_is_reported(
    memory: Memory, events: RecordedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(RecallIndexRows, "save", refuse)
    await fill(memory)
    assert [(event.session_id, event.error) for event in events.of(RecallIndexNotStored)] == [
        (ROOM, "StoreUnavailable")
    ]


async def test_a_role_without_rights_on_the_stored_indexes_finds_older_turns(
    postgres_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """An upgrade adds the table, and the rights may be granted only later."""
    async with open_memory(postgres_url, options=memory_options) as memory:
        await fill(memory)
    role = "pg_read_all_settings"
    execute(postgres_url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    execute(postgres_url, f"REVOKE ALL ON chat_recall_indexes FROM {role}")
    limited = f"{postgres_url}&options=-crole%3D{role}"
    async with open_memory(limited, options=memory_options, observers=[events]) as memory:
        assert VAULT in await found(memory)
        await stored(memory.older_turns)
    assert [(event.session_id, event.error) for event in events.of(RecallIndexNotStored)] == [(ROOM, "RightsMissing")]


async def test_a_stored_index_is_deleted_with_messages_of_the_session(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    options = replace(memory_options, background=False)
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=5)))
        assert kept(shared_url, options) == []
        await say(memory, 8)
        await found(memory)
        await stored(memory.older_turns)
        assert len(kept(shared_url, options)) == 1
        await memory.session(ROOM).delete()
        assert kept(shared_url, options) == []


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index only the newest four messages first if a session has more than eight."""
    monkeypatch.setattr(older_turns, "_NEWEST", (1, 4))


@pytest.mark.usefixtures("long")
async def test_the_newest_turns_are_found_while_the_stored_index_is_loaded(
    shared_url: str, options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If loading takes longer than the timeout, the newest turns are searched first, and all turns afterwards."""
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        await memory.session(ROOM).append([Message("user", "The bees are on the roof.")])
    loaded, load = asyncio.Event(), StoredIndexes.load

    async def slow(self: StoredIndexes, info: SessionInfo, summaries: Sequence[Summary]) -> ConversationIndex | None:
        index = await load(self, info, summaries)
        await loaded.wait()
        return index

    monkeypatch.setattr(StoredIndexes, "load", slow)
    monkeypatch.setattr(older_turns, "_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(older_turns, "_LOADING_SECONDS", 0.1)
    async with open_memory(shared_url, options=options) as memory:
        assert (await found(memory, "bees"))[0] == "The bees are on the roof."
        assert VAULT not in await found(memory)
        loaded.set()
        await until(lambda: is_read(memory))
        assert VAULT in await found(memory)


def is_read(memory: Memory) -> bool:
    """Return whether all messages of the room are indexed."""
    index = memory.older_turns.index("session", ROOM)
    return index is not None and index.newest is None


async def found_by_ann(memory: Memory, *queries: str) -> list[list[tuple[str, str]]]:
    """Search all sessions of a user until all are indexed; return session ids and texts per query."""
    results: list[list[tuple[str, str]]] = []
    for words in queries:
        search = Search("room:2", "ann", words, scope="user")
        await memory.older_turns.find(search, 1_000)
        await until(lambda: is_whole(memory))
        turns = await memory.older_turns.find(search, 1_000)
        results.append([(turn.session_id, turn.message.content) for turn in turns])
    return results


def is_whole(memory: Memory) -> bool:
    """Return whether all sessions of a user are indexed, and their index is stored."""
    index = memory.older_turns.index("user", "ann")
    return index is None or (index.newest is None and (index.storing is None or index.storing.done()))


async def fill_of_ann(memory: Memory) -> None:
    """Write three sessions of a user; the indexes of the two longer ones are stored."""
    await say(memory, 3, "room:1", user_id="ann")
    await say(memory, 6, user_id="ann")
    await memory.session(ROOM, user_id="ann").append([Message("user", VAULT, "vault", author="Ann")])
    await say(memory, 6, user_id="ann")
    await say(memory, 7, "room:2", user_id="ann")
    assert (ROOM, VAULT) in (await found_by_ann(memory, "the code of the vault"))[0]


ASKED = ("the code of the vault", "word3", "what did Ann say?", "cake")


@pytest.mark.usefixtures("long")
async def test_the_index_of_a_user_is_joined_from_the_stored_ones(
    shared_url: str, options: MemoryOptions, indexed: list[int]
) -> None:
    """A new process returns the same turns as before, and stores the indexes of sessions that have grown."""
    async with open_memory(shared_url, options=options) as memory:
        await fill_of_ann(memory)
        before = await found_by_ann(memory, *ASKED)
        assert kept(shared_url, options) == [("room:2", 7), (ROOM, 13)]
    async with (
        open_memory(shared_url, options=options) as memory,
        open_memory(shared_url, options=options) as other,
    ):
        indexed.clear()
        assert await found_by_ann(memory, *ASKED) == before
        # The newest messages are indexed first; then the session too short for a stored index.
        assert (len(indexed), indexed[5:]) == (1 + 4 + 3, [1, 2, 3])
        indexed.clear()
        await other.session("room:1").append([Message("user", "The bees are on the roof.")])
        assert (await found_by_ann(memory, "bees"))[0][0] == ("room:1", "The bees are on the roof.")
        assert indexed == [4]
        await say(other, 2, "room:2")
        await found_by_ann(memory, "cake")
        assert kept(shared_url, options) == [("room:2", 9), (ROOM, 13)]
    indexed.clear()
    async with open_memory(shared_url, options=options) as memory:
        assert VAULT in await found(memory)
        assert indexed == []


@pytest.mark.usefixtures("long")
async def test_a_joined_index_has_no_deleted_messages(shared_url: str, options: MemoryOptions) -> None:
    async with open_memory(shared_url, options=options) as memory:
        await fill_of_ann(memory)
        await memory.session(ROOM).edit("vault", "The vault is empty.")
    async with (
        open_memory(shared_url, options=options) as memory,
        open_memory(shared_url, options=options) as other,
    ):
        [turns] = await found_by_ann(memory, "the code of the vault")
        assert turns[0] == (ROOM, "The vault is empty.")
        assert (ROOM, VAULT) not in turns
        await other.session(ROOM).take_back()
        [turns] = await found_by_ann(memory, "the code of the vault")
        assert (ROOM, "The vault is empty.") not in turns
        await other.session(ROOM).reset()
        [turns] = await found_by_ann(memory, "cake")
        assert {session_id for session_id, _ in turns} == {"room:1", "room:2"}
        await other.session("room:2").delete()
        [turns] = await found_by_ann(memory, "cake")
        assert {session_id for session_id, _ in turns} == {"room:1"}


@pytest.mark.usefixtures("long")
async def test_erased_and_archived_words_leave_the_stored_indexes_of_a_user(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    """Erase and archiving delete the stored index of the session at once; the next process joins the others."""
    options = replace(memory_options, background=False)
    async with open_memory(shared_url, options=options) as memory:
        await fill_of_ann(memory)
        said = [Message("user", "Zanzibar", metadata={"sender_id": "bob"}), Message("assistant", "I see.")]
        await memory.session("room:2").append(said)
        assert ("room:2", "Zanzibar") in (await found_by_ann(memory, "Zanzibar"))[0]
        assert kept(shared_url, options) == [("room:2", 9), (ROOM, 13)]
        async with open_memory(shared_url, options=options) as other:
            assert (await other.erase(user_id="bob")).complete
        assert kept(shared_url, options) == [(ROOM, 13)]
        assert ("room:2", "Zanzibar") not in (await found_by_ann(memory, "Zanzibar"))[0]
        assert kept(shared_url, options) == [("room:2", 9), (ROOM, 13)]
        rules = Retention(archive=RetentionLimits(max_messages=6))
        await memory.retention.prune(rules, session_ids=(ROOM,))
        assert kept(shared_url, options) == [("room:2", 9)]
    async with open_memory(shared_url, options=options) as memory:
        found = await found_by_ann(memory, *ASKED, "Zanzibar")
        assert {VAULT, "Zanzibar"}.isdisjoint(text for turns in found for _, text in turns)
        assert kept(shared_url, options) == [("room:2", 9), (ROOM, 13)]
        assert (await memory.erase(user_id="ann")).complete
        assert kept(shared_url, options) == []


async def test_an_index_in_a_graph_store_is_deleted_with_its_words(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    options = replace(memory_options, transcripts=ITEM, background=False)
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        session = memory.session(ROOM)
        await session.append([Message("user", "Zanzibar", metadata={"sender_id": "ann"})])
        assert kept(shared_url, options) == [(ROOM, 13)]
        async with open_memory(shared_url, options=options) as other:
            assert (await other.erase(user_id="ann")).complete
        assert kept(shared_url, options) == []
        await fill_again(memory)
        assert kept(shared_url, options) != []
        await session.reset()
        assert kept(shared_url, options) == []
        await fill_again(memory)
        assert kept(shared_url, options) != []
        await session.delete()
        assert kept(shared_url, options) == []
        assert query(shared_url, "SELECT key FROM store") == []


async def fill_again(memory: Memory) -> None:
    """Append messages and wait until the larger index is stored."""
    await say(memory, 20)
    await found(memory)
    await stored(memory.older_turns)


async def test_an_agents_own_conversation_has_a_stored_index(
    shared_url: str, memory_options: MemoryOptions, indexed: list[int]
) -> None:
    layout = GraphLayout(("agents",), chunk_size=4)
    options = replace(memory_options, transcripts=ITEM, background=False)
    async with open_memory(shared_url, options=memory_options) as memory:
        await fill(await memory.namespace(layout))
    indexed.clear()
    async with open_memory(shared_url, options=memory_options) as memory:
        agents = await memory.namespace(layout)
        assert VAULT in await found(agents)
        assert indexed == []
        assert kept(shared_url, options) == [(ROOM, 13)]
        await agents.retention.prune(Retention(delete=RetentionLimits(max_messages=5)))
        assert kept(shared_url, options) == []
        assert VAULT not in await found(agents)


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("change", ["chunk deleted", "message deleted", "text deleted", "chunk damaged"])
async def test_words_that_another_program_deletes_are_in_no_stored_index(
    shared_url: str, memory_options: MemoryOptions, indexed: list[int], change: str, *, restarted: bool
) -> None:
    """Words deleted by another program are not returned; the outdated index is deleted, and no new one has them."""
    options = replace(memory_options, transcripts=ITEM, background=False)
    async with open_memory(shared_url, options=options) as memory:
        await memory.session(ROOM).append([Message("user", VAULT)])
        await say(memory, 210)
        assert VAULT in await found(memory)
        await stored(memory.older_turns)
        assert kept(shared_url, options) == [(ROOM, 211)]
        delete_as_others(shared_url, change)
        if not restarted:
            assert VAULT not in await found(memory)
            await say(memory, 40)
            assert VAULT not in await found(memory)
            await stored(memory.older_turns)
            assert kept(shared_url, options) == []
    indexed.clear()
    async with open_memory(shared_url, options=options) as memory:
        assert VAULT not in await found(memory)
        await stored(memory.older_turns)
    if change == "chunk damaged":
        assert kept(shared_url, options) == []
        return
    assert indexed[0] > 1
    indexed.clear()
    async with open_memory(shared_url, options=options) as memory:
        assert VAULT not in await found(memory)
        assert indexed == []


def delete_as_others(url: str, change: str) -> None:
    """Change the first chunk as another program may do."""
    key = f"{ROOM}:chunk:000000"
    if change == "chunk deleted":
        execute(url, f"DELETE FROM store WHERE key = '{key}'")
        return
    changes: dict[str, Change] = {
        "message deleted": lambda chunk: {**chunk, "messages": chunk["messages"][1:]},
        "text deleted": lambda chunk: {
            **chunk,
            "messages": [{**chunk["messages"][0], "content": ""}, *chunk["messages"][1:]],
        },
        "chunk damaged": lambda chunk: {**chunk, "messages": None},
    }
    rewrite(url, key, changes[change])


async def test_the_index_of_a_conversation_deleted_by_others_is_deleted_after_a_restart(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    options = replace(memory_options, transcripts=ITEM, background=False)
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
    execute(shared_url, f"DELETE FROM store WHERE key LIKE '{ROOM}%'")
    assert kept(shared_url, options) == [(ROOM, 13)]
    async with open_memory(shared_url, options=options) as memory:
        assert await found(memory) == []
        await memory.search("vault")
        assert kept(shared_url, options) == []
        assert query(shared_url, "SELECT key FROM store") == []
        assert query(shared_url, "SELECT session_id FROM chat_sessions") == []


async def test_the_index_of_a_conversation_deleted_by_others_is_deleted_with_the_session(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    options = replace(memory_options, transcripts=ITEM, background=False)
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        execute(shared_url, f"DELETE FROM store WHERE key LIKE '{ROOM}%'")
        await memory.session(ROOM).delete()
        assert query(shared_url, "SELECT key FROM store") == []


async def test_a_search_in_a_new_conversation_deletes_the_index_of_the_old_one(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    options = replace(memory_options, transcripts=ITEM, background=False)
    async with open_memory(shared_url, options=options) as memory:
        await fill(memory)
        execute(shared_url, f"DELETE FROM store WHERE key LIKE '{ROOM}%'")
        memory.older_turns.forget(ROOM)
        await say(memory, 4)
        assert VAULT not in await found(memory)
        assert kept(shared_url, options) == []


async def test_an_index_is_stored_in_a_store_of_the_application(
    sqlite_url: str, memory_options: MemoryOptions, indexed: list[int]
) -> None:
    options = replace(memory_options, transcripts=ITEM, graph_store=InMemoryStore())
    async with open_memory(sqlite_url, options=options) as memory:
        await fill(memory)
    indexed.clear()
    async with open_memory(sqlite_url, options=options) as memory:
        assert VAULT in await found(memory)
        assert indexed == []
        await memory.session(ROOM).delete()
    assert await options.graph_store.asearch(()) == []  # type: ignore[union-attr]
