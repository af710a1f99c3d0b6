"""Processes that execute runs and record them in a file, so that a kill does not lose the records."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from threadkeep.errors import StoreError
from threadkeep.runs.engine.engine import Engine, EngineOptions
from threadkeep.runs.engine.opening import open_engine
from threadkeep.store.address import parse_address

UNEXPLAINED = "cancelled-without-a-reason"
_TAKE_OVER_SECONDS = 0.2


class Note(NamedTuple):
    """A line of a process about a run: `begin`, `end` or why it was stopped; or `dead` about a process."""

    pid: int
    what: str
    run_id: str


@dataclass(frozen=True)
class Notes:
    """A file that all processes append to. The order of its lines is that of the events."""

    path: Path

    def add(self, what: str, run_id: str = "", pid: int | None = None) -> None:
        """Write a note of this process, or of another one."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, f"{pid or os.getpid()} {what} {run_id}\n".encode())
        finally:
            os.close(descriptor)

    def troubled(self, error: str) -> None:
        """Record an error that the engine continued after."""
        self.add("troubled", error)

    def read(self) -> list[Note]:
        """Return all notes so far."""
        if not self.path.exists():
            return []
        lines = [line.split(" ") for line in self.path.read_text().splitlines()]
        return [Note(int(pid), what, run_id) for pid, what, run_id in lines]

    def of(self, what: str) -> set[str]:
        """Return the runs with a note of a kind."""
        return {note.run_id for note in self.read() if note.what == what}


def faults(notes: list[Note], runs: set[str]) -> list[str]:
    """Return a sentence about each run that was lost, executed twice at once, or cancelled without a reason."""
    ended = {note.run_id for note in notes if note.what == "end"}
    found = [f"{run_id} was not executed to its end" for run_id in sorted(runs - ended)]
    holders: defaultdict[str, set[int]] = defaultdict(set)
    dead: set[int] = set()
    for note in notes:
        if note.what == UNEXPLAINED:
            found.append(f"{note.run_id} was cancelled without a reason")
        if note.what == "dead":
            dead.add(note.pid)
        elif note.what == "begin":
            if others := holders[note.run_id] - dead:
                found.append(f"{note.run_id} was begun by {note.pid} while {others} executed it")
            holders[note.run_id].add(note.pid)
        else:
            holders[note.run_id].discard(note.pid)
    return found


@dataclass(frozen=True)
class Job:
    """The work of a process. `seconds` is how long a run takes."""

    url: str
    notes: Notes
    seconds: float = 0.03
    options: EngineOptions = field(default_factory=EngineOptions)
    starts: tuple[str, ...] = ()


def work(job: Job, stop: Event | None = None) -> None:
    """Execute runs until `stop` is set, or for ever."""
    asyncio.run(_work(job, stop))


async def _work(job: Job, stop: Event | None) -> None:
    async def execute(run_id: str) -> None:
        job.notes.add("begin", run_id)
        try:
            await asyncio.sleep(job.seconds)
        except asyncio.CancelledError:
            job.notes.add(engine.stopping(run_id) or UNEXPLAINED, run_id)
            raise
        job.notes.add("end", run_id)

    async with open_engine(parse_address(job.url), execute, job.options, troubled=job.notes.troubled) as engine:
        taking_over = asyncio.create_task(_take_over(engine, job.notes))
        await _start(engine, job)
        await (asyncio.Event().wait() if stop is None else asyncio.to_thread(stop.wait))
        taking_over.cancel()


async def _take_over(engine: Engine, notes: Notes) -> None:
    """Enqueue the runs of dead processes again, as the maintenance of runs does.

    If the database is busy, the runs are enqueued later. The note `taken` replaces the run's row, in which maintenance
    of any process would see that the run is in no queue.
    """
    taken: set[str] = set()
    while True:
        await asyncio.sleep(_TAKE_OVER_SECONDS)
        with contextlib.suppress(StoreError):
            for run_id in await engine.take_from_dead():
                notes.add("taken", run_id)
                taken.add(run_id)
            for run_id in list(taken):
                await engine.enqueue(run_id)
                taken.discard(run_id)


async def _start(engine: Engine, job: Job) -> None:
    for run_id in job.starts:
        await engine.enqueue(run_id)
    job.notes.add("ready")
