"""Tests of listing runs, and of deleting them with all their data."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.databases import query
from tests.store.running import asked, begun
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.errors import InvalidInput
from threadkeep.records.runs import RESET, NewRun, RunBudget, RunQuery, TokenUsage, TraceEvent
from threadkeep.store.runs.rows import RunCounts
from threadkeep.testing import SettableClock

_TABLES = (
    "chat_runs",
    "chat_run_events",
    "chat_run_traces",
    "chat_run_usage",
    "chat_run_tool_calls",
)


async def fill(memory: Memory, run_id: str, session: str | None, parent: str | None = None) -> None:
    """Add a run with a row in each table."""
    new = replace(asked(run_id, session=session, said="canary"), parent_run_id=parent, user_id="u1")
    await memory.runs.order.add(new, owner="me")
    used = [TokenUsage("gpt")]
    await memory.runs.records.checkpoints_expected(run_id)
    await memory.runs.trace.append(run_id, [TraceEvent("message", data={"text": "canary"})], usage=used)
    await memory.runs.trace.begin_tool(run_id, "call", "pay")
    await memory.runs.trace.finish_tool(run_id, "call", "canary")


async def ids(memory: Memory, wanted: RunQuery) -> list[str]:
    """Return the ids of all pages of a query."""
    found: list[str] = []
    while True:
        runs, cursor = await memory.runs.records.runs(wanted)
        found += [run.run_id for run in runs]
        if cursor is None:
            return found
        wanted = replace(wanted, cursor=cursor)


async def test_sessions_have_their_newest_active_and_waiting_turns(memory: Memory, clock: SettableClock) -> None:
    """Other turns, child runs, resets and runs of other users are not returned, nor more than 20 waiting turns."""
    for number, status in enumerate(("waiting", "done", "done", "queued", "queued")):
        run_id = f"r{number}"
        await memory.runs.order.add(replace(asked(run_id), user_id="u1"), owner="me")
        if status == "waiting":
            await memory.runs.wait(run_id, "me", interrupt="Ship it?")
        elif status == "done":
            await memory.runs.finish(run_id, "me", "done")
        clock.advance(1)
    await memory.runs.order.add(replace(asked("c1"), parent_run_id="r4", trigger="child"))
    await memory.runs.order.add(replace(asked("x1", session="other"), workflow=RESET))
    records = memory.runs.records
    found = await records.of_sessions(["room", "other", "unknown"])
    assert [run.run_id for run in found] == ["r4", "r3", "r0"]
    assert found[-1].interrupt == "Ship it?"
    assert await records.of_sessions(["room"], user_id="u2") == []
    for number in range(25):
        await memory.runs.order.add(asked(f"w{number:02}", session="full"), owner="me")
        await memory.runs.wait(f"w{number:02}", "me", interrupt="Ship it?")
        clock.advance(1)
    waiting = [run.run_id for run in await records.of_sessions(["room", "full"]) if run.session_id == "full"]
    assert waiting == [f"w{number:02}" for number in range(24, 4, -1)]


async def test_runs_are_listed_newest_first(memory: Memory, clock: SettableClock) -> None:
    start = clock()
    for number in range(5):
        new = replace(asked(f"r{number}", session=f"room{number % 2}"), user_id=f"u{number % 3}")
        await memory.runs.order.add(replace(new, workflow="sales" if number == 4 else "support"))
        clock.advance(1)
    child = replace(asked("c1", session=None), parent_run_id="r0", trigger="child")
    await memory.runs.order.add(child, owner="me")
    await memory.runs.order.add(replace(child, run_id="g1", parent_run_id="c1"))
    await memory.runs.finish("c1", "me", "failed", error="Timeout", set_aside=True)
    below = ["g1", "c1"]
    assert await ids(memory, RunQuery(limit=2)) == [*below, "r4", "r3", "r2", "r1", "r0"]
    assert await ids(memory, RunQuery(session_id="room0", limit=1)) == ["r4", "r2", "r0"]
    assert await ids(memory, RunQuery(user_id="u1")) == ["r4", "r1"]
    assert await ids(memory, RunQuery(session_id="room1", user_id="u1")) == ["r1"]
    assert await ids(memory, RunQuery(workflow="sales")) == ["r4"]
    assert await ids(memory, RunQuery(status="failed")) == ["c1"]
    assert await ids(memory, RunQuery(set_aside=True)) == ["c1"]
    assert await ids(memory, RunQuery(parent_run_id="r0")) == ["c1"]
    assert await ids(memory, RunQuery(parent_run_id="c1", status="queued")) == ["g1"]
    assert await ids(memory, RunQuery(since=start + timedelta(seconds=3), user_id="u0")) == ["r3"]
    await memory.runs.order.add(replace(asked("reset", session="room0"), workflow="session-reset", user_id="u1"))
    assert await ids(memory, RunQuery(turns=True)) == ["r4", "r3", "r2", "r1", "r0"]
    assert await ids(memory, RunQuery(session_id="room0", turns=True)) == ["r4", "r2", "r0"]
    assert await ids(memory, RunQuery(user_id="u1", turns=True)) == ["r4", "r1"]
    assert await memory.runs.records.tree("never") == []
    with pytest.raises(InvalidInput, match="at least 1"):
        RunQuery(limit=0)


async def test_runs_are_counted_by_status(memory: Memory) -> None:
    """Counts have a limit; finished runs count only if they are set aside, and a waiting child not at all."""
    records = memory.runs.records
    assert await records.counts() == RunCounts()
    for number in range(5):
        await memory.runs.order.add(asked(f"r{number}", session=None))
    for run_id in ("r0", "r1", "r2"):
        await begun(memory, run_id)
    child = NewRun(run_id="child", workflow="desk", input={}, parent_run_id="r0", trigger="child")
    await memory.runs.order.add(child, owner="me")
    for run_id in ("child", "r0"):
        await memory.runs.wait(run_id, "me", {})
    await memory.runs.finish("r1", "me", "failed", set_aside=True)
    assert await records.counts() == RunCounts(queued=2, running=1, waiting=1, set_aside=1)
    assert (await records.counts(limit=1)).queued == 1


@pytest.mark.parametrize("limits", [{"max_tokens": 0}, {"max_tokens": True}, {"max_cost": 0.0}, {"max_price": 1}])
def test_a_budget_has_limits_above_0(limits: dict[str, int | float]) -> None:
    """Unknown limits are refused too."""
    with pytest.raises(InvalidInput):
        RunBudget.from_dict(limits)


async def test_runs_are_deleted_with_their_session(memory: Memory) -> None:
    """Child runs without a session, traces and tool calls are deleted; only checkpoints to remove are noted."""
    await fill(memory, "r1", "room")
    await fill(memory, "c1", None, "r1")
    await fill(memory, "g1", None, "c1")
    await fill(memory, "elsewhere", "hall", "c1")
    await memory.runs.order.add(asked("r2", message="m2"), policy="coalesce")
    await memory.runs.order.add(asked("r3", message="m3"), policy="coalesce")
    await memory.session("room").append([Message(role="user", content="hi")])
    await memory.session("room").delete()
    assert await ids(memory, RunQuery()) == ["elsewhere"]
    assert await memory.runs.trace.events("c1") == []
    assert await memory.runs.trace.usage("g1", with_children=False) == []
    assert await memory.runs.records.with_checkpoints(datetime(2000, 1, 1, tzinfo=UTC), limit=9) == ["c1", "g1", "r1"]
    again = await memory.runs.order.add(asked("r4", message="m3"))
    assert (again.outcome, again.run.arrival) == ("new", 1)


async def test_no_word_of_a_deleted_session_is_in_any_table(sqlite_url: str) -> None:
    async with open_memory(sqlite_url, options=MemoryOptions(background=False)) as memory:
        await fill(memory, "r1", "room")
        await fill(memory, "c1", None, "r1")
        assert all(query(sqlite_url, f"SELECT * FROM {table}") for table in _TABLES)
        await memory.session("room").delete()
        assert not any(
            query(sqlite_url, f"SELECT * FROM {table}")
            for table in (*_TABLES, "chat_active_sessions", "chat_run_messages")
        )
        await fill(memory, "lone", None)
        await fill(memory, "below", None, "lone")
        assert (await memory.erase(user_id="u1")).complete
        assert await ids(memory, RunQuery()) == []


async def test_checkpoints_are_listed_until_they_are_removed(memory: Memory, clock: SettableClock) -> None:
    """Checkpoints of finished runs are listed; a run without a result may be retried and keeps them longer."""
    records = memory.runs.records
    for run_id in ("r1", "r2", "r3"):
        await memory.runs.order.add(asked(run_id, session=run_id))
    for run_id in ("r1", "r2"):
        await begun(memory, run_id)
        await records.checkpoints_expected(run_id)
    assert await records.with_checkpoints(clock(), limit=9) == []
    await memory.runs.finish("r1", "me", "done")
    await memory.runs.finish("r2", "me", "failed")
    assert await records.with_checkpoints(clock() - timedelta(seconds=1), limit=9) == ["r1"]
    assert await records.with_checkpoints(clock(), limit=9) == ["r1", "r2"]
    await memory.runs.retry("r2")
    await records.checkpoints_removed(["r1", "r2"])
    await memory.runs.request_cancel("r2")
    assert await records.with_checkpoints(clock(), limit=9) == ["r2"]


async def test_a_version_of_a_workflow_never_changes(memory: Memory, clock: SettableClock) -> None:
    workflows = memory.runs.workflows
    await workflows.keep("support", "v1", {"nodes": [{"id": "a"}]})
    await workflows.keep("support", "v1", {"nodes": []})
    await asyncio.gather(*(workflows.keep("support", "v2", None) for _ in range(4)))
    kept = await workflows.version("support", "v1")
    assert kept is not None
    assert (kept.definition, kept.first_used_at) == ({"nodes": [{"id": "a"}]}, clock())
    assert await workflows.version("support", "v2") is not None


async def test_a_user_has_one_active_session_per_workflow(memory: Memory) -> None:
    sessions = memory.runs.sessions
    first = await asyncio.gather(*(sessions.active_session("u1", "support", otherwise=f"s{n}") for n in range(8)))
    assert len(set(first)) == 1
    assert await sessions.active_session("u1", "sales", otherwise="sales1") == "sales1"
    assert await sessions.active_session("u2", "support", otherwise="s9") == "s9"
    await memory.runs.order.add(replace(asked("r1", session="named"), user_id="u1"))
    assert await sessions.active_session("u1", "support", otherwise="new1") == "named"
    await memory.session("named", user_id="u1").append([Message(role="user", content="hi")])
    assert await sessions.active_session("u1", "support", otherwise="new1") == "named"
    await memory.session("named").update(active=False)
    assert await sessions.active_session("u1", "support", otherwise="new1") == "new1"
    await memory.session("new1", user_id="u1").append([Message(role="user", content="hi")])
    await memory.session("new1").delete()
    assert await sessions.active_session("u1", "support", otherwise="new2") == "new2"


@pytest.mark.parametrize("erased", [True, False])
async def test_a_run_is_deleted_with_its_message(memory: Memory, *, erased: bool) -> None:
    """The tree is deleted too, except runs that have another session."""
    order = memory.runs.order
    await order.add(asked("top", session=None), owner="a")
    child = replace(asked("c1", session=None), parent_run_id="top", trigger="child")
    await order.add(replace(child, session_id="child:c1"), owner="a")
    for run_id, parent in (("speaks", "c1"), ("below", "speaks"), ("beside", "top"), ("other", "c1")):
        await order.add(replace(child, run_id=run_id, parent_run_id=parent), owner="a")
    said = Message(role="assistant", content="CANARY", run_id="speaks")
    await memory.session("news").append([said])
    if erased:
        assert await memory.session("news").delete()
    else:
        await memory.runs.records.forget_runs(["speaks"])
    assert {run.run_id for run in (await memory.runs.records.runs(RunQuery()))[0]} == {"c1", "other"}
