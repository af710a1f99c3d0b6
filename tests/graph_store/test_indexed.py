"""Tests of a memory with transcripts in a graph store, and of its index rows in the tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from langgraph.store.memory import InMemoryStore

from tests.databases import execute, query
from tests.graph_store.opening import graph_transcripts, open_store
from tests.recorded_events import RecordedEvents
from tests.store.summarising import summary
from threadkeep import InvalidInput, InvalidSettings, Memory, MemoryOptions, Message, StoreError, open_memory
from threadkeep.graph_store.layout import RECALL_INDEX
from threadkeep.graph_store.shapes import answer_note
from threadkeep.graph_store.transcripts import ConversationContexts, RecallIndexItems
from threadkeep.graph_store.writing import ConversationWriter
from threadkeep.history.retention import RetentionOptions
from threadkeep.observe import WriteFailed
from threadkeep.records import Retention, RetentionLimits, Turn
from threadkeep.store.address import parse_address
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.contexts import IndexedState, Steps
from threadkeep.testing import SettableClock

HISTORY = ("agent_chat_history",)
ROOM = "room"


@asynccontextmanager
async def opened(url: str, events: RecordedEvents | None = None, **changes: object) -> AsyncIterator[Memory]:
    """Open a memory with transcripts in a graph store, and close it after the block."""
    options = replace(MemoryOptions(transcripts="graph_store", background=False), **changes)  # type: ignore[arg-type]
    async with open_memory(url, observers=[events] if events else [], options=options) as memory:
        yield memory


async def say(memory: Memory, count: int, *, session_id: str = ROOM, user_id: str | None = None) -> None:
    """Append `count` messages, questions and answers in turn."""
    roles = ("user", "assistant")
    messages = [Message(role=roles[n % 2], content=f"text {n + 1}", id=f"m:{n + 1}") for n in range(count)]  # type: ignore[arg-type]
    await memory.session(session_id, user_id=user_id).append(messages)


async def test_texts_are_in_the_graph_store_alone(shared_url: str) -> None:
    """The tables have the numbers of sessions and messages, but no texts except titles."""
    async with opened(shared_url) as memory:
        await say(memory, 3)
        assert [message.content for message in await memory.session(ROOM).tail(5)] == ["text 1", "text 2", "text 3"]
    rows = query(shared_url, "SELECT seq, id, role, content FROM chat_messages ORDER BY seq")
    assert rows == [(1, "m:1", "user", ""), (2, "m:2", "assistant", ""), (3, "m:3", "user", "")]
    assert query(shared_url, "SELECT message_count, last_seq, graph_version FROM chat_sessions") == [(3, 3, 1)]
    async with open_store(shared_url) as store:
        # Older stores also return items of namespaces that begin with this one.
        assert len([item for item in await store.asearch(HISTORY) if tuple(item.namespace) == HISTORY]) == 2


async def test_summaries_and_anchors_work(shared_url: str) -> None:
    async with opened(shared_url) as memory:
        await say(memory, 9)
        assert await memory.summaries.add(summary(1, 4), last_id="m:4")
        await memory.contexts.move_anchor(ROOM, "chat", 7)
        state = await memory.contexts.state(ROOM, "chat")
        assert (state.anchor_seq, [part.last_seq for part in state.summaries]) == (7, [4])
        uncovered = await memory.summaries.uncovered(ROOM)
        assert (uncovered.after_seq, uncovered.last_seq, uncovered.messages) == (4, 9, 5)
        await memory.session(ROOM).reset()
        state = await memory.contexts.state(ROOM, "chat")
        assert (state.reset_seq, state.summaries) == (9, ())
        assert (await memory.session(ROOM).window()).messages == ()


async def test_a_deleted_session_leaves_no_items_and_no_rows(shared_url: str) -> None:
    async with opened(shared_url) as memory:
        await say(memory, 5)
        await say(memory, 1, session_id="other")
        await memory.summaries.add(summary(1, 2))
        await memory.contexts.move_anchor(ROOM, "chat", 3)
        assert await memory.session(ROOM).delete()
        assert not await memory.session(ROOM).delete()
        assert [info.session_id async for info in memory.sessions()] == ["other"]
    for table in ("chat_sessions", "chat_messages", "chat_summaries", "chat_anchors"):
        assert query(shared_url, f"SELECT 1 FROM {table} WHERE session_id = '{ROOM}'") == []
    assert query(shared_url, f"SELECT key FROM store WHERE key LIKE '{ROOM}%' OR prefix LIKE '%{ROOM}'") == []


async def test_a_failed_deletion_can_be_repeated(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows stay as long as the conversation, so that the deletion can be repeated."""

    async def fails(writer: ConversationWriter, session_id: str, **_: object) -> bool:
        raise StoreError("The store is away.")

    async with opened(shared_url) as memory:
        await say(memory, 3)
        with monkeypatch.context() as patch:
            patch.setattr(ConversationWriter, "delete", fails)
            with pytest.raises(StoreError):
                await memory.session(ROOM).delete()
        assert query(shared_url, "SELECT count(*) FROM chat_messages") == [(3,)]
        assert await memory.session(ROOM).delete()
    assert query(shared_url, "SELECT count(*) FROM chat_messages") == [(0,)]


