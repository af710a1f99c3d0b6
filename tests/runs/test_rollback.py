"""Tests of `rollback`: a newer message cancels the running turn and supersedes its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from tests.runs.test_own_orders import bot, callback, finding_workflow, spoken
from tests.runs.test_upkeep import BUSY
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.errors import InvalidInput
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.records import Json, Turn
from threadkeep.records.runs import ROLLED_BACK, NewRun
from threadkeep.runs.endings import ActiveRun, RunEndings
from threadkeep.runs.requests import RunRequest
from threadkeep.store.runs import Outcome
from threadkeep.testing import Gate, ScriptedModel, SettableClock
from threadkeep.workflows.nodes.conversations import order_of
from threadkeep.workflows.resources import RunOptions

DEAD = NewRun(run_id="r1", workflow="desk", input={}, session_id="room", message_id="m1")
AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}\noptions: {double_texting: rollback}"


def asking(text: str, message_id: str | None = None, **more: Any) -> RunRequest:
    """Return a message to the session `room`."""
    return RunRequest(workflow="desk", text=text, session_id="room", message_id=message_id, **more)


@pytest.fixture(params=["tables", "graph_store"])
async def any_desk(
    request: pytest.FixtureRequest, shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> AsyncIterator[RunDesk]:
    """Return a desk for each shared database, with the transcripts in tables and in the graph store."""
    options = replace(memory_options, transcripts=request.param)
    async with open_memory(shared_url, observers=[events], options=options) as memory:
        yield RunDesk(memory, ScriptedModel(), events, store=await memory.graph_store())


async def texts(memory: Memory, *, view: Any = "active") -> list[str]:
    """Return the texts of the session `room`."""
    return [message.content for message in (await memory.session("room").page(view=view)).messages]


async def test_the_running_turn_is_rolled_back(any_desk: RunDesk) -> None:
    gate = Gate()
    any_desk.model = ScriptedModel(["hello", ["I will book", gate], "booked for nine"])
    async with any_desk.open(AGENT) as service:
        await carried_out(service, asking("hi"))
        first = await service.submit(asking("a table at eight", stream=True))
        await gate.reached()
        second = await carried_out(service, asking("no, at nine"))
        ended = (await service.result(first.run_id)).run
    assert (ended.status, ended.cancel_reason) == ("cancelled", ROLLED_BACK)
    assert second.text == "booked for nine"
    assert [message.text for message in any_desk.model.calls[-1]] == ["hi", "hello", "no, at nine"]
    assert await texts(any_desk.memory) == ["hi", "hello", "no, at nine", "booked for nine"]
    history = (await any_desk.memory.session("room").page(view="history")).messages
    assert [message.content for message in history if message.superseded_at] == ["a table at eight", "I will book"]
    info = await any_desk.memory.session("room").info()
    assert (info.title, info.message_count) == ("hi", 4)


async def test_waiting_turns_are_rolled_back(any_desk: RunDesk) -> None:
    gate = Gate()
    any_desk.model = ScriptedModel([["one", gate], "three"])
    async with any_desk.open(AGENT.replace("rollback", "enqueue")) as service:
        first = await service.submit(asking("1"))
        await gate.reached()
        second = await service.submit(asking("2"))
        third = await carried_out(service, asking("3", double_texting="rollback"))
        assert third.text == "three"
        statuses = [(await service.result(one.run_id)).status for one in (first, second)]
    assert statuses == ["cancelled", "cancelled"]
    assert await texts(any_desk.memory) == ["3", "three"]
    history = (await any_desk.memory.session("room").page(view="history")).messages
    assert [message.content for message in history if message.superseded_at] == ["1", "2"]


async def test_a_repeat_of_a_rolled_back_message_is_not_answered(any_desk: RunDesk) -> None:
    """A repeat of a message that was rolled back returns the cancelled run, and this run is not retried."""
    gate = Gate()
    any_desk.model = ScriptedModel([["one", gate], "two"])
    async with any_desk.open(AGENT) as service:
        first = await service.submit(asking("1", "m1"))
        await gate.reached()
        await carried_out(service, asking("2", "m2"))
        again = await carried_out(service, asking("1", "m1"))
        with pytest.raises(InvalidInput, match="with a new id"):
            await service.retry(first.run_id)
    assert (again.run.run_id, again.status) == (first.run_id, "cancelled")
    assert await texts(any_desk.memory) == ["2", "two"]


async def test_a_rolled_back_run_that_was_set_aside_is_not_retried(
    any_desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    any_desk.model = ScriptedModel([["one", gate], "two"])
    end = RunEndings.end

    async def failing(self: RunEndings, active: ActiveRun, outcome: Outcome) -> Outcome | None:
        if active.run.message_id == "m1":
            raise ValueError
        return await end(self, active, outcome)

    monkeypatch.setattr(RunEndings, "end", failing)
    async with any_desk.open(AGENT) as service:
        first = await service.submit(asking("1", "m1"))
        await gate.reached()
        await carried_out(service, asking("2", "m2"))
        assert (await service.run(first.run_id)).set_aside
        with pytest.raises(InvalidInput, match="with a new id"):
            await service.retry(first.run_id)


async def test_a_run_that_ends_during_its_rollback_is_rolled_back(
    any_desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is rolled back while it stores its answer is cancelled, and its answer is superseded."""
    end, end_with_answer = any_desk.memory.runs.end, any_desk.memory.pending.record_joined
    arrived, released = asyncio.Event(), asyncio.Event()

    async def slow_end(*arguments: Any) -> Any:
        if not arrived.is_set():
            arrived.set()
            await released.wait()
        return await end(*arguments)

    async def slow_end_with_answer(turn: Turn, join: Any) -> Any:
        if turn.answers is not None and not arrived.is_set():
            arrived.set()
            await released.wait()
        return await end_with_answer(turn, join)

    any_desk.model = ScriptedModel(["one", "two"])
    monkeypatch.setattr(any_desk.memory.runs, "end", slow_end)
    monkeypatch.setattr(any_desk.memory.pending, "record_joined", slow_end_with_answer)
    async with any_desk.open(AGENT) as service:
        first = await service.submit(asking("1"))
        await arrived.wait()
        assert (await texts(any_desk.memory))[:1] == ["1"]
        second = await service.submit(asking("2"))
        released.set()
        assert (await service.result(first.run_id)).status == "cancelled"
        assert (await service.result(second.run_id)).text == "two"
    assert await texts(any_desk.memory) == ["2", "two"]


