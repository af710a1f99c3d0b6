"""Tests of the transactions of a turn: a turn needs few of them, and a process that lost its run stores nothing."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from tests.agent.talking import ask, kept, make_agent
from tests.databases import query
from tests.recorded_events import RecordedEvents
from tests.runs.chatting import ROOM, WATCHFUL, Chats, said
from tests.runs.checkpointing import CountingSaver
from tests.runs.desk import QUICK, RunDesk, eventually
from threadkeep import Memory, MemoryOptions, SessionMemory, open_memory
from threadkeep.agent.turn_options import ChatOptions
from threadkeep.history.pending import Join
from threadkeep.history.session import BegunTurn, Session
from threadkeep.records import Turn
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.tracing import Debounced
from threadkeep.store.address import parse_address
from threadkeep.testing import Gate, ScriptedModel

ID = "telegram:42"
_HEADER, _FRAME = 32, 24
TRANSACTIONS = """
    SELECT m.xmin, r.xmin, t.xmin, c.xmin
    FROM chat_messages m JOIN chat_runs r ON r.run_id = m.run_id JOIN chat_run_traces t ON t.run_id = r.run_id
    JOIN chat_manifests c ON c.run_id = r.run_id
    WHERE m.role = 'assistant'
"""


def commits(url: str) -> int:
    """Return the number of transactions in the log of a SQLite file.

    The header of the last frame of a transaction holds the size of the file.
    """
    database = parse_address(url).path
    assert database is not None
    log = database.with_name(f"{database.name}-wal").read_bytes()
    step = _FRAME + struct.unpack_from(">I", log, 8)[0]
    frames = range(_HEADER, len(log) - step + 1, step)
    return sum(struct.unpack_from(">I", log, at + 4)[0] > 0 for at in frames)


async def test_an_answer_is_stored_with_the_end_of_its_run(
    postgres_url: str, memory_options: MemoryOptions, make_chat: Chats
) -> None:
    """One transaction stores the answer, the end of the run, the trace and the manifest of the model call."""
    async with open_memory(postgres_url, options=memory_options) as memory:
        await make_chat(memory, ScriptedModel(["hello"])).ask(said("hi", ID))
        [transactions] = query(postgres_url, TRANSACTIONS)
        assert len({str(one) for one in transactions}) == 1


async def test_a_trace_that_was_stored_during_the_model_call_ends_in_the_same_transaction(
    postgres_url: str, memory_options: MemoryOptions, make_chat: Chats
) -> None:
    """The complete trace replaces the rows that were stored during the model call, in the transaction of the answer."""
    early, gate = replace(QUICK, late_trace_seconds=0.001), Gate()
    async with open_memory(postgres_url, options=memory_options) as memory:
        turn = make_chat(memory, ScriptedModel([[gate, "hello"]]), runs=early).begin(said("hi", ID))
        await gate.reached()

        async def is_stored() -> bool:
            return bool(query(postgres_url, "SELECT 1 FROM chat_run_events"))

        await eventually(is_stored)
        gate.open()
        answer = await turn.answer()
        [transactions] = query(postgres_url, TRANSACTIONS)
        assert len({str(one) for one in transactions}) == 1
        assert query(postgres_url, "SELECT 1 FROM chat_run_events") == []
        events = await memory.runs.trace.events(answer.run_id)
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert [event.kind for event in events][:2] == ["status", "node_started"]
        assert events[-1].data["status"] == "done"


async def test_a_trace_that_is_due_at_the_end_of_a_turn_is_stored_once(
    postgres_url: str, memory_options: MemoryOptions, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of the trace that is due during the transaction of the answer waits for it, and then stores nothing."""
    timers: list[Debounced] = []
    disarm = Debounced.disarm

    def disarm_noted(self: Debounced) -> None:
        timers.append(self)
        disarm(self)

    async with open_memory(postgres_url, options=memory_options) as memory:
        monkeypatch.setattr(Debounced, "disarm", disarm_noted)
        record = memory.pending.record_joined

        async def record_late(turn: Turn, join: Join) -> object:
            answers = turn.messages[-1].role == "assistant"
            if answers:
                timers[-1].within(0)
            for _ in range(20 * answers):
                if query(postgres_url, "SELECT 1 FROM chat_run_events"):
                    break
                await asyncio.sleep(0.01)
            return await record(turn, join)

        monkeypatch.setattr(memory.pending, "record_joined", record_late)
        answer = await make_chat(memory, ScriptedModel(["hello"])).ask(said("hi", ID))
        [transactions] = query(postgres_url, TRANSACTIONS)
        assert len({str(one) for one in transactions}) == 1
        assert query(postgres_url, "SELECT 1 FROM chat_run_events") == []
        events = await memory.runs.trace.events(answer.run_id)
        assert [event.number for event in events] == list(range(1, len(events) + 1))