async def test_the_rows_of_an_incomplete_deletion_are_deleted_later(sqlite_url: str) -> None:
    async with opened(sqlite_url) as memory:
        await say(memory, 3, user_id="u1")
        await memory.summaries.add(summary(1, 2))
        await memory.search("text")
        execute(sqlite_url, "CREATE TRIGGER stop BEFORE DELETE ON chat_sessions BEGIN SELECT raise(ABORT, 'no'); END")
        with pytest.raises(StoreError):
            await memory.session(ROOM, user_id="u1").delete()
        execute(sqlite_url, "DROP TRIGGER stop")
        assert not await memory.session(ROOM, user_id="u1").delete()
        await memory.search("text")
        assert [info.session_id async for info in memory.sessions()] == []
    assert query(sqlite_url, "SELECT * FROM chat_summaries") == []


async def test_a_search_is_limited_to_the_user_and_the_session(shared_url: str) -> None:
    async with opened(shared_url) as memory:
        for session_id, user_id in (("a", "u1"), ("b", "u2")):
            texts = ["My REFUND is late", "Sorry for the refund", "退款什么时候到", "nothing"]
            session = memory.session(session_id, user_id=user_id)
            await session.append([Message(role="user", content=text) for text in texts])
        hits = await memory.search("refund", user_id="u1")
        assert [(hit.session_id, hit.message.seq) for hit in hits] == [("a", 1), ("a", 2)]
        assert {hit.session_id for hit in await memory.search("退款")} == {"a", "b"}
        assert [hit.message.seq for hit in await memory.search("refund", session_id="b", after=1)] == [2]
        assert await memory.search("refund nothing") == []
        await memory.session("c").append([Message(role="user", content="İstanbul")])
        assert len(await memory.search("istanbul")) == len(await memory.search("İSTANBUL")) == 1
        assert len(await memory.search("refund", limit=3)) == 3
        assert await memory.search("refund", session_id="a", user_id="u2") == []


async def test_an_exported_session_is_restored(shared_url: str) -> None:
    """Seqs, times, the reset and tags are restored; a second restore stores nothing."""
    async with opened(shared_url) as memory:
        await say(memory, 4, user_id="u1")
        session = memory.session(ROOM)
        await session.reset()
        await session.append([Message(role="user", content="after", id="m:5")])
        await session.update(tags=["vip"])
        info = await session.info()
        part = ArchivedPart(info, tuple(await session.tail(9)))
        await session.delete()
        assert await memory.restore([part]) == [Restored(stored=5)]
        assert await session.info() == info
        assert await session.tail(9) == list(part.messages)
        assert [message.id for message in (await session.window()).messages] == ["m:5"]
        assert await memory.restore([part]) == [Restored(known=5)]
        assert [found.session_id async for found in memory.sessions(user_id="u1")] == [ROOM]


