"""Tests of lost replies of the database: a statement succeeds, but the process gets an error."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.agent.talking import kept
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from tests.runs.chatting import ROOM, Chats, said
from tests.runs.desk import QUICK, RunDesk, carried_out, eventually
from threadkeep import Memory
from threadkeep.errors import StoreUnavailable
from threadkeep.history.session import Session
from threadkeep.observe import RunFinished, TurnFinished
from threadkeep.records.runs import Run, RunQuery
from threadkeep.runs.chat_turns import ChatAnswer, ChatAnswers, ChatTurn
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.runs.streams import InFlightMessages
from threadkeep.runs.worker import Worker
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.loading import read_workflow

AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}"
COALESCING = AGENT.replace("nodes:", "options: {double_texting: coalesce}\nnodes:")

ATTENTIVE = replace(QUICK, upkeep_seconds=0.1)

type Verb = Callable[..., Coroutine[Any, Any, Any]]


def losing_the_first_reply(verb: Verb) -> Verb:
    """Return a function that calls `verb`, and raises instead of returning the first result."""
    calls: list[None] = []

    async def unheard(*arguments: Any, **options: Any) -> Any:
        answer = await verb(*arguments, **options)
        calls.append(None)
        if len(calls) == 1:
            raise StoreUnavailable("The connection broke.")
        return answer

    return unheard


def lose_the_first_reply(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first write of a run succeed in the database but fail in the process."""
    order, pending = memory.runs.order, memory.pending
    record, calls = pending.record_joined, itertools.count(1)

    async def unheard(*arguments: Any) -> Any:
        stored = await record(*arguments)
        return None if next(calls) == 1 else stored

    monkeypatch.setattr(order, "add", losing_the_first_reply(order.add))
    monkeypatch.setattr(pending, "record_joined", unheard)


