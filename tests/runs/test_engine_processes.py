"""Tests of engines in several processes that are killed, paused and closed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.children import PROCESSES, Child
from tests.limits import HANG_SECONDS
from tests.runs.workers import Job, Notes, faults, work
from tests.servers import Postgres
from threadkeep.runs.engine.engine import Engine, EngineOptions
from threadkeep.runs.engine.opening import open_engine
from threadkeep.store.address import parse_address

pytestmark = [pytest.mark.process, pytest.mark.slow]

_FACTOR = int(os.environ.get("THREADKEEP_SOAK_FACTOR", "1"))
_POLL_SECONDS = 0.02

# On a busy machine a shorter time would make living processes look dead.
SOON = EngineOptions(concurrency=3, poll_seconds=0.1, dead_seconds=3.0, close_seconds=0.0)
LATER = EngineOptions(concurrency=3, poll_seconds=0.1, dead_seconds=6.0, close_seconds=0.0)
# Longer than any test: a process is never considered dead.
NEVER = EngineOptions(concurrency=3, poll_seconds=0.1, dead_seconds=600.0, close_seconds=0.0)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Return the notes that all processes of a test share."""
    return Notes(tmp_path / "notes")


@asynccontextmanager
async def only_asking(url: str, notes: Notes) -> AsyncIterator[Engine]:
    """Open an engine in this process that executes no runs."""

    async def never(run_id: str) -> None:
        raise AssertionError(f"{run_id} was executed here")

    async with open_engine(parse_address(url), never, EngineOptions(works=False), troubled=notes.troubled) as engine:
        yield engine


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition is true, and fail with `what` after a time limit."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(_POLL_SECONDS)


