"""Tests of the order of turns: runs of a session begin one after the other, in order of arrival."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.children import run_together
from tests.store.running import asked, begun, in_room
from threadkeep import Memory, MemoryOptions, Message, WrongUser, open_memory
from threadkeep.errors import InvalidInput, RunNotFound, SessionBusy
from threadkeep.records.runs import Begun, NewRun, NotYet, Over, Run, RunBudget
from threadkeep.testing import SettableClock

_PROCESSES = 4
_RUNS_EACH = 6


async def test_a_run_is_stored_with_all_fields(memory: Memory, clock: SettableClock) -> None:
    new = replace(
        asked("r1", message="m1", said="你好 \x00"),
        version="v1",
        user_id="u1",
        trigger="webhook",
        budget=RunBudget(max_tokens=1000, max_cost=0.5),
        deadline_at=clock() + timedelta(seconds=60),
    )
    added = await memory.runs.order.add(new)
    run = added.run
    assert added.outcome == "new"
    assert await memory.runs.run("r1") == run
    assert (run.workflow, run.version, run.session_id, run.message_id) == ("support", "v1", "room", "m1")
    assert (run.user_id, run.trigger, run.budget, run.deadline_at) == ("u1", "webhook", new.budget, new.deadline_at)
    assert (run.status, run.arrival, run.attempts, run.root_run_id, run.depth) == ("queued", 1, 0, "r1", 0)
    assert run.input == {"text": "你好 \ufffd"}
    assert (run.created_at, run.started_at, run.owner, run.over) == (clock(), None, None, False)


async def test_a_run_from_a_clock_ahead_is_ready(memory: Memory, clock: SettableClock) -> None:
    """The process of the run died before it enqueued it; others must not wait until their clocks catch up."""
    order = memory.runs.order
    await order.add(asked("r1"))
    assert await order.ready(limit=9, waited_seconds=30) == []
    clock.advance(-3600)
    assert await order.ready(limit=9, waited_seconds=30) == ["r1"]


async def test_turns_begin_in_order_of_arrival(memory: Memory) -> None:
    for run_id in ("r1", "r2"):
        await memory.runs.order.add(asked(run_id))
    await memory.runs.order.add(asked("other", session="hall"))
    second = await memory.runs.order.begin("r2", "me")
    assert isinstance(second, NotYet)
    assert second.behind == "r1"
    assert await memory.runs.order.is_next("r1")
    assert await memory.runs.order.ready(limit=9) == ["other", "r1"]
    first = await begun(memory, "r1")
    assert (first.status, first.owner, first.attempts) == ("running", "me", 1)
    await begun(memory, "other")
    assert await memory.runs.order.following("r1") == []
    assert isinstance(await memory.runs.order.begin("r2", "me"), NotYet)
    assert await memory.runs.finish("r1", "me", "done", result={"text": "yes"})
    assert await memory.runs.order.following("r1") == ["r2"]
    await begun(memory, "r2")
    assert isinstance(await memory.runs.order.begin("r1", "me"), Over)
    assert isinstance(await memory.runs.order.begin("never", "me"), Over)


async def test_a_run_may_begin_when_it_is_added(memory: Memory) -> None:
    """The run begins in the same transaction if no run is before it."""
    first = await memory.runs.order.add(asked("r1"), owner="me")
    assert (first.run.status, first.run.owner, first.run.attempts) == ("running", "me", 1)
    second = await memory.runs.order.add(asked("r2"), owner="me")
    assert second.run.status == "queued"
    again = await memory.runs.order.begin("r1", "me")
    assert again == Begun(first.run)


async def test_the_start_time_is_after_the_end_of_the_previous_turn(memory: Memory, clock: SettableClock) -> None:
    """The start time is not before the end of the previous turn, unless the clock went far back."""
    begin = clock()
    await memory.runs.order.add(asked("r1"), owner="me")
    clock.advance(2)
    assert await memory.runs.finish("r1", "me", "done")
    clock.set(begin + timedelta(seconds=1))
    second = (await memory.runs.order.add(asked("r2"), owner="you")).run
    assert second.started_at == second.heartbeat_at == begin + timedelta(seconds=2)
    clock.advance(2)
    assert await memory.runs.finish("r2", "you", "done")
    clock.set(begin - timedelta(hours=1))
    third = (await memory.runs.order.add(asked("r3"), owner="me")).run
    assert third.started_at == third.heartbeat_at == begin - timedelta(hours=1)


async def test_the_same_message_is_the_same_run(memory: Memory) -> None:
    added = await asyncio.gather(*(memory.runs.order.add(asked(f"r{n}", message="m1")) for n in range(8)))
    assert len({one.run.run_id for one in added}) == 1
    assert sorted(one.outcome for one in added) == ["known"] * 7 + ["new"]
    [run_id] = {one.run.run_id for one in added}
    await begun(memory, run_id)
    await memory.runs.finish(run_id, "me", "done", result={"text": "yes"})
    late = await memory.runs.order.add(asked("late", message="m1"))
    assert (late.outcome, late.run.result) == ("known", {"text": "yes"})
    assert (await memory.runs.order.add(asked(run_id))).outcome == "known"
    lone = [memory.runs.order.add(asked("lone", session=None)) for _ in range(4)]
    assert sorted(one.outcome for one in await asyncio.gather(*lone)) == ["known"] * 3 + ["new"]


async def test_runs_without_a_session_are_in_no_order(memory: Memory) -> None:
    for run_id in ("r1", "r2"):
        await memory.runs.order.add(asked(run_id, session=None))
    for run_id in ("r1", "r2"):
        assert (await begun(memory, run_id)).arrival is None


async def test_a_message_belongs_to_a_session(memory: Memory) -> None:
    with pytest.raises(InvalidInput, match="needs a session_id"):
        asked("r1", session=None, message="m1")
    await memory.session("room", user_id="u1").append([Message(role="user", content="mine")])
    with pytest.raises(WrongUser):
        await memory.runs.order.add(replace(asked("r1"), user_id="u2"))
    assert await memory.runs.run("r1") is None
    assert (await memory.runs.order.add(replace(asked("r1"), user_id="u1"))).outcome == "new"


# A message that arrives while another turn is queued or running.


async def test_messages_join_a_queued_turn(memory: Memory) -> None:
    """Messages join the newest turn that has not begun; a repeat finds the turn that it joined."""
    order = memory.runs.order
    await order.add(asked("r1", message="m1"), policy="coalesce", owner="me")
    assert (await order.add(asked("r2", message="m2", said="two"), policy="coalesce")).outcome == "new"
    joined = await order.add(asked("r3", message="m3", said="three"), policy="coalesce")
    assert (joined.outcome, joined.run.run_id) == ("joined", "r2")
    await order.add(asked("r4", said="four"), policy="coalesce")
    for run_id, message in (("r5", "m3"), ("r4", None), ("r6", "m2")):
        again = await order.add(asked(run_id, message=message), policy="coalesce")
        assert (again.outcome, again.run.run_id) == ("known", "r2")
    grown = await memory.runs.run("r2")
    assert grown is not None
    assert [(given.message_id, given.values["text"]) for given in grown.inputs] == [
        ("m2", "two"),
        ("m3", "three"),
        (None, "four"),
    ]
    await memory.runs.finish("r1", "me", "done")
    await begun(memory, "r2")
    assert (await order.add(asked("r7", message="m7"), policy="coalesce")).outcome == "new"


@pytest.mark.parametrize("other", [{"workflow": "sales"}, {"user_id": "u2"}])
async def test_a_message_joins_only_a_turn_of_its_kind(memory: Memory, other: dict[str, str]) -> None:
    """Workflow and user must be equal, and a message does not join a turn before another one."""
    order = memory.runs.order
    await order.add(asked("r1"), policy="coalesce")
    between = replace(asked("r2"), workflow=other.get("workflow", "support"), user_id=other.get("user_id"))
    assert (await order.add(between, policy="coalesce")).outcome == "new"
    assert (await order.add(asked("r3"), policy="coalesce")).outcome == "new"


async def test_a_message_is_rejected_while_a_turn_is_queued_or_running(memory: Memory) -> None:
    """A turn that waits for a person rejects nothing, and the repeat of an accepted message is accepted."""
    order = memory.runs.order
    await order.add(asked("r1", message="m1"), policy="reject")
    for _ in range(2):
        with pytest.raises(SessionBusy) as busy:
            await order.add(asked("r2", message="m2"), policy="reject")
        assert (busy.value.session_id, busy.value.run_id) == ("room", "r1")
        assert (await order.add(asked("r1", message="m1"), policy="reject")).outcome == "known"
        await order.begin("r1", "me")
    assert await memory.runs.wait("r1", "me", {"question": "sure?"})
    assert (await order.add(asked("r2", message="m2"), policy="reject")).outcome == "new"


async def test_a_message_interrupts_the_running_turn(memory: Memory) -> None:
    """Child runs are interrupted too; the new turn begins when the old one has ended."""
    order = memory.runs.order
    await order.add(asked("r1"), owner="me")
    await order.add(replace(asked("child", session=None), parent_run_id="r1", trigger="child"), owner="me")
    await order.add(asked("r2"), policy="interrupt")
    assert await memory.runs.held_by("me") == {"r1": "interrupted_by_message", "child": "interrupted_by_message"}
    assert isinstance(await order.begin("r2", "me"), NotYet)
    await memory.runs.finish("r1", "me", "interrupted")
    await begun(memory, "r2")


async def test_a_message_interrupts_queued_turns(memory: Memory) -> None:
    """Interrupted queued turns begin in order, only to be ended, and no message joins them."""
    order = memory.runs.order
    await order.add(asked("r1"), owner="me")
    for run_id in ("r2", "r3", "r4"):
        await order.add(asked(run_id), policy="interrupt")
    await memory.runs.request_cancel("r4")
    assert (await order.add(asked("r5"), policy="coalesce")).outcome == "new"
    reasons = []
    for run_id in ("r1", "r2", "r3", "r5"):
        reasons.append((await begun(memory, run_id)).cancel_reason)
        await memory.runs.finish(run_id, "me", "cancelled")
    assert reasons == [*["interrupted_by_message"] * 3, None]


# Child runs.


async def test_a_child_has_a_parent_a_root_and_a_depth(memory: Memory) -> None:
    """A child in its parent's session belongs to that turn; a child in another session is queued there."""
    order = memory.runs.order
    await order.add(asked("r1"), owner="me")
    await order.add(asked("elsewhere", session="hall"))
    child = NewRun(run_id="c1", workflow="sub", input={"text": ""}, parent_run_id="r1", node_id="n", trigger="child")
    lone = (await order.add(child, owner="me")).run
    assert (lone.parent_run_id, lone.root_run_id, lone.depth, lone.node_id) == ("r1", "r1", 1, "n")
    grandchild = replace(child, run_id="c2", parent_run_id="c1", session_id="room")
    inside = (await order.add(grandchild, owner="me", policy="reject")).run
    assert (inside.depth, inside.arrival, inside.status, inside.root_run_id) == (2, None, "running", "r1")
    outside = (await order.add(replace(child, run_id="c3", session_id="hall"), owner="me")).run
    assert (outside.arrival, outside.status) == (2, "queued")
    with pytest.raises(RunNotFound, match="'never'"):
        await order.add(replace(child, run_id="c4", parent_run_id="never"))