async def test_ids_that_begin_like_keys_of_other_items_are_restored(shared_url: str) -> None:
    ids = ["own-session:1", "steps-sha256:2", "recall-index:3", "answer-sha256:4"]
    async with opened(shared_url) as memory:
        session = memory.session(ROOM)
        await session.append([Message(role="user", content=id_, id=id_) for id_ in ids[:2]])
        await session.reset()
        await session.append([Message(role="user", content=id_, id=id_) for id_ in ids[2:]])
        part = ArchivedPart(await session.info(), tuple(await session.tail(9)))
        await session.delete()
        assert await memory.restore([part]) == [Restored(stored=4)]
        assert await memory.restore([part]) == [Restored(known=4)]
        assert [message.id for message in await session.tail(9)] == ids
        assert [message.id for message in (await session.window()).messages] == ids[2:]


async def test_missing_index_rows_are_added_at_the_next_start(sqlite_url: str, events: RecordedEvents) -> None:
    async with opened(sqlite_url, events) as memory:
        await say(memory, 2)
        execute(sqlite_url, "CREATE TRIGGER stop BEFORE UPDATE ON chat_sessions BEGIN SELECT raise(ABORT, 'no'); END")
        await memory.session(ROOM).append([Message(role="user", content="late", id="m:3")])
        assert [event.outcome for event in events.of(WriteFailed)] == ["fallback"]
        assert len(await memory.session(ROOM).tail(5)) == 3
    assert query(sqlite_url, "SELECT last_seq FROM chat_sessions") == [(2,)]
    execute(sqlite_url, "DROP TRIGGER stop")
    async with opened(sqlite_url) as memory:
        await memory.search("anything")
    assert query(sqlite_url, "SELECT last_seq, graph_version FROM chat_sessions") == [(3, 2)]


async def test_conversations_of_other_programs_are_listed(shared_url: str) -> None:
    store = InMemoryStore()
    said = [{"seq": 1, "role": "user", "content": "Hi"}, {"seq": 2, "role": "assistant", "content": "Hello"}]
    common = {"conversation_key": "telegram:1", "updated_at": "2026-02-26T20:30:00Z"}
    metadata = {**common, "last_seq": 2, "chunk_size": 200, "latest_chunk_key": "chunk:000000", "version": 1}
    chunk = {**common, "chunk_key": "chunk:000000", "start_seq": 1, "end_seq": 2, "messages": said}
    await store.aput(HISTORY, "telegram:1__meta__", {**metadata, "kind": "conversation"})
    await store.aput(HISTORY, "telegram:1:chunk:000000", chunk)
    async with opened(shared_url, graph_store=store) as memory:
        await say(memory, 1)
        assert [hit.message.content for hit in await memory.search("hello")] == ["Hello"]
        assert {info.session_id async for info in memory.sessions()} == {"telegram:1", ROOM}
        assert [message.content for message in await memory.session("telegram:1").tail(5)] == ["Hi", "Hello"]
    await store.adelete(HISTORY, "telegram:1__meta__")
    async with opened(shared_url, graph_store=store) as memory:
        await memory.search("hello")
        assert [info.session_id async for info in memory.sessions()] == [ROOM]


async def test_a_conversation_created_again_has_no_rows_of_the_old_one(sqlite_url: str, clock: SettableClock) -> None:
    store = InMemoryStore()
    async with opened(sqlite_url, graph_store=store, clock=clock) as memory:
        await say(memory, 4)
        await memory.summaries.add(summary(1, 2))
    for item in await store.asearch(()):
        await store.adelete(item.namespace, item.key)
    clock.advance(60)
    async with opened(sqlite_url, graph_store=store, clock=clock) as memory:
        await say(memory, 1)
        assert await memory.summaries.active(ROOM) == []
        assert (await memory.session(ROOM).info()).last_seq == 1
    assert query(sqlite_url, "SELECT seq FROM chat_messages") == [(1,)]


async def test_a_graph_store_in_another_database(sqlite_url: str, empty_postgres_url: str) -> None:
    async with opened(sqlite_url, graph_store=parse_address(empty_postgres_url)) as memory:
        await say(memory, 2)
        assert [hit.message.seq for hit in await memory.search("text 2")] == [2]
        assert await memory.session(ROOM).delete()
    assert query(empty_postgres_url, "SELECT key FROM store") == []