class Workers:
    """Worker processes. The death of a process is recorded before another one replaces it."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.children: list[Child[None]] = [Child(work, job) for _ in range(number)]

    def kill(self, index: int, *, replace: bool = True) -> None:
        """Kill a process."""
        pid = self.children[index].pid
        self.children[index].kill()
        self.job.notes.add("dead", pid=pid)
        if replace:
            self.children[index] = Child(work, self.job)

    def replace_dead(self) -> None:
        """Start a new process for each that has killed itself."""
        for index, child in enumerate(self.children):
            if not child.process.is_alive():
                self.kill(index)


@contextmanager
def working(job: Job, number: int) -> Iterator[Workers]:
    """Start worker processes, and kill them after the block."""
    workers = Workers(job, number)
    try:
        yield workers
    finally:
        for child in workers.children:
            child.kill()


async def enqueue(url: str, notes: Notes, runs: Sequence[str]) -> None:
    """Enqueue runs."""
    async with only_asking(url, notes) as engine:
        for run_id in runs:
            await engine.enqueue(run_id)


async def test_runs_of_killed_workers_are_executed(shared_url: str, notes: Notes) -> None:
    """All runs are executed although workers are killed at random moments.

    This test does not check that no run is executed twice at a time. The record of the run ensures that.
    """
    runs = [f"run{number}" for number in range(60 * _FACTOR)]
    await enqueue(shared_url, notes, runs)
    chance = random.Random(random.randrange(10**6))
    with working(Job(shared_url, notes, 0.05, SOON), 3 if "postgres" in shared_url else 2) as workers:
        for _ in range(4 * _FACTOR):
            wanted = len(notes.of("end")) + 6

            def went_on(wanted: int = wanted) -> bool:
                return len(notes.of("end")) >= wanted

            await until(went_on, "runs to end between the kills")
            await asyncio.sleep(chance.random() / 20)
            workers.kill(chance.randrange(len(workers.children)))
        # A worker may have been killed after it took runs from a dead one, and before it enqueued them again.
        await enqueue(shared_url, notes, sorted(notes.of("taken") - notes.of("end")))
        await until(lambda: notes.of("end") >= set(runs), "all runs to end")


async def test_a_restarted_worker_executes_the_run_that_it_left(sqlite_url: str, notes: Notes) -> None:
    with working(Job(sqlite_url, notes, 60.0, SOON, starts=("held",)), 1) as workers:
        await until(lambda: "held" in notes.of("begin"), "the run to begin")
        workers.kill(0, replace=False)
        workers.job = Job(sqlite_url, notes, 0.01, SOON)
        workers.children[0] = Child(work, workers.job)
        await until(lambda: "held" in notes.of("end"), "another process to execute the run")
    assert faults(notes.read(), {"held"}) == []


async def test_a_closing_worker_hands_its_runs_over(shared_url: str, notes: Notes) -> None:
    """A closing worker cancels its runs, and another one executes them at once, without waiting for its death."""
    stop = PROCESSES.Event()
    closing: Child[None] = Child(work, Job(shared_url, notes, 60.0, NEVER, starts=("one", "two")), stop)
    try:
        await until(lambda: notes.of("begin") == {"one", "two"}, "the runs to begin")
        with working(Job(shared_url, notes, 0.01, NEVER), 1):
            await until(lambda: len([note for note in notes.read() if note.what == "ready"]) == 2, "two processes")
            stop.set()
            await asyncio.to_thread(closing.result)
            assert notes.of("closing") == {"one", "two"}
            await until(lambda: notes.of("end") == {"one", "two"}, "another process to execute the runs")
    finally:
        closing.kill()
    assert faults(notes.read(), {"one", "two"}) == []


async def test_a_paused_worker_notices_that_it_lost_its_run(postgres_url: str, notes: Notes) -> None:
    """A worker that wakes after its run was taken over stops the run as lost.

    It executes new runs under another name.
    """
    with working(Job(postgres_url, notes, 60.0, SOON, starts=("held",)), 1) as sleepers:
        await until(lambda: "held" in notes.of("begin"), "the run to begin")
        pid = sleepers.children[0].pid
        os.kill(pid, signal.SIGSTOP)
        notes.add("dead", pid=pid)
        with working(Job(postgres_url, notes, 0.01, SOON), 1) as others:
            await until(lambda: "held" in notes.of("end"), "another process to execute the run")
            others.kill(0, replace=False)
        os.kill(pid, signal.SIGCONT)
        await until(lambda: "held" in notes.of("lost"), "the process to notice")
        await enqueue(postgres_url, notes, ["next"])
        await until(lambda: "next" in notes.of("begin"), "the process to work again")
    assert [note.pid for note in notes.read() if note.run_id == "next"] == [pid]
    assert faults(notes.read(), {"held"}) == []


async def test_a_paused_worker_on_sqlite_keeps_its_run(sqlite_url: str, notes: Notes) -> None:
    """On SQLite a worker that lives is never considered dead, even if it is paused."""
    sooner = replace(SOON, dead_seconds=1.0)
    with working(Job(sqlite_url, notes, 0.6, sooner, starts=("held",)), 1) as sleepers:
        await until(lambda: "held" in notes.of("begin"), "the run to begin")
        os.kill(sleepers.children[0].pid, signal.SIGSTOP)
        with working(Job(sqlite_url, notes, 0.01, sooner), 1):
            await until(lambda: len([note for note in notes.read() if note.what == "ready"]) == 2, "two processes")
            await asyncio.sleep(1.5)
            os.kill(sleepers.children[0].pid, signal.SIGCONT)
            await until(lambda: "held" in notes.of("end"), "the run to end")
    assert len(notes.of("begin")) == 1
    assert faults(notes.read(), {"held"}) == []


async def test_workers_survive_a_restart_of_postgres(unsteady_postgres: Postgres, notes: Notes) -> None:
    runs = [f"run{number}" for number in range(40)]
    with unsteady_postgres.database() as url:
        await enqueue(url, notes, runs)
        with working(Job(url, notes, 0.05, LATER), 3):
            await until(lambda: len(notes.of("end")) >= 10, "runs to end")
            await asyncio.to_thread(unsteady_postgres.restart, "immediate")
            await until(lambda: notes.of("end") >= set(runs), "all runs to end")
    assert faults(notes.read(), set(runs)) == []
    assert notes.of("lost") == set()


async def test_a_process_that_is_not_a_worker_starts_a_run_of_a_dead_worker(shared_url: str, notes: Notes) -> None:
    ended = asyncio.Event()

    async def execute(run_id: str) -> None:
        ended.set()

    with working(Job(shared_url, notes, 60.0, SOON, starts=("held",)), 1) as workers:
        await until(lambda: "held" in notes.of("begin"), "the run to begin")
        workers.kill(0, replace=False)
    options = replace(SOON, works=False)
    async with open_engine(parse_address(shared_url), execute, options, troubled=notes.troubled) as engine:
        await engine.start("held")
        async with asyncio.timeout(HANG_SECONDS):
            await ended.wait()