async def test_a_child_of_a_cancelled_run_never_begins(memory: Memory) -> None:
    order = memory.runs.order
    await order.add(asked("r1"), owner="me")
    await memory.runs.request_cancel("r1")
    child = replace(asked("c1", session=None), parent_run_id="r1", trigger="child")
    late = (await order.add(child, owner="me")).run
    assert (late.status, late.error) == ("cancelled", "ParentCancelled")
    await memory.runs.finish("r1", "me", "cancelled")
    assert (await order.add(replace(child, run_id="c2"))).run.status == "cancelled"


# Dead owners.


async def test_a_dead_owners_run_is_taken_over(memory: Memory) -> None:
    """Runs can be taken over only after `disown`, which returns each run to one caller."""
    order, runs = memory.runs.order, memory.runs
    for session in ("a", "b"):
        await order.add(asked(session, session=session), owner="first")
    waiting = await order.begin("a", "second")
    assert isinstance(waiting, NotYet)
    assert waiting.behind == "a"
    assert (await runs.owners(), await order.abandoned(limit=9)) == ({"first"}, [])
    handed = await asyncio.gather(*(runs.disown("first") for _ in range(3)))
    assert sorted(run_id for ids in handed for run_id in ids) == ["a", "b"]
    assert (await runs.owners(), await order.abandoned(limit=9)) == (set(), ["a", "b"])
    taken = await begun(memory, "a", "second")
    assert (taken.owner, taken.attempts) == ("second", 2)
    assert await runs.disown("second") == ["a"]
    assert (await begun(memory, "a", "third")).attempts == 3
    assert await runs.held_by("first") == {"b": None}