async def test_a_database_keeps_transcripts_in_one_place(shared_url: str) -> None:
    """Opening with the other setting is refused while sessions exist; they would appear empty."""
    async with opened(shared_url) as memory:
        await say(memory, 1)
    with pytest.raises(InvalidSettings, match="graph_store"):
        async with open_memory(shared_url):
            pytest.fail("opened with transcripts in tables")
    async with opened(shared_url) as memory:
        await memory.session(ROOM).delete()
    async with open_memory(shared_url) as memory:
        await say(memory, 1)
    with pytest.raises(InvalidSettings, match="tables"):
        async with opened(shared_url):
            pytest.fail("opened with transcripts in a graph store")


async def test_retention_is_refused(sqlite_url: str) -> None:
    """Rules at the start, limits of a session, and a plan are refused."""
    rules = Retention(delete=RetentionLimits(max_age_days=30))
    with pytest.raises(InvalidInput, match="THREADKEEP_RETENTION_DELETE_MAX_AGE_DAYS"):
        async with opened(sqlite_url, retention=RetentionOptions(rules)):
            pytest.fail("opened with retention rules")
    async with opened(sqlite_url) as memory:
        await say(memory, 1)
        with pytest.raises(InvalidInput, match="THREADKEEP_TRANSCRIPTS"):
            await memory.retention.change(ROOM, rules)
        with pytest.raises(InvalidInput, match="THREADKEEP_TRANSCRIPTS"):
            await anext(memory.retention.plan(rules))
        assert not await memory.retention.has_work()


async def test_a_store_that_fails_is_an_outage(sqlite_url: str, events: RecordedEvents) -> None:
    """Turns become pending, and are delivered when the store works again; errors quote nothing."""
    store = FailingStore()
    async with opened(sqlite_url, events, graph_store=store) as memory:
        session = memory.session(ROOM)
        store.broken = True
        with pytest.raises(StoreError):
            await session.append([Message(role="user", content="lost to nobody")])
        assert await session.record([Message(role="user", content="one")]) is None
        store.broken = False
        assert await memory.pending.deliver()
        assert [message.content for message in await session.tail(5)] == ["one"]
    assert all("nobody" not in repr(event) for event in events.all)


class FailingStore(InMemoryStore):
    """A store that fails on demand."""

    broken = False

    async def abatch(self, ops: object) -> list[object]:  # type: ignore[override]
        """Execute the operations, or raise an error that quotes them."""
        if self.broken:
            raise RuntimeError(f"failed: {ops}")
        return list(await super().abatch(ops))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["steps", "index", "answer"])
async def test_a_message_id_may_equal_an_internal_key(shared_url: str, kind: str) -> None:
    """A message with such an id and the item with that key are both kept."""
    async with graph_transcripts(shared_url) as transcripts:
        items, writer = transcripts.items, transcripts.writer
        answer = Message("assistant", "hello", id="a", answers="q")
        await transcripts.append(Turn(ROOM, (Message("user", "hi", id="q"), answer)))
        contexts, indexes = ConversationContexts(items, writer), RecallIndexItems(items, writer)
        info = await transcripts.session(ROOM)
        assert info is not None
        await indexes.save(ROOM, "1", b"index", 2, IndexedState.of(info))
        await contexts.keep_steps(ROOM, Steps(1, "[]"), question_id="q", author="chef")
        note = answer_note({"answers": "q"})
        keys = {"steps": writer.layout.steps(ROOM, "chef").key, "index": RECALL_INDEX, "answer": note}
        odd = Message("user", "odd", id=keys[kind])
        for duplicates in ((), (odd.id,)):
            assert (await transcripts.append(Turn(ROOM, (odd,)))).duplicates == duplicates
        assert await indexes.of_session(ROOM, "1", 3) == b"index"
        assert await contexts.steps(ROOM, "chef", since=0) == [Steps(1, "[]")]
        late = replace(answer, id="b", content="late")
        assert (await transcripts.append(Turn(ROOM, (late,), answers="q"))).adopted == "a"
        await transcripts.empty(ROOM, [2])
        assert await indexes.of_session(ROOM, "1", 3) is None
        assert await contexts.steps(ROOM, "chef", since=0) == []
        found = await transcripts.find(ROOM, str(odd.id))
        assert found is not None
        assert (found.seq, found.content) == (3, "odd")
        assert (await transcripts.append(Turn(ROOM, (odd,)))).duplicates == (odd.id,)