async def test_a_queued_turn_is_told_as_it_ends(
    memory: Memory, database_url: str, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its question is not stored early in vain, and its answer is marked as told in the transaction of its end."""
    begun, begin = list[str](), Session.begin_joined

    def begin_noted(session: Session, *given: Any, **options: Any) -> Awaitable[BegunTurn | None]:
        begun.append(session.session_id)
        return begin(session, *given, **options)

    async def no_tell(*_: object) -> None:
        raise AssertionError("the answer is marked in a transaction of its own")

    monkeypatch.setattr(Session, "begin_joined", begin_noted)
    monkeypatch.setattr(Session, "tell", no_tell)
    gate = Gate()
    chat = make_chat(memory, ScriptedModel([[gate, "one"], "two"]))
    turns = [chat.begin(said("first"))]
    await gate.reached()
    turns.append(chat.begin(said("second")))

    async def is_queued() -> bool:
        return query(database_url, "SELECT 1 FROM chat_runs WHERE status = 'queued'") == [(1,)]

    await eventually(is_queued)
    assert begun == [ROOM]
    gate.open()
    assert [(await turn.answer()).response for turn in turns] == ["one", "two"]
    assert query(database_url, "SELECT count(*) FROM chat_messages WHERE told_at IS NOT NULL") == [(2,)]


async def test_a_queued_run_is_not_told_if_its_caller_has_left(
    memory: Memory, database_url: str, events: RecordedEvents
) -> None:
    gate = Gate()
    desk = RunDesk(memory, ScriptedModel([[gate, "one"], "two"]), events)
    first, second = (RunRequest(workflow="desk", text=text, session_id=ROOM) for text in ("hi", "and"))
    async with desk.open("schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}") as service:
        begun = await service.submit(first)
        answering = asyncio.create_task(service.result(begun.run_id))
        await gate.reached()
        queued = await service.submit(second)
        left = asyncio.create_task(service.result(queued.run_id))
        await asyncio.sleep(0.1)
        left.cancel()
        gate.open()
        assert (await answering).text == "one"

        async def is_answered() -> bool:
            return [one.content for one in await memory.session(ROOM).tail(9)] == ["hi", "one", "and", "two"]

        await eventually(is_answered)
    assert query(database_url, "SELECT run_id FROM chat_messages WHERE told_at IS NOT NULL") == [(begun.run_id,)]


async def test_a_queued_run_ends_with_its_answer_and_looks_for_no_checkpoints(
    postgres_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """A run that was not executed before reads no checkpoints and deletes none."""
    async with open_memory(postgres_url, options=memory_options) as memory:
        saver = CountingSaver()
        desk = RunDesk(memory, ScriptedModel(["hello"]), events, saver=saver)
        async with desk.open("schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}") as service:
            request = RunRequest(workflow="desk", text="hi", session_id="room")
            queued = await service.submit(request, mode="background")
            assert (await service.result(queued.run_id)).text == "hello"
        [transactions] = query(postgres_url, TRANSACTIONS)
        assert len({str(one) for one in transactions}) == 1
        assert saver.asked == []


async def test_a_turn_takes_few_transactions(sqlite_url: str, memory_options: MemoryOptions, make_chat: Chats) -> None:
    """One transaction begins a turn and one ends it. The first turn also stores the version of the workflow."""
    async with open_memory(sqlite_url, options=memory_options) as memory:
        chat = make_chat(memory, ScriptedModel(["one", "two", "three"]))
        await chat.ask(said("hi", "1"))
        before = commits(sqlite_url)
        for number in ("2", "3"):
            await chat.ask(said("and", number))
        assert await memory.manifests.flush()
        assert commits(sqlite_url) - before == 2 * 2
        assert len(await kept(memory, ROOM)) == 6


async def test_a_window_that_moves_takes_no_transaction_of_its_own(
    sqlite_url: str, memory_options: MemoryOptions, make_chat: Chats
) -> None:
    """The anchor of the window is stored with the answer, by a run and by an agent without a run."""
    async with open_memory(sqlite_url, options=memory_options) as memory:
        chat = make_chat(memory, ScriptedModel([f"answer {n}" for n in range(8)]), ChatOptions(max_messages=4))
        await chat.ask(said("hi", "0"))
        before = commits(sqlite_url)
        for number in range(1, 8):
            await chat.ask(said("and", str(number)))
        assert await memory.manifests.flush()
        assert commits(sqlite_url) - before == 7 * 2
        assert query(sqlite_url, "SELECT seq > 8 FROM chat_anchors") == [(1,)]
    nothing = replace(memory_options, background=False, manifest_retention_days=0)
    async with open_memory(sqlite_url, options=nothing) as memory:
        agent = make_agent(ScriptedModel(["answer"] * 8), [SessionMemory(memory, max_messages=4)])
        await ask(agent, "hi", thread_id="agent")
        before = commits(sqlite_url)
        for _ in range(7):
            await ask(agent, "and", thread_id="agent")
        assert commits(sqlite_url) - before == 7 * 2
        assert query(sqlite_url, "SELECT seq > 8 FROM chat_anchors WHERE session_id = 'agent'") == [(1,)]


async def test_a_process_that_lost_its_run_stores_no_answer(
    shared_url: str, memory_options: MemoryOptions, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        memories = [await stack.enter_async_context(open_memory(shared_url, options=memory_options)) for _ in "ab"]
        late, waiting, refused = Gate(), Gate(), asyncio.Event()
        record = memories[0].pending.record_joined

        async def record_joined(turn: Turn, join: Join) -> object:
            stored = await record(turn, join)
            refused.set()
            return stored

        monkeypatch.setattr(memories[0].pending, "record_joined", record_joined)
        turn = make_chat(memories[0], ScriptedModel([["hello from ", late, "the late one"]])).begin(said("hi", ID))
        await late.reached()
        monkeypatch.setattr("threadkeep.runs.engine.engine._names", set())
        other = make_chat(memories[1], ScriptedModel([["he", waiting, "llo"]]), runs=WATCHFUL).begin(said("hi", ID))
        await waiting.reached()
        late.open()
        await refused.wait()
        for _ in range(20):
            assert await kept(memories[0], ROOM) == [("user", "hi")]
        waiting.open()
        assert [(await one.answer()).response for one in (other, turn)] == ["hello", "hello"]
        assert await kept(memories[0], ROOM) == [("user", "hi"), ("assistant", "hello")]
