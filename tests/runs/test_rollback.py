"""`rollback`: the turn that goes on is ended and taken back, and the new message is answered as if it had not been."""

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
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.records import Json, Turn
from threadkeep.records.runs import ROLLED_BACK, NewRun
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import Gate, ScriptedModel, SettableClock
from threadkeep.workflows.nodes.conversations import order_of
from threadkeep.workflows.resources import RunOptions

DEAD = NewRun(run_id="r1", workflow="desk", input={}, session_id="room", message_id="m1")
AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}\noptions: {double_texting: rollback}"


def asking(text: str, message_id: str | None = None, **more: Any) -> RunRequest:
    """A message in the room."""
    return RunRequest(workflow="desk", text=text, session_id="room", message_id=message_id, **more)


@pytest.fixture(params=["tables", "graph_store"])
async def any_desk(
    request: pytest.FixtureRequest, shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> AsyncIterator[RunDesk]:
    """Runs on each database in turn, with transcripts in tables and in the graph store."""
    options = replace(memory_options, transcripts=request.param)
    async with open_memory(shared_url, observers=[events], options=options) as memory:
        yield RunDesk(memory, ScriptedModel(), events, store=await memory.graph_store())


async def texts(memory: Memory, *, view: Any = "active") -> list[str]:
    """What the room has."""
    return [message.content for message in (await memory.session("room").page(view=view)).messages]


async def test_the_turn_that_goes_on_is_taken_back(any_desk: RunDesk) -> None:
    """Its question and what was said of its answer are superseded, and the next model call sees nothing of it."""
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


async def test_messages_that_wait_are_taken_back_as_well(any_desk: RunDesk) -> None:
    """Only the newest is answered; a turn that was complete before stays."""
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


async def test_a_message_that_was_taken_back_is_not_answered_when_it_comes_again(any_desk: RunDesk) -> None:
    """A platform delivers at least once: the repeat is the run that was cancelled."""
    gate = Gate()
    any_desk.model = ScriptedModel([["one", gate], "two"])
    async with any_desk.open(AGENT) as service:
        first = await service.submit(asking("1", "m1"))
        await gate.reached()
        await carried_out(service, asking("2", "m2"))
        again = await carried_out(service, asking("1", "m1"))
    assert (again.run.run_id, again.status) == (first.run_id, "cancelled")
    assert await texts(any_desk.memory) == ["2", "two"]


async def test_a_run_that_comes_to_its_end_meanwhile_is_taken_back_all_the_same(
    any_desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer comes and is told to nobody; no process was told yet that it is to be stopped."""
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


async def test_a_turn_whose_process_died_is_taken_back_by_the_one_that_takes_it_over(
    any_desk: RunDesk, clock: SettableClock
) -> None:
    """The reason stands with the run; a turn that another process has stored meanwhile stays."""
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


async def test_a_key_that_a_node_of_the_dead_process_found_is_taken_back_too(
    any_desk: RunDesk, clock: SettableClock
) -> None:
    """The process that takes the run over does not come to that node: the key is in the order of turns."""
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


async def test_conversations_under_own_keys_are_taken_back_too(any_desk: RunDesk) -> None:
    """Whatever session the newer message is in."""
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
    """Its owner sees why it is to stop; a run that a person stopped before keeps that reason."""
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
