"""Processes that execute runs and obey commands from a pipe, until they are killed."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Literal

from bench.chaos_graphs import Graphs
from bench.endings import end_with_parent
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.errors import StoreUnavailable, ThreadkeepError
from threadkeep.graph_store.langgraph_stores import open_graph_store
from threadkeep.observe import Observers
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import Mode, RunService, open_runs
from threadkeep.store.address import parse_address
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.driver import StoreOptions
from threadkeep.workflows.resources import Resources

type Verb = Literal["ready", "submit", "result", "cancel", "resume"]

PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = (
    "langgraph.checkpoint.postgres.aio",
    "langgraph.checkpoint.sqlite.aio",
    "langgraph.store.postgres.aio",
    "langgraph.store.sqlite.aio",
    "threadkeep.runs.engine.dbos_engine",
    "threadkeep.runs.service",
    "threadkeep.store.postgres",
    "threadkeep.store.sqlite",
    __name__,
)
_RIGHT_SECONDS = 2.0
_RESTART_SECONDS = 0.2
# With shorter times a busy machine would declare living processes dead. Frequent kills must not dead-letter a run.
_ENGINE = EngineOptions(concurrency=6, poll_seconds=0.1, dead_seconds=2.0, close_seconds=0.0)
WORKING = RunServiceOptions(
    engine=_ENGINE, upkeep_seconds=1.0, forgotten_seconds=3.0, keep_checkpoints_seconds=1.0, max_attempts=1000
)


class Gone(Exception):
    """An error: the process was killed or its database was down, so it is unknown whether the call was executed."""


@dataclass(frozen=True)
class Refused:
    """An error that a process returned, with the name of the error."""

    error: str


@dataclass(frozen=True)
class Place:
    """The database and the workflows of a process. After two seconds its clock is wrong by `clock_is_wrong_by`."""

    url: str
    graphs: Graphs
    clock_is_wrong_by: timedelta = timedelta(0)

    def clock(self) -> Callable[[], datetime]:
        """Return the clock of a process, which becomes wrong while the process works."""
        began = time.monotonic()

        def now() -> datetime:
            wrong = time.monotonic() - began > _RIGHT_SECONDS
            return datetime.now(UTC) + (self.clock_is_wrong_by if wrong else timedelta(0))

        return now


@asynccontextmanager
async def opened(place: Place, options: RunServiceOptions = WORKING) -> AsyncIterator[tuple[Memory, RunService]]:
    """Open the memory and the runs of a place."""
    address, store = parse_address(place.url), StoreOptions()
    async with (
        open_memory(place.url, options=MemoryOptions(background=False, clock=place.clock())) as memory,
        open_checkpointer(address, store) as saver,
        open_graph_store(address, store) as graph_store,
    ):
        model = place.graphs.model()
        resources = Resources(memory=memory, model=lambda _: model, observer=Observers())
        workflows = place.graphs.workflows()
        async with open_runs(
            memory, address, workflows, resources, checkpointer=saver, store=graph_store, options=options
        ) as service:
            yield memory, service


class Worker:
    """A worker process, as seen from the process that started it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pipe, theirs = PROCESSES.Pipe()
        self._process: ForkServerProcess = PROCESSES.Process(target=_work, args=(place, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    async def ask(self, verb: Verb, *arguments: object) -> Any:
        """Send a command to the process; return its answer, or `Refused` with the name of an error.

        Raises:
            Gone: it was killed, or cannot reach its database.
        """
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        if self._reader.done():
            raise Gone
        try:
            self._pipe.send((number, verb, arguments))
        except OSError:
            raise Gone from None
        try:
            told = await answer
        finally:
            del self._asked[number]
        if isinstance(told, Refused) and told.error == "StoreUnavailable":
            raise Gone
        return told

    async def pause(self, seconds: float) -> None:
        """Pause the process for a while: it is declared dead, and other processes continue its runs."""
        self._place.graphs.notes.add("dead", pid=self.pid)
        os.kill(self.pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)

    async def kill(self) -> None:
        """End the process with SIGKILL, and add a note of the kill."""
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        self._place.graphs.notes.add("dead", pid=self.pid)
        await self._reader
        self._pipe.close()

    async def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, answer = await asyncio.to_thread(self._pipe.recv)
                if (future := self._asked.get(number)) is not None and not future.done():
                    future.set_result(answer)
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Gone())


def _work(place: Place, pipe: Connection) -> None:
    end_with_parent()
    asyncio.run(_worked(place, pipe))


async def _worked(place: Place, pipe: Connection) -> None:
    while True:
        # A process that cannot open its database tries again, as if a supervisor of services had started it again.
        with suppress(StoreUnavailable):
            await _serve(place, pipe)
        await asyncio.sleep(_RESTART_SECONDS)


async def _serve(place: Place, pipe: Connection) -> None:
    async with opened(place) as (_, service), asyncio.TaskGroup() as tasks:
        while True:
            number, verb, arguments = await asyncio.to_thread(pipe.recv)
            tasks.create_task(_answer(service, pipe, number, verb, arguments))


async def _answer(service: RunService, pipe: Connection, number: int, verb: Verb, arguments: tuple[Any, ...]) -> None:
    try:
        answer = await _done(service, verb, arguments)
    except ThreadkeepError as error:
        answer = Refused(type(error).__name__)
    pipe.send((number, answer))


async def _done(service: RunService, verb: Verb, arguments: tuple[Any, ...]) -> object:
    match verb:
        case "ready":
            return None
        case "submit":
            request, mode = arguments
            return await _submitted(service, request, mode)
        case "result":
            result = await service.result(*arguments)
            return result.status
        case "cancel":
            return await service.cancel(*arguments)
        case "resume":
            await service.resume(*arguments, mode="background")
            return None


async def _submitted(service: RunService, request: RunRequest, mode: Mode) -> tuple[str, str]:
    found = await service.submit(request, mode=mode)
    return found.run_id, found.outcome
