"""Tests that the bench runs and measures all contenders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.aims import aims_of
from bench.contenders import ENGINES, Engine
from bench.plan import QUICK
from bench.run import run
from bench.tables import markdown, sheets_of

pytestmark = pytest.mark.slow

HANDFUL = replace(
    QUICK, only=("raw",), stored=(0, 20), rounds=2, repeats=2, copies=1, burst_rounds=1, burst_seconds=0.05, sessions=3
)


@pytest.mark.parametrize("engine", ENGINES)
async def test_threadkeep_and_raw_sql_are_measured_side_by_side(engine: Engine) -> None:
    told: list[str] = []
    results = await run(replace(HANDFUL, engines=(engine,)), told.append)
    for contender in ("threadkeep", "raw"):
        for measure in ("append", "tail"):
            assert all(results.value(engine, contender, measure, stored) for stored in HANDFUL.stored)
        assert results.value(engine, contender, "throughput")
    assert any("throughput" in line for line in told)
    assert all("Threadkeep" in markdown(sheet) for sheet in sheets_of(results))
    assert {aim.engine for aim in aims_of(results)} == {engine}
    assert results.notes == ()
