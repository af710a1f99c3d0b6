"""The engine of a database in memory: tasks of this process, which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Set
from uuid import uuid4

from threadkeep.errors import StoreClosed
from threadkeep.runs.engine.carrying import Carrying
from threadkeep.runs.engine.engine import CLOSED, LETTING_GO_SECONDS, CarryOut, EngineOptions, Listener, Stop

_names: set[str] = set()
"""The names of the open engines of this process."""


class InProcessEngine:
    """An engine that executes runs without recording them."""

    def __init__(self, carry_out: CarryOut, options: EngineOptions, listener: Listener) -> None:
        self.name = uuid4().hex
        _names.add(self.name)
        self._carrying = Carrying(carry_out)
        self._options = options
        self._listener = listener
        self._slots = asyncio.Semaphore(options.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ready(self) -> None:
        """Do nothing; this engine is always ready."""

    async def start(self, run_id: str) -> None:
        """Execute a run now."""
        self._take(self._attempts(run_id, 0))

    async def enqueue(self, run_id: str, *, failures: int = 0) -> None:
        """Execute a run when a slot is free."""
        self._take(self._queued(run_id, failures))

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the names that no open engine of this process has; no other process can reach its database."""
        return names - _names

    def stopping(self, run_id: str) -> Stop | None:
        """Return why the task of a run was cancelled; None if it was not."""
        return self._carrying.stopping(run_id)

    def holds(self, run_id: str) -> bool:
        """Return whether a run is executed here."""
        return self._carrying.has(run_id)

    async def close(self, seconds: float) -> None:
        """Wait for the runs, then cancel the rest."""
        self._closed = True
        await self._carrying.stop_all("closing", after_seconds=seconds, within_seconds=LETTING_GO_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        _names.discard(self.name)

    def _take(self, work: Coroutine[object, object, None]) -> None:
        if self._closed:
            work.close()
            raise StoreClosed(CLOSED)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _queued(self, run_id: str, failures: int) -> None:
        async with self._slots:
            await self._attempts(run_id, failures)

    async def _attempts(self, run_id: str, failures: int) -> None:
        for attempt in range(1 + failures, self._options.max_attempts + 1):
            if await self._carrying.carry(run_id) != "failed":
                return
            if attempt < self._options.max_attempts:
                await asyncio.sleep(self._options.pause_seconds * 2 ** (attempt - 1))
        await self._listener.gave_up(run_id, self._options.max_attempts)
