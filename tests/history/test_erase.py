"""Tests of erasing persons and sessions: none of their words remains in any file or row, and the receipt is true."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Collection
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph

from tests.children import Child
from tests.databases import execute, query
from tests.outages import Outage
from tests.web.services import until
from threadkeep import InvalidInput, Memory, MemoryOptions, Message, Retention, RetentionLimits, Session, open_memory
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.history.pending import PendingOptions, folder_of
from threadkeep.records import Summary, Turn
from threadkeep.records.erasure import EraseReceipt
from threadkeep.records.knowledge import Evidence, Scope
from threadkeep.records.runs import NewRun
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import Parameters, Row, StoreOptions
from threadkeep.store.erasing import TableErasing
from threadkeep.store.postgres_connection import PostgresConnection
from threadkeep.store.spool import PendingTurn, SpoolFile
from threadkeep.store.sqlite_connection import Batch, SqliteConnection

CANARY = "zanzibarquokka"
ANN, BOB = "telegram:ann", "telegram:bob"


@pytest.fixture
async def memory(database_url: str, memory_options: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory on each database engine, and close it after the test."""
    async with open_memory(database_url, options=memory_options) as opened:
        yield opened


class _Words(TypedDict):
    word: str


def graph_with(saver: BaseCheckpointSaver[str]) -> Any:
    """Return a graph that saves checkpoints under the id of the session."""
    builder = StateGraph(_Words)
    builder.add_node("say", lambda state: state)
    builder.add_edge(START, "say")
    return builder.compile(checkpointer=saver)


def said(words: str, sender: str | None = None) -> Message:
    """Return a message of a person as channels store it."""
    metadata = {} if sender is None else {"sender_id": sender, "sender_name": words}
    return Message(role="user", content=words, metadata=metadata)


@pytest.fixture(params=["tables", "graph_store"])
async def kept(
    request: pytest.FixtureRequest, database_url: str, memory_options: MemoryOptions
) -> AsyncIterator[Memory]:
    """Open a memory on each database engine, with transcripts in tables and in a graph store."""
    options = replace(memory_options, transcripts=request.param)
    async with open_memory(database_url, options=options) as opened:
        yield opened


async def live(memory: Memory) -> None:
    """Write data of the person to every store."""
    own = memory.session("telegram:1", user_id=ANN)
    for number in range(20):
        await own.append([said(f"{CANARY} says {number}"), Message(role="assistant", content=f"yes {CANARY}")])
    await memory.search(CANARY)
    await own.update(title=CANARY, metadata={"note": CANARY})
    await memory.persons.resolve(ANN, name=CANARY)
    await memory.persons.resolve("telegram:ann2")
    await memory.persons.merge("telegram:ann2", into=ANN)
    await memory.session("telegram:2", user_id="telegram:ann2").append([said(CANARY)])
    await memory.knowledge.remember(Scope("user", ANN), "likes", CANARY)
    group = memory.session("telegram:group")
    await group.append([said(f"{CANARY} in the group", ANN), Message(role="assistant", content="noted")])
    await group.append([said("bob's words", BOB), Message(role="assistant", content="noted too")])
    await memory.session("telegram:3", user_id=BOB).append([said("bob alone")])
    store = await memory.graph_store()
    await store.aput(("memories", "ann", "x"), "k", {"text": "not hers"})
    await memory.search(CANARY)


async def test_a_person_is_erased_and_others_stay(kept: Memory) -> None:
    """Sessions under all ids of a person, facts and words in group chats are erased; the receipt counts them."""
    memory = kept
    await live(memory)
    plan = await memory.erase(user_id=ANN, dry_run=True)
    assert (plan.sessions, plan.shared_sessions, plan.shared_messages, plan.complete) == (2, 1, 1, False)
    assert await memory.session("telegram:1").count() == 40

    receipt = await memory.erase(user_id=ANN)
    assert receipt.complete
    before = {store.name: store.before for store in receipt.stores}
    assert (before["chat_sessions"], before["chat_messages"], before["chat_facts"], before["chat_persons"]) == (
        2,
        41,
        1,
        2,
    )
    assert {store.after for store in receipt.stores} == {0}
    assert "backups" in receipt.not_reached
    assert any("chat_history" in name for name in receipt.not_reached)
    assert ANN not in str(receipt.to_dict())
    assert CANARY not in str(receipt.to_dict())
    assert [info.session_id async for info in memory.sessions(user_id=ANN)] == []
    assert await memory.search(CANARY) == []

    group = memory.session("telegram:group")
    assert [message.content for message in await group.tail(9)] == ["noted", "bob's words", "noted too"]
    empty, *_ = await group.tail(9, view="history")
    assert (empty.seq, empty.content, empty.status, empty.metadata) == (1, "", "erased", {})
    assert await memory.session("telegram:3", user_id=BOB).count() == 1
    info = await group.info()
    assert info is not None
    assert CANARY not in str(info)