async def test_a_process_that_stops_gives_its_run_back(memory: Memory) -> None:
    """The run stays the first of its session, and the attempt does not count."""
    order = memory.runs.order
    await order.add(asked("r1"), owner="first")
    await order.add(asked("r2"))
    assert not await memory.runs.give_back("r1", "second")
    assert await memory.runs.give_back("r1", "first")
    assert await order.is_next("r1")
    assert (await begun(memory, "r1", "second")).attempts == 1


def test_four_processes_on_one_session_take_turns(shared_url: str) -> None:
    """Each process adds runs and begins the next one; the transcript has whole turns in order of arrival."""
    asyncio.run(prepared(shared_url))
    run_together(take_turns, [(shared_url, number) for number in range(_PROCESSES)])
    runs, words = asyncio.run(runs_and_transcript(shared_url))
    assert len(runs) == _PROCESSES * _RUNS_EACH
    assert {run.status for run in runs} == {"done"}
    in_order = sorted(runs, key=lambda run: run.arrival or 0)
    assert [run.arrival for run in in_order] == list(range(1, len(runs) + 1))
    assert words == [word for run in in_order for word in (f"begin {run.run_id}", f"end {run.run_id}")]


async def prepared(url: str) -> None:
    """Migrate the database before the processes start."""
    async with open_memory(url, options=MemoryOptions(background=False)):
        pass


def take_turns(url: str, number: int) -> None:
    """Add runs and execute the next ones, as each of the processes does."""

    async def work() -> None:
        async with open_memory(url, options=MemoryOptions(background=False)) as memory:
            for place in range(_RUNS_EACH):
                await memory.runs.order.add(asked(f"{number}-{place}"))
                # A process that ended a turn looks for the next one, so no process needs to wait.
                while await execute_next(memory, f"process-{number}"):
                    pass

    asyncio.run(work())


async def execute_next(memory: Memory, owner: str) -> bool:
    """Execute the first run of the session and note it in the transcript; return False if there is none."""
    [run_id] = await memory.runs.order.ready(limit=1) or [""]
    if not isinstance(await memory.runs.order.begin(run_id, owner), Begun):
        return False
    session = memory.session("room")
    await session.append([Message(role="user", content=f"begin {run_id}")])
    await session.append([Message(role="assistant", content=f"end {run_id}")])
    return await memory.runs.finish(run_id, owner, "done")


async def runs_and_transcript(url: str) -> tuple[list[Run], list[str]]:
    """Return all runs of the session, and its transcript."""
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        runs, _ = await memory.runs.records.runs(in_room())
        return runs, [message.content for message in await memory.session("room").tail(1000)]
