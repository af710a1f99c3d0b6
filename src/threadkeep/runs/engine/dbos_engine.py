"""The run engine that queues runs in a database, where any live worker may execute them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Set
from concurrent.futures import Future
from typing import TYPE_CHECKING

from threadkeep.boundary import shielded
from threadkeep.errors import StoreClosed, ThreadkeepError
from threadkeep.runs.engine.engine import CLOSED, Ending, Engine, EngineOptions, Execute, Troubled
from threadkeep.runs.engine.lease import Lease
from threadkeep.store.address import DatabaseAddress

if TYPE_CHECKING:
    from threadkeep.runs.engine.dbos_process import RunQueue

_PAUSE_SECONDS = 0.5
_POLL_SECONDS = 2.0
"""Seconds between two checks whether dbos has records of runs and must be launched."""


class DbosEngine(Engine):
    """An engine that executes runs in the event loop that creates it, and queues runs with the library dbos.

    dbos is launched when there are queued runs. It is stopped some minutes after the last run, because its polls cost
    an idle process 3 % of a core.
    """

    def __init__(self, address: DatabaseAddress, execute: Execute, options: EngineOptions, troubled: Troubled) -> None:
        super().__init__(execute, troubled)
        self._address = address
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._lease: Lease | None = None
        self._queue: RunQueue | None = None
        self._opening = asyncio.Lock()
        self._started: dict[asyncio.Task[Ending], str] = {}
        self._closed = False
        self._calls = 0
        self._returning: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name of this process in the engine. If the process is declared dead, it registers under a new name."""
        if self._lease is None:
            raise StoreClosed(CLOSED)
        return self._lease.name

    async def ready(self) -> None:
        """Acquire the lease that shows other processes that this one is alive, unless this process has it already."""
        if self._lease is None or self._closed:
            async with self._opening:
                await self._leased()

    async def work(self) -> None:
        """Execute queued runs from now on; dbos is launched once any process has queued a run."""
        await self.ready()
        await self._launch_if_needed()
        self._watch()

    async def start(self, run_id: str) -> None:
        """Start executing a run in this process."""
        await self.ready()
        task = asyncio.create_task(self._run(run_id))
        self._started[task] = run_id
        task.add_done_callback(self._ended)

    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Enqueue a run for any worker; for `alone` see `Engine.enqueue`."""
        # Shield the write, because a cancelled caller must not leave a run half recorded.
        await shielded(self._call(lambda queue: queue.enqueue(run_id, alone=alone)))

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that are dead."""
        await self.ready()
        return await self._lease.dead(names) if self._lease is not None else set()

    async def take_from_dead(self) -> Set[str]:
        """Remove from the queue the runs that dead processes were executing; return the ids of these runs."""
        return set() if self._queue is None else await self._call(lambda queue: queue.take_from_dead())

    def holds(self, run_id: str) -> bool:
        """Return True if it is certain that this process still owns a run."""
        return super().holds(run_id) and self._lease is not None and self._lease.is_fresh()

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait up to `seconds` for active runs, and leave unfinished runs to other processes."""
        if self._closed:
            return
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._queue is not None:
            await asyncio.to_thread(self._queue.take_no_more)
        if self._returning is not None:
            await asyncio.wait([self._returning])
        is_idle = await self._stop_all("closing", after_seconds=seconds)
        async with self._opening:
            await self._enqueue_stopped()
            await self._leave(is_idle=is_idle)

    async def _leased(self) -> Lease:
        if self._closed:
            raise StoreClosed(CLOSED)
        if self._lease is None:
            lost, troubled = self._threadsafe(self._lost), self._threadsafe(self._troubled)
            lease = Lease(self._address, self._options, lost=lost, troubled=troubled)
            await lease.enter()
            self._lease = lease
        return self._lease

    async def _call[T](self, call: Callable[[RunQueue], Awaitable[T]]) -> T:
        """Launch dbos if necessary, and await `call` with its queue. During the call, dbos is not stopped."""
        self._calls += 1
        try:
            return await call(await self._launched())
        finally:
            self._calls -= 1

    def _watch(self) -> None:
        """Start a task that stops dbos if its tables have no runs. In a worker, it launches dbos if they have runs."""
        if not self._closed and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch_records())

    async def _watch_records(self) -> None:
        while not self._closed:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                if self._queue is not None:
                    # Do not report an unavailable database: the renewal of the lease reports it.
                    with contextlib.suppress(ThreadkeepError):
                        await self._stop_if_unused()
                elif self._options.works:
                    await self._launch_if_needed()
            except ThreadkeepError as error:
                self._troubled(type(error).__name__)

    async def _launch_if_needed(self) -> None:
        if self._queue is None and self._lease is not None and await self._lease.has_records():
            await self._launched()

    async def _stop_if_unused(self) -> None:
        """Stop dbos if it has no records of runs. If dbos takes a run at this moment, the run continues later."""
        async with self._opening:
            lease, queue = self._lease, self._queue
            if lease is None or queue is None or await lease.has_records() or self._calls:
                return
            self._queue = None
            await shielded(asyncio.to_thread(queue.stop))

    async def _launched(self) -> RunQueue:
        async with self._opening:
            lease = await self._leased()
            # Finish the launch even if the caller is cancelled, so that `close` can stop dbos.
            return await shielded(self._launch(lease)) if self._queue is None else self._queue

    async def _launch(self, lease: Lease) -> RunQueue:
        self._queue = queue = await asyncio.to_thread(self._launch_here, lease)
        self._watch()
        return queue

    def _launch_here(self, lease: Lease) -> RunQueue:
        # The import takes about 2 s of CPU. It runs in an OS thread, so the event loop stays responsive.
        from threadkeep.runs.engine.dbos_process import RunQueue

        queue = RunQueue(self._address, lease, self._options, self._execute_here, self._threadsafe(self._troubled))
        queue.launch()
        return queue

    def _execute_here(self, run_id: str) -> Future[Ending]:
        return asyncio.run_coroutine_threadsafe(self._execute_queued(run_id), self._loop)

    async def _execute_queued(self, run_id: str) -> Ending:
        return "left" if self._closed else await self._run(run_id)

    def _ended(self, task: asyncio.Task[Ending]) -> None:
        """Remove a finished task. Keep a task that the engine stopped: `close` enqueues its run for other processes."""
        if task.cancelled() or task.exception() is not None or task.result() != "left":
            self._started.pop(task, None)

    async def _enqueue_stopped(self) -> None:
        """Enqueue the runs that were stopped here, so that other processes resume them."""
        left = [run_id for task, run_id in self._started.items() if task.done()]
        self._started.clear()
        if not left or self._lease is None:
            return
        with contextlib.suppress(ThreadkeepError):  # maintenance of other processes also finds these runs
            queue = await shielded(self._launch(self._lease)) if self._queue is None else self._queue
            for run_id in left:
                await queue.enqueue(run_id)

    async def _leave(self, *, is_idle: bool) -> None:
        queue, self._queue = self._queue, None
        lease, self._lease = self._lease, None
        if queue is not None:
            is_idle = await asyncio.to_thread(queue.stop) and is_idle
        if lease is not None:
            await lease.leave(is_idle=is_idle)

    def _lost(self) -> None:
        """After the lease is lost, stop all runs, because other processes may own them; register under a new name."""
        if not self._closed:
            self._returning = asyncio.create_task(self._return(self._returning))

    async def _return(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        async with self._opening:
            is_idle = await self._stop_all("lost", after_seconds=0)
            await self._leave(is_idle=is_idle)
        while not self._closed:
            try:
                await (self.work() if self._options.works else self.ready())
            except ThreadkeepError as error:
                # Report and retry: the failure that made this process lose its lease may continue.
                self._troubled(type(error).__name__)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    def _threadsafe[*A](self, callback: Callable[[*A], None]) -> Callable[[*A], None]:
        """Return a function that other threads can call to run `callback` in the event loop."""

        def call(*arguments: *A) -> None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback, *arguments)

        return call