async def test_pending_outbox_rows_are_erased_with_their_person_or_session(memory: Memory) -> None:
    """A pending outbox row has the words of a message, even if its session is not stored yet."""
    odd = 'telegram:"ann\\2" é'
    await memory.persons.resolve(ANN)
    await memory.persons.resolve(odd)
    await memory.persons.merge(odd, into=ANN)
    await memory.session("telegram:1", user_id=ANN).append([said("hi")])
    outbox = memory.channels.outbox
    for session_id, user_id, about in (
        ("telegram:1", ANN, ANN),
        ("telegram:2", odd, odd),
        ("telegram:group", None, ANN),
        ("telegram:group", None, BOB),
        ("telegram:3", None, None),
        ("telegram:30", None, None),
    ):
        message = f'{{"text": "{CANARY}"}}'
        address = {"chat_id": session_id}
        await outbox.add("one", session_id, f"m{about}", address=address, user_id=user_id, about=about, message=message)
    receipt = await memory.erase(user_id=ANN)
    assert receipt.complete
    counts = {store.name: store.before for store in receipt.stores}
    assert (counts["chat_outbox"], counts["chat_channel_sessions"]) == (3, 2)
    assert [one.session_id for one in await outbox.entries()] == ["telegram:group", "telegram:3", "telegram:30"]
    assert (await memory.erase(session_id="telegram:3")).complete
    assert [one.session_id for one in await outbox.entries()] == ["telegram:group", "telegram:30"]
    assert await outbox.recipient("telegram:2") is None
    assert await outbox.recipient("telegram:3") is None


async def test_an_erase_keeps_what_is_derived_from_the_messages_of_others(kept: Memory) -> None:
    """Vectors of messages between those of the erased person stay."""
    words = [said("a", ANN), said("b", BOB), said("c", BOB), said("d", ANN), said("e", ANN), said("f", BOB)]
    await kept.session("group", user_id=BOB).append(words)
    await kept.embeddings.add("group", "small", [(seq, b"vector") for seq in range(1, 7)])
    assert (await kept.erase(user_id=ANN)).complete
    assert [seq for seq, _ in await kept.embeddings.of_session("group", "small")] == [2, 3, 6]


async def test_nothing_but_the_place_of_an_erased_message_stays(kept: Memory) -> None:
    """The title too is erased, even if its text follows a picture, which has no text, and a superseded text."""
    group = kept.session("group")
    judged = replace(said("a word", ANN), id="judged", confidence=0.5, escalated=True)
    await group.append([said("", ANN), judged])
    await group.edit("judged", CANARY)
    await group.append([said("hello", BOB)])
    assert (await group.info()).title == CANARY
    assert (await kept.erase(user_id=ANN)).complete
    assert (await group.info()).title == "hello"
    empty = (await group.tail(9, view="history"))[1]
    assert (empty.content, empty.confidence, empty.escalated) == ("", None, False)


async def test_summaries_of_deleted_messages_are_erased(memory: Memory) -> None:
    """The authors of messages that retention has deleted are unknown."""
    group = memory.session("group")
    await group.append([said(CANARY, ANN), said("b", BOB), said("c", BOB), said("d", ANN), said("e", BOB)])
    for last in (2, 3):
        assert await memory.summaries.add(Summary("group", 2 * last - 3, last, f"{CANARY} {last}", "m", "1", 1))
    await memory.retention.prune(Retention(delete=RetentionLimits(max_messages=3)))
    assert (await memory.erase(user_id=ANN)).complete
    assert [summary.last_seq for summary in await memory.summaries.all_of("group")] == [3]


