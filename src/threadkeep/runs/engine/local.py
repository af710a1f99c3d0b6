"""Execution of runs as tasks of this process, and the engine of a database in memory."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Set
from typing import Literal
from uuid import uuid4

from threadkeep.errors import StoreClosed
from threadkeep.runs.engine.engine import CLOSED, STOP_SECONDS, EngineOptions, Execute, Stop, Troubled

type Ending = Literal["done", "left", "lost"]
"""The end of an execution: `left` by a closing engine to others, or `lost` to another process."""

_names: set[str] = set()
"""The names of the open local engines of this process."""


class RunTasks:
    """The tasks in which this process executes runs, at most one task per run."""

    def __init__(self, execute: Execute, troubled: Troubled) -> None:
        self._execute = execute
        self._troubled = troubled
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, Stop] = {}
        # Runs use the context in which the engine was opened, not the context of the request that started them.
        self._context = contextvars.copy_context()

    async def execute(self, run_id: str) -> Ending:
        """Execute a run and return how the execution ended."""
        while (before := self._tasks.get(run_id)) is not None:
            await asyncio.wait([before])
            await asyncio.sleep(0)
        task = asyncio.create_task(self._execute(run_id), context=self._context.copy())
        self._tasks[run_id] = task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            del self._tasks[run_id]
            stop = self._stops.pop(run_id, None)
        error = None if task.cancelled() else task.exception()
        if stop == "lost":
            return "lost"
        if error is not None:
            self._troubled(type(error).__name__)
        return "left" if stop is not None and (task.cancelled() or error is not None) else "done"

    def stop(self, run_id: str, stop: Stop) -> None:
        """Cancel the task of a run, at most once, if the run is executed here."""
        task = self._tasks.get(run_id)
        if task is not None and (run_id not in self._stops or stop == "lost"):
            self._stops[run_id] = stop
            task.cancel()

    def stopping(self, run_id: str) -> Stop | None:
        """Return why the task of a run was cancelled; None if it was not."""
        return self._stops.get(run_id)

    def has(self, run_id: str) -> bool:
        """Return whether a run is executed here and was not lost."""
        return run_id in self._tasks and self._stops.get(run_id) != "lost"

    async def stop_all(self, stop: Stop, *, after_seconds: float) -> bool:
        """Wait for the tasks, then cancel the remaining ones and wait for them; return whether all have ended."""
        if self._tasks and after_seconds > 0:
            await asyncio.wait(self._tasks.values(), timeout=after_seconds)
        for run_id in list(self._tasks):
            self.stop(run_id, stop)
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(self._tasks.values(), timeout=STOP_SECONDS)
        return not pending


class LocalEngine:
    """An engine that executes runs without recording them; they end with the process."""

    def __init__(self, execute: Execute, options: EngineOptions, troubled: Troubled) -> None:
        self.name = uuid4().hex
        _names.add(self.name)
        self._runs = RunTasks(execute, troubled)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    async def ready(self) -> None:
        """Do nothing; this engine is always ready."""

    async def start(self, run_id: str) -> None:
        """Execute a run now."""
        self._take(self._runs.execute(run_id))

    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Execute a run when a slot is free."""
        self._take(self._queued(run_id))

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the names that no open engine of this process has, because no other process can use its database."""
        return names - _names

    async def take_from_dead(self) -> Set[str]:
        """Return nothing; the queue ends with its process."""
        return set()

    def stopping(self, run_id: str) -> Stop | None:
        """Return why the task of a run was cancelled; None if it was not."""
        return self._runs.stopping(run_id)

    def holds(self, run_id: str) -> bool:
        """Return whether a run is executed here."""
        return self._runs.has(run_id)

    async def close(self, seconds: float) -> None:
        """Wait for the runs, then cancel the rest."""
        self._closed = True
        await self._runs.stop_all("closing", after_seconds=seconds)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        _names.discard(self.name)

    def _take(self, work: Coroutine[object, object, object]) -> None:
        if self._closed:
            work.close()
            raise StoreClosed(CLOSED)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _queued(self, run_id: str) -> None:
        async with self._slots:
            await self._runs.execute(run_id)
