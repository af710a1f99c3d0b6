"""The engine of a database: runs that are enqueued are recorded by dbos and executed by any live process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

from threadkeep.boundary import ErrorBoundary, OnFailure
from threadkeep.errors import StoreClosed, ThreadkeepError
from threadkeep.runs.engine.database import Connections, translated
from threadkeep.runs.engine.dbos_process import Attempt, DbosProcess, next_number
from threadkeep.runs.engine.engine import CLOSED, STOP_SECONDS, EngineOptions, Execute, Stop, Troubled
from threadkeep.runs.engine.lease import Lease
from threadkeep.runs.engine.local import Ending, RunTasks
from threadkeep.runs.retries import shielded
from threadkeep.store.address import DatabaseAddress

type ExecuteHere = Callable[[str], Future[Ending]]
"""Executes a run in the event loop of the engine; called from another thread."""

_LEASE_SECONDS = 0.05
"""Seconds between two checks whether the lease has been renewed."""

_RETENTION_SECONDS = 60.0
_THREADS = 4


class RunQueue:
    """A launched dbos with the attempts that this process executes. `troubled` is called from other threads."""

    def __init__(
        self, address: DatabaseAddress, lease: Lease, options: EngineOptions, execute: ExecuteHere, troubled: Troubled
    ) -> None:
        self._connections = Connections(address)
        self._lease = lease
        self._options = options
        self._execute = execute
        self._troubled = troubled
        self._process = DbosProcess(self._connections, options, lease.name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._cleaning: Thread | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="threadkeep-runs")
        self._closing = Event()

    def launch(self) -> None:
        """Launch dbos.

        Raises:
            StoreUnavailable: the database does not answer.
            InvalidInput: this process already executes runs of another database.
        """
        with OnFailure(self.stop), translated():
            self._process.launch(self._attempt)
        if self._options.works:
            self._cleaning = Thread(target=self._remove_finished, name="threadkeep-runs", daemon=True)
            self._cleaning.start()

    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Enqueue a run for any worker."""
        with translated():
            await asyncio.wrap_future(self._pool.submit(self._enqueue, run_id, alone))

    async def take_from_dead(self) -> Set[str]:
        """Remove the attempts of dead processes; return their runs."""
        with translated():
            found = await asyncio.wrap_future(self._pool.submit(self._open_attempts))
            dead = await self._lease.dead({name for _, name in found})
            left = [attempt for attempt, name in found if name in dead]
            await asyncio.wrap_future(self._pool.submit(self._end, left))
        return {attempt.run_id for attempt in left}

    def take_no_more(self) -> None:
        """Stop taking attempts that have not begun."""
        self._closing.set()
        self._process.take_no_more()

    def stop(self) -> bool:
        """Stop; return whether no attempt is active any more."""
        self.take_no_more()
        if self._cleaning is not None:
            self._cleaning.join(STOP_SECONDS)
        is_idle = not self._process.is_running() or self._process.submit(_all_done(self._tasks)).result()
        # Close connections before dbos stops: it would wait for a database that is down.
        self._connections.close()
        self._process.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return is_idle

    async def _attempt(self, attempt: Attempt) -> None:
        """Execute a run in dbos's event loop.

        An attempt that is left to others has no outcome: another process takes it when this one is gone.
        """
        if (task := asyncio.current_task()) is not None:
            # The task of dbos itself: it is done when the outcome is recorded.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while not self._lease.is_fresh() and not self._closing.is_set():  # noqa: ASYNC110 - another thread renews it
            await asyncio.sleep(_LEASE_SECONDS)
        if self._closing.is_set() or await asyncio.wrap_future(self._execute(attempt.run_id)) != "done":
            raise asyncio.CancelledError

    def _enqueue(self, run_id: str, alone: bool) -> None:
        """Record an attempt, unless one is enqueued already; a run that is to be tried alone has no other."""
        number = 1
        while not self._process.put(Attempt(run_id, number), alone=alone):
            attempts = self._process.attempts(run_id)
            enqueued = [attempt_id for attempt_id, is_enqueued in attempts.items() if is_enqueued]
            if enqueued and not alone:
                return
            for attempt_id in enqueued:
                self._process.end(attempt_id)
            number = next_number(attempts)

    def _open_attempts(self) -> list[tuple[Attempt, str]]:
        self._process.check()
        return self._process.open_attempts()

    def _end(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self._process.end(attempt.id)

    def _remove_finished(self) -> None:
        """Remove finished attempts repeatedly. The first time is at once: a short command is often the only worker."""
        kept = timedelta(seconds=self._options.keep_finished_seconds)
        while True:
            # A failure is tried again as long as the process lives.
            with ErrorBoundary(lambda error: self._troubled(type(error).__name__)):
                self._process.check()
                self._process.remove_finished((datetime.now(UTC) - kept).isoformat())
            if self._closing.wait(min(_RETENTION_SECONDS, self._options.keep_finished_seconds)):
                return


async def _all_done(tasks: Set[asyncio.Task[None]]) -> bool:
    """Wait until the outcomes of ended attempts are recorded; return False if some attempts continue."""
    if not tasks:
        return True
    _, pending = await asyncio.wait(set(tasks), timeout=STOP_SECONDS)
    return not pending


_PAUSE_SECONDS = 0.5
_POLL_SECONDS = 2.0
"""Seconds between two checks of a worker for queued runs, until dbos is launched."""


class DbosEngine:
    """An engine that executes runs in its own event loop; it launches dbos when the first run is enqueued."""

    def __init__(self, address: DatabaseAddress, execute: Execute, options: EngineOptions, troubled: Troubled) -> None:
        self._address = address
        self._options = options
        self._runs = RunTasks(execute, troubled)
        self._troubled = troubled
        self._loop = asyncio.get_running_loop()
        self._lease: Lease | None = None
        self._queue: RunQueue | None = None
        self._opening = asyncio.Lock()
        self._started: dict[asyncio.Task[Ending], str] = {}
        self._closed = False
        self._returning: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name of this process; it changes after the process was declared dead."""
        if self._lease is None:
            raise StoreClosed(CLOSED)
        return self._lease.name

    async def ready(self) -> None:
        """Acquire the lease of this process."""
        if self._lease is None or self._closed:
            async with self._opening:
                await self._leased()

    async def work(self) -> None:
        """Execute queued runs from now on; dbos is launched when a run is queued."""
        await self.ready()
        if not await self._launched_if_needed() and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch_queue())

    async def start(self, run_id: str) -> None:
        """Execute a run in this process."""
        await self.ready()
        task = asyncio.create_task(self._runs.execute(run_id))
        self._started[task] = run_id
        task.add_done_callback(self._ended)

    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Enqueue a run for any worker."""
        queue = await self._launched()
        # A cancelled caller must not leave a run half recorded.
        await asyncio.shield(queue.enqueue(run_id, alone=alone))

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that are dead."""
        await self.ready()
        return await self._lease.dead(names) if self._lease is not None else set()

    async def take_from_dead(self) -> Set[str]:
        """Remove the runs from the queue that dead processes had begun to execute, and return their ids."""
        return set() if self._queue is None else await self._queue.take_from_dead()

    def stopping(self, run_id: str) -> Stop | None:
        """Return why a run is being stopped."""
        return self._runs.stopping(run_id)

    def holds(self, run_id: str) -> bool:
        """Return whether this process certainly still owns a run."""
        return self._runs.has(run_id) and self._lease is not None and self._lease.is_fresh()

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait for active ones, and leave the rest to other processes."""
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
        is_idle = await self._runs.stop_all("closing", after_seconds=seconds)
        async with self._opening:
            await self._enqueue_left()
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

    async def _watch_queue(self) -> None:
        while not self._closed:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                if await self._launched_if_needed():
                    return
            except ThreadkeepError as error:
                self._troubled(type(error).__name__)

    async def _launched_if_needed(self) -> bool:
        """Launch dbos if its records are not empty; return whether it is launched."""
        if self._queue is None and self._lease is not None and await self._lease.has_records():
            await self._launched()
        return self._queue is not None

    async def _launched(self) -> RunQueue:
        async with self._opening:
            lease = await self._leased()
            return await self._launch(lease) if self._queue is None else self._queue

    async def _launch(self, lease: Lease) -> RunQueue:
        # The import takes about 2 s of CPU.
        from threadkeep.runs.engine.dbos_engine import RunQueue

        queue = RunQueue(self._address, lease, self._options, self._execute_here, self._threadsafe(self._troubled))

        async def launch() -> None:
            await asyncio.to_thread(queue.launch)
            self._queue = queue

        # If the caller is cancelled or the engine closes, the launched dbos must still be stopped.
        await shielded(launch())
        return queue

    def _execute_here(self, run_id: str) -> Future[Ending]:
        return asyncio.run_coroutine_threadsafe(self._execute_queued(run_id), self._loop)

    async def _execute_queued(self, run_id: str) -> Ending:
        return "left" if self._closed else await self._runs.execute(run_id)

    def _ended(self, task: asyncio.Task[Ending]) -> None:
        """Forget a run that ended here; `close` enqueues the runs that are left."""
        if task.cancelled() or task.exception() is not None or task.result() != "left":
            self._started.pop(task, None)

    async def _enqueue_left(self) -> None:
        """Enqueue the runs that were stopped here, so that other processes continue them."""
        left = [run_id for task, run_id in self._started.items() if task.done()]
        self._started.clear()
        if not left or self._lease is None:
            return
        with contextlib.suppress(ThreadkeepError):  # the records of the runs also show that they are left
            queue = self._queue or await self._launch(self._lease)
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
        """Release every run because other processes may have them, and start again under a new name."""
        if not self._closed:
            self._returning = asyncio.create_task(self._return(self._returning))

    async def _return(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        async with self._opening:
            is_idle = await self._runs.stop_all("lost", after_seconds=0)
            await self._leave(is_idle=is_idle)
        while not self._closed:
            try:
                await (self.work() if self._options.works else self.ready())
            except ThreadkeepError as error:
                # A process that could not renew its lease may still be unable to reach the database.
                self._troubled(type(error).__name__)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    def _threadsafe[*A](self, callback: Callable[[*A], None]) -> Callable[[*A], None]:
        """Return a function for other threads that calls back in the event loop, unless that is closed."""

        def call(*arguments: *A) -> None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback, *arguments)

        return call