async def test_only_text_and_integers_name_a_sender(kept: Memory) -> None:
    senders: tuple[Any, ...] = ([ANN], {"id": ANN}, None, True, 7, "7")
    words = [Message(role="user", content=f"words {each!r}", metadata={"sender_id": each}) for each in senders]
    await kept.session("group", user_id=BOB).append(words)
    agents = await kept.namespace(GraphLayout(("agents",)))
    await agents.session("agents'").append(words[:1])
    assert [line async for line in kept.export(user_id=ANN) if "words" in line] == []
    assert (await kept.erase(user_id=ANN)).complete
    for name in ('["telegram:ann"]', "1", "true"):
        assert (await kept.erase(user_id=name)).shared_messages == 0
    assert (await kept.erase(user_id="7")).shared_messages == 2
    assert await kept.session("group").count() == 4
    assert await agents.session("agents'").count() == 1


async def test_a_pending_turn_with_an_invalid_sender_id_does_not_stop_an_erase(
    sqlite_url: str, memory_options: MemoryOptions
) -> None:
    options = replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05))
    async with open_memory(sqlite_url, options=options) as memory:
        path = parse_address(sqlite_url).path
        assert path is not None
        assert (await memory.erase(user_id=ANN)).complete  # creates the signing key of the database
        async with Outage(path)():
            waiting = Message(role="user", content="waits", metadata={"sender_id": [ANN]})
            await memory.session("group", user_id=BOB).record([waiting])
            assert (await memory.erase(user_id=ANN, dry_run=True)).stores == ()


async def test_the_receipt_can_be_verified(memory: Memory) -> None:
    await memory.session("telegram:1", user_id=ANN).append([said("hi")])
    receipt = EraseReceipt.from_dict((await memory.erase(user_id=ANN)).to_dict())
    assert await memory.verify_erased(receipt) == "gone"
    assert await memory.verify_erased(replace(receipt, sessions=7)) == "unsigned"
    await memory.session("telegram:9", user_id=ANN).append([said("back")])
    assert await memory.verify_erased(receipt) == "there"


async def test_the_receipt_is_verified_in_every_store(kept: Memory) -> None:
    """Verification searches the data that a dry run would find, in every store and under merged ids."""
    await kept.persons.resolve(ANN)
    await kept.persons.resolve("telegram:ann2")
    await kept.persons.merge("telegram:ann2", into=ANN)
    agents = await kept.namespace(GraphLayout(("agents",)))
    store = await kept.graph_store()
    receipt = EraseReceipt.from_dict((await kept.erase(user_id=ANN)).to_dict())
    whole = await kept.erase(session_id="telegram:1")
    assert "telegram:ann2" not in str(receipt.to_dict())
    for step in (
        lambda: kept.session("telegram:1", user_id="telegram:ann2").append([said("back")]),
        lambda: agents.session("telegram:1", user_id="telegram:ann2").append([said("back")]),
        lambda: agents.session("telegram:group").append([said("back", "telegram:ann2")]),
        lambda: store.aput(("memories", "telegram:ann2", "x"), "k", {"text": "back"}),
        lambda: kept.channels.state.keep("chatkit:telegram:ann2", "name", "back"),
    ):
        assert await kept.verify_erased(receipt) == "gone"
        await step()
        assert await kept.verify_erased(receipt) == "there"
        assert not (again := await kept.erase(user_id="telegram:ann2", dry_run=True)).complete
        assert again.stores
        assert (await kept.erase(user_id="telegram:ann2")).complete
    await agents.session("telegram:1").append([said("another's")])
    assert await kept.verify_erased(whole) == "there"
    assert await kept.verify_erased(receipt) == "gone"


async def test_the_state_of_a_created_thread_is_erased_with_its_session(kept: Memory) -> None:
    state = kept.channels.state
    targets: list[dict[str, Any]] = [{"session_id": "t"}, {"user_id": ANN}, {"session_id": "t"}]
    for number, target in enumerate(targets):
        if number < 2:
            await kept.session("t", user_id=ANN).append([said("hello")])
        await state.keep("langgraph-threads", "t", CANARY)
        await state.keep("langgraph-threads", "other", "stays")
        receipt = await kept.erase(**target)
        assert receipt.complete
        assert {one.name: one.before for one in receipt.stores}["chat_channel_state"] == 1
        assert await kept.verify_erased(receipt) == "gone"
        assert await state.values_of("langgraph-threads", "") == {"other": "stays"}


async def test_a_damaged_receipt_is_unsigned(memory: Memory) -> None:
    receipt = await memory.erase(user_id=ANN)
    for signature in ("ü", "\ud800", "", 7, None, ["a"]):
        damaged = EraseReceipt.from_dict({**receipt.to_dict(), "signature": signature})
        assert await memory.verify_erased(damaged) == "unsigned"
    old = EraseReceipt.from_dict({name: value for name, value in receipt.to_dict().items() if name != "ids"})
    assert await memory.verify_erased(old) == "unsigned"


