"""Tests of processes that stall during a turn and continue after another process has taken the turn over."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Literal, Never

import pytest

from tests.agent.talking import kept
from tests.graph_store.damaging import rewrite
from tests.runs.chatting import ROOM, WATCHFUL, Chats, said
from tests.runs.desk import eventually, living_process
from threadkeep import Interrupted, Memory, MemoryOptions, open_memory
from threadkeep.errors import StoreUnavailable
from threadkeep.graph_store.index import SessionIndex
from threadkeep.graph_store.indexed import IndexedTranscripts
from threadkeep.graph_store.writing import ConversationWriter
from threadkeep.history.session import Session
from threadkeep.records import Message
from threadkeep.records.runs import NewRun, Run, RunQuery
from threadkeep.runs.endings import ActiveRun, RunEndings
from threadkeep.runs.service import RunService
from threadkeep.store.runs import Outcome
from threadkeep.store.runs.rows import RunRecords
from threadkeep.store.tables import TableTranscripts
from threadkeep.testing import Gate, ScriptedModel, SettableClock

ID = "telegram:42"


async def test_a_repeat_does_not_wait_for_a_stalled_process_for_ever(sqlite_memory: Memory, make_chat: Chats) -> None:
    """A repeat of a message whose living process stalls raises `Interrupted`. A later repeat gets the answer."""
    async with living_process() as owner:
        new = NewRun(run_id="held", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id=ID)
        await sqlite_memory.runs.order.add(new, owner=owner)
        model = ScriptedModel(["hello"])
        chat = make_chat(sqlite_memory, model, runs=WATCHFUL, elsewhere_seconds=0.05)
        with pytest.raises(Interrupted, match="send the message again"):
            await chat.ask(said("hi", ID))
        assert model.calls == []

    async def is_answered() -> bool:
        with contextlib.suppress(Interrupted):
            return (await chat.ask(said("hi", ID))).response == "hello"
        return False

    await eventually(is_answered)
    assert await kept(sqlite_memory, ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_a_message_behind_a_run_that_nobody_executes_names_the_run(memory: Memory, make_chat: Chats) -> None:
    order, chat = memory.runs.order, make_chat(memory, ScriptedModel([]), elsewhere_seconds=0.05)
    await order.add(NewRun(run_id="queued", workflow="gone", input={"text": "hi"}, session_id=ROOM))
    with pytest.raises(Interrupted, match=r"threadkeep worker.*threadkeep runs cancel queued"):
        await chat.ask(said("hello", ID))
    await memory.runs.note_workflow_gone("queued")
    with pytest.raises(Interrupted, match=r"workflow 'gone'.*threadkeep runs cancel queued"):
        await chat.ask(said("hello", ID))


async def test_a_message_behind_a_turn_of_a_living_process_names_no_run(memory: Memory, make_chat: Chats) -> None:
    """Runs wait behind the turn of the living process, which will execute them: nobody should cancel them."""
    order, chat = memory.runs.order, make_chat(memory, ScriptedModel([]), elsewhere_seconds=0.05)
    async with living_process() as owner:
        held = NewRun(run_id="held", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id=ID)
        await order.add(held, owner=owner)
        await order.add(NewRun(run_id="queued", workflow="chat", input={"text": "hi"}, session_id=ROOM))
        for request in (said("hi", ID), said("hello", "telegram:43")):
            with pytest.raises(Interrupted, match="Another process is answering"):
                await chat.ask(request)


async def test_a_turn_of_a_living_process_is_not_answered_here_if_the_database_fails(
    memory: Memory, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database fails after the wait for the other process. A second answer would be wrong, too."""

    async def failing(_: RunRecords, query: RunQuery) -> Never:
        raise StoreUnavailable("no database")

    model = ScriptedModel(["hello"])
    chat = make_chat(memory, model, elsewhere_seconds=0.05)
    async with living_process() as owner:
        held = NewRun(run_id="held", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id=ID)
        await memory.runs.order.add(held, owner=owner)
        monkeypatch.setattr(RunRecords, "runs", failing)
        with pytest.raises(Interrupted, match="Another process is answering"):
            await chat.ask(said("hi", ID))
    assert model.calls == []


