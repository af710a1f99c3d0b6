"""Processes that carry runs out, and are killed, paused and closed at it: no run is lost, none is carried out twice."""

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

# Shorter on a busy machine would take the living for dead.
SOON = EngineOptions(concurrency=3, poll_seconds=0.1, dead_seconds=3.0, close_seconds=0.0)
LATER = EngineOptions(concurrency=3, poll_seconds=0.1, dead_seconds=6.0, close_seconds=0.0)
# For whom nobody is waited so long.
NEVER = EngineOptions(concurrency=3, poll_seconds=0.1, dead_seconds=600.0, close_seconds=0.0)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """What all processes of a test note."""
    return Notes(tmp_path / "notes")


@asynccontextmanager
async def only_asking(url: str, notes: Notes) -> AsyncIterator[Engine]:
    """An engine of this process that carries nothing out."""

    async def never(run_id: str) -> None:
        raise AssertionError(f"{run_id} was carried out here")

    async with open_engine(parse_address(url), never, EngineOptions(works=False), troubled=notes.troubled) as engine:
        yield engine


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return when something has come true."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(_POLL_SECONDS)


class Workers:
    """Processes at work; one that is killed is noted before another takes its place."""

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
        """Put a new process in the place of each that has killed itself."""
        for index, child in enumerate(self.children):
            if not child.process.is_alive():
                self.kill(index)


@contextmanager
def working(job: Job, number: int) -> Iterator[Workers]:
    """Processes that work inside the block."""
    workers = Workers(job, number)
    try:
        yield workers
    finally:
        for child in workers.children:
            child.kill()


async def enqueue(url: str, notes: Notes, runs: Sequence[str]) -> None:
    """Have runs carried out."""
    async with only_asking(url, notes) as engine:
        for run_id in runs:
            await engine.enqueue(run_id)


async def test_processes_that_are_killed(shared_url: str, notes: Notes) -> None:
    """At random moments, with runs at work and runs in the queue: all are executed.

    That no two processes execute one at a time is decided by the record of the run.
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
        await until(lambda: notes.of("end") >= set(runs), "all runs to end")


async def test_the_last_process_takes_up_what_it_left_itself(sqlite_url: str, notes: Notes) -> None:
    """There is nobody else: the run goes on when the process comes back."""
    with working(Job(sqlite_url, notes, 60.0, SOON, starts=("held",)), 1) as workers:
        await until(lambda: "held" in notes.of("begin"), "the run to begin")
        workers.kill(0, replace=False)
        workers.job = Job(sqlite_url, notes, 0.01, SOON)
        workers.children[0] = Child(work, workers.job)
        await until(lambda: "held" in notes.of("end"), "the run to be taken up")
    assert faults(notes.read(), {"held"}) == []


async def test_a_process_that_closes_hands_over(shared_url: str, notes: Notes) -> None:
    """What it cannot end in time is cancelled, and taken up by another at once: it need not be found dead."""
    stop = PROCESSES.Event()
    closing: Child[None] = Child(work, Job(shared_url, notes, 60.0, NEVER, starts=("one", "two")), stop)
    try:
        await until(lambda: notes.of("begin") == {"one", "two"}, "the runs to begin")
        with working(Job(shared_url, notes, 0.01, NEVER), 1):
            await until(lambda: len([note for note in notes.read() if note.what == "ready"]) == 2, "two processes")
            stop.set()
            await asyncio.to_thread(closing.result)
            assert notes.of("closing") == {"one", "two"}
            await until(lambda: notes.of("end") == {"one", "two"}, "the runs to be taken up")
    finally:
        closing.kill()
    assert faults(notes.read(), {"one", "two"}) == []


async def test_a_process_that_stood_still_notices_that_it_lost_its_run(postgres_url: str, notes: Notes) -> None:
    """Another has it by then; and who woke up works again, under another name."""
    with working(Job(postgres_url, notes, 60.0, SOON, starts=("held",)), 1) as sleepers:
        await until(lambda: "held" in notes.of("begin"), "the run to begin")
        pid = sleepers.children[0].pid
        os.kill(pid, signal.SIGSTOP)
        notes.add("dead", pid=pid)
        with working(Job(postgres_url, notes, 0.01, SOON), 1) as others:
            await until(lambda: "held" in notes.of("end"), "the run to be taken up")
            others.kill(0, replace=False)
        os.kill(pid, signal.SIGCONT)
        await until(lambda: "held" in notes.of("lost"), "the process to notice")
        await enqueue(postgres_url, notes, ["next"])
        await until(lambda: "next" in notes.of("begin"), "the process to work again")
    assert [note.pid for note in notes.read() if note.run_id == "next"] == [pid]
    assert faults(notes.read(), {"held"}) == []


async def test_a_process_that_stands_still_keeps_its_run(sqlite_url: str, notes: Notes) -> None:
    """On one machine a process that lives is never taken for dead, whatever it does."""
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


async def test_a_postgres_that_is_restarted(unsteady_postgres: Postgres, notes: Notes) -> None:
    """Nobody is taken for dead for it, and all runs are carried out once."""
    runs = [f"run{number}" for number in range(40)]
    with unsteady_postgres.database() as url:
        await enqueue(url, notes, runs)
        with working(Job(url, notes, 0.05, LATER), 3):
            await until(lambda: len(notes.of("end")) >= 10, "runs to end")
            await asyncio.to_thread(unsteady_postgres.restart, "immediate")
            await until(lambda: notes.of("end") >= set(runs), "all runs to end")
    assert faults(notes.read(), set(runs)) == []
    assert notes.of("lost") == set()


async def test_who_takes_nothing_from_the_queue_goes_on_with_a_run_of_a_dead_process(
    shared_url: str, notes: Notes
) -> None:
    """A command that follows one run is not kept waiting by what a dead process had begun of it."""
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