async def test_facts_of_all_scopes_are_erased_with_their_evidence(memory: Memory) -> None:
    await memory.session("telegram:1", user_id=ANN).append([said(CANARY)])
    await memory.session("telegram:group").append([said(CANARY, ANN), said("bob", BOB)])
    shop, bob = Scope("workspace", "shop"), Scope("user", BOB)
    for scope, key, session_id, seq in (
        (shop, "own", "telegram:1", 1),
        (shop, "shared", "telegram:group", 1),
        (bob, "friend", "telegram:1", 1),
        (bob, "stays", "telegram:group", 2),
    ):
        await memory.knowledge.remember(scope, key, CANARY, evidence=Evidence(session_id, seq))
    exported = [line async for line in memory.export(user_id=ANN) if '"type": "fact"' in line]
    receipt = await memory.erase(user_id=ANN)
    assert receipt.complete
    assert len(exported) == {store.name: store.before for store in receipt.stores}["chat_facts"] == 2
    facts = [fact for scope in (shop, bob) for fact in await memory.knowledge.facts(scope, past=True)]
    assert [(fact.key, fact.evidence) for fact in facts] == [("stays", (Evidence("telegram:group", 2),))]


async def test_the_number_of_reads_of_all_evidence_does_not_grow_with_the_sessions(
    memory: Memory, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sessions and messages share a statement."""
    for number in range(5):
        await memory.session(f"telegram:{number}", user_id=ANN).append([said(CANARY)])
        await memory.session("telegram:group").append([said(CANARY, ANN)])
    executed: list[str] = []
    kind: Any = SqliteConnection if database_url.startswith("sqlite") else PostgresConnection
    execute, execute_many = kind.execute, kind.execute_many

    async def noting(self: Any, sql: str, parameters: Any) -> int:
        executed.append(sql)
        return int(await execute(self, sql, parameters))

    async def noting_many(self: Any, sql: str, rows: Any) -> None:
        executed.extend([sql] * len(rows))
        await execute_many(self, sql, rows)

    monkeypatch.setattr(kind, "execute", noting)
    monkeypatch.setattr(kind, "execute_many", noting_many)
    assert (await memory.erase(user_id=ANN)).complete
    reads = [sql for sql in executed if "DELETE FROM chat_facts" in sql and "chat_fact_evidence" in sql]
    assert len({*reads}) == 2
    assert len(reads) <= 4  # once each, and once more in the round that finds nothing left


async def test_the_search_index_is_merged_in_steps(
    sqlite_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All writers wait while a step is executed, so its length must not grow with the index."""
    monkeypatch.setattr("threadkeep.store.erasing._PAGES_AT_ONCE", 1)
    monkeypatch.setattr("threadkeep.store.erasing._MERGE_PAUSE_SECONDS", 0)
    steps: list[str] = []
    execute = SqliteConnection.execute

    async def noting(self: SqliteConnection, sql: str, parameters: Parameters) -> int:
        steps.extend([sql] if "INTO chat_search (chat_search" in sql and "delete" not in sql else [])
        return int(await execute(self, sql, parameters))

    whole: list[str] = []
    run = SqliteConnection.run

    async def noting_batch(self: SqliteConnection, batch: Batch) -> list[list[Row]]:
        whole.extend(sql for sql, _ in batch.statements if "optimize" in sql)
        return await run(self, batch)

    monkeypatch.setattr(SqliteConnection, "execute", noting)
    monkeypatch.setattr(SqliteConnection, "run", noting_batch)
    async with open_memory(sqlite_url, options=memory_options) as memory:
        for number in range(20):
            turn = [said(f"{number * 7919} {hash((number, part)):x} {part * 104729:x}") for part in range(20)]
            await memory.session(f"room:{number}").append(turn)
            await memory.search("104729", limit=1)
        await memory.session("telegram:1", user_id=ANN).append([said(CANARY)])
        assert (await memory.erase(user_id=ANN)).complete
        assert len(steps) > 3
        assert not whole
    assert query(sqlite_url, "SELECT count(DISTINCT segid) FROM chat_search_idx") == [(1,)]


async def test_checkpoints_of_a_shared_session_are_deleted(shared_url: str, memory_options: MemoryOptions) -> None:
    async with (
        open_memory(shared_url, options=memory_options) as memory,
        open_checkpointer(parse_address(shared_url), StoreOptions()) as saver,
    ):
        await memory.session("telegram:group").append([said(CANARY, ANN), said("bob", BOB)])
        await memory.session("telegram:3", user_id=BOB).append([said("bob alone")])
        for thread in ("telegram:group", "telegram:3"):
            await graph_with(saver).ainvoke({"word": CANARY}, {"configurable": {"thread_id": thread}})
        plan = {store.name: store.before for store in (await memory.erase(user_id=ANN, dry_run=True)).stores}
        receipt = await memory.erase(user_id=ANN)
        assert receipt.complete
        assert plan["checkpoints"] == {store.name: store.before for store in receipt.stores}["checkpoints"] > 0
        assert query(shared_url, "SELECT DISTINCT thread_id FROM checkpoints") == [("telegram:3",)]


async def test_erasing_a_user_named_like_a_namespace_keeps_the_data_of_others(kept: Memory) -> None:
    """A user id may equal a namespace or another person's session id; the data of others stays."""
    await kept.session("telegram:1", user_id=BOB).append([said("bob's").with_fields(id="m1")])
    store = await kept.graph_store()
    for namespace in ((BOB, "memories"), ("carol", "notes"), ("notes", "memories")):
        await store.aput(namespace, "k", {"text": "a note"})
    agents = await kept.namespace(GraphLayout(("agents",)))
    await agents.session("telegram:1", user_id=BOB).append([said("bob's")])
    for name in ("memories", "agents", "agents_ids", "agent_chat_history", "telegram:1"):
        await kept.session("telegram:own", user_id=name).append([said(CANARY)])
        receipt = await kept.erase(user_id=name)
        assert receipt.complete
        kept_back = [one for one in receipt.not_reached if "name other users" in one]
        assert len(kept_back) == (name == "memories")
    assert [item.value for item in await store.asearch((BOB,))] == [{"text": "a note"}]
    assert await store.asearch(("notes",)) == []
    assert (await kept.session("telegram:1").append([said("again").with_fields(id="m1")])).duplicates == ("m1",)
    assert await agents.session("telegram:1").count() == 1


async def test_a_reader_of_the_file_blocks_neither_the_erase_nor_writers(
    sqlite_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open read transaction keeps the WAL: the receipt names it, and a repeated erase empties it."""
    monkeypatch.setattr("threadkeep.store.erasing._LOG_TRIES", 10)
    async with open_memory(sqlite_url, options=memory_options) as memory:
        await memory.session("telegram:1", user_id=ANN).append([said(CANARY)])
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM chat_messages").fetchall()
            erasing = asyncio.create_task(memory.erase(user_id=ANN))
            while not erasing.done():
                await memory.session("telegram:2").append([said("hello")])
                await asyncio.wait([erasing], timeout=0.05)
            receipt = await erasing
        assert any("WAL file of SQLite" in one for one in receipt.not_reached)
        repeated = await memory.erase(user_id=ANN)
        assert not any("WAL file of SQLite" in one for one in repeated.not_reached)


async def test_an_erase_ignores_messages_that_retention_deletes_meanwhile(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = await memory.namespace(GraphLayout(("agents",)))
    group = agents.session("telegram:group")
    await group.append([said(f"{CANARY} {number}", ANN) for number in range(3)])
    await group.append([said("bob's words", BOB), Message(role="assistant", content="noted")])
    empty, rules = GraphTranscripts.empty, Retention(delete=RetentionLimits(max_messages=3))

    async def after_retention(transcripts: GraphTranscripts, session_id: str, seqs: Collection[int]) -> None:
        await agents.retention.prune(rules)
        await empty(transcripts, session_id, seqs)

    monkeypatch.setattr(GraphTranscripts, "empty", after_retention)
    assert (await memory.erase(user_id=ANN)).complete
    assert [(one.seq, one.content) for one in await group.tail(9, view="history")] == [
        (3, ""),
        (4, "bob's words"),
        (5, "noted"),
    ]
    assert (await group.info()).message_count == 2


async def test_a_session_is_erased_alone(memory: Memory) -> None:
    """Other sessions of the person stay; branches of the session are named in the receipt."""
    await live(memory)
    receipt = await memory.erase(session_id="telegram:1")
    assert (receipt.kind, receipt.sessions, receipt.complete) == ("session", 1, True)
    assert await memory.session("telegram:1").count(view="history") == 0
    assert await memory.session("telegram:2").count() == 1
    with pytest.raises(InvalidInput, match="either session_id or user_id"):
        await memory.erase()
    await memory.session("telegram:2").branch(1)
    receipt = await memory.erase(session_id="telegram:2")
    assert any("1 branches of the session" in one for one in receipt.not_reached)


async def test_sessions_of_child_runs_are_named(memory: Memory) -> None:
    top = NewRun(run_id="r1", workflow="parent", input={"text": "hi"}, session_id="telegram:1")
    await memory.runs.order.add(top)
    for name, session_id in (("r2", "child:r2"), ("r3", None)):
        child = NewRun(run_id=name, workflow="child", input={"text": "hi"}, session_id=session_id, parent_run_id="r1")
        await memory.runs.order.add(child)
    await memory.session("telegram:1").append([Message(role="user", content="hi")])
    receipt = await memory.erase(session_id="telegram:1")
    assert any("1 sessions of child runs" in one for one in receipt.not_reached)
    receipt = await memory.erase(session_id="child:r2")
    assert not any("child runs" in one for one in receipt.not_reached)


STEPS = ("empty", "delete_person", "forget_evidence", "delete_checkpoints", "overwrite")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.slow
async def test_an_erase_that_fails_at_any_step_can_be_repeated(
    memory: Memory, database_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A repeated erase completes a failed one, and its receipt has the counts of the first."""
    await live(memory)
    beside = await memory.namespace(GraphLayout(("agents",)))
    await beside.session("telegram:1").append([said(f"{CANARY} to an agent")])
    group = [said(f"{CANARY} to all", ANN), Message(role="assistant", content="yes"), said("bob too", BOB)]
    await beside.session("telegram:group").append(group)
    await (await memory.graph_store()).aput(("memories", "telegram:ann2"), "k", {"text": CANARY})
    if database_url != "sqlite://":
        async with open_checkpointer(parse_address(database_url), StoreOptions()) as saver:
            await graph_with(saver).ainvoke({"word": CANARY}, {"configurable": {"thread_id": "telegram:1"}})

    async def broken(_: object, *__: object, **___: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(TableErasing, step, broken)
        with pytest.raises(ConnectionError):
            await memory.erase(user_id=ANN)
    receipt = await memory.erase(user_id=ANN)
    assert receipt.complete
    before = {store.name: store.before for store in receipt.stores}
    assert (before["chat_messages"], before["conversations of agents"], before["graph store items"]) == (41, 1, 1)
    assert await beside.session("telegram:1").count(view="history") == 0
    assert before["messages in conversations of others"] == 1
    group = await beside.session("telegram:group").tail(9, view="history")
    assert [(one.content, one.status, one.seq) for one in group] == [
        ("", "erased", 1),
        ("yes", "complete", 2),
        ("bob too", "complete", 3),
    ]
    assert [one.content for one in await beside.session("telegram:group").tail(9)] == ["yes", "bob too"]
    assert await memory.search(CANARY) == []
    if database_url != "sqlite://":
        assert before["checkpoints"] > 0
        rows = query(database_url, "SELECT count(*) FROM checkpoints WHERE thread_id = 'telegram:1'")
        assert rows == [(0,)]
        noted = query(database_url, "SELECT scope, name, value FROM chat_channel_state WHERE name <> 'text_digest'")
        assert [row for row in noted if str(row[0]).startswith("erase")] == []


def erase_in_a_process(url: str, folder: Path) -> bool:
    """Erase the person as a command does; return whether it was complete."""

    async def erase() -> bool:
        options = MemoryOptions(pending=PendingOptions(folder=folder), background=False)
        async with open_memory(url, options=options) as memory:
            return (await memory.erase(user_id=ANN)).complete

    return asyncio.run(erase())


def erase_until_killed(url: str, folder: Path, last: int) -> None:
    """Erase the person, and kill the process while it deletes the session with this number."""
    delete, numbers = Session.delete, itertools.count(1)

    async def watched(session: Session) -> bool:
        if next(numbers) == last:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
        return await delete(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "delete", watched)
        erase_in_a_process(url, folder)


@pytest.mark.process
async def test_an_erase_that_is_killed_is_completed_by_the_next_process(
    shared_url: str, memory_options: MemoryOptions, tmp_path: Path
) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        for number in range(40):
            await memory.session(f"telegram:{number}", user_id=ANN).append([said(f"{CANARY} {number}")])
        await memory.session("telegram:group").append([said(f"{CANARY} in the group", ANN), said("bob", BOB)])

    # A process first deletes again the sessions that were already deleted.
    for last in (10, 20, 30):
        child = Child(erase_until_killed, shared_url, tmp_path / "pending", last)
        with pytest.raises(AssertionError, match="the process was killed"):
            await asyncio.to_thread(child.result)
        rows = query(shared_url, f"SELECT count(*) FROM chat_sessions WHERE user_id = '{ANN}'")
        assert rows in ([(40 - last,)], [(41 - last,)])
    assert await asyncio.to_thread(Child(erase_in_a_process, shared_url, tmp_path / "pending").result)
    async with open_memory(shared_url, options=memory_options) as memory:
        assert await memory.search(CANARY) == []
        assert [message.content for message in await memory.session("telegram:group").tail(9)] == ["bob"]


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
async def test_no_table_has_a_word_of_the_person(memory: Memory, database_url: str) -> None:
    """No column of any table has the words after an erase."""
    await live(memory)
    await memory.erase(user_id=ANN)
    for statement in _counting_rows(database_url):
        assert query(database_url, statement) == [(0,)], statement


def _counting_rows(url: str) -> list[str]:
    """Return a statement for each table that counts the rows with the words of the person."""
    if url.startswith("postgres"):
        tables = query(url, "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()")
        return [f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%{CANARY}%'" for (table,) in tables]
    # The contents of virtual tables are in ordinary tables.
    columns = query(
        url,
        "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL%'",
    )
    assert ("chat_messages", "content") in columns
    condition = f"LIKE '%{CANARY}%'"
    return [f'SELECT count(*) FROM "{table}" WHERE CAST("{name}" AS TEXT) {condition}' for table, name in columns]


async def test_no_file_has_a_byte_of_the_person(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """The SQLite file, its WAL, pending files and checkpoints are free of the words while the service runs."""
    url = f"sqlite:///{tmp_path}/data/threadkeep.db"
    outage = Outage(tmp_path / "data" / "threadkeep.db")
    options = replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05))
    async with open_memory(url, options=options) as memory:
        await live(memory)
        await (await memory.graph_store()).aput(("memories", ANN), "k", {"text": CANARY})
        async with open_checkpointer(parse_address(url), options.store) as saver:
            graph = graph_with(saver)
            await graph.ainvoke({"word": CANARY}, {"configurable": {"thread_id": "telegram:1"}})
        async with outage():
            await memory.session("telegram:1", user_id=ANN).record([said(f"{CANARY} waits")])
            await memory.session("telegram:3", user_id=BOB).record([said("bob waits")])
        assert CANARY.encode() in b"".join(bytes_below(tmp_path).values())
        receipt = await memory.erase(user_id=ANN)
        assert receipt.complete
        assert [name for name, content in bytes_below(tmp_path).items() if CANARY.encode() in content.lower()] == []
        assert await memory.pending.deliver()
        assert await memory.session("telegram:3", user_id=BOB).count() == 2
    assert [name for name, content in bytes_below(tmp_path).items() if CANARY[:8].encode() in content.lower()] == []


@pytest.mark.parametrize("vacuum", [False, True])
async def test_no_file_of_a_separate_graph_store_has_a_byte_of_the_person(
    tmp_path: Path, memory_options: MemoryOptions, *, vacuum: bool
) -> None:
    graph_store = parse_address(f"sqlite:///{tmp_path}/graphs/store.db")
    options = replace(memory_options, graph_store=graph_store)
    async with open_memory(f"sqlite:///{tmp_path}/data/threadkeep.db", options=options) as memory:
        await live(memory)
        store = await memory.graph_store()
        await store.aput(("memories", ANN), "k", {"text": CANARY})
        agents = await memory.namespace(GraphLayout(("agents",)))
        await agents.session("telegram:1").append([said(f"{CANARY} to an agent"), said("bob", BOB)])
        files = bytes_below(tmp_path / "graphs")
        assert CANARY.encode() in b"".join(files.values()).lower()
        receipt = await memory.erase(user_id=ANN, vacuum=vacuum)
        assert receipt.complete
        assert [name for name, content in bytes_below(tmp_path).items() if CANARY.encode() in content.lower()] == []
        assert not any("graph store" in name for name in receipt.not_reached)


async def test_a_separate_graph_store_on_postgresql_is_named(
    tmp_path: Path, postgres_url: str, memory_options: MemoryOptions
) -> None:
    options = replace(memory_options, graph_store=parse_address(postgres_url))
    async with open_memory(f"sqlite:///{tmp_path}/threadkeep.db", options=options) as memory:
        await (await memory.graph_store()).aput(("memories", ANN), "k", {"text": CANARY})
        receipt = await memory.erase(user_id=ANN)
        assert receipt.complete
        assert any("graph store's PostgreSQL" in name for name in receipt.not_reached)


async def test_a_vacuum_leaves_no_byte_in_postgresqls_files(memory_options: MemoryOptions, postgres_url: str) -> None:
    """VACUUM removes dead rows and planner statistics; the receipt names the WAL."""
    [(folder,)] = query(postgres_url, "SHOW data_directory")
    async with open_memory(postgres_url, options=memory_options) as memory:
        await live(memory)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ANALYZE")
            connection.execute("CHECKPOINT")
        assert await asyncio.to_thread(files_with, Path(str(folder)))
        receipt = await memory.erase(user_id=ANN, vacuum=True)
        assert receipt.complete
        assert "the WAL of PostgreSQL until it is recycled" in receipt.not_reached
        assert await memory.session("telegram:3", user_id=BOB).count() == 1
    assert await asyncio.to_thread(files_with, Path(str(folder))) == []


async def test_a_vacuum_needs_no_right_to_request_a_checkpoint(
    memory_options: MemoryOptions, postgres_url: str
) -> None:
    for kind in ("TABLES", "SEQUENCES"):
        execute(postgres_url, f"GRANT ALL ON ALL {kind} IN SCHEMA public TO pg_read_all_settings")
    address = f"{postgres_url}&options=-crole%3Dpg_read_all_settings"
    async with open_memory(address, options=memory_options) as memory:
        await memory.session("room:1", user_id=ANN).append([said("hello")])
        receipt = await memory.erase(user_id=ANN, vacuum=True)
        assert receipt.complete


def files_with(folder: Path) -> list[str]:
    """Return the files of a PostgreSQL server, except its WAL, that have the words of the person."""
    files = [path for path in folder.rglob("*") if path.is_file() and "pg_wal" not in path.parts]
    return [str(path) for path in files if CANARY.encode() in path.read_bytes()]


async def test_pending_turns_of_dead_processes_are_erased(tmp_path: Path, memory_options: MemoryOptions) -> None:
    url = f"sqlite:///{tmp_path}/threadkeep.db"
    options = replace(memory_options, background=False)
    async with open_memory(url, options=options) as memory:
        assert memory_options.pending.folder is not None
        folder = folder_of(parse_address(url), memory_options.pending.folder)
        spool = SpoolFile.create(folder)
        for name, user in (("one", ANN), ("two", BOB)):
            message = Message(role="user", content=f"{CANARY} {name}" if user == ANN else name, id=name)
            spool.keep(PendingTurn(name, Turn(f"room:{name}", (message,), user), datetime.now(UTC)))
        spool.close()
        receipt = await memory.erase(user_id=ANN)
        assert {store.name: store.before for store in receipt.stores}["pending turns"] == 1
        assert receipt.complete
    content = b"".join(await asyncio.to_thread(lambda: [path.read_bytes() for path in folder.iterdir()]))
    assert CANARY.encode() not in content
    assert b"two" in content


async def test_a_delivered_turn_is_in_no_pending_file(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """A delivered turn leaves the pending file even if another, refused turn in the same file still waits."""
    outage = Outage(tmp_path / "threadkeep.db")
    options = replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05))
    async with open_memory(outage.url, options=options) as memory:
        await memory.session("room:two", user_id=BOB).append([said("hello")])
        async with outage():
            await memory.session("room:one", user_id=ANN).record([said(f"{CANARY} waits")])
            await memory.session("room:two", user_id="carol").record([said("carol waits")])
        await until(lambda: [entry.refused for entry in memory.pending.entries] == [True])
        assert (await memory.erase(user_id=ANN)).complete
        assert [name for name, content in bytes_below(tmp_path).items() if CANARY.encode() in content.lower()] == []


async def test_unreadable_lines_of_dead_processes_are_named(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """A memory without background work reports unreadable pending lines, which it does not take over."""
    url = f"sqlite:///{tmp_path}/threadkeep.db"
    async with open_memory(url, options=replace(memory_options, background=False)) as memory:
        folder = folder_of(parse_address(url), memory_options.pending.folder)
        SpoolFile.create(folder / "agents").path.write_text(f"#{CANARY}\n")
        receipt = await memory.erase(user_id=ANN)
        assert any("1 unreadable lines of pending files" in one for one in receipt.not_reached)


def bytes_below(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
