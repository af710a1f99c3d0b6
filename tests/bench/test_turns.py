"""Tests of two services under faults: callers receive the replies that are stored.

`make bench` runs the long form.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.contenders import ENGINES, Engine
from bench.turn_bench import plans
from bench.turn_chaos import run_turns
from bench.turn_check import check
from bench.turn_faults import FaultName, TurnPlan
from tests.children import PROCESSES

# On SQLite, a paused process keeps its lease, so more processes are killed instead.
_FAULTS: dict[Engine, Counter[FaultName]] = {
    "sqlite": Counter({"kill": 6, "pause": 1, "stall": 1, "slow": 1, "full": 1}),
    "postgres": Counter({"kill": 3, "pause": 2, "stall": 1, "cut": 1, "slow": 1}),
}


def short_plan(engine: Engine, faults: Counter[FaultName]) -> TurnPlan:
    """Return a plan of less than a minute."""
    [plan] = plans(engine, random.randrange(10**6), 20, faults)
    return plan


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
async def test_callers_receive_the_stored_replies(engine: Engine, tmp_path: Path) -> None:
    """Two services answer while processes are killed and paused, the database stalls, and the disk is full."""
    assert PROCESSES.get_start_method() == "forkserver"  # it has imported the modules of the tests
    plan = short_plan(engine, _FAULTS[engine])
    history = await run_turns(plan, tmp_path, print)
    faults = "\n".join(f"{fault.kind}: {fault.says}" for fault in check(history).faults)
    assert not faults, f"seed {plan.seed}\n{faults}"


@pytest.mark.process
async def test_quiet_services_have_no_fault(tmp_path: Path) -> None:
    """The bench itself causes no faults."""
    plan = replace(short_plan("sqlite", Counter()), sessions=3, turns_of_session=3, turns=9, model_seconds=(0.0, 0.05))
    history = await run_turns(plan, tmp_path, print)
    verdict = check(history)
    assert (list(verdict.faults), list(verdict.conflicts)) == ([], [])
    assert len(history.told) >= len(history.calls) >= 9


def test_a_long_run_is_split_with_its_faults() -> None:
    parts = plans("postgres", 7, 1_700, {"kill": 10, "pause": 1})
    assert [part.seed for part in parts] == [7, 8, 9]
    assert sum((part.faults for part in parts), Counter()) == {"kill": 10, "pause": 1}
    assert sum(part.turns for part in parts) >= 1_698
