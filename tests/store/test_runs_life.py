"""Tests of the states of runs: waiting, resumed, cancelled, retried and ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from tests.store.running import asked, begun, in_room
from threadkeep import Memory
from threadkeep.errors import StoreUnavailable
from threadkeep.records.runs import DoubleTexting, NotYet, Run, RunEnd, interrupts_of
from threadkeep.store.runs import Runs
from threadkeep.testing import SettableClock


async def run_of(memory: Memory, run_id: str) -> Run:
    """Return the run, which must exist."""
    found = await memory.runs.run(run_id)
    assert found is not None
    return found


async def test_only_its_owner_ends_a_run(memory: Memory, clock: SettableClock) -> None:
    """A run ends once; the same end again succeeds, since its first result may have been lost."""
    await memory.runs.order.add(asked("r1"), owner="me")
    assert not await memory.runs.finish("r1", "another", "done", result={"text": "no"})
    clock.advance(2)
    assert await memory.runs.finish("r1", "me", "failed", error="Timeout", set_aside=True)
    assert await memory.runs.finish("r1", "me", "failed", error="Timeout", set_aside=True)
    assert not await memory.runs.finish("r1", "me", "done", result={"text": "late"})
    run = await run_of(memory, "r1")
    assert (run.status, run.error, run.set_aside, run.result, run.over) == ("failed", "Timeout", True, None, True)
    assert run.ended_at == clock()


async def test_a_run_waits_for_a_person(memory: Memory) -> None:
    """The next turn can begin; an answer enqueues the waiting run again, once."""
    order = memory.runs.order
    await order.add(asked("r1"), owner="me")
    await order.add(asked("r2"))
    assert not await memory.runs.wait("r1", "another", {"question": "sure?"})
    assert await memory.runs.wait("r1", "me", {"question": "sure?"})
    waiting = await run_of(memory, "r1")
    assert (waiting.status, waiting.interrupt, waiting.owner) == ("waiting", {"question": "sure?"}, None)
    assert await memory.runs.held_by("me") == {}
    await begun(memory, "r2")
    assert sorted(await asyncio.gather(*(memory.runs.resume("r1", None) for _ in range(4)))) == [False] * 3 + [True]
    queued = await run_of(memory, "r1")
    assert (queued.status, queued.arrival, queued.resumed, queued.resume_value) == ("queued", 3, True, None)
    assert isinstance(await order.begin("r1", "me"), NotYet)
    await memory.runs.finish("r2", "me", "done")
    again = await begun(memory, "r1")
    assert (again.attempts, again.interrupt) == (1, {"question": "sure?"})
    assert await memory.runs.wait("r1", "me", "once more?")
    assert not (await run_of(memory, "r1")).resumed
    assert not await memory.runs.resume("r2", "yes")


@pytest.mark.parametrize("end", ["failed", "cancelled", "interrupted"])
async def test_an_unsuccessful_run_can_be_retried(memory: Memory, end: RunEnd) -> None:
    """A retry puts the run at the end of its session's queue, with no attempts counted."""
    await memory.runs.order.add(asked("r1"), owner="me")
    await memory.runs.order.add(asked("r2"))
    await memory.runs.finish("r1", "me", end, error="Timeout", set_aside=True)
    assert await memory.runs.retry("r1")
    assert not await memory.runs.retry("r1")
    run = await run_of(memory, "r1")
    assert (run.status, run.arrival, run.attempts, run.error, run.set_aside) == ("queued", 3, 0, None, False)
    assert (run.ended_at, run.cancel_requested_at, run.input) == (None, None, {"text": "hello"})
    await begun(memory, "r2")
    await memory.runs.finish("r2", "me", "done")
    assert not await memory.runs.retry("r2")
    await begun(memory, "r1")


async def test_a_run_can_be_set_aside_whoever_owns_it(memory: Memory) -> None:
    await memory.runs.order.add(asked("r1"), owner="dead")
    await memory.runs.order.add(asked("r2"))
    assert await memory.runs.set_aside("r1", "GaveUp")
    assert not await memory.runs.set_aside("r1", "GaveUp")
    run = await run_of(memory, "r1")
    assert (run.status, run.error, run.set_aside) == ("failed", "GaveUp", True)
    assert not await memory.runs.finish("r1", "dead", "done")
    await begun(memory, "r2")
    assert await memory.runs.retry("r1")


async def test_a_cancel_includes_all_child_runs(memory: Memory, clock: SettableClock) -> None:
    """Runs without an owner end at once, running ones get a request, and finished or sibling runs stay."""
    order = memory.runs.order
    await order.add(asked("top"), owner="a")
    child = replace(asked("c1", session=None), parent_run_id="top", trigger="child")
    await order.add(child, owner="b")
    await order.add(replace(child, run_id="c2"))
    await order.add(replace(child, run_id="c3"), owner="b")
    await order.add(replace(child, run_id="g1", parent_run_id="c1"), owner="c")
    await order.add(replace(child, run_id="g2", parent_run_id="c1"), owner="c")
    await memory.runs.finish("c3", "b", "done")
    await memory.runs.wait("g2", "c", "sure?")
    assert sorted(await memory.runs.request_cancel("c1", reason="deadline")) == ["c1", "g1", "g2"]
    assert await memory.runs.held_by("a") == {"top": None}
    assert sorted(await memory.runs.request_cancel("top")) == ["c1", "c2", "g1", "top"]
    assert await memory.runs.held_by("a") == {"top": "requested"}
    assert await memory.runs.held_by("b") == {"c1": "deadline"}
    runs = {run.run_id: run for run in await memory.runs.records.tree("g1")}
    assert [run.run_id for run in runs.values()] == ["top", "c1", "c2", "c3", "g1", "g2"]
    assert {run_id: run.status for run_id, run in runs.items()} == {
        "top": "running",
        "c1": "running",
        "c2": "cancelled",
        "c3": "done",
        "g1": "running",
        "g2": "cancelled",
    }
    assert (runs["c2"].ended_at, runs["g1"].cancel_requested_at) == (clock(), clock())
    assert not await memory.runs.wait("g1", "c", "sure?")
    assert not await memory.runs.give_back("g1", "c")
    assert await memory.runs.finish("g1", "c", "cancelled")
    assert await memory.runs.request_cancel("never") == []