async def test_a_process_that_wakes_up_late_stores_no_second_answer(
    shared_url: str, memory_options: MemoryOptions, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        memories = [await stack.enter_async_context(open_memory(shared_url, options=memory_options)) for _ in "ab"]
        gate = Gate()
        stalled = make_chat(memories[0], ScriptedModel([["hello from ", gate, "the late one"]]))
        turn = stalled.begin(said("hi", ID))
        await gate.reached()
        # Its lease has expired.
        monkeypatch.setattr("threadkeep.runs.engine.engine._names", set())
        other = make_chat(memories[1], ScriptedModel(["hello"]), runs=WATCHFUL)
        assert (await other.ask(said("hi", ID))).response == "hello"
        gate.open()
        await turn.answer()
        assert await kept(memories[0], ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_a_process_that_loses_its_run_at_the_end_returns_only_a_stored_answer(
    shared_url: str, memory_options: MemoryOptions, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that loses its run while it cannot read the owner returns only an answer that is stored."""
    ending, noticed = list[ActiveRun](), asyncio.Event()

    async def not_stored(_: RunEndings, active: ActiveRun, outcome: Outcome) -> bool:
        ending.append(active)
        return False

    async def not_known(_: RunEndings, run: Run) -> bool:
        ending[0].cancel("lost")
        noticed.set()
        return False

    async def unreadable(*_: object, **options: object) -> Run:
        await noticed.wait()
        await asyncio.sleep(0.3)  # until the end of the run has set its outcome
        raise StoreUnavailable("The database does not answer.")

    async def untold(session: Session, message_id: str) -> Message | None:
        if ending[0].stream.outcome is not None:
            raise StoreUnavailable("The database does not answer.")
        return await tell(session, message_id)

    tell = Session.tell
    monkeypatch.setattr(RunEndings, "_end_with_answer", not_stored)
    monkeypatch.setattr(RunEndings, "_is_lost", not_known)
    monkeypatch.setattr(RunService, "end_of", unreadable)
    monkeypatch.setattr(Session, "tell", untold)
    async with open_memory(shared_url, options=memory_options) as memory:
        chat = make_chat(memory, ScriptedModel(["hello", "hello again"]))
        told = (await chat.ask(said("hi", ID))).response
        assert await kept(memory, ROOM) == [("user", "hi"), ("assistant", told)]


_STALLS: tuple[tuple[type[Any], str], ...] = (
    (TableTranscripts, "delete"),
    (TableTranscripts, "reset"),
    (IndexedTranscripts, "delete"),
    (IndexedTranscripts, "reset"),
    (ConversationWriter, "delete"),
    (ConversationWriter, "delete damaged"),
    (ConversationWriter, "reset"),
    (SessionIndex, "delete"),
    (SessionIndex, "hide_summaries"),
)


@pytest.mark.parametrize("where", _STALLS, ids=lambda where: f"{where[0].__name__}-{where[1]}")
async def test_a_deletion_or_reset_that_wakes_up_late_changes_nothing(
    shared_url: str,
    memory_options: MemoryOptions,
    clock: SettableClock,
    make_chat: Chats,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[type[Any], str],
) -> None:
    """A deletion or reset that wakes after another process has done it changes nothing, wherever it stalled."""
    place, (change, *damaged) = where[0], where[1].split()
    gate, stalled = Gate(), list[asyncio.Task[Any]]()
    original = getattr(place, change)

    async def woken(*arguments: Any, **options: Any) -> Any:
        await gate.pass_through()
        return await original(*arguments, **options)

    async def stalling(*arguments: Any, **options: Any) -> Any:
        if stalled:
            return await original(*arguments, **options)
        # The change continues after its caller is cancelled, as in a process that wakes up.
        stalled.append(asyncio.create_task(woken(*arguments, **options)))
        return await asyncio.shield(stalled[0])

    async def is_over() -> bool:
        runs, _ = await memories[1].runs.records.runs(RunQuery(session_id=ROOM, status="running"))
        return runs == []

    transcripts: Literal["tables", "graph_store"] = "tables" if place is TableTranscripts else "graph_store"
    options, replies = replace(memory_options, transcripts=transcripts), ["elsewhere", "again", "and again"]
    async with AsyncExitStack() as stack:
        memories = [await stack.enter_async_context(open_memory(shared_url, options=options)) for _ in "ab"]
        late, model = (
            make_chat(memories[0], ScriptedModel(["hello"])),
            ScriptedModel(replies),
        )
        await late.ask(said("hi", ID))
        if damaged:
            await asyncio.to_thread(rewrite, shared_url, f"{ROOM}__meta__", lambda _: None)
        monkeypatch.setattr(place, change, stalling)
        changing = asyncio.create_task(late.delete(ROOM) if change == "delete" else late.reset(ROOM))
        await gate.reached()
        # Its lease has expired.
        monkeypatch.setattr("threadkeep.runs.engine.engine._names", set())
        other = make_chat(memories[1], model, runs=WATCHFUL)
        await other.ask(said("a first run opens the engine", session_id="room:2"))
        await eventually(is_over)
        clock.advance(seconds=1)
        assert (await other.ask(said("still there?"))).response == "again"
        gate.open()
        await asyncio.gather(changing, *stalled, return_exceptions=True)
        assert (await other.ask(said("what did I ask?"))).response == "and again"
        before = [] if change == "delete" else ["hi", "hello"]
        since = ["still there?", "again", "what did I ask?", "and again"]
        assert [text for _, text in await kept(memories[0], ROOM)] == [*before, *since]
        runs, _ = await memories[1].runs.records.runs(RunQuery(session_id=ROOM, workflow="chat"))
        assert len(runs) == len([*before, *since]) // 2
    assert [message.text for message in model.calls[-1]][-3:] == ["still there?", "again", "what did I ask?"]
    assert "hi" not in [message.text for message in model.calls[-1]]
