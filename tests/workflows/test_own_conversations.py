"""Tests of conversations that agents store in the graph store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from langgraph.store.base import GetOp, Op, Result
from langgraph.store.memory import InMemoryStore

from tests.databases import query
from tests.history.retaining import DAY
from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from tests.workflows.desk import Desk, spoken
from tests.workflows.test_agent_history import BOT, FailingStore, said_in, telegram
from threadkeep import Memory, MemoryOptions, Message, RetentionOptions, SessionNotFound, open_memory
from threadkeep.history.all_sessions import AllRetention, AllSessions
from threadkeep.observe import MessagesPruned, PendingWrites, WriteDeferred, WriteFailed
from threadkeep.records import Json, Retention, RetentionLimits
from threadkeep.runs.requests import RunRequest
from threadkeep.store.address import TranscriptLocation
from threadkeep.store.transcripts import SessionQuery
from threadkeep.testing import Gate, ScriptedModel, SettableClock

KEY = "telegram:b:7"
CHAT: Mapping[str, Json] = telegram(bot_id="b", chat_id=7)


class ContestedStore(InMemoryStore):
    """A store in which another process changes a conversation after each read, while `contested` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.contested = False

    async def abatch(self, ops: Any) -> list[Result]:
        """Execute the operations, and then increase the version of each conversation that was read."""
        batch: list[Op] = list(ops)
        found = await super().abatch(batch)
        looks = [op for op in batch if isinstance(op, GetOp) and op.key.endswith("__meta__")] if self.contested else []
        for look in looks:
            item = self._data[look.namespace].get(look.key)
            if item is not None:
                item.value = {**item.value, "version": item.value["version"] + 1}
        return found


async def test_a_turn_that_always_conflicts_waits_and_is_written_later(
    sqlite_memory: Memory, events: RecordedEvents
) -> None:
    """After repeated conflicts the turn becomes a pending write, and is written once when the conflicts end."""
    store = ContestedStore()
    desk = Desk(sqlite_memory, ScriptedModel(f"reply {n}" for n in range(1, 9)), events, store=store).use(BOT % "")
    await desk.run("bot", "one", results=CHAT)
    store.contested = True
    state = await desk.run("bot", "two", results=CHAT)
    assert state["results"]["answer"]["text"] == "reply 2"
    waiting = [(entry.turn.session_id, entry.namespace) for entry in sqlite_memory.pending.entries]
    assert waiting == [(KEY, ("agent_chat_history",))] * 2
    assert not await sqlite_memory.pending.deliver()
    assert sqlite_memory.session(KEY).waiting() == ()
    assert [event.outcome for event in desk.events.of(WriteFailed)][:5] == [*["conflict"] * 4, "fallback"]
    assert desk.events.of(WriteDeferred)
    store.contested = False
    await desk.run("bot", "three", results=CHAT)
    await events.until(lambda: events.of(PendingWrites)[-1].count == 0)
    kept = await said_in(store, KEY)
    assert [seq for seq, _, _ in kept] == list(range(1, 7))
    assert [text for _, _, text in kept] == ["one", "reply 1", "two", "reply 2", "three", "reply 3"]


async def test_a_waiting_turn_of_a_conversation_is_dropped_by_its_entry(
    sqlite_memory: Memory, events: RecordedEvents
) -> None:
    store = ContestedStore()
    desk = Desk(sqlite_memory, numbered(2), events, store=store).use(BOT % "")
    await desk.run("bot", "one", results=CHAT)
    store.contested = True
    await desk.run("bot", "two", results=CHAT)
    dropped = [await sqlite_memory.pending.drop(entry.entry_id) for entry in sqlite_memory.pending.entries]
    assert (dropped, sqlite_memory.pending.entries) == ([True, True], ())
    assert not await sqlite_memory.pending.drop("nothing")
    store.contested = False
    assert len(await said_in(store, KEY)) == 2


def numbered(count: int) -> ScriptedModel:
    """Return a model with a number of replies."""
    return ScriptedModel(f"reply {n}" for n in range(1, count + 1))


def asked(text: str, *, user_id: str | None = None, chat_id: int = 7) -> RunRequest:
    """Return a request of a webhook, whose run has no session."""
    results = telegram(bot_id="b", chat_id=chat_id)
    return RunRequest(workflow="bot", text=text, results=results, user_id=user_id, trigger="webhook", sessionless=True)


