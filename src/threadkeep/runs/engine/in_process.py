"""The engine of a database in memory: tasks of this process, with which all of it ends anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from threadkeep.errors import StoreClosed
from threadkeep.runs.engine.carrying import Carrying
from threadkeep.runs.engine.engine import CLOSED, LETTING_GO_SECONDS, CarryOut, EngineOptions, Listener, Stop


class InProcessEngine:
    """Carries runs out without a record of them."""

    def __init__(self, carry_out: CarryOut, options: EngineOptions, listener: Listener) -> None:
        self._carrying = Carrying(carry_out)
        self._options = options
        self._listener = listener
        self._slots = asyncio.Semaphore(options.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def ready(self) -> None:
        """Do nothing: it is."""

    async def start(self, run_id: str) -> None:
        """Carry a run out from now on."""
        self._take(self._attempts(run_id))

    async def begin(self, run_id: str) -> None:
        """Carry a run out from now on."""
        await self.start(run_id)

    async def enqueue(self, run_id: str) -> None:
        """Carry a run out when there is room for it."""
        self._take(self._queued(run_id))

    def stopping(self, run_id: str) -> Stop | None:
        """Why a run's task was cancelled."""
        return self._carrying.stopping(run_id)

    def holds(self, run_id: str) -> bool:
        """Whether a run is carried out here."""
        return self._carrying.has(run_id)

    async def close(self, seconds: float) -> None:
        """Wait for the runs, then cancel the rest."""
        self._closed = True
        await self._carrying.stop_all("closing", after_seconds=seconds, within_seconds=LETTING_GO_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _take(self, work: Coroutine[object, object, None]) -> None:
        if self._closed:
            work.close()
            raise StoreClosed(CLOSED)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _queued(self, run_id: str) -> None:
        async with self._slots:
            await self._attempts(run_id)

    async def _attempts(self, run_id: str) -> None:
        for attempt in range(1, self._options.max_attempts + 1):
            if await self._carrying.carry(run_id) != "failed":
                return
            if attempt < self._options.max_attempts:
                await asyncio.sleep(self._options.pause_seconds * 2 ** (attempt - 1))
        await self._listener.gave_up(run_id, self._options.max_attempts)
