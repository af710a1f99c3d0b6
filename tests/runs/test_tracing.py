"""Tests of a lost reply to a write of the trace: no event is stored twice."""

from __future__ import annotations

import pytest

from tests.runs.desk import RunDesk
from threadkeep import StoreUnavailable
from threadkeep.records.runs import NewRun, TokenUsage, TraceEvent
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.streams import RunStream
from threadkeep.runs.tracing import RunTracer


@pytest.mark.parametrize("begins", [True, False])
async def test_a_lost_reply_duplicates_no_event(
    every_desk: RunDesk, monkeypatch: pytest.MonkeyPatch, *, begins: bool
) -> None:
    """A flush that is repeated after a lost reply stores no event twice, in a new run and in a continued one."""
    runs = every_desk.memory.runs
    await runs.order.add(NewRun(run_id="r1", workflow="desk", input={"text": "hi"}), owner="me")
    if not begins:
        await runs.trace.append("r1", [TraceEvent("node_started")], owner="me")
    options = RunServiceOptions(trace_seconds=3600.0, late_trace_seconds=3600.0)
    tracer = RunTracer(
        runs.trace, RunStream("r1"), "me", options, lost=lambda: None, used=runs.trace.usage, begins=begins
    )
    stored = runs.trace.append

    async def losing(*given: object, **named: object) -> None:
        monkeypatch.undo()
        await stored(*given, **named)  # type: ignore[arg-type]
        raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(runs.trace, "append", losing)
    tracer.note("model_called", usage=TokenUsage("gpt", input_tokens=5))
    with pytest.raises(StoreUnavailable):
        await tracer.flush()
    await tracer.flush()
    await tracer.close()
    assert [event.kind for event in await runs.trace.events("r1")][-1:] == ["model_called"]
    assert len(await runs.trace.events("r1")) == (1 if begins else 2)
    assert [used.calls for used in await runs.trace.usage("r1")] == [1]