@pytest.mark.parametrize("policy", ["interrupt", "rollback"])
async def test_the_trace_of_each_ended_run_ends_with_its_status(memory: Memory, policy: DoubleTexting) -> None:
    """This includes a waiting child that a message stops, and a run that is ended for its owner."""
    order, trace = memory.runs.order, memory.runs.trace
    await order.add(asked("top"), owner="me")
    for run_id in ("waits", "new", "runs"):
        child = replace(asked(run_id, session=None), parent_run_id="top", trigger="child")
        await order.add(child, owner=None if run_id == "new" else "me")
    await memory.runs.wait("waits", "me", "sure?")
    await order.add(asked("next"), policy=policy)
    assert (await run_of(memory, "new")).status == "cancelled"
    await memory.runs.finish("runs", "me", "cancelled", error="ParentOver")
    ends = {run_id: [event.data for event in await trace.events(run_id)] for run_id in ("waits", "new", "runs")}
    cancelled = {"status": "cancelled"}
    assert ends == {"waits": [cancelled], "new": [], "runs": [{**cancelled, "error": "ParentOver"}]}


async def test_a_cancelled_child_and_the_runs_above_it_change_together(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies after the commit leaves no run that waits for an answer to a cancelled child."""
    await memory.runs.order.add(asked("top"), owner="me")
    for run_id, parent in (("middle", "top"), ("child", "middle")):
        await memory.runs.order.add(replace(asked(run_id, session=None), parent_run_id=parent), owner="me")
    for run_id in ("child", "middle", "top"):
        await memory.runs.wait(run_id, "me", {"number": 1, "interrupts": [{"id": "q", "value": "sure?"}]})
    monkeypatch.setattr(Runs, "_continue_above", AsyncMock(side_effect=StoreUnavailable("away")))
    with pytest.raises(StoreUnavailable):
        await memory.runs.request_cancel("child")
    runs = {run.run_id: (run.status, interrupts_of(run)) for run in await memory.runs.records.tree("top")}
    assert runs["child"][0] == "cancelled"
    assert [runs["top"], runs["middle"]] == [("queued", [])] * 2


async def test_a_cancelled_turn_blocks_the_next_until_it_ends(memory: Memory) -> None:
    await memory.runs.order.add(asked("r1"), owner="me")
    await memory.runs.order.add(asked("r2"))
    await memory.runs.order.add(asked("r3"))
    assert await memory.runs.request_cancel("r2") == ["r2"]
    assert await memory.runs.request_cancel("r1") == ["r1"]
    assert isinstance(await memory.runs.order.begin("r3", "me"), NotYet)
    await memory.runs.finish("r1", "me", "cancelled")
    await begun(memory, "r3")


async def test_children_added_during_a_cancel_are_cancelled(memory: Memory) -> None:
    await memory.runs.order.add(asked("top"), owner="me")
    child = replace(asked("c", session=None), parent_run_id="top", trigger="child")
    adding = [memory.runs.order.add(replace(child, run_id=f"c{n}")) for n in range(12)]
    await asyncio.gather(*adding[:6], memory.runs.request_cancel("top"), memory.runs.owners(), *adding[6:])
    tree = await memory.runs.records.tree("top")
    assert len(tree) == 13
    assert {run.status for run in tree[1:]} == {"cancelled"}


async def test_a_process_does_not_hold_lost_runs(memory: Memory, clock: SettableClock) -> None:
    """Runs that another process took over, or that were deleted with their session, are not held any more."""
    for session in ("a", "b", "room"):
        await memory.runs.order.add(asked(session, session=session), owner="me")
    await memory.runs.disown("me")
    await begun(memory, "a", "another")
    await memory.session("b").delete()
    assert await memory.runs.held_by("me") == {"room": None}
    assert not await memory.runs.finish("b", "me", "done")
    assert [run.run_id for run in (await memory.runs.records.runs(in_room("running")))[0]] == ["room"]


async def test_only_its_owner_sets_the_version_of_a_run(memory: Memory) -> None:
    await memory.runs.order.add(asked("r1"), owner="me")
    assert not await memory.runs.begin_with("r1", "another", "2")
    assert await memory.runs.begin_with("r1", "me", "2")
    assert (await run_of(memory, "r1")).version == "2"
    await memory.runs.finish("r1", "me", "done")
    assert not await memory.runs.begin_with("r1", "me", "3")
