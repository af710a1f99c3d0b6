"""Tests of run retention: whole trees of old runs are deleted, and no message is answered twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.databases import query
from tests.history.retaining import deleting
from tests.recorded_events import RecordedEvents
from tests.store.running import asked
from threadkeep import Memory, MemoryOptions, Message, RetentionOptions, open_memory
from threadkeep.errors import InvalidInput
from threadkeep.history.retention_rounds import RunRetention
from threadkeep.observe import PruningFailed, RunsPruned
from threadkeep.records.runs import RunEnd, RunQuery, TokenUsage, TraceEvent
from threadkeep.store.retention import PrunedRuns
from threadkeep.testing import SettableClock

DAY = 86_400.0
_TABLES = (
    "chat_runs",
    "chat_run_events",
    "chat_run_traces",
    "chat_run_usage",
    "chat_run_tool_calls",
    "chat_run_messages",
)


async def over(
    memory: Memory,
    run_id: str,
    session: str | None = "room",
    *,
    parent: str | None = None,
    message: str | None = None,
    end: RunEnd | None = "done",
    events: int = 1,
    set_aside: bool = False,
) -> None:
    """Add a run with a row in each table; it has ended unless `end` is None."""
    new = replace(asked(run_id, session=session, message=message, said="canary"), parent_run_id=parent, user_id="u1")
    await memory.runs.order.add(replace(new, version="v1"), owner="me")
    told = [TraceEvent("message", data={"text": "canary"}) for _ in range(events)]
    await memory.runs.trace.append(run_id, told, usage=[TokenUsage("gpt")])
    await memory.runs.trace.begin_tool(run_id, "call", "pay")
    if end is not None:
        assert await memory.runs.finish(run_id, "me", end, result={"text": "canary"}, set_aside=set_aside)


async def ids(memory: Memory) -> set[str]:
    """Return the ids of the stored runs."""
    runs, _ = await memory.runs.records.runs(RunQuery(limit=1000))
    return {run.run_id for run in runs}


async def test_old_runs_are_deleted(memory: Memory, clock: SettableClock, events: RecordedEvents) -> None:
    """Runs that ended lately, run, are queued or wait for a person stay; set-aside runs have their own limit."""
    await over(memory, "old", "r1")
    await over(memory, "failed", "r2", end="failed")
    await over(memory, "aside", "r3", end="failed", set_aside=True)
    await over(memory, "waiting", "r4", end=None)
    await memory.runs.wait("waiting", "me", {})
    await memory.runs.order.add(asked("queued", session="r5"))
    clock.advance(20 * DAY)
    await over(memory, "asked for long ago", "r6")
    clock.advance(11 * DAY)
    planned = [tree async for tree in memory.run_retention.plan()]
    assert [(tree.root_run_id, tree.status, tree.runs, tree.events) for tree in planned] == [
        ("failed", "failed", 1, 2),
        ("old", "done", 1, 2),
    ]
    assert await memory.run_retention.prune() == PrunedRuns(trees=2, runs=2, events=4)
    assert await ids(memory) == {"aside", "waiting", "queued", "asked for long ago"}
    assert events.of(RunsPruned) == [RunsPruned(trees=2, runs=2)]
    patient = RunRetention(30.0, 60.0)
    assert (await memory.run_retention.prune(patient)).runs == 0
    clock.advance(30 * DAY)
    assert (await memory.run_retention.prune(patient)).runs == 2
    assert await ids(memory) == {"waiting", "queued"}


async def test_a_tree_is_deleted_as_a_whole(memory: Memory, clock: SettableClock) -> None:
    """A tree is deleted when all its runs are old, also after the session of its root was deleted."""
    await over(memory, "top", end=None)
    await over(memory, "child", None, parent="top", end=None)
    await over(memory, "elsewhere", "hall", parent="child", end=None)
    await memory.runs.finish("child", "me", "done")
    clock.advance(31 * DAY)
    await memory.runs.finish("top", "me", "done")
    assert (await memory.run_retention.prune()).runs == 0
    clock.advance(31 * DAY)
    assert (await memory.run_retention.prune()).runs == 0
    await memory.runs.finish("elsewhere", "me", "cancelled", set_aside=True)
    clock.advance(31 * DAY)
    assert (await memory.run_retention.prune()).runs == 0
    assert await memory.run_retention.prune(RunRetention(30.0, 30.0)) == PrunedRuns(1, 3, 6)
    await over(memory, "top", end=None)
    await over(memory, "child", "hall", parent="top", end=None)
    await over(memory, "below", None, parent="child", end="failed")
    await memory.runs.finish("child", "me", "failed")
    await memory.session("room", user_id="u1").append([Message(role="user", content="hi")])
    await memory.session("room").delete()
    assert await ids(memory) == {"child", "below"}
    clock.advance(31 * DAY)
    assert await memory.run_retention.prune() == PrunedRuns(1, 2, 4)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_nothing_is_left_in_any_table(engine: str, request: pytest.FixtureRequest, clock: SettableClock) -> None:
    """Large traces are deleted in steps; only the ids of answered messages stay, without words."""
    url = str(request.getfixturevalue("sqlite_url" if engine == "sqlite" else "postgres_url"))
    async with open_memory(url, options=MemoryOptions(background=False, clock=clock)) as memory:
        await over(memory, "large", message="m1", events=1100, end=None)
        await over(memory, "child", None, parent="large", events=300)
        await memory.runs.finish("large", "me", "done")
        for number in range(8):
            await over(memory, f"r{number}", f"hall{number}", message="m1")
        clock.advance(31 * DAY)
        told: list[PrunedRuns] = []
        done = await memory.run_retention.prune(report=told.append)
    assert done == told[-1] == PrunedRuns(trees=9, runs=10, events=1418)
    assert [one.events for one in told] == [500, 1000, 1402, 1418]
    assert not any(query(url, f"SELECT * FROM {table}") for table in _TABLES)
    left = query(url, "SELECT * FROM chat_answered_messages")
    assert len(left) == 9
    assert "canary" not in str(left)


async def test_an_answered_message_stays_known(memory: Memory, clock: SettableClock) -> None:
    """A message whose run failed can be answered again; answered messages are forgotten with their session."""
    room = memory.session("room", user_id="u1")
    await room.append([Message(role="user", content="hi", id="m1")])
    await over(memory, "at work", message="m0", end=None)
    for number in (1, 2):
        new = replace(asked(f"r{number}", message=f"m{number}"), user_id="u1")
        await memory.runs.order.add(new, policy="coalesce")
    await memory.runs.finish("at work", "me", "failed")
    await memory.runs.order.begin("r1", "me")
    await memory.runs.finish("r1", "me", "done")
    clock.advance(31 * DAY)
    assert (await memory.run_retention.prune()).runs == 2
    for message in ("m1", "m2"):
        again = await memory.runs.order.add(replace(asked("again", message=message), user_id="u1"))
        assert (again.outcome, again.run.run_id, again.run.status) == ("known", "r1", "done")
    known = await memory.runs.run("r1")
    assert known is not None
    assert (known.over, known.inputs, known.result, known.workflow) == (True, (), None, "support")
    assert (await memory.runs.order.add(replace(asked("again", message="m0"), user_id="u1"))).outcome == "new"
    await room.delete()
    assert await memory.runs.run("r1") is None
    assert (await memory.runs.order.add(asked("anew", message="m1"))).outcome == "new"


async def test_the_record_of_an_answered_message_is_deleted_with_it(memory: Memory, clock: SettableClock) -> None:
    """Retention of the message deletes the record; without a session, erasing the user clears its user id."""
    message = Message(role="user", content="hi", id="m1")
    await memory.session("room", user_id="u1").append([message, Message(role="assistant", content="ho")])
    await over(memory, "r1", message="m1")
    await over(memory, "r2", "without a row", message="m1")
    clock.advance(31 * DAY)
    assert (await memory.run_retention.prune()).runs == 2
    await memory.retention.prune(deleting(max_age_days=30))
    assert [await memory.runs.run(run_id) is not None for run_id in ("r1", "r2")] == [False, True]
    assert (await memory.erase(user_id="u1")).complete
    left = await memory.runs.run("r2")
    assert left is not None
    assert left.user_id is None


async def test_a_retried_run_stays(memory: Memory, clock: SettableClock) -> None:
    for name in ("r1", "r2"):
        await over(memory, name, name, end="failed")
    clock.advance(31 * DAY)

    async def retried() -> bool:
        await memory.runs.retry("r2")
        return True

    async def stopped() -> bool:
        return False

    assert (await memory.run_retention.prune(may_continue=stopped)).runs == 0
    assert (await memory.run_retention.prune(may_continue=retried)).runs == 1
    assert await ids(memory) == {"r2"}


async def test_an_open_memory_prunes_runs_on_a_schedule(
    shared_url: str, memory_options: MemoryOptions, clock: SettableClock, events: RecordedEvents
) -> None:
    """One of the open memories prunes runs on the retention schedule, also without rules for messages."""
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as before:
        await over(before, "r1")
    # Move the clock before a memory opens: a round that began before the move and ended after it would be the last
    # one, since the clock does not move again.
    clock.advance(31 * DAY)
    options = replace(memory_options, retention=RetentionOptions(interval_seconds=0.01))
    async with (
        open_memory(shared_url, observers=[events], options=options) as memory,
        open_memory(shared_url, observers=[events], options=options),
    ):
        await events.until(lambda: bool(events.of(RunsPruned)))
        assert await ids(memory) == set()
    assert (events.of(RunsPruned), events.of(PruningFailed)) == ([RunsPruned(trees=1, runs=1)], [])


async def test_two_concurrent_rounds_delete_each_run_once(
    shared_url: str, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    options = replace(memory_options, background=False)
    async with open_memory(shared_url, options=options) as one, open_memory(shared_url, options=options) as other:
        for number in range(30):
            await over(one, f"r{number}", None, events=40)
        clock.advance(1)
        done = await asyncio.gather(*(memory.run_retention.prune(RunRetention(0.0)) for memory in (one, other)))
        assert (sum(each.runs for each in done), await ids(other)) == (30, set())


async def test_runs_that_another_round_deletes_first_are_not_counted(memory: Memory, clock: SettableClock) -> None:
    await over(memory, "r1", None, end=None)
    await over(memory, "r2", None, parent="r1")
    await memory.runs.finish("r1", "me", "done")
    clock.advance(1)
    others: list[PrunedRuns] = []

    async def another_round() -> bool:
        others.append(await memory.run_retention.prune(RunRetention(0.0)))
        return True

    assert await memory.run_retention.prune(RunRetention(0.0), may_continue=another_round) == PrunedRuns()
    assert others == [PrunedRuns(trees=1, runs=2, events=4)]


async def test_unused_versions_are_deleted(memory: Memory, clock: SettableClock) -> None:
    workflows = memory.runs.workflows
    await workflows.keep("support", "v0", {})
    await workflows.keep("support", "v1", {})
    await over(memory, "r1")
    await workflows.keep("lone", "v1", None)
    clock.advance(1)
    await workflows.keep("support", "v2", {})
    clock.advance(31 * DAY)
    assert await workflows.unused(clock()) == [("support", "v0")]
    assert await memory.run_retention.prune() == PrunedRuns(1, 1, 2, versions=2)
    kept = [version for version in ("v0", "v1", "v2") if await workflows.version("support", version) is not None]
    assert kept == ["v2"]
    assert await workflows.version("lone", "v1") is not None
    await workflows.keep("support", "v3", {})
    await memory.runs.order.add(replace(asked("r2"), version="v2"))
    assert await workflows.forget([("support", "v2")]) == 0


def test_invalid_limits_are_refused() -> None:
    """Set-aside runs must not be deleted before others."""
    for wrong in ({"keep_days": -1.0}, {"keep_days": float("nan")}, {"keep_days": 9.0, "keep_set_aside_days": 8.0}):
        with pytest.raises(InvalidInput):
            RunRetention(**wrong)
