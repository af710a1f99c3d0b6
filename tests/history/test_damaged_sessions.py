"""Tests of damaged sessions, in a graph store and in tables: no other session is affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from tests.databases import execute
from tests.graph_store.damaging import DAMAGES, SAMPLE, rewrite
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.errors import RecordUnreadable, SessionDamaged
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.observe import PendingWrites, PruningFailed
from threadkeep.records import Retention, RetentionLimits
from threadkeep.store.transcripts import SessionQuery

ROOM, WELL = "room", "well"
LAYOUT = GraphLayout()
NOTE = f"{ROOM}:chunk:000000"
everything = pytest.mark.parametrize(
    ("shared_url", "kind"),
    [*(("sqlite-file", kind) for kind in DAMAGES), *(("postgres", kind) for kind in SAMPLE)],
    indirect=["shared_url"],
)


@asynccontextmanager
async def opened(url: str, options: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """Open a memory with transcripts in a graph store and two sessions."""
    options = replace(options, transcripts="graph_store")
    async with open_memory(url, observers=[events], options=options) as memory:
        for session_id in (ROOM, WELL):
            await memory.session(session_id, user_id="ann").append(said("one"))
        yield memory


def said(text: str) -> list[Message]:
    """Return a turn of two messages."""
    return [Message(role="user", content=text, id=f"m:{text}"), Message(role="assistant", content=f"to {text}")]


@everything
async def test_a_damaged_session_raises_until_it_is_repaired(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, kind: str
) -> None:
    """Turns recorded while a session is damaged are stored once, in order, after its repair."""
    whole: list[object] = []
    async with opened(shared_url, memory_options, events) as memory:
        damage, session = DAMAGES[kind], memory.session(ROOM, user_id="ann")
        key = f"{ROOM}__meta__" if damage.item == "metadata" else f"{ROOM}:{damage.item}"

        def change(value: dict[str, Any]) -> object:
            whole.append(value)
            return damage.change(value)

        await asyncio.to_thread(rewrite, shared_url, key, change)
        for reading in (session.tail(5), session.window(), session.append(said("two"))):
            with pytest.raises(SessionDamaged) as caught:
                await reading
            assert (caught.value.session_id, caught.value.item) == (ROOM, damage.reported)
        assert (await session.recall()).failed
        assert await session.record(said("two")) is None
        assert await memory.session(WELL).record(said("two")) is not None
        assert [hit.session_id for hit in await memory.search("to one") if hit.session_id != ROOM] == [WELL]
        assert {error.session_id for error in memory.damaged()} == {ROOM}
        assert WELL in [info.session_id async for info in memory.sessions()]
        with pytest.raises(SessionDamaged):
            await memory.search("one", session_id=ROOM)

        await asyncio.to_thread(rewrite, shared_url, key, lambda _: whole[0])
        await events.until(lambda: events.of(PendingWrites)[-1].count == 0)
        assert [message.content for message in await session.tail(9)] == ["one", "to one", "two", "to two"]
        assert memory.damaged() == []


@everything
async def test_a_damaged_session_is_deleted_by_its_owner(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, kind: str
) -> None:
    async with opened(shared_url, memory_options, events) as memory:
        await asyncio.to_thread(DAMAGES[kind].do, shared_url, ROOM)
        assert not await memory.session(ROOM, user_id="bob").delete()
        assert await memory.session(ROOM, user_id="ann").delete()
        assert [info.session_id async for info in memory.sessions()] == [WELL]
        assert await memory.session(ROOM).tail(5) == []
        receipt = await memory.session(ROOM).append(said("one"))
        assert (receipt.first_seq, receipt.duplicates) == (1, ())


@pytest.mark.parametrize("note", [None, "text", {}, {"seq": "one"}, {"seq": -1}])
async def test_a_damaged_id_item_is_ignored(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, note: Any
) -> None:
    """The messages themselves have the id: a repeat is a duplicate, and nothing is stored twice."""
    async with opened(shared_url, memory_options, events) as memory:
        session = memory.session(WELL)
        await memory.session(ROOM).delete()
        await asyncio.to_thread(rewrite, shared_url, "m:one", lambda _: note)
        found = await session.find("m:one")
        assert found is not None
        assert found.content == "one"
        assert (await session.append(said("one")[:1])).duplicates == ("m:one",)
        assert await session.count() == 2
        assert memory.damaged() == []


async def test_retention_skips_a_damaged_conversation(
    sqlite_memory: Memory,
) -> None:
    store = InMemoryStore()
    keeper = await sqlite_memory.namespace(LAYOUT, store)
    for session_id in (ROOM, WELL):
        await keeper.session(session_id).append([*said("one"), *said("two")])
    item = await store.aget(LAYOUT.namespace, NOTE)
    assert item is not None
    await store.aput(LAYOUT.namespace, NOTE, {**item.value, "messages": None})
    rules = Retention(delete=RetentionLimits(max_messages=1))
    pruned = await keeper.retention.prune(rules)
    assert (pruned.deleted.sessions, pruned.busy) == (1, 1)
    assert [removal.session_id async for removal in keeper.retention.plan(rules)] == []


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
@pytest.mark.parametrize("value", ["3", "null", "[3]"])
@pytest.mark.parametrize("column", ["tags", "metadata", "retention"])
async def test_a_damaged_row_is_listed_with_a_mark(memory: Memory, database_url: str, column: str, value: str) -> None:
    """The other sessions and columns are listed as before; a reader of the damaged session learns its id."""
    mark = {"threadkeep:error": "RecordUnreadable"}
    for name in ("s1", "s2"):
        await memory.session(name).append([Message("user", "hi")])
        await memory.session(name).update(metadata={"error": "mine"}, tags=["b"])
    execute(database_url, f"UPDATE chat_sessions SET {column} = '{value}' WHERE session_id = 's1'")
    listed, _ = await memory.sessions_page(SessionQuery())
    assert {one.session_id: (one.tags, one.metadata) for one in listed} == {
        "s1": (
            () if column == "tags" else ("b",),
            mark if column == "metadata" else {"error": "mine"} | mark,
        ),
        "s2": (("b",), {"error": "mine"}),
    }
    with pytest.raises(RecordUnreadable, match="session s1 cannot be read"):
        await memory.session("s1").info()


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
async def test_retention_skips_a_session_with_damaged_limits(
    memory: Memory, database_url: str, events: RecordedEvents
) -> None:
    """The others are pruned; the damaged session is reported, and pruned after its limits are set again."""
    for name in ("s1", "s2"):
        await memory.session(name).append([*said("one"), *said("two")])
    rules = Retention(delete=RetentionLimits(max_messages=2))
    execute(database_url, "UPDATE chat_sessions SET retention = '[3]' WHERE session_id = 's1'")
    assert [removal.session_id async for removal in memory.retention.plan(rules)] == ["s2"]
    pruned = await memory.retention.prune(rules)
    assert (pruned.deleted.sessions, pruned.busy) == (1, 1)
    assert [(event.session_id, event.error) for event in events.of(PruningFailed)] == [("s1", "RecordUnreadable")]
    await memory.retention.change("s1", None)
    assert (await memory.retention.prune(rules)).deleted.sessions == 1
