"""Tests of many processes that write to one session: no acknowledged turn is lost, doubled, torn or out of order."""

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
    """All turns of all processes are stored, with sequence numbers from 1 without gaps."""
    jobs = [Job(shared_url, tmp_path, f"writer{n}", turns=15 * _FACTOR) for n in range(8)]
    assert run_together(write, [(job,) for job in jobs]) == [0] * 8
    history = history_of(jobs)
    assert faults(history) == []
    assert len(history.acknowledged) == 8 * 15 * _FACTOR
    assert len(history.stored) == PARTS * len(history.acknowledged)


@pytest.mark.slow
def test_writers_that_are_killed_and_replaced(shared_url: str, tmp_path: Path) -> None:
    """Writers get SIGKILL at random moments, and their successors retry the last turn.

    Another process reads meanwhile.
    """
    jobs = [Job(shared_url, tmp_path, f"writer{n}", turns=1_000_000) for n in range(4)]
    chance = random.Random(seed := random.randrange(10**6))
    with reading(jobs[0]), writing(jobs) as writers:
        for _ in range(12 * _FACTOR):
            wait_for_turns(jobs, writers, turns=1 + chance.randrange(3))
            victim = chance.randrange(len(jobs))
            writers[victim].kill()
            writers[victim] = Child(write, jobs[victim])
        wait_for_turns(jobs, writers, turns=2)
    history = history_of(jobs)
    assert faults(history) == [], f"seed {seed}"
    assert len(history.acknowledged) > 12 * _FACTOR


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_postgres_loses_no_acknowledged_turn(
    unsteady_postgres: Postgres, mode: StopMode, tmp_path: Path
) -> None:
    with unsteady_postgres.database() as url:
        jobs = [Job(url, tmp_path, f"writer{n}", turns=1_000_000) for n in range(4)]
        with reading(jobs[0]), writing(jobs) as writers:
            for _ in range(2 * _FACTOR):
                wait_for_turns(jobs, writers, turns=5)
                unsteady_postgres.restart(mode)
            wait_for_turns(jobs, writers, turns=5)
        history = history_of(jobs)
    assert faults(history) == []


@contextmanager
def writing(jobs: list[Job]) -> Iterator[list[Child[int]]]:
    """Run writers during the block; kill the current writers at its end."""
    writers: list[Child[int]] = [Child(write, job) for job in jobs]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.kill()


@contextmanager
def reading(job: Job) -> Iterator[None]:
    """Run a process that reads during the block, and check that it read without a fault."""
    stop = PROCESSES.Event()
    reader: Child[int] = Child(watch, job, stop)
    try:
        yield
        stop.set()
        assert reader.result() > 0
    finally:
        reader.kill()


def wait_for_turns(jobs: list[Job], writers: list[Child[int]], *, turns: int) -> None:
    """Wait until each writer has noted this many more turns; fail if one has ended."""
    wanted = [last_acknowledged(job) + turns for job in jobs]
    _until(lambda: all(last_acknowledged(job) >= number for job, number in zip(jobs, wanted, strict=True)), writers)


def _until(condition: Callable[[], bool], writers: list[Child[int]]) -> None:
    while not condition():
        for ended in wait([writer.process.sentinel for writer in writers], timeout=_POLL_SECONDS):
            [writer] = [writer for writer in writers if writer.process.sentinel == ended]
            raise AssertionError(f"a writer ended by itself: {writer.result()}")
