"""Tests that the bench of runs times every way to execute a turn, and counts the growth of the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.run_growth import PARTS
from bench.run_queue import PLAIN, SAVER, WAITED_FOR, QueuePlan
from bench.runs import RunsPlan, run, sheets, write_section
from bench.sections import PAGE
from bench.tables import markdown

pytestmark = pytest.mark.slow

# Workers are left out, because their processes take seconds to start.
HERE = (WAITED_FOR, PLAIN, SAVER)
HANDFUL = RunsPlan(engines=("sqlite",), latency_rounds=2, queue=QueuePlan(1, 2, HERE), growth_turns=3)


async def test_the_bench_of_runs_measures_everything(tmp_path: Path) -> None:
    told: list[str] = []
    found = await run(HANDFUL, told.append)
    tables = {name: markdown(sheet) for name, sheet in sheets(found).items()}
    assert all(name in tables["queue"] for name in HERE)
    assert all(part in tables["growth"] for part in PARTS)
    one = found["sqlite"]
    assert min(spent for each in one.latency.values() for spent in (each.run, each.plain)) > 0
    assert min(*one.queue.values(), one.growth.text, one.growth.saver) > 0
    assert any(SAVER in line for line in told)
    (tmp_path / PAGE).write_text("# Benchmarks\n", encoding="utf-8")
    write_section(found, tmp_path)
    assert tables["aims"] in (tmp_path / PAGE).read_text(encoding="utf-8")
