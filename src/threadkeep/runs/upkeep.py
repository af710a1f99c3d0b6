"""Maintenance in the background: watching this process's runs, and recovering runs that others left."""

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
from threadkeep.runs.endings import end_orphan
from threadkeep.runs.progress.progress import RunCheckpoints
from threadkeep.runs.runner import Runner
from threadkeep.runs.service_options import RunServiceOptions

_AT_ONCE = 50
_ENQUEUED_AGAIN_AFTER_SECONDS = 60.0
_MOST_REMEMBERED = 10_000


class RunUpkeep:
    """Background tasks, bounded per round; a failed round is reported, and the next one follows."""

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
        """Run the background tasks inside the block, a little longer than runs are executed."""
        options = self._options
        tasks = [
            asyncio.create_task(self._repeat(self.reap, options.reaps_every, "takeover")),
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
        """Check at once which runs of this process are to be stopped."""
        self._look.set()

    async def watch(self) -> None:
        """Cancel runs that were requested to stop, and runs that another process owns."""
        before = [carried for carried in self._runner.carried.all() if carried.stop is None]
        if not before:
            return
        held: dict[str, str | None] = {}
        for owner in {carried.owner for carried in before}:
            held |= await self._runs.held_by(owner)
        for carried in before:
            run_id = carried.run.run_id
            if self._runner.carried.of(run_id) is not carried:
                continue
            if run_id not in held:
                carried.cancel("lost")
            elif held[run_id] is not None:
                carried.cancel("cancelled")

    async def round(self) -> None:
        """Recover runs that no process has, and remove checkpoints of runs that are over."""
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
        """Execute runs that this process owns but does not know, because the reply to their start was lost.

        No other process may take them over while this one lives. A child is left to its parent, which starts it again.
        """
        for run_id in await self._runs.held_by(self._runner.owner):
            run = None if self._runner.has(run_id) else await self._runs.run(run_id)
            if run is not None and run.parent_run_id is None:
                await self._runner.start(run_id)

    async def _see_to(self, run: Run, *, soon_again: bool = False) -> None:
        """Enqueue a run that no process has; a child is left to its parent, unless that is over."""
        if run.parent_run_id is not None:
            parent = await self._runs.run(run.parent_run_id)
            if parent is None or parent.over:
                await end_orphan(self._runs, run)
            return
        now = time.monotonic()
        before = self._enqueued.get(run.run_id, -_ENQUEUED_AGAIN_AFTER_SECONDS)
        if not soon_again and now - before < _ENQUEUED_AGAIN_AFTER_SECONDS:
            return
        if len(self._enqueued) >= _MOST_REMEMBERED:
            self._enqueued.clear()
        self._enqueued[run.run_id] = now
        failures = run.attempts if run.status == "running" else 0
        await self._runner.engine.enqueue(run.run_id, failures=failures)

    async def reap(self) -> None:
        """Enqueue the runs of dead processes for the workers."""
        owners = await self._runs.owners()
        for owner in await self._runner.engine.dead(owners) if owners else ():
            for run_id in await self._runs.disown(owner):
                if (run := await self._runs.run(run_id)) is not None:
                    await self._see_to(run, soon_again=True)

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
