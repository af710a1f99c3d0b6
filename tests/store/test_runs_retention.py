"""Runs that are over for long: whole trees go, with all that hangs on them, and no message is answered twice."""

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
    """A run with a row in each table, which has ended unless `end` is None."""
    new = replace(asked(run_id, session=session, message=message, said="canary"), parent_run_id=parent, user_id="u1")
    await memory.runs.order.add(replace(new, version="v1"), owner="me")
    told = [TraceEvent("message", data={"text": "canary"}) for _ in range(events)]
    await memory.runs.trace.append(run_id, told, usage=[TokenUsage("gpt")])
    await memory.runs.trace.begin_tool(run_id, "call", "pay")
    if end is not None:
        assert await memory.runs.finish(run_id, "me", end, result={"text": "canary"}, set_aside=set_aside)


async def ids(memory: Memory) -> set[str]:
    """The runs that are there."""
    runs, _ = await memory.runs.records.runs(RunQuery(limit=1000))
    return {run.run_id for run in runs}


async def test_what_is_over_for_long_goes(memory: Memory, clock: SettableClock, events: RecordedEvents) -> None:
    """The rest stays: what ended lately, is at work or waits, and what a person is waited for."""
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
        ("failed", "failed", 1, 1),
        ("old", "done", 1, 1),
    ]
    assert await memory.run_retention.prune() == PrunedRuns(trees=2, runs=2, events=2)
    assert await ids(memory) == {"aside", "waiting", "queued", "asked for long ago"}
    assert events.of(RunsPruned) == [RunsPruned(trees=2, runs=2)]
    patient = RunRetention(30.0, 60.0)
    assert (await memory.run_retention.prune(patient)).runs == 0
    clock.advance(30 * DAY)
    assert (await memory.run_retention.prune(patient)).runs == 2
    assert await ids(memory) == {"waiting", "queued"}


async def test_a_tree_goes_as_a_whole(memory: Memory, clock: SettableClock) -> None:
    """When all of it is over for long; also when the session of the one at the top is gone."""
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
    assert await memory.run_retention.prune(RunRetention(30.0, 30.0)) == PrunedRuns(1, 3, 3)
    await over(memory, "top", end=None)
    await over(memory, "child", "hall", parent="top", end=None)
    await over(memory, "below", None, parent="child", end="failed")
    await memory.runs.finish("child", "me", "failed")
    await memory.session("room", user_id="u1").append([Message(role="user", content="hi")])
    await memory.session("room").delete()
    assert await ids(memory) == {"child", "below"}
    clock.advance(31 * DAY)
    assert await memory.run_retention.prune() == PrunedRuns(1, 2, 2)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_nothing_is_left_in_any_table(engine: str, request: pytest.FixtureRequest, clock: SettableClock) -> None:
    """Large traces go in steps; only which messages were answered stays, without a word."""
    url = str(request.getfixturevalue("sqlite_url" if engine == "sqlite" else "postgres_url"))
    async with open_memory(url, options=MemoryOptions(background=False, clock=clock)) as memory:
        await over(memory, "large", message="m1", events=1100, end=None)
        await over(memory, "child", None, parent="large", events=200)
        await memory.runs.finish("large", "me", "done")
        for number in range(8):
            await over(memory, f"r{number}", f"hall{number}", message="m1")
        clock.advance(31 * DAY)
        told: list[PrunedRuns] = []
        done = await memory.run_retention.prune(report=told.append)
    assert done == told[-1] == PrunedRuns(trees=9, runs=10, events=1308)
    assert [one.events for one in told] == [500, 1000, 1300, 1308]
    assert not any(query(url, f"SELECT * FROM {table}") for table in _TABLES)
    left = query(url, "SELECT * FROM chat_answered_messages")
    assert len(left) == 9
    assert "canary" not in str(left)


async def test_a_message_that_was_answered_stays_known(memory: Memory, clock: SettableClock) -> None:
    """Also one that joined the run; one whose run failed is asked for anew. It is forgotten with the session."""
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


async def test_what_is_left_goes_with_the_message(memory: Memory, clock: SettableClock) -> None:
    """With the message by retention; where there is no session, it loses its user when that is erased."""
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


async def test_what_goes_on_again_stays(memory: Memory, clock: SettableClock) -> None:
    """Also when it was retried after somebody had looked; a round can be stopped."""
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


async def test_an_open_memory_sees_to_it(
    shared_url: str, memory_options: MemoryOptions, clock: SettableClock, events: RecordedEvents
) -> None:
    """On the schedule of retention, by one of those that have the database open, though no rule is about messages."""
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as before:
        await over(before, "r1")
    # Before anybody looks: a round that begins before the clock moves and ends after it would be the last one, on a
    # clock that stands still from then on.
    clock.advance(31 * DAY)
    options = replace(memory_options, retention=RetentionOptions(interval_seconds=0.01))
    async with (
        open_memory(shared_url, observers=[events], options=options) as memory,
        open_memory(shared_url, observers=[events], options=options),
    ):
        await events.until(lambda: bool(events.of(RunsPruned)))
        assert await ids(memory) == set()
    assert (events.of(RunsPruned), events.of(PruningFailed)) == ([RunsPruned(trees=1, runs=1)], [])


async def test_two_rounds_at_once_take_each_run_once(
    shared_url: str, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    """Together they do what one would have done."""
    options = replace(memory_options, background=False)
    async with open_memory(shared_url, options=options) as one, open_memory(shared_url, options=options) as other:
        for number in range(30):
            await over(one, f"r{number}", None, events=40)
        clock.advance(1)
        done = await asyncio.gather(*(memory.run_retention.prune(RunRetention(0.0)) for memory in (one, other)))
        assert (sum(each.runs for each in done), await ids(other)) == (30, set())


async def test_versions_that_no_run_has_go(memory: Memory, clock: SettableClock) -> None:
    """But for the newest of each workflow, and those that are not old."""
    workflows = memory.runs.workflows
    await workflows.keep("support", "v0", {})
    await workflows.keep("support", "v1", {})
    await over(memory, "r1")
    await workflows.keep("lone", "v1", None)
    clock.advance(1)
    await workflows.keep("support", "v2", {})
    clock.advance(31 * DAY)
    assert await workflows.unused(clock()) == [("support", "v0")]
    assert await memory.run_retention.prune() == PrunedRuns(1, 1, 1, versions=2)
    kept = [version for version in ("v0", "v1", "v2") if await workflows.version("support", version) is not None]
    assert kept == ["v2"]
    assert await workflows.version("lone", "v1") is not None
    await workflows.keep("support", "v3", {})
    await memory.runs.order.add(replace(asked("r2"), version="v2"))
    assert await workflows.forget([("support", "v2")]) == 0


def test_limits_that_are_none_are_refused() -> None:
    """Also those that keep longest what nobody waits for."""
    for wrong in ({"keep_days": -1.0}, {"keep_days": float("nan")}, {"keep_days": 9.0, "keep_set_aside_days": 8.0}):
        with pytest.raises(InvalidInput):
            RunRetention(**wrong)