async def listed(memory: Memory, **wanted: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Return the ids and namespaces of all sessions, read page by page."""
    found: list[tuple[str, tuple[str, ...]]] = []
    query = SessionQuery(**wanted)
    while True:
        infos, cursor = await AllSessions(memory).page(query)
        found += [(info.session_id, info.namespace) for info in infos]
        if cursor is None:
            return found
        query = replace(query, cursor=cursor)


async def test_conversations_are_listed_found_and_read_with_sessions(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, clock: SettableClock
) -> None:
    """A process without the agent lists, searches and reads the conversations, and each user sees only their own."""
    async with open_memory(shared_url, options=memory_options) as memory:
        desk = RunDesk(memory, numbered(3), events, store=await memory.graph_store())
        async with desk.open(BOT % "") as service:
            for number, user_id in ((7, "ann"), (8, "bob")):
                await carried_out(service, asked(f"Where is order {number}?", user_id=user_id, chat_id=number))
                clock.advance(1)
                turn = [Message(role="user", content=f"I am {user_id}, about my order")]
                await memory.session(f"room:{user_id}", user_id=user_id).append(turn)
                clock.advance(1)
    own = ("agent_chat_history",)
    async with open_memory(shared_url, options=memory_options) as memory:
        everything = AllSessions(memory)
        order = [("room:bob", ()), ("telegram:b:8", own), ("room:ann", ()), ("telegram:b:7", own)]
        assert [await listed(memory, limit=limit) for limit in (1, 3, 4)] == [order] * 3
        assert await listed(memory, user_id="ann") == order[2:]
        assert await listed(memory, query="order 8") == order[1:2]
        hits = (await everything.search("order", user_id="ann")).hits
        assert {(hit.session_id, hit.message.content) for hit in hits} == {
            ("room:ann", "I am ann, about my order"),
            (KEY, "Where is order 7?"),
        }
        session, info = await everything.find(KEY, user_id="ann")
        assert (info.user_id, info.message_count, info.namespace) == ("ann", 2, own)
        assert [message.content for message in await session.tail(5)] == ["Where is order 7?", "reply 1"]
        with pytest.raises(SessionNotFound):
            await everything.find(KEY, user_id="bob")


async def test_the_calls_of_a_conversation_come_page_by_page(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, clock: SettableClock
) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        desk = RunDesk(memory, numbered(9), events, store=await memory.graph_store())
        news = "draft: {kind: model, input: 'Draft of {{text}}', next: answer}"
        async with desk.open((BOT % "").replace("nodes:", f"nodes:\n  {news}")) as service:
            for chat_id in (7, 8, 7, 7):
                await carried_out(service, asked("Where is it?", user_id="ann", chat_id=chat_id))
                clock.advance(1)
        everything = AllSessions(memory)
        session, _ = await everything.find(KEY)
        runs = [message.run_id for message in await session.tail(9) if message.role == "user"]
        calls = await everything.calls(KEY, user_id="ann")
        assert [call.run_id for call in calls] == runs[::-1]
        assert {call.manifest["node"] for call in calls} == {"answer"}
        paged = await everything.calls(KEY, limit=1)
        while page := await everything.calls(KEY, limit=1, before=paged[-1].cursor):
            paged += page
        assert paged == calls
        with pytest.raises(SessionNotFound):
            await everything.calls(KEY, user_id="bob")
        clock.advance(31 * 24 * 3600)
        assert await memory.manifests.purge()
        assert await everything.calls(KEY) == []


async def test_an_erased_conversation_is_deleted_from_every_table(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        desk = RunDesk(memory, numbered(2), events, store=await memory.graph_store())
        async with desk.open(BOT % "") as service:
            await carried_out(service, asked("CANARY seven", user_id="ann"))
            kept = await carried_out(service, asked("and eight", user_id="bob", chat_id=8))
        assert not await AllSessions(memory).erase(KEY, user_id="bob")
        assert await AllSessions(memory).erase(KEY, user_id="ann")
        assert not await AllSessions(memory).erase(KEY)
        assert len(await memory.manifests.of_run(kept.run.run_id)) == 1
    tables = ("store", "chat_runs", "chat_run_events", "chat_run_manifests", "chat_run_texts")
    for rows in [query(shared_url, f"SELECT * FROM {table}") for table in tables]:
        assert "CANARY" not in str(rows)
        assert "telegram:b:7" not in str(rows)


@pytest.mark.parametrize("keeping", ["tables", "graph_store"])
async def test_runs_without_a_session_are_deleted_with_the_session_of_their_messages(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, keeping: TranscriptLocation
) -> None:
    news = "schema: 1\nname: bot\nnodes:\n  tell: {kind: append_message, text: '{{text}}', session: room, next: end}"
    async with open_memory(shared_url, options=replace(memory_options, transcripts=keeping)) as memory:
        desk = RunDesk(memory, numbered(2), events, store=await memory.graph_store())
        async with desk.open(BOT % "" if keeping == "graph_store" else news) as service:
            await carried_out(service, asked("CANARY news"))
        assert await AllSessions(memory).erase(KEY if keeping == "graph_store" else "room")
    for table in ("chat_runs", "chat_run_events", "chat_run_traces", "chat_run_manifests", "chat_run_texts"):
        assert query(shared_url, f"SELECT * FROM {table}") == []


async def test_retention_deletes_messages_with_their_runs(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents, clock: SettableClock
) -> None:
    """Retention deletes old messages and idle conversations with their runs, in a process without the agent."""
    async with open_memory(shared_url, options=memory_options) as memory:
        desk = RunDesk(memory, numbered(4), events, store=await memory.graph_store())
        async with desk.open(BOT % "") as service:
            await carried_out(service, asked("CANARY idle", chat_id=8))
            clock.advance(5 * DAY)
            await carried_out(service, asked("CANARY old"))
            await carried_out(service, asked("CANARY older than the rest"))
            clock.advance(5 * DAY)
            kept = await carried_out(service, asked("Where is it?"))
    rules = Retention(archive=RetentionLimits(1), delete=RetentionLimits(max_messages=2, max_idle_days=9))
    options = replace(memory_options, retention=RetentionOptions(rules, interval_seconds=0.02))
    async with open_memory(shared_url, options=replace(options, background=False)) as memory:
        plan = [(one.session_id, one.messages, one.whole_session) async for one in AllRetention(memory).plan()]
        assert plan == [(KEY, 4, False), ("telegram:b:8", 2, True)]
    async with open_memory(shared_url, observers=[events], options=options) as memory:
        await events.until(lambda: bool(events.of(MessagesPruned)))
        assert [(one.action, one.sessions, one.messages) for one in events.of(MessagesPruned)] == [("delete", 2, 6)]
        session, info = await AllSessions(memory).find(KEY)
        assert (info.title, info.message_count, info.deleted_seq) == ("Where is it?", 2, 4)
        assert [message.seq for message in await session.tail(9)] == [5, 6]
        assert await listed(memory) == [(KEY, ("agent_chat_history",))]
        assert len(await memory.manifests.of_run(kept.run.run_id)) == 1
    assert query(shared_url, "SELECT run_id FROM chat_runs") == [(kept.run.run_id,)]
    assert "CANARY" not in str(query(shared_url, "SELECT * FROM store"))


async def test_retention_waits_for_the_runs_of_a_conversation(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    gate = Gate()
    model = ScriptedModel(["reply 1", [gate, "a sum"]])
    steps = "}\n  sum: {kind: model, input: 'Sum up {{text}}', next: end"
    async with open_memory(shared_url, options=memory_options) as memory:
        desk = RunDesk(memory, model, events, store=await memory.graph_store())
        async with desk.open((BOT % steps).replace("next: end}\n", "next: sum}\n")) as service:
            first = await service.submit(asked("one"))
            await gate.reached()
            session, _ = await AllSessions(memory).find(KEY)
            for text in ("two", "three"):
                await session.append([Message(role="user", content=text), Message(role="assistant", content="reply")])
            rules = Retention(delete=RetentionLimits(max_messages=2))
            assert (await AllRetention(memory).prune(rules)).busy == 1
            gate.open()
            assert (await service.result(first.run_id)).run.status == "done"
            assert (await AllRetention(memory).prune(rules)).deleted.messages == 4


async def test_a_turn_that_a_dead_process_left_is_written_at_the_next_start(
    sqlite_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """A pending turn of a dead process is written when the next process starts. Until then it is counted."""
    options = replace(memory_options, background=False)
    store = FailingStore()
    async with open_memory(sqlite_url, observers=[events], options=replace(options, graph_store=store)) as memory:
        desk = Desk(memory, numbered(2), events, store=store).use(BOT % "")
        await desk.run("bot", "one", results=CHAT)
        store.down = True
        await desk.run("bot", "two", results=CHAT)
        await memory.session("room").append([Message(role="user", content="Hi")])
        assert events.of(PendingWrites)[-1].count == 2
    store.down = False
    options = replace(memory_options, graph_store=store)
    async with open_memory(sqlite_url, observers=[events], options=options) as memory:
        await events.until(lambda: events.of(PendingWrites)[-1].count == 0)
        assert sorted(await listed(memory)) == [("room", ()), (KEY, ("agent_chat_history",))]
    assert [text for _, _, text in await said_in(store, KEY)] == ["one", "reply 1", "two", "reply 2"]


@pytest.mark.parametrize("url", ["sqlite://", "file"])
async def test_where_all_transcripts_are_in_the_store_a_conversation_is_a_session(
    url: str, sqlite_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """The agent and the session read and write the same messages, and the session is listed and erased."""
    options = replace(memory_options, transcripts="graph_store")
    async with open_memory(sqlite_url if url == "file" else url, options=options) as memory:
        desk = Desk(memory, numbered(2), events, store=await memory.graph_store()).use(BOT % "")
        await desk.run("bot", "one", results=CHAT)
        assert await listed(memory) == [(KEY, ())]
        await memory.session(KEY).append([Message(role="assistant", content="By the way.")])
        await desk.run("bot", "two", results=CHAT)
        assert spoken(desk.model.calls[-1]) == [
            ("human", "one"),
            ("ai", "reply 1"),
            ("ai", "By the way."),
            ("human", "two"),
        ]
        assert len(await memory.manifests.of_session(KEY)) == 2
        assert await AllSessions(memory).erase(KEY)
        assert await listed(memory) == []
