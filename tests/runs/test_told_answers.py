"""Tests of messages that two processes answered: every caller and the run get the answer that is current."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from tests.runs.chatting import ROOM, WATCHFUL, Chats, events_of, said
from tests.runs.desk import QUICK, RunDesk, eventually
from threadkeep import Memory, MemoryOptions, Message, Session, SessionMemory, StoreUnavailable, open_memory
from threadkeep.records import Turn
from threadkeep.records.runs import NewRun, Run, RunQuery
from threadkeep.runs.chat_turns import ChatAnswer
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.store.driver import StoreOptions
from threadkeep.store.postgres import PostgresDriver
from threadkeep.store.sqlite import SqliteDriver
from threadkeep.testing import Gate, ScriptedModel

AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}"


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    """Return a SQLite file that two memories open, as two processes do."""
    return Outage(tmp_path / "threadkeep.db")


@pytest.fixture
async def memory(
    outage: Outage, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Memory]:
    """Open a memory with a short lock timeout that delivers pending turns only if the test does so.

    Its wait for a database that was locked before is long. On a busy machine a short wait looks like another outage.
    """
    monkeypatch.setattr("threadkeep.history.pending.WAIT_SECONDS_IN_AN_OUTAGE", 5.0)
    pending = replace(
        memory_options.pending, write_timeout_seconds=5.0, first_pause_seconds=600.0, longest_pause_seconds=600.0
    )
    options = replace(memory_options, pending=pending, store=StoreOptions(lock_timeout_seconds=0.3))
    async with open_memory(outage.url, options=options) as opened:
        yield opened


@pytest.mark.slow
async def test_an_answer_of_an_outage_is_superseded_by_a_delivered_one(
    memory: Memory, outage: Outage, make_chat: Chats
) -> None:
    """A pending answer is superseded by a stored answer that a caller got.

    A repeat and the run return the stored one, even in this process.
    """
    gate = Gate()
    chat = make_chat(memory, ScriptedModel([[gate, "mine"]]))
    # The reference to the turn keeps the run's stream in this process until the end of the test.
    turn = chat.begin(said("hi", "1"), stream=False)
    await gate.reached()
    async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
        answer = Message("assistant", "theirs", answers="1", author="answer")
        await elsewhere.session(ROOM).record([answer], answers="1", told=True)
    async with outage():
        gate.open()
        assert (await turn.answer()).response == "mine"
    assert await memory.pending.deliver()

    async def run_is_over() -> bool:
        runs, _ = await memory.runs.records.runs(RunQuery(session_id=ROOM))
        return all(run.over for run in runs)

    await eventually(run_is_over)
    again = await chat.ask(said("hi", "1"))
    run = await memory.runs.run(again.run_id)
    assert run is not None
    assert (again.response, run.result and run.result["text"]) == ("theirs", "theirs")
    assert [message.content for message in await memory.session(ROOM).tail(9)] == ["hi", "theirs"]


@pytest.mark.parametrize("told", [False, True])
async def test_an_agent_returns_the_current_answer_after_an_outage(memory: Memory, outage: Outage, told: bool) -> None:
    """A stored answer of another process replaces the agent's pending one only if a caller got it."""
    model = ScriptedModel([])
    agent = create_agent(model, middleware=[SessionMemory(memory)], name="answer")
    config: RunnableConfig = {"configurable": {"thread_id": ROOM}}
    question = HumanMessage("hi", id="1")
    gate = Gate()
    held = create_agent(ScriptedModel([[gate, "mine"]]), middleware=[SessionMemory(memory)], name="answer")
    turn = asyncio.create_task(held.ainvoke({"messages": [question]}, config))
    await gate.reached()
    async with outage():
        gate.open()
        assert (await turn)["messages"][-1].content == "mine"
    async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
        answer = Message("assistant", "theirs", answers="1", author="answer")
        await elsewhere.session(ROOM).record([answer], answers="1", told=told)
    again = await agent.ainvoke({"messages": [question]}, config)
    assert again["messages"][-1].content == ("theirs" if told else "mine")
    assert [one.content for one in await memory.session(ROOM).tail(9)] == ["hi", "theirs" if told else "mine"]
    assert not model.calls


