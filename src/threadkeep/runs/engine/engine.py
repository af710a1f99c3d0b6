"""The base of run engines, and the engine for a database in memory."""

from __future__ import annotations

import asyncio
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Set
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from threadkeep.boundary import Tasks
from threadkeep.errors import StoreClosed

type Execute = Callable[[str], Coroutine[object, object, None]]
"""A callback that executes a run. A repeated call for the same run resumes from the stored progress."""

type Troubled = Callable[[str], None]
"""A callback for errors that do not stop the engine, usually of the database. It gets the name of the error."""

type Stop = Literal["closing", "lost"]
"""The reason why the engine stops a run: it is closing, or this process was declared dead and lost the run."""

STOP_SECONDS = 5.0
"""Seconds to wait for the end of runs that were cancelled."""

CLOSED = "The engine was closed and accepts no more runs; start runs inside its `async with open_engine(...)` block."


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine. Times are in seconds.

    If `works` is true, the process executes enqueued runs: at most `concurrency` at a time, plus one that was
    enqueued with `alone=True`. Runs that were begun with `start` are not counted. On PostgreSQL a process without a
    heartbeat for `dead_seconds` is declared dead. On SQLite the operating system shows at once that a process died.
    """

    works: bool = True
    concurrency: int = 16
    poll_seconds: float = 0.25
    dead_seconds: float = 8.0
    close_seconds: float = 10.0
    keep_finished_seconds: float = 600.0


type Ending = Literal["done", "left", "lost"]
"""How an execution ended: `done` (even by an error), `left` because the engine closes, or `lost` to another process."""


class Engine(ABC):
    """An engine that calls `execute(run_id)`, with at most one task per run; it knows nothing else about runs.

    - `start` executes a run in this process. If this process dies, `dead` in another process returns its name.
    - `enqueue` records a run for any worker. If the worker that executes it dies, `take_from_dead` returns the run.
    - A process never executes a run twice at the same time. A run that is started while it is being executed is
      executed once more after that. The record of the run decides which process executes it.
    - If its task is cancelled, `execute` must end soon and leave the run as it is, so that another process resumes it.
      To cancel a run, record a request in the run's row; its `execute` then ends by itself.
    - The engine retries nothing. If `execute` raises, the error is reported, and the execution is over.
    """

    def __init__(self, execute: Execute, troubled: Troubled) -> None:
        self._execute = execute
        self._troubled = troubled
        self._active: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, Stop] = {}
        # Runs use the context in which the engine was opened, not the context of the request that started them.
        self._context = contextvars.copy_context()

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of this process. It changes if the process was declared dead and registers again.

        Raises:
            StoreClosed: the process is not registered: before `ready`, after `close`, or while it registers again.
        """

    @abstractmethod
    async def ready(self) -> None:
        """Register this process with the engine under a new name, unless it is registered already.

        Raises:
            StoreClosed: the engine accepts no more runs.
            StoreUnavailable: the database does not answer.
        """

    @abstractmethod
    async def work(self) -> None:
        """Execute enqueued runs from now on.

        Raises:
            StoreUnavailable: the database does not answer.
        """

    @abstractmethod
    async def start(self, run_id: str) -> None:
        """Start executing a run in this process; do not wait for its end.

        Raises:
            StoreClosed: the engine accepts no more runs.
            StoreUnavailable: the database does not answer.
        """

    @abstractmethod
    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Enqueue a run for any worker. With `alone`, a worker executes only one such run at a time.

        Raises:
            StoreClosed: the engine accepts no more runs.
            StoreUnavailable: the database does not answer.
            InvalidInput: this process already has a dbos, launched by another engine or by the application itself.
        """

    @abstractmethod
    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that are dead; a process that was declared dead stays dead.

        Raises:
            StoreUnavailable: the database does not answer.
        """

    @abstractmethod
    async def take_from_dead(self) -> Set[str]:
        """Remove the enqueued runs that dead processes were executing; return the ids of these runs.

        Raises:
            StoreUnavailable: the database does not answer.
        """

    @abstractmethod
    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait up to `seconds` for active runs, and leave unfinished runs to other processes."""

    def stopping(self, run_id: str) -> Stop | None:
        """Return why the engine is stopping a run of this process, or None if it is not stopping the run."""
        return self._stops.get(run_id)

    def holds(self, run_id: str) -> bool:
        """Return True if it is certain that this process still owns a run. Call it before work that must run only once.

        Return False if this process has not renewed its lease for too long: another process may own the run by now.
        """
        return run_id in self._active and self._stops.get(run_id) != "lost"

    async def _run(self, run_id: str) -> Ending:
        """Execute a run. If this process is executing it already, wait for that execution first.

        Return `lost` if another process may own the run, `left` if the engine stopped the run, otherwise `done`.
        """
        while (before := self._active.get(run_id)) is not None:
            await asyncio.wait([before])
            await asyncio.sleep(0)
        task = asyncio.create_task(self._execute(run_id), context=self._context.copy())
        self._active[run_id] = task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            del self._active[run_id]
            stop = self._stops.pop(run_id, None)
        error = None if task.cancelled() else task.exception()
        if stop == "lost":
            return "lost"
        if error is not None:
            self._troubled(type(error).__name__)
        return "left" if stop is not None and (task.cancelled() or error is not None) else "done"

    async def _stop_all(self, stop: Stop, *, after_seconds: float) -> bool:
        """Wait `after_seconds` for the tasks, then cancel the rest; return whether all have ended."""
        if self._active and after_seconds > 0:
            await asyncio.wait(self._active.values(), timeout=after_seconds)
        for run_id, task in self._active.items():
            # Cancel each task only once, unless the new reason is `lost`.
            if run_id not in self._stops or stop == "lost":
                self._stops[run_id] = stop
                task.cancel()
        if not self._active:
            return True
        _, pending = await asyncio.wait(self._active.values(), timeout=STOP_SECONDS)
        return not pending


_names: set[str] = set()
"""The names of the open local engines of this process."""


class LocalEngine(Engine):
    """An engine whose queue is only in memory, so its runs end with the process."""

    name = ""  # an attribute in place of the abstract property

    def __init__(self, execute: Execute, options: EngineOptions, troubled: Troubled) -> None:
        super().__init__(execute, troubled)
        self.name = uuid4().hex
        _names.add(self.name)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._tasks = Tasks()
        self._closed = False

    async def ready(self) -> None:
        """Do nothing, because this engine is always ready."""

    async def work(self) -> None:
        """Do nothing, because this engine executes each run that is enqueued here."""

    async def start(self, run_id: str) -> None:
        """Start executing a run at once."""
        self._take(self._run(run_id))

    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Execute a run as soon as fewer than `concurrency` enqueued runs are active."""
        self._take(self._queued(run_id))

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the names that no open engine of this process has; no other process can use a database in memory."""
        return names - _names

    async def take_from_dead(self) -> Set[str]:
        """Return an empty set, because the queue ends with its process."""
        return set()

    async def close(self, seconds: float) -> None:
        """Wait up to `seconds` for the runs, then cancel the rest."""
        self._closed = True
        await self._stop_all("closing", after_seconds=seconds)
        await self._tasks.cancel(STOP_SECONDS)
        _names.discard(self.name)

    def _take(self, work: Coroutine[object, object, object]) -> None:
        if self._closed:
            work.close()
            raise StoreClosed(CLOSED)
        _ = self._tasks.start(work)

    async def _queued(self, run_id: str) -> None:
        async with self._slots:
            await self._run(run_id)
