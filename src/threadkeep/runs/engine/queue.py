"""The queue of runs of a database, kept by dbos: this process enqueues runs and executes those that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

from threadkeep.boundary import ErrorBoundary, OnFailure
from threadkeep.runs.engine.database import Connections, translated
from threadkeep.runs.engine.dbos_process import Attempt, DbosProcess, next_number
from threadkeep.runs.engine.engine import STOP_SECONDS, EngineOptions, Troubled
from threadkeep.runs.engine.lease import Lease
from threadkeep.runs.engine.local import Ending
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
