"""Tests of the texts of runs: they are stored once, in the transcript, and results and traces refer to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.databases import query
from tests.store.running import asked
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.records import Json
from threadkeep.records.runs import RunQuery, TraceEvent
from threadkeep.store.runs import Outcome
from threadkeep.store.runs.trace import TraceGroup

_SAID: dict[str, Json] = {"message_id": "a1", "text": "the answer"}
_LOOP: dict[str, Json] = {"messages": [{"type": "ai", "data": {"content": "the answer", "id": "a1"}}]}
_RESULTS: tuple[dict[str, Json], ...] = (
    {**_SAID, "output": {"text": "the answer"}, "escalated": False},
    {**_SAID, "output": {"found": 3}},
    {**_SAID},
    {"message_id": "a1", "text": "another answer", "output": {"text": "another answer"}},
    {"message_id": "elsewhere", "text": "the answer", "output": {"text": "the answer"}},
)


async def end(memory: Memory, run_id: str, result: dict[str, Json]) -> None:
    """Add a run that answered, and end it."""
    await memory.runs.order.add(replace(asked(run_id, message=run_id), session_id="room"), owner="me")
    group = TraceGroup([TraceEvent("agent_messages", "answer", _LOOP), TraceEvent("message", None, _SAID)], after=0)
    over = await memory.runs.end(run_id, "me", Outcome("done", result), group)
    assert over is not None
    assert over.result == result


@pytest.mark.parametrize("result", _RESULTS)
async def test_a_result_is_read_back_unchanged(memory: Memory, result: dict[str, Json]) -> None:
    """Results and traces are read back unchanged, also if the transcript has other words or no such message."""
    await memory.session("room").append([Message("assistant", "the answer", id="a1")])
    await end(memory, "r1", result)
    run = await memory.runs.run("r1")
    assert run is not None
    assert run.result == result
    [listed], _ = await memory.runs.records.runs(RunQuery())
    assert listed == run
    assert [event.data for event in await memory.runs.trace.events("r1")] == [_LOOP, _SAID]


async def test_the_words_of_an_answer_are_in_no_other_table(shared_url: str) -> None:
    async with open_memory(shared_url, options=MemoryOptions(background=False)) as memory:
        await memory.session("room").append([Message("assistant", "the answer", id="a1")])
        await end(memory, "r1", _RESULTS[0])
        rows = [query(shared_url, f"SELECT * FROM {table}") for table in ("chat_runs", "chat_run_events")]
        assert "the answer" not in str(rows)
        assert "the answer" in str(query(shared_url, "SELECT content FROM chat_messages"))
