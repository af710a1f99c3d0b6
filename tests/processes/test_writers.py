"""Many processes write to one session: nothing that was acknowledged is lost, doubled, torn or out of order."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from tests.children import PROCESSES, Child, run_together
from tests.processes.history_check import faults
from tests.processes.writers import PARTS, Job, history_of, last_acknowledged, watch, write
from tests.servers import Postgres, StopMode

pytestmark = pytest.mark.process

_FACTOR = int(os.environ.get("THREADKEEP_SOAK_FACTOR", "1"))
_POLL_SECONDS = 0.01


def test_eight_writers_of_one_session(shared_url: str, tmp_path: Path) -> None:
    """Every turn of every process has its place, 1 to n."""
    jobs = [Job(shared_url, tmp_path, f"writer{n}", turns=15 * _FACTOR) for n in range(8)]
    assert run_together(write, [(job,) for job in jobs]) == [0] * 8
    history = history_of(jobs)
    assert faults(history) == []
    assert len(history.acknowledged) == 8 * 15 * _FACTOR
    assert len(history.stored) == PARTS * len(history.acknowledged)


@pytest.mark.slow
def test_writers_that_are_killed_and_replaced(shared_url: str, tmp_path: Path) -> None:
    """At random moments, with a real SIGKILL; who takes over tries the last turn again. Others read meanwhile."""
    jobs = [Job(shared_url, tmp_path, f"writer{n}", turns=1_000_000) for n in range(4)]
    chance = random.Random(seed := random.randrange(10**6))
    with watched(jobs[0]), working(jobs) as writers:
        for _ in range(12 * _FACTOR):
            until_each_went_on(jobs, writers, turns=1 + chance.randrange(3))
            victim = chance.randrange(len(jobs))
            writers[victim].kill()
            writers[victim] = Child(write, jobs[victim])
        until_each_went_on(jobs, writers, turns=2)
    history = history_of(jobs)
    assert faults(history) == [], f"seed {seed}"
    assert len(history.acknowledged) > 12 * _FACTOR


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_postgres_that_is_restarted_under_load(unsteady_postgres: Postgres, mode: StopMode, tmp_path: Path) -> None:
    """Writers and readers go on by themselves, and nothing that was acknowledged is lost."""
    with unsteady_postgres.database() as url:
        jobs = [Job(url, tmp_path, f"writer{n}", turns=1_000_000) for n in range(4)]
        with watched(jobs[0]), working(jobs) as writers:
            for _ in range(2 * _FACTOR):
                until_each_went_on(jobs, writers, turns=5)
                unsteady_postgres.restart(mode)
            until_each_went_on(jobs, writers, turns=5)
        history = history_of(jobs)
    assert faults(history) == []


@contextmanager
def working(jobs: list[Job]) -> Iterator[list[Child[int]]]:
    """Writers at work inside the block; those that are in the list at its end are killed."""
    writers: list[Child[int]] = [Child(write, job) for job in jobs]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.kill()


@contextmanager
def watched(job: Job) -> Iterator[None]:
    """A process that reads inside the block, and must have read without a fault."""
    stop = PROCESSES.Event()
    reader: Child[int] = Child(watch, job, stop)
    try:
        yield
        stop.set()
        assert reader.result() > 0
    finally:
        reader.kill()


def until_each_went_on(jobs: list[Job], writers: list[Child[int]], *, turns: int) -> None:
    """Return when each writer has noted so many turns more; fails when one has ended by itself."""
    wanted = [last_acknowledged(job) + turns for job in jobs]
    _until(lambda: all(last_acknowledged(job) >= number for job, number in zip(jobs, wanted, strict=True)), writers)


def _until(condition: Callable[[], bool], writers: list[Child[int]]) -> None:
    while not condition():
        for ended in wait([writer.process.sentinel for writer in writers], timeout=_POLL_SECONDS):
            [writer] = [writer for writer in writers if writer.process.sentinel == ended]
            raise AssertionError(f"a writer ended by itself: {writer.result()}")
