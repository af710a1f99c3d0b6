"""Tests of the trace of a run: events in order, tokens counted once, and tools executed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.databases import migrated_driver
from tests.store.running import asked
from threadkeep import Memory
from threadkeep.records.runs import TRACE_CUT, TokenUsage, ToolCall, TraceEvent
from threadkeep.store.runs import Outcome, Runs
from threadkeep.store.runs.trace import TraceGroup, TraceLimits
from threadkeep.testing import SettableClock


@pytest.fixture
async def short_traces(database_url: str, clock: SettableClock) -> AsyncIterator[Runs]:
    """Return runs with low limits for their traces."""
    async with migrated_driver(database_url) as driver:
        yield Runs(driver, clock=clock, trace_limits=TraceLimits(max_events=3, max_characters=100))


async def test_events_are_numbered_without_gaps(memory: Memory, clock: SettableClock) -> None:
    await memory.runs.order.add(asked("r1"), owner="me")
    trace = memory.runs.trace
    said = TraceEvent("message", "agent", {"text": "你好 \ud800", "tokens": 3, "none": None})
    assert await trace.append("r1", [TraceEvent("node_started", "agent"), said]) == 2
    groups = [[TraceEvent("tool_called", "agent", {"n": n}), TraceEvent("tool_finished")] for n in range(8)]
    assert set(await asyncio.gather(*(trace.append("r1", group) for group in groups))) == set(range(4, 19, 2))
    events = await trace.events("r1")
    assert [event.number for event in events] == list(range(1, 19))
    assert [(event.kind, event.node) for event in events[:2]] == [("node_started", "agent"), ("message", "agent")]
    assert events[1].data == {"text": "你好 \ufffd", "tokens": 3, "none": None}
    assert events[1].created_at == clock()
    assert [event.kind for event in events[2:]] == ["tool_called", "tool_finished"] * 8
    assert await trace.events("r1", after=16) == events[16:]
    assert await trace.events("r1", after=2, limit=3) == events[2:5]
    assert (await trace.last_number("r1"), await trace.last_number("r2")) == (18, 0)


async def test_a_group_is_stored_once(memory: Memory) -> None:
    """A group that is retried with the same last number is stored once, and only for the run's owner."""
    await memory.runs.order.add(asked("r1"), owner="me")
    trace, group, used = memory.runs.trace, [TraceEvent("message")], [TokenUsage("gpt", input_tokens=5)]
    for _ in range(2):
        assert await trace.append("r1", group, usage=used, owner="me", after=0) == 1
    assert await trace.append("r1", group, usage=used, owner="me", after=1) == 2
    assert await trace.append("r1", group, usage=used, owner="another") is None
    assert await trace.append("r2", group, usage=used) is None
    assert len(await trace.events("r1")) == 2
    assert [usage.input_tokens for usage in await trace.usage("r1")] == [10]


async def test_the_last_events_are_stored_with_the_end_of_the_run(memory: Memory) -> None:
    """Another owner stores neither, and a retry stores both once."""
    await memory.runs.order.add(asked("r1"), owner="me")
    last = TraceGroup([TraceEvent("message")], [TokenUsage("gpt", input_tokens=5)], after=0)
    ending = Outcome("done", {"text": "so"})
    assert await memory.runs.end("r1", "another", ending, last) is None
    assert await memory.runs.trace.events("r1") == []
    for _ in range(2):
        over = await memory.runs.end("r1", "me", ending, last)
        assert over is not None
        assert over == await memory.runs.run("r1")
        assert (over.status, over.result) == ("done", {"text": "so"})
    assert len(await memory.runs.trace.events("r1")) == 1
    assert [usage.input_tokens for usage in await memory.runs.trace.usage("r1")] == [5]


async def test_a_long_trace_is_cut_with_a_mark(short_traces: Runs) -> None:
    """The mark appears once; status events are stored after it, since followers wait for them."""
    for run_id in ("many", "long"):
        await short_traces.order.add(asked(run_id, session=run_id))
    for _ in range(3):
        await short_traces.trace.append("many", [TraceEvent("message"), TraceEvent("tool_called")])
    await short_traces.trace.append("many", [TraceEvent("status", data={"status": "done"})])
    events = await short_traces.trace.events("many")
    assert [event.kind for event in events] == ["message", "tool_called", "message", TRACE_CUT, "status"]
    assert [event.number for event in events] == [1, 2, 3, 4, 5]
    await short_traces.trace.append("long", [TraceEvent("message", data={"text": "x" * 200}), TraceEvent("message")])
    assert [(event.kind, event.data) for event in await short_traces.trace.events("long")] == [(TRACE_CUT, {})]


async def test_tokens_are_counted_once_where_the_trace_is_cut(short_traces: Runs) -> None:
    """A retried group is recognized although none of its events is stored."""
    await short_traces.order.add(asked("r1"), owner="me")
    newest = await short_traces.trace.append("r1", [TraceEvent("message")] * 5)
    for _ in range(2):
        await short_traces.trace.append(
            "r1", [TraceEvent("model_called")], usage=[TokenUsage("gpt", input_tokens=5)], owner="me", after=newest
        )
    assert [used.calls for used in await short_traces.trace.usage("r1")] == [1]


async def test_tokens_are_counted_once(memory: Memory) -> None:
    order, trace = memory.runs.order, memory.runs.trace
    child = replace(asked("c1", session=None), parent_run_id="top", trigger="child")
    for new in (asked("top"), child, replace(child, run_id="c2"), replace(child, run_id="g1", parent_run_id="c1")):
        await order.add(new)
    gpt = TokenUsage("gpt", input_tokens=100, output_tokens=10, cache_read_tokens=40, cost=0.5)
    small = TokenUsage("small", input_tokens=7, estimated_calls=1)
    await asyncio.gather(*(trace.append("g1", usage=[small, gpt]) for _ in range(10)))
    await trace.append("top", usage=[gpt])
    await trace.append("c2", usage=[replace(gpt, cost=None)])
    assert await trace.usage("c1", with_children=False) == []
    assert await trace.usage("top", with_children=False) == [gpt]
    [all_gpt, all_small] = await trace.usage("top")
    assert (all_gpt.calls, all_gpt.input_tokens, all_gpt.output_tokens) == (12, 1200, 120)
    assert (all_gpt.cache_read_tokens, all_gpt.cost, all_gpt.tokens) == (480, 5.5, 1320)
    assert all_small == TokenUsage("small", calls=10, input_tokens=70, estimated_calls=10)
    assert [usage.calls for usage in await trace.usage("c1")] == [10, 10]


async def test_a_tool_call_begins_once(memory: Memory) -> None:
    """One of many callers gets the call; a finished call has its result, and an unfinished one is reported."""
    await memory.runs.order.add(asked("r1"))
    trace = memory.runs.trace
    calls = await asyncio.gather(*(trace.begin_tool("r1", "call-1", "pay") for _ in range(5)))
    assert sorted(call.status for call in calls) == ["begun_before"] * 4 + ["fresh"]
    assert await trace.finish_tool("r1", "call-1", {"paid": 3})
    assert not await trace.finish_tool("r1", "call-1", {"paid": 4})
    assert await trace.begin_tool("r1", "call-1", "pay") == ToolCall("finished", {"paid": 3})
    assert (await trace.begin_tool("r1", "call-2", "pay")).status == "fresh"
    assert (await trace.begin_tool("gone", "call-1", "pay")).status == "gone"
    assert not await trace.finish_tool("gone", "call-1", None)
