"""How runs wait, go on, are stopped and end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.store.running import asked, begun, in_room
from threadkeep import Memory
from threadkeep.records.runs import NotYet, Run, RunEnd
from threadkeep.testing import SettableClock


async def run_of(memory: Memory, run_id: str) -> Run:
    """The run, which is there."""
    found = await memory.runs.run(run_id)
    assert found is not None
    return found


async def test_only_its_owner_ends_a_run(memory: Memory, clock: SettableClock) -> None:
    """And once; the same again, whose first answer was lost, is no other end."""
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
    """The next turn goes on meanwhile; the answer lets it arrive anew, once."""
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
async def test_a_run_that_did_not_succeed_is_tried_again(memory: Memory, end: RunEnd) -> None:
    """At the end of its session's order, with all its tries."""
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


async def test_a_run_that_nobody_carries_out_is_set_aside(memory: Memory) -> None:
    """Whoever had it; the next turn begins, and a person may have it tried again."""
    await memory.runs.order.add(asked("r1"), owner="dead")
    await memory.runs.order.add(asked("r2"))
    assert await memory.runs.set_aside("r1", "GaveUp")
    assert not await memory.runs.set_aside("r1", "GaveUp")
    run = await run_of(memory, "r1")
    assert (run.status, run.error, run.set_aside) == ("failed", "GaveUp", True)
    assert not await memory.runs.finish("r1", "dead", "done")
    await begun(memory, "r2")
    assert await memory.runs.retry("r1")


async def test_a_cancel_goes_down_the_tree(memory: Memory, clock: SettableClock) -> None:
    """In one step: what nobody carries out ends, what is at work is told, what is over or beside it stays."""
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


async def test_a_turn_that_is_to_stop_holds_its_place(memory: Memory) -> None:
    """Until it has let go: two turns of a session never overlap."""
    await memory.runs.order.add(asked("r1"), owner="me")
    await memory.runs.order.add(asked("r2"))
    await memory.runs.order.add(asked("r3"))
    assert await memory.runs.request_cancel("r2") == ["r2"]
    assert await memory.runs.request_cancel("r1") == ["r1"]
    assert isinstance(await memory.runs.order.begin("r3", "me"), NotYet)
    await memory.runs.finish("r1", "me", "cancelled")
    await begun(memory, "r3")


async def test_cancels_and_children_meet_at_once(memory: Memory) -> None:
    """However they fall, no child is left that nobody stops."""
    await memory.runs.order.add(asked("top"), owner="me")
    child = replace(asked("c", session=None), parent_run_id="top", trigger="child")
    adding = [memory.runs.order.add(replace(child, run_id=f"c{n}")) for n in range(12)]
    await asyncio.gather(*adding[:6], memory.runs.request_cancel("top"), memory.runs.owners(), *adding[6:])
    tree = await memory.runs.records.tree("top")
    assert len(tree) == 13
    assert {run.status for run in tree[1:]} == {"cancelled"}


async def test_a_process_learns_of_what_it_lost(memory: Memory, clock: SettableClock) -> None:
    """Runs that another has taken over, and those that went with their session, are missing among its own."""
    for session in ("a", "b", "room"):
        await memory.runs.order.add(asked(session, session=session), owner="me")
    await memory.runs.disown("me")
    await begun(memory, "a", "another")
    await memory.session("b").delete()
    assert await memory.runs.held_by("me") == {"room": None}
    assert not await memory.runs.finish("b", "me", "done")
    assert [run.run_id for run in (await memory.runs.records.runs(in_room("running")))[0]] == ["room"]


async def test_only_its_owner_gives_a_run_another_version(memory: Memory) -> None:
    """Nobody writes into a run that is another's, or over."""
    await memory.runs.order.add(asked("r1"), owner="me")
    assert not await memory.runs.begin_with("r1", "another", "2")
    assert await memory.runs.begin_with("r1", "me", "2")
    assert (await run_of(memory, "r1")).version == "2"
    await memory.runs.finish("r1", "me", "done")
    assert not await memory.runs.begin_with("r1", "me", "3")