async def test_a_run_whose_insert_reported_an_error_is_executed(
    every_desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stored although `submit` failed is executed by this process, and the next turn waits for it."""
    lose_the_first_reply(every_desk.memory, monkeypatch)
    async with every_desk.open(AGENT, options=ATTENTIVE) as service, asyncio.timeout(HANG_SECONDS):
        with pytest.raises(StoreUnavailable):
            await service.submit(RunRequest(workflow="desk", text="one", session_id="room"))
        result = await carried_out(service, RunRequest(workflow="desk", text="two", session_id="room"))
        assert (result.status, result.text) == ("done", "reply 2")
    assert [text for _, text in await every_desk.transcript("room")] == ["one", "reply 1", "two", "reply 2"]


async def test_a_run_is_executed_once_although_the_reply_to_its_insert_is_late(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """A run that this process has executed before its insert was answered is not executed again."""
    execute, executed, first = Worker.execute, asyncio.Event(), itertools.count(1)
    record = memory.pending.record_joined

    async def noted(self: Worker, run_id: str) -> None:
        await execute(self, run_id)
        executed.set()

    async def late(*arguments: Any, **options: Any) -> Any:
        stored = await record(*arguments, **options)
        if next(first) == 1:
            await executed.wait()
        return stored

    monkeypatch.setattr(Worker, "execute", noted)
    monkeypatch.setattr(memory.pending, "record_joined", late)
    model = ScriptedModel(["hello", "hello again"])
    async with asyncio.timeout(HANG_SECONDS):
        assert (await make_chat(memory, model, runs=ATTENTIVE).ask(said("hi", "1"))).response == "hello"
    assert len(model.calls) == 1
    assert await kept(memory, ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_a_turn_without_a_record_and_its_run_give_one_answer(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, events: RecordedEvents, make_chat: Chats
) -> None:
    """A run whose insert reported an error finds the answer that was given without it, and ends no second turn."""
    lose_the_first_reply(sqlite_memory, monkeypatch)
    chat = make_chat(sqlite_memory, ScriptedModel(["hello", "again", "once more"]), runs=ATTENTIVE)
    async with asyncio.timeout(HANG_SECONDS):
        first = await chat.ask(said("hi", "1"))
        second = await chat.ask(said("and now?", "2"))
        assert (await chat.ask(said("hi", "1"))).response == first.response
    async with asyncio.timeout(HANG_SECONDS):
        while sqlite_memory.pending.entries:
            await sqlite_memory.pending.deliver()
    lines = [text for _, text in await kept(sqlite_memory, ROOM)]
    assert lines == ["hi", first.response, "and now?", second.response]

    async def runs_ended() -> bool:
        return len(events.of(RunFinished)) == 2

    await eventually(runs_ended)
    assert [event.status for event in events.of(TurnFinished)] == ["complete", "complete"]


async def test_a_run_waits_for_its_turn_without_a_record(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """A run waits for the turn that its process executes without a record, so that the model is called once."""
    over, gate = InFlightMessages.wait_for, Gate()
    both_there, calls = asyncio.Event(), itertools.count(1)

    async def heard(self: InFlightMessages, run: Run) -> None:
        # The turn without a record calls this first, then the run.
        if next(calls) == 2:
            both_there.set()
        await over(self, run)

    lose_the_first_reply(sqlite_memory, monkeypatch)
    monkeypatch.setattr(InFlightMessages, "wait_for", heard)
    model = ScriptedModel([[gate, "hello"], "again"])
    chat = make_chat(sqlite_memory, model, runs=ATTENTIVE)
    async with asyncio.timeout(HANG_SECONDS):
        asking = asyncio.create_task(chat.ask(said("hi", "1")))
        await gate.reached()
        await both_there.wait()
        gate.open()
        assert (await asking).response == (await chat.ask(said("hi", "1"))).response == "hello"
    assert len(model.calls) == 1
    assert [text for _, text in await kept(sqlite_memory, ROOM)] == ["hi", "hello"]


async def test_a_run_waits_for_a_turn_without_a_record_that_has_not_begun(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """The run begins while the turn still looks for a stored answer; on a busy machine that takes a while."""
    over, look, run_begins = InFlightMessages.wait_for, ChatAnswers.stored, asyncio.Event()
    waited: list[bool] = []

    async def heard(self: InFlightMessages, run: Run) -> None:
        is_first = not run_begins.is_set()
        run_begins.set()
        await over(self, run)
        if is_first:
            waited.append(self.has_answered(run))

    async def late(self: ChatAnswers, turn: ChatTurn) -> ChatAnswer | None:
        await run_begins.wait()
        return await look(self, turn)

    lose_the_first_reply(sqlite_memory, monkeypatch)
    monkeypatch.setattr(InFlightMessages, "wait_for", heard)
    monkeypatch.setattr(ChatAnswers, "stored", late)
    model = ScriptedModel(["hello"])
    async with asyncio.timeout(HANG_SECONDS):
        assert (await make_chat(sqlite_memory, model, runs=ATTENTIVE).ask(said("hi", "1"))).response == "hello"

    async def run_waited() -> bool:
        return bool(waited)

    async def run_ended() -> bool:
        return (await sqlite_memory.runs.records.runs(RunQuery(session_id=ROOM)))[0][0].over

    await eventually(run_waited)
    assert waited == [True]
    await eventually(run_ended)
    assert [text for _, text in await kept(sqlite_memory, ROOM)] == ["hi", "hello"]


async def test_a_run_ends_with_the_answer_that_its_caller_got_in_an_outage(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """After an outage during a model call, the run ends with the answer that its caller got in the outage."""
    runs = sqlite_memory.runs
    look, away = runs.run, asyncio.Event()

    async def look_when_it_is_there(run_id: str, *, damaged: bool = False) -> Run | None:
        if away.is_set():
            raise StoreUnavailable("It is down.")
        return await look(run_id, damaged=damaged)

    monkeypatch.setattr(runs, "run", look_when_it_is_there)
    broken, answering = Gate(), Gate()
    model = ScriptedModel([[broken, StoreUnavailable("It is down.")], [answering, "hello"], "hello once more"])
    chat = make_chat(sqlite_memory, model, runs=ATTENTIVE, others=[read_workflow(AGENT)])
    async with asyncio.timeout(HANG_SECONDS):
        asking = asyncio.create_task(chat.ask(replace(said("hi", "1"), workflow="desk")))
        await broken.reached()
        monkeypatch.setattr("threadkeep.runs.streams._LONGEST_PAUSE_SECONDS", 0.1)
        away.set()
        broken.open()
        await answering.reached()
        answering.open()
        heard = await asking
        away.clear()
        assert heard.response == "hello"
        run = (await runs.records.runs(RunQuery(session_id=ROOM)))[0][0]
        while not run.over:
            await asyncio.sleep(0.01)
            run = (await runs.records.runs(RunQuery(session_id=ROOM)))[0][0]
        again = await chat.ask(replace(said("hi", "1"), workflow="desk"))
    assert (run.status, (run.result or {}).get("text"), again.response) == ("done", "hello", "hello")
    assert await kept(sqlite_memory, ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_a_run_of_several_messages_waits_for_each(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """A message whose join was lost is answered once and on its own; the run answers its other messages."""
    order, over, joined = sqlite_memory.runs.order, InFlightMessages.wait_for, asyncio.Event()
    asked, waited_for, first, second = itertools.count(1), asyncio.Event(), Gate(), Gate()
    came_by: list[str] = []

    async def add(*arguments: Any, **options: Any) -> Any:
        added = await verb(*arguments, **options)
        number = next(asked)
        # The first message began a run.
        if number == 1:
            joined.set()
        if number == 2:
            raise StoreUnavailable("The connection broke.")
        return added

    async def heard(self: InFlightMessages, run: Run) -> None:
        if any(one.message_id == "2" for one in run.inputs):
            # The turn without a record calls this first, then the run.
            came_by.append(run.run_id)
        if len(came_by) == 2:
            waited_for.set()
        await over(self, run)

    verb = order.add
    monkeypatch.setattr(order, "add", add)
    monkeypatch.setattr(InFlightMessages, "wait_for", heard)
    model = ScriptedModel([[first, "zero"], [second, "to two"], "to one"])
    chat = make_chat(sqlite_memory, model, runs=ATTENTIVE, others=[read_workflow(COALESCING)])
    async with asyncio.timeout(HANG_SECONDS):
        asking = [asyncio.create_task(chat.ask(replace(said("hi", "0"), workflow="desk")))]
        await first.reached()
        asking.append(asyncio.create_task(chat.ask(replace(said("one", "1"), workflow="desk"))))
        await joined.wait()
        asking.append(asyncio.create_task(chat.ask(replace(said("two", "2"), workflow="desk"))))
        await second.reached()
        first.open()
        await waited_for.wait()
        second.open()
        assert [(await one).response for one in asking] == ["zero", "to one", "to two"]
        again = [await chat.ask(replace(said("?", number), workflow="desk")) for number in ("1", "2")]
        assert [one.response for one in again] == ["to one", "to two"]
        while sqlite_memory.pending.entries:
            await sqlite_memory.pending.deliver()
    assert [call[-1].content for call in model.calls] == ["hi", "two", "one"]
    lines = [text for _, text in await kept(sqlite_memory, ROOM)]
    assert sorted(lines) == ["hi", "one", "to one", "to two", "two", "zero"]


async def test_a_repeat_waits_for_the_running_attempt(desk: RunDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat during a retry follows the running attempt, not the attempt that the outage ended."""
    gate = Gate()
    desk.model = ScriptedModel([StoreUnavailable("down"), [gate, "hello"]])
    request = RunRequest(workflow="desk", text="hi", session_id="room", message_id="1")
    monkeypatch.setattr(desk.memory.runs, "run", losing_the_first_reply(desk.memory.runs.run))
    async with desk.open(AGENT) as service, asyncio.timeout(HANG_SECONDS):
        first = await service.submit(request)
        await gate.reached()
        again = await service.submit(request)
        assert again.stream is first.stream
        assert again.stream.outcome is None
        gate.open()
        assert (await service.result(again.run_id)).text == "hello"


async def test_a_caller_waits_for_the_running_attempt(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch, make_chat: Chats
) -> None:
    """After a short outage, the caller gets the answer of the retried run."""
    gate, waits, again, has = Gate(), itertools.count(1), asyncio.Event(), RunService.has

    @asynccontextmanager
    async def until_the_model_is_called(_session: Session, _seconds: float = 0.0) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(gate.reached())
            watching.add_done_callback(lambda task: None if task.cancelled() else limit.reschedule(0.0))
            try:
                yield
            finally:
                watching.cancel()

    def counted(self: RunService, run_id: str) -> bool:
        if next(waits) == 2:
            again.set()
        return has(self, run_id)

    monkeypatch.setattr(RunService, "has", counted)
    monkeypatch.setattr(Session, "timeout", until_the_model_is_called)
    monkeypatch.setattr(sqlite_memory.runs, "run", losing_the_first_reply(sqlite_memory.runs.run))
    model = ScriptedModel([StoreUnavailable("down"), [gate, "hello"], "again"])
    chat = make_chat(sqlite_memory, model)
    async with asyncio.timeout(HANG_SECONDS):
        asking = asyncio.create_task(chat.ask(said("hi", "1")))
        await again.wait()
        gate.open()
        assert (await asking).response == "hello"
    assert (len(model.calls), next(waits)) == (2, 3)
