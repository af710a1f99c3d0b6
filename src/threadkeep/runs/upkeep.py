"""What goes on by itself while runs are carried out: saying that this process lives, and seeing to what others left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from threadkeep.errors import StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.observe import RunTrouble, RunWork
from threadkeep.records.runs import Run
from threadkeep.runs.orphans import end_orphan
from threadkeep.runs.progress.checkpoints import RunCheckpoints
from threadkeep.runs.runner import Runner
from threadkeep.runs.service_options import RunServiceOptions

_AT_ONCE = 50
_ENQUEUED_AGAIN_AFTER_SECONDS = 60.0
_MOST_REMEMBERED = 10_000


class RunUpkeep:
    """Owned background work, bounded in each round; a round that fails is told of, and the next one comes."""

    def __init__(self, memory: Memory, runner: Runner, checkpoints: RunCheckpoints, options: RunServiceOptions) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._runner = runner
        self._checkpoints = checkpoints
        self._options = options
        self._look = asyncio.Event()
        self._enqueued: dict[str, float] = {}

    @asynccontextmanager
    async def looking_after(self) -> AsyncIterator[None]:
        """Do it inside the block, and a little longer than runs are carried out."""
        options = self._options
        tasks = [
            asyncio.create_task(self._repeat(self._beat, options.heartbeat_seconds, "heartbeat")),
            asyncio.create_task(self._repeat(self.watch, options.watch_seconds, "watch", self._look)),
            asyncio.create_task(self._repeat(self.round, options.upkeep_seconds, "upkeep")),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def look_now(self) -> None:
        """See at once what of this process's runs is to be stopped."""
        self._look.set()

    async def watch(self) -> None:
        """Stop what others want stopped, and what is another process's by now."""
        before = [carried for carried in self._runner.carried.all() if carried.stop is None]
        if not before:
            return
        held = await self._runs.held_by(self._runner.owner)
        for carried in before:
            run_id = carried.run.run_id
            if self._runner.carried.of(run_id) is not carried:
                continue
            if run_id not in held:
                carried.cancel("lost")
            elif held[run_id] is not None:
                carried.cancel("cancelled")

    async def round(self) -> None:
        """See to runs that nobody has, and to checkpoints of those that are over."""
        await self._begin_unheard_of()
        forgotten = await self._runs.order.ready(limit=_AT_ONCE, waited_seconds=self._options.forgotten_seconds)
        abandoned = await self._runs.order.abandoned(limit=_AT_ONCE)
        for run_id in (*forgotten, *abandoned):
            run = await self._runs.run(run_id)
            if run is not None and not self._runner.has(run_id):
                await self._see_to(run)
        kept = timedelta(seconds=self._options.keep_checkpoints_seconds)
        await self._checkpoints.remove_before(self._memory.clock() - kept, limit=_AT_ONCE)

    async def _begin_unheard_of(self) -> None:
        """Carry out what is in this process's name and not known here, since the answer that it was begun was lost.

        Nobody else may take it over for as long as this process lives. A child is its parent's, which begins it again.
        """
        for run_id in await self._runs.held_by(self._runner.owner):
            run = None if self._runner.has(run_id) else await self._runs.run(run_id)
            if run is not None and run.parent_run_id is None:
                await self._runner.start(run_id)

    async def _see_to(self, run: Run) -> None:
        """Have a run carried out that nobody has; a child is its parent's, unless that is over."""
        if run.parent_run_id is not None:
            parent = await self._runs.run(run.parent_run_id)
            if parent is None or parent.over:
                await end_orphan(self._runs, run)
            return
        now = time.monotonic()
        if now - self._enqueued.get(run.run_id, -_ENQUEUED_AGAIN_AFTER_SECONDS) < _ENQUEUED_AGAIN_AFTER_SECONDS:
            return
        if len(self._enqueued) >= _MOST_REMEMBERED:
            self._enqueued.clear()
        self._enqueued[run.run_id] = now
        await self._runner.engine.enqueue(run.run_id)

    async def _beat(self) -> None:
        await self._runs.keep_alive(self._runner.owner)

    async def _repeat(
        self, work: Callable[[], Awaitable[None]], seconds: float, name: RunWork, sooner: asyncio.Event | None = None
    ) -> None:
        sooner = sooner or asyncio.Event()
        await self._runner.opened()
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await sooner.wait()
            except TimeoutError:
                pass
            sooner.clear()
            try:
                await work()
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001 - what fails now is tried again for as long as the process lives
                self._memory.observers.notify(RunTrouble(error=type(error).__name__, work=name))