async def test_a_turn_of_a_dead_process_is_rolled_back_by_the_next_process(
    any_desk: RunDesk, clock: SettableClock
) -> None:
    """The next process supersedes the messages of a rolled-back run whose process died, and only those."""
    memory, order = any_desk.memory, any_desk.memory.runs.order
    await order.add(replace(DEAD, input={"text": "1"}), owner="dead")
    room = memory.session("room")
    await room.append([Message(role="user", content="1", id="m1", run_id="r1")])
    await room.append([Message(role="assistant", content="a reminder", run_id="other")])
    await room.append([Message(role="assistant", content="half", run_id="r1", status="interrupted", answers="m1")])
    any_desk.model = ScriptedModel(["two"])
    async with any_desk.open(AGENT, options=BUSY) as service:
        second = await service.submit(asking("2"))
        clock.advance(60)
        assert (await service.result(second.run_id)).text == "two"
    assert await texts(memory) == ["a reminder", "2", "two"]


async def test_a_turn_whose_key_a_dead_process_determined_is_rolled_back(
    any_desk: RunDesk, clock: SettableClock
) -> None:
    """The next process does not execute the node that determined the key.

    It takes the key from the position of the run.
    """
    memory = any_desk.memory
    asked: dict[str, Json] = {"text": "1", "inputs": {"room": "vip"}}
    found = replace(finding_workflow(), options=RunOptions(double_texting="rollback"))
    dead = replace(DEAD, workflow="finder", version=found.version, input=asked)
    await memory.runs.order.add(dead, owner="dead")
    keeps = memory.has_namespace(any_desk.store, GraphLayout())
    await memory.runs.positions.take("r1", order_of(memory, any_desk.store, GraphLayout(), "vip"))
    vip = (memory if keeps else await memory.namespace(GraphLayout(), any_desk.store)).session("vip")
    await vip.append([Message(role="user", content="1", id="m1", run_id="r1")])
    await vip.append([Message(role="assistant", content="half", run_id="r1", status="interrupted", answers="m1")])
    any_desk.model = ScriptedModel(["two"])
    async with any_desk.open(found, options=BUSY) as service:
        second = RunRequest(workflow="finder", text="2", session_id="room", inputs={"room": "vip"})
        submitted = await service.submit(second)
        clock.advance(60)
        assert (await service.result(submitted.run_id)).text == "two"
    assert [message.text for message in any_desk.model.calls[-1]] == ["2"]
    assert [message.content for message in await vip.tail(9)] == ["2", "two"]


async def test_turns_under_keys_of_agents_are_rolled_back(any_desk: RunDesk) -> None:
    """A rollback supersedes a turn of the same key, in whatever session the newer message is."""
    gate = Gate()
    any_desk.model = ScriptedModel(["hello", ["one", gate], "two"])
    async with any_desk.open(bot("rollback")) as service:
        await carried_out(service, callback("hi"))
        first = await service.submit(callback("1"))
        await gate.reached()
        assert (await carried_out(service, callback("2"))).text == "two"
        assert (await service.result(first.run_id)).status == "cancelled"
    assert [message.text for message in any_desk.model.calls[-1]] == ["hi", "hello", "2"]
    assert await spoken(any_desk.memory, any_desk) == ["hi", "hello", "1", "2", "two"]


async def test_a_run_of_another_process_is_marked(memory: Memory) -> None:
    """A rollback marks a run of another process with its reason, unless a person has cancelled the run before."""
    order = memory.runs.order
    for run_id in ("r1", "r2"):
        await order.add(NewRun(run_id=run_id, workflow="desk", input={"text": "x"}, session_id="room"), owner="other")
    await memory.runs.request_cancel("r1")
    await order.add(NewRun(run_id="r3", workflow="desk", input={"text": "y"}, session_id="room"), policy="rollback")
    assert await memory.runs.held_by("other") == {"r1": "requested"}
    second = await memory.runs.run("r2")
    assert second is not None
    assert (second.status, second.cancel_reason) == ("queued", ROLLED_BACK)
    assert not await memory.runs.finish("r1", "nobody", "done")
