"""One question was answered in two processes: everybody is told the answer that stands, and the run has it too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from tests.runs.chatting import ROOM, WATCHFUL, Chats, said
from tests.runs.desk import RunDesk, eventually
from threadkeep import Memory, MemoryOptions, Message, SessionMemory, StoreUnavailable, open_memory
from threadkeep.records import Turn
from threadkeep.records.runs import NewRun, RunQuery
from threadkeep.runs.requests import RunRequest
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import Gate, ScriptedModel

AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}"


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    """A SQLite file that two memories have open, as two processes have."""
    return Outage(tmp_path / "threadkeep.db")


@pytest.fixture
async def memory(
    outage: Outage, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Memory]:
    """A memory that notices a locked database soon, and delivers when the test says so.

    It waits long for a database that was locked before: on a busy machine a short wait looks like another outage.
    """
    monkeypatch.setattr("threadkeep.history.pending.WAIT_SECONDS_IN_AN_OUTAGE", 5.0)
    pending = replace(
        memory_options.pending, write_timeout_seconds=5.0, first_pause_seconds=600.0, longest_pause_seconds=600.0
    )
    options = replace(memory_options, pending=pending, store=StoreOptions(lock_timeout_seconds=0.3))
    async with open_memory(outage.url, options=options) as opened:
        yield opened


@pytest.mark.slow
async def test_an_answer_of_an_outage_gives_way_to_one_that_was_told(
    memory: Memory, outage: Outage, make_chat: Chats
) -> None:
    """A repeat is told the other one, also in the process that told its own before; the run says the same."""
    gate = Gate()
    chat = make_chat(memory, ScriptedModel([[gate, "mine"]]))
    # Held to the end: what is known of the run in this process stays known.
    turn = chat.begin(said("hi", "1"), stream=False)
    await gate.reached()
    async with outage():
        gate.open()
        assert (await turn.answer()).response == "mine"
    async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
        answer = Message("assistant", "theirs", answers="1", author="answer")
        await elsewhere.session(ROOM).record([answer], answers="1", told=True)
    assert await memory.pending.deliver()

    async def run_is_over() -> bool:
        runs, _ = await memory.runs.records.runs(RunQuery(session_id=ROOM))
        return all(run.over for run in runs)

    await eventually(run_is_over)
    again = await chat.ask(said("hi", "1"))
    assert again.response == "theirs"
    assert [message.content for message in await memory.session(ROOM).tail(9)] == ["hi", "theirs"]


@pytest.mark.parametrize("told", [False, True])
async def test_an_agent_that_is_asked_again_after_an_outage_says_the_answer_that_stands(
    memory: Memory, outage: Outage, told: bool
) -> None:
    """Its own waits to be written; another process stored one, which stands only if a person was told it."""
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


async def test_a_run_says_the_answer_that_stands(every_desk: RunDesk) -> None:
    """It ended with an answer that nobody was told; the one that a person was told in an outage came later."""
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


async def test_a_run_whose_answer_was_never_stored_says_the_one_that_is(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """Nobody was told its own answer, which waited in an outage while a person had been told another one."""
    gate = Gate()
    desk = RunDesk(memory, ScriptedModel([[gate, "mine"]]), events)
    request = RunRequest(workflow="desk", text="hi", session_id=ROOM, message_id="1")

    async def waits() -> bool:
        return memory.pending.count == 1

    async with desk.open(AGENT) as service:
        run_id = (await service.submit(request, mode="background")).run_id
        await gate.reached()
        async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
            answer = Message("assistant", "theirs", answers="1", author="answer")
            await elsewhere.session(ROOM).record([answer], answers="1", told=True)
        async with outage():
            gate.open()
            await eventually(waits)
        await service.result(run_id)
        assert await memory.pending.deliver()
        assert (await service.result(run_id)).text == "theirs"
    assert [message.content for message in await memory.session(ROOM).tail(9)] == ["hi", "theirs"]


async def test_a_run_that_was_answered_again_says_what_it_said(every_desk: RunDesk) -> None:
    """Its answer was superseded as a person wished, and not by another answer that was told first."""
    request = RunRequest(workflow="desk", text="hi", session_id=ROOM, message_id="1")
    async with every_desk.open(AGENT) as service:
        run_id = (await service.submit(request)).run_id
        assert (await service.result(run_id)).text == "reply 1"
        await every_desk.memory.session(ROOM).edit("1", "hello")
        assert (await service.run(run_id)).result == (await service.result(run_id)).run.result
        assert (await service.result(run_id)).text == "reply 1"


@pytest.mark.slow
async def test_an_answer_that_was_told_in_an_outage_is_kept_though_its_run_was_taken_over(
    memory: Memory, outage: Outage, make_chat: Chats
) -> None:
    """A run that is taken over has no caller at first; a person who joined it heard its answer all the same."""
    gate = Gate()
    request = NewRun(run_id="taken", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id="1")
    await memory.runs.order.add(request, owner="dead")
    chat = make_chat(memory, ScriptedModel([[gate, "mine"]]), runs=WATCHFUL)
    turn = chat.begin(said("hi", "1"), stream=False)
    await gate.reached()
    async with outage():
        gate.open()
        assert (await turn.answer()).response == "mine"
    async with open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere:
        answer = Message("assistant", "theirs", answers="1", author="answer")
        await elsewhere.session(ROOM).record([answer], answers="1", told=True)
    assert await memory.pending.deliver()
    messages = await memory.session(ROOM).tail(9, view="history")
    assert [(one.content, one.superseded_at is None) for one in messages] == [
        ("hi", True),
        ("theirs", True),
        ("mine", False),
    ]


async def test_a_repeat_is_told_its_answer_while_no_run_can_be_stored(
    sqlite_memory: Memory, make_chat: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transcript can still be read: the model is not asked once more, and nobody is told another answer."""
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
