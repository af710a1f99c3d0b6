"""Background maintenance: it stops runs of this process on request, and recovers runs of dead processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from threadkeep.boundary import ErrorBoundary, running
from threadkeep.errors import RecordTooNew, RecordUnreadable, StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.observe import RunWork
from threadkeep.runs.endings import end_orphan
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.progress import remove_old_checkpoints
from threadkeep.runs.streams import Outcome, changed
from threadkeep.runs.worker import Worker

_AT_ONCE = 50
_ENQUEUED_AGAIN_AFTER_SECONDS = 60.0
_MOST_REMEMBERED = 10_000


class RunMaintenance:
    """Background tasks that stop, start and take over runs at intervals. Errors are reported, and the tasks go on."""

    def __init__(self, memory: Memory, worker: Worker, options: RunServiceOptions) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._worker = worker
        self._options = options
        self._look = asyncio.Event()
        self._enqueued: dict[str, float] = {}
        self._left: dict[str, None] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background tasks inside the block."""
        options = self._options
        async with (
            running(self._repeat(self.take_over, options.owner_check_seconds, "takeover"), "threadkeep-takeover"),
            running(self._repeat(self.watch, options.watch_seconds, "watch", self._look), "threadkeep-watch"),
            running(self._repeat(self.recover, options.upkeep_seconds, "upkeep"), "threadkeep-upkeep"),
        ):
            yield

    def watch_now(self) -> None:
        """Check at once which runs of this process must be stopped."""
        self._look.set()

    async def watch(self) -> None:
        """Stop active runs of this process that were cancelled or now belong to another process."""
        before = [active for active in self._worker.active.values() if active.stop is None]
        if not before:
            return
        held: dict[str, str | None] = {}
        for owner in {active.owner for active in before}:
            held |= await self._runs.held_by(owner)
        for active in before:
            run_id = active.run.run_id
            if self._worker.active.get(run_id) is not active:
                continue
            if run_id not in held:
                active.cancel("lost")
            elif held[run_id] is not None:
                active.cancel("cancelled")

    async def recover(self) -> None:
        """Start or enqueue runs that no process executes, and remove checkpoints of finished runs."""
        await self._start_unknown()
        # Runs that this process leaves to others must not use up the limit. Look at only some of them again.
        order, limit = self._runs.order, _AT_ONCE + min(len(self._left), _MOST_REMEMBERED)
        found = await order.ready(limit=limit, waited_seconds=self._options.forgotten_seconds)
        found += await order.abandoned(limit=limit)
        known = set(found)
        self._left = dict.fromkeys([run_id for run_id in self._left if run_id in known][_AT_ONCE:])
        for run_id in found:
            if not self._worker.has(run_id) and run_id not in self._left:
                await self._enqueue(run_id)
        age = timedelta(seconds=self._options.keep_checkpoints_seconds)
        before, saver = self._memory.clock() - age, self._worker.saver.saver
        await remove_old_checkpoints(saver, self._runs.records, before, limit=_AT_ONCE)

    async def _start_unknown(self) -> None:
        """Execute runs that this process owns without knowing it, because the database's reply was lost.

        No other process may take over such a run while this process lives.
        """
        for run_id in await self._runs.held_by(self._worker.engine.name):
            run = None if self._worker.has(run_id) else await self._runs.run(run_id, damaged=True)
            if run is not None and run.parent_run_id is None:
                await self._worker.start(run_id)

    async def take_over(self) -> None:
        """Enqueue the runs that dead processes owned, or that they had taken from the queue.

        A run that was active during the deaths of two processes is executed alone, because it may be the cause.
        """
        engine = self._worker.engine
        for run_id in await engine.take_from_dead():
            run = await self._runs.run(run_id, damaged=True)
            if run is not None and run.status == "queued":
                await self._enqueue(run_id, at_once=True)
        owners = await self._runs.owners()
        for owner in await engine.dead(owners) if owners else ():
            for run_id in await self._runs.disown(owner):
                await self._enqueue(run_id, at_once=True)

    async def _enqueue(self, run_id: str, *, at_once: bool = False) -> None:
        """Enqueue a run that no process executes, at most once a minute unless `at_once` is true.

        A child is left to its parent. If the parent is over or was deleted, the child is ended. A run with a damaged
        record is set aside, so that the later runs of its session can begin. A run is left to other processes if only a
        newer Threadkeep can read it, or if this process lacks its workflow.
        """
        run = await self._runs.run(run_id, damaged=True)
        if run is None:
            return
        if run.parent_run_id is not None:
            parent = await self._runs.run(run.parent_run_id, damaged=True)
            if parent is None or parent.over:
                await end_orphan(self._runs, run)
            return
        if run.error in (RecordUnreadable.__name__, RecordTooNew.__name__):
            self._worker.report(run.error, "upkeep")
            if run.error == RecordUnreadable.__name__ and await self._runs.set_aside(run_id, run.error):
                self._worker.report_set_aside(run, Outcome("failed", error=run.error, set_aside=True))
                await self._worker.start_following(run)
            return
        if not await self._worker.workflows.may_execute(run):
            self._left[run_id] = None
            return
        now, at_once = time.monotonic(), at_once or run.error == "WorkflowGone"
        before = self._enqueued.get(run_id, -_ENQUEUED_AGAIN_AFTER_SECONDS)
        if not at_once and now - before < _ENQUEUED_AGAIN_AFTER_SECONDS:
            return
        if len(self._enqueued) >= _MOST_REMEMBERED:
            self._enqueued.clear()
        self._enqueued[run_id] = now
        await self._worker.engine.enqueue(run_id, alone=run.attempts > 1)

    async def _repeat(
        self, work: Callable[[], Awaitable[None]], seconds: float, name: RunWork, sooner: asyncio.Event | None = None
    ) -> None:
        sooner = sooner or asyncio.Event()
        await self._worker.opened.wait()
        while True:
            await changed(sooner, seconds)
            sooner.clear()
            # Catch all errors, because the work is repeated as long as the process lives.
            with ErrorBoundary() as attempt:
                await work()
            # Do not report StoreClosed: the engine raises it during shutdown, and while it registers again.
            if attempt.error is not None and not isinstance(attempt.error, StoreClosed):
                self._worker.report(type(attempt.error).__name__, name)
