"""Tests of packed traces: the trace of a finished run is one row, and is read as if each event had one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.databases import query
from tests.store.running import asked
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.records.runs import Begun, RunEnd, TokenUsage, TraceEvent
from threadkeep.store.compressed_json import decompress
from threadkeep.store.runs import Outcome
from threadkeep.store.runs.trace import MOST_EVENTS, StoredEvent, TraceGroup, packed_events, stored_events
from threadkeep.testing import SettableClock

GPT = TokenUsage("gpt", input_tokens=100, output_tokens=10, cost=0.5)
EVENTS = st.builds(
    StoredEvent,
    number=st.integers(1, 4),
    kind=st.text(max_size=3),
    node=st.none() | st.text(max_size=3),
    data=st.sampled_from(["{}", '{"text":"茶\\n","n":1.5}', '{"a":null}']),
    moment=st.integers(0, 2**53),
)


@given(events=st.lists(EVENTS, max_size=6))
def test_packed_events_are_restored_unchanged(events: list[StoredEvent]) -> None:
    assert stored_events(packed_events(events)) == events


async def end(memory: Memory, *kinds: str, status: RunEnd = "done", usage: TokenUsage = GPT) -> None:
    """End the run r1 with some events."""
    after = await memory.runs.trace.last_number("r1")
    group = TraceGroup([TraceEvent(kind, "answer", {"kind": kind}) for kind in kinds], [usage], after)
    assert await memory.runs.end("r1", "me", Outcome(status), group) is not None


async def kinds(memory: Memory, *, after: int = 0, limit: int = 200) -> list[tuple[int, str]]:
    """Return number and kind of the events of r1."""
    events = await memory.runs.trace.events("r1", after=after, limit=limit)
    assert all(event.data == {"kind": event.kind} for event in events)
    return [(event.number, event.kind) for event in events]


async def test_a_packed_trace_is_read_in_pages(
    shared_url: str, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    """Events before the end, after it, and after a retry are read in order."""
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.runs.order.add(asked("r1"), owner="me")
        began = clock()
        await memory.runs.trace.append(
            "r1", [TraceEvent("a", None, {"kind": "a"}), TraceEvent("b", None, {"kind": "b"})]
        )
        clock.advance(1.5)
        await end(memory, "c", status="failed")
        assert query(shared_url, "SELECT number FROM chat_run_events") == []
        assert await kinds(memory) == [(1, "a"), (2, "b"), (3, "c")]
        assert [(event.created_at - began).total_seconds() for event in await memory.runs.trace.events("r1")] == [
            0,
            0,
            1.5,
        ]
        await memory.runs.trace.append("r1", [TraceEvent("late", None, {"kind": "late"})], usage=[GPT])
        assert await kinds(memory, after=1, limit=2) == [(2, "b"), (3, "c")]
        assert await kinds(memory, after=3) == [(4, "late")]
        assert await memory.runs.retry("r1")
        assert isinstance(await memory.runs.order.begin("r1", "me"), Begun)
        await end(memory, "d", "e", usage=replace(GPT, cost=None))
        assert query(shared_url, "SELECT number FROM chat_run_events") == []
        assert await kinds(memory) == [(1, "a"), (2, "b"), (3, "c"), (4, "late"), (5, "d"), (6, "e")]
        assert await memory.runs.trace.last_number("r1") == 6
        for with_children in (True, False):
            [used] = await memory.runs.trace.usage("r1", with_children=with_children)
            assert used == replace(GPT, calls=3, input_tokens=300, output_tokens=30, cost=1.0)
        assert query(shared_url, "SELECT run_id FROM chat_run_usage") == []


async def test_a_long_trace_is_not_packed(shared_url: str, memory_options: MemoryOptions) -> None:
    """A page of a long trace is not extracted from one large row."""
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.runs.order.add(asked("r1"), owner="me")
        await end(memory, *["step"] * (MOST_EVENTS + 1))
        assert len(query(shared_url, "SELECT number FROM chat_run_events")) == MOST_EVENTS + 1
        assert await kinds(memory, after=MOST_EVENTS) == [(MOST_EVENTS + 1, "step")]
        [used] = await memory.runs.trace.usage("r1")
        assert used == GPT


async def test_a_packed_trace_has_no_words_of_the_transcript(shared_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.runs.order.add(asked("r1"), owner="me")
        run = await memory.runs.run("r1")
        assert run is not None
        assert run.session_id is not None
        await memory.session(run.session_id).append([Message("assistant", "the answer", id="a1")])
        said = TraceEvent("message", None, {"message_id": "a1", "text": "the answer"})
        await memory.runs.end("r1", "me", Outcome("done"), TraceGroup([said], after=0))
        [(stored,)] = query(shared_url, "SELECT events FROM chat_run_traces")
        assert isinstance(stored, bytes)
        assert "the answer" not in decompress(stored)
        assert [event.data for event in await memory.runs.trace.events("r1")] == [said.data]