async def test_a_run_returns_the_current_answer(every_desk: RunDesk) -> None:
    """A run whose answer no caller got returns the later answer that a caller got in an outage."""
    request = RunRequest(workflow="desk", text="hi", session_id=ROOM, message_id="1")
    async with every_desk.open(AGENT) as service:
        run_id = (await service.submit(request, mode="background")).run_id
        untold = await service.result(run_id)
        [stored] = await every_desk.memory.session(ROOM).tail(1)
        told = Message("assistant", "told", id="told", answers="1", author=stored.author, confidence=0.5)
        await every_desk.memory.pending.record(Turn(ROOM, (told,), answers="1", told_at=every_desk.memory.clock()))
        found = await service.result(run_id)
    assert untold.text == "reply 1"
    assert (found.text, found.message_id, found.confidence, found.output) == ("told", "told", 0.5, {"text": "told"})


@pytest.mark.parametrize("early", [True, False])
async def test_a_run_whose_pending_answer_lost_returns_the_stored_one(
    memory: Memory, outage: Outage, events: RecordedEvents, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """A run returns the delivered answer instead of its own; if a caller got its own before, that is stored, too.

    A run ends before the delivery only if the messages cannot be written although the tables of runs respond.
    """
    gate, delivered, end = Gate(), asyncio.Event(), memory.runs.end
    desk = RunDesk(memory, ScriptedModel([[gate, "mine"]]), events)
    request = RunRequest(workflow="desk", text="hi", session_id=ROOM, message_id="1")

    async def waits() -> bool:
        return memory.pending.count == 1

    async def late(*arguments: Any) -> Any:
        await delivered.wait()
        return await end(*arguments)

    async def fails(_: Session) -> bool:
        return False

    if early:
        monkeypatch.setattr(Session, "deliver", fails)
    else:
        monkeypatch.setattr(memory.runs, "end", late)
    async with desk.open(AGENT, options=replace(QUICK, keep_progress_seconds=0.0)) as service:
        run_id = (await service.submit(request, mode="background")).run_id
        result = asyncio.create_task(service.result(run_id))
        await gate.reached()
        async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
            answer = Message("assistant", "theirs", answers="1", author="answer")
            await elsewhere.session(ROOM).record([answer], answers="1", told=True)
        async with outage():
            gate.open()
            await eventually(waits)
        if early:
            assert (await result).text == "mine"
        assert await memory.pending.deliver()
        delivered.set()
        assert (await result).text == ("mine" if early else "theirs")
        assert (await service.result(run_id)).text == "theirs"
    stored = await memory.session(ROOM).tail(9, view="history")
    assert [(one.content, one.superseded_at is None) for one in stored] == [
        ("hi", True),
        ("theirs", True),
        *([("mine", False)] if early else []),
    ]


async def test_a_run_whose_message_was_edited_keeps_its_answer(every_desk: RunDesk) -> None:
    request = RunRequest(workflow="desk", text="hi", session_id=ROOM, message_id="1")
    async with every_desk.open(AGENT) as service:
        run_id = (await service.submit(request)).run_id
        assert (await service.result(run_id)).text == "reply 1"
        await every_desk.memory.session(ROOM).edit("1", "hello")
        assert (await service.run(run_id)).result == (await service.result(run_id)).run.result
        assert (await service.result(run_id)).text == "reply 1"


@pytest.mark.slow
async def test_an_answer_of_an_outage_is_kept_after_its_run_was_taken_over(
    memory: Memory, outage: Outage, make_chat: Chats
) -> None:
    """The answer that a caller of the run got in an outage stays in the history, superseded by the stored one."""
    gate = Gate()
    request = NewRun(run_id="taken", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id="1")
    await memory.runs.order.add(request, owner="dead")
    chat = make_chat(memory, ScriptedModel([[gate, "mine"]]), runs=WATCHFUL)
    turn = chat.begin(said("hi", "1"), stream=False)
    await gate.reached()
    async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
        answer = Message("assistant", "theirs", answers="1", author="answer")
        await elsewhere.session(ROOM).record([answer], answers="1", told=True)
    async with outage():
        gate.open()
        assert (await turn.answer()).response == "mine"
    assert await memory.pending.deliver()
    messages = await memory.session(ROOM).tail(9, view="history")
    assert [(one.content, one.superseded_at is None) for one in messages] == [
        ("hi", True),
        ("theirs", True),
        ("mine", False),
    ]


async def test_a_repeat_is_answered_while_no_run_can_be_stored(
    sqlite_memory: Memory, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While runs cannot be stored, a repeat returns the answer of the transcript without a model call."""
    model = ScriptedModel(["first", "second"])
    chat = make_chat(sqlite_memory, model)
    first = await chat.ask(said("hi", "1", user_id="ann"))

    async def failing(*_: object, **__: object) -> None:
        raise StoreUnavailable("The lock is held.")

    async def nothing_stored(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(sqlite_memory.runs.order, "add", failing)
    monkeypatch.setattr(sqlite_memory.pending, "record_joined", nothing_stored)
    again = await chat.ask(said("hi", "1", user_id="ann"))
    assert (again.response, again.run_id, len(model.calls)) == (first.response, first.run_id, 1)
    assert (await chat.ask(said("hi", "1", user_id="bob"))).response == "second"


@contextmanager
def no_database(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each call to a database of this kind fail in the block."""

    def failing(*_: object, **__: object) -> None:
        raise StoreUnavailable("It is down.")

    driver = PostgresDriver if url.startswith("postgres") else SqliteDriver
    with monkeypatch.context() as patch:
        for name in ("reading", "writing", "transaction", "append"):
            patch.setattr(driver, name, failing)
        yield


async def test_a_repeat_in_an_outage_returns_the_stored_answer_if_it_can_be_read_in_the_end(
    database_url: str, memory_options: MemoryOptions, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat returns the stored answer if the database comes back while the model is called again."""
    gate = Gate()
    pending = replace(memory_options.pending, first_pause_seconds=600.0, longest_pause_seconds=600.0)
    async with open_memory(database_url, options=replace(memory_options, pending=pending)) as memory:
        chat = make_chat(memory, ScriptedModel(["first", [gate, "second"]]))
        first = await chat.ask(said("hi", "1", user_id="ann"))
        with no_database(database_url, monkeypatch):
            again = chat.begin(said("hi", "1", user_id="ann"))
            await gate.reached()
        gate.open()
        *_, last = await events_of(again)
        assert isinstance(last, ChatAnswer)
        assert (last.response, last.run_id, last.replaced) == (first.response, first.run_id, True)
        assert [message.content for message in await memory.session(ROOM).tail(9)] == ["hi", "first"]


async def test_the_next_turn_in_another_process_comes_after_an_answer_of_an_outage(
    database_url: str, memory_options: MemoryOptions, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose answer is pending writes it before it ends, because the next turn begins then."""
    gate = Gate()
    model = ScriptedModel([[gate, "first"], "second"])  # either process may execute the second turn
    pending = replace(memory_options.pending, first_pause_seconds=600.0, longest_pause_seconds=600.0)
    options = replace(memory_options, pending=pending)
    async with open_memory(database_url, options=options) as one, open_memory(database_url, options=options) as other:
        first = make_chat(one, model).begin(said("one", "1"))
        await gate.reached()

        async def is_pending() -> bool:
            return one.pending.count == 1

        with no_database(database_url, monkeypatch):
            gate.open()
            await eventually(is_pending)
        assert (await make_chat(other, model).ask(said("two", "2"))).response == "second"
        assert (await first.answer()).response == "first"
        assert [message.content for message in await other.session(ROOM).tail(9)] == ["one", "first", "two", "second"]


@pytest.mark.parametrize("ends", [True, False])
async def test_an_answer_that_was_not_stored_is_not_returned(
    memory: Memory, outage: Outage, make_chat: Chats, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """A caller gets the delivered answer if the pending answer of the run lost to it before the caller was answered."""
    gate, delivered, end = Gate(), asyncio.Event(), memory.runs.end
    request = NewRun(run_id="taken", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id="1")
    await memory.runs.order.add(request, owner="dead")
    chat = make_chat(memory, ScriptedModel([[gate, "mine"]]), runs=WATCHFUL)
    turn = chat.begin(said("hi", "1"), stream=False)
    await gate.reached()
    async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
        answer = Message("assistant", "theirs", answers="1", author="answer")
        await elsewhere.session(ROOM).record([answer], answers="1", told=True)

    async def late(*arguments: Any) -> Any:
        await delivered.wait()
        return await end(*arguments)

    async def unread(*_: object, **__: object) -> Run:
        await delivered.wait()
        raise StoreUnavailable("It is down.")

    async def waits() -> bool:
        return memory.pending.count == 1

    monkeypatch.setattr(memory.runs, "end", late)
    if not ends:
        monkeypatch.setattr(RunService, "end_of", unread)
    async with outage():
        gate.open()
        await eventually(waits)
    assert await memory.pending.deliver()
    delivered.set()
    assert (await turn.answer()).response == "theirs"
    assert [message.content for message in await memory.session(ROOM).tail(9)] == ["hi", "theirs"]
