"""Tests of unavailable checkpoints: no run waits for them for ever, and the trouble is reported."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from tests.recorded_events import RecordedEvents
from tests.runs.checkpointing import GO, LATE, NEVER, STEPS, CountingSaver, calling, nothing_to_expect, thread_named
from tests.runs.desk import QUICK, RunDesk, eventually
from tests.workflows import tools
from threadkeep.errors import StoreUnavailable
from threadkeep.observe import RunTrouble, RunWorkRecovered
from threadkeep.runs.progress import ProgressSaver, RunProgress
from threadkeep.runs.tracing import RunTracer
from threadkeep.runs.worker import Worker
from threadkeep.testing import Gate, ScriptedModel


@pytest.fixture(autouse=True)
def ran() -> list[str]:
    """Return the names of the executed tools, empty at the beginning."""
    tools.RAN.clear()
    return tools.RAN


async def test_unavailable_checkpoints_stop_no_run(every_desk: RunDesk, saver: CountingSaver) -> None:
    saver.failure = StoreUnavailable("away")
    gate = Gate()
    every_desk.model = ScriptedModel([calling("plain", text="a"), [gate, "well"]])
    async with every_desk.open(STEPS, options=replace(QUICK, progress_seconds=0.0)) as service:
        run = await service.submit(GO)
        await gate.reached()

        async def tried() -> bool:
            return saver.asked != []

        await eventually(tried)
        gate.open()
        assert (await service.result(run.run_id)).text == "well"


async def test_a_failed_run_waits_for_its_checkpoints(
    every_desk: RunDesk, saver: CountingSaver, ran: list[str]
) -> None:
    """The failure of a run is recorded when its checkpoints can be stored."""
    saver.failure = StoreUnavailable("away")
    every_desk.model = ScriptedModel([calling("plain", text="a"), ValueError(), "well"])
    async with every_desk.open(STEPS, options=LATE) as service:
        run = await service.submit(GO)

        async def tried() -> bool:
            return saver.asked != []

        await eventually(tried)
        assert (await service.run(run.run_id)).status == "running"
        saver.failure = None
        assert (await service.result(run.run_id)).status == "failed"
        await service.retry(run.run_id)
        assert (await service.result(run.run_id)).text == "well"
    assert ran == ["plain"]


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_checkpoints_that_stay_unavailable_do_not_hold_a_run_for_ever(
    every_desk: RunDesk, saver: CountingSaver, ending: str
) -> None:
    """A run whose checkpoints stay unavailable ends after a time limit, is reported, and can be retried."""
    saver.failure = StoreUnavailable("away")
    gate = Gate()
    fails = ScriptedModel([calling("plain", text="a"), ValueError(), "well"])
    halts = ScriptedModel([calling("plain", text="a"), [gate, "never"], "well"])
    every_desk.model = fails if ending == "failed" else halts
    async with every_desk.open(STEPS, options=replace(LATE, keep_progress_seconds=0.0)) as service:
        run = await service.submit(GO)
        if ending == "cancelled":
            await gate.reached()
            await service.cancel(run.run_id)
        assert (await service.result(run.run_id)).status == ending
        assert RunTrouble(error="StoreUnavailable", work="keeping_progress") in every_desk.events.of(RunTrouble)
        saver.failure = None
        await service.retry(run.run_id)
        assert (await service.result(run.run_id)).status == "done"


async def test_a_run_that_waits_for_its_checkpoints_can_be_cancelled(every_desk: RunDesk, saver: CountingSaver) -> None:
    saver.failure = StoreUnavailable("away")
    every_desk.model = ScriptedModel([ConnectionError(), "never"])
    async with every_desk.open(STEPS, options=replace(LATE, keep_progress_seconds=0.0)) as service:
        run = await service.submit(GO)

        async def looked_for() -> bool:
            return "read" in saver.asked

        await eventually(looked_for)
        await service.cancel(run.run_id)
        assert (await service.result(run.run_id)).status == "cancelled"


async def test_unavailable_checkpoints_are_reported_once(events: RecordedEvents) -> None:
    """The first run that cannot store checkpoints reports it.

    The first run that can store them again reports the recovery.
    """
    saver = CountingSaver()
    saver.failure = StoreUnavailable("away")
    builder: StateGraph[MessagesState, None, Any, Any] = StateGraph(MessagesState)
    builder.add_node("rest", lambda _: {})
    builder.add_edge(START, "rest")
    progress_saver = ProgressSaver(saver, events, nothing_to_expect, seconds=NEVER)
    graph = builder.compile(checkpointer=progress_saver)
    for name in ("one", "two", "three"):
        progress = RunProgress(progress_saver, name, fresh=True, in_background=lambda _: True)
        with patch.dict(progress_saver.active, {name: progress}):
            await graph.ainvoke({"messages": []}, thread_named(name))
            if name == "three":
                saver.failure = None
                await progress.keep()
            else:
                with pytest.raises(StoreUnavailable):
                    await progress.keep()
        await progress.leave()
    assert [*events.of(RunTrouble), *events.of(RunWorkRecovered)] == [
        RunTrouble(error="StoreUnavailable", work="keeping_progress"),
        RunWorkRecovered(work="keeping_progress"),
    ]


async def test_a_run_that_is_cancelled_twice_stops_storing_checkpoints(
    every_desk: RunDesk, saver: CountingSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry, close, leave = Worker.execute_owned, RunTracer.close, RunProgress.leave
    model_gate, gate, left = Gate(), Gate(), asyncio.Event()
    carrying: list[asyncio.Task[Any]] = []

    async def carried(self: Worker, *arguments: Any, **options: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        carrying.append(task)
        return await carry(self, *arguments, **options)

    async def slow(self: RunTracer) -> None:
        await gate.pass_through()
        await close(self)

    async def leaving(self: RunProgress) -> bool:
        left.set()
        return await leave(self)

    monkeypatch.setattr(Worker, "execute_owned", carried)
    monkeypatch.setattr(RunTracer, "close", slow)
    monkeypatch.setattr(RunProgress, "leave", leaving)
    every_desk.model = ScriptedModel([[model_gate, "never"]])
    async with every_desk.open(STEPS, options=LATE) as service:
        await service.submit(GO)
        await model_gate.reached()
        carrying[0].cancel()
        await gate.reached()
        carrying[0].cancel()
        await asyncio.sleep(0)
        gate.open()
        await asyncio.wait(carrying[:1])
        assert left.is_set()
