"""The single dbos instance of a process, in its own thread, and the queue of runs on top of it.

dbos replaces the thread pool of every event loop in which it is called, and its calls block on the database. Therefore
dbos runs in a separate event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID
from dbos import error as dbos_error

from threadkeep.boundary import ErrorBoundary, OnFailure
from threadkeep.errors import InvalidInput
from threadkeep.runs.engine.engine import STOP_SECONDS, Ending, EngineOptions, Troubled
from threadkeep.runs.engine.lease import SCHEMA, Connections, Lease, translated
from threadkeep.store.address import DatabaseAddress


def number_of(attempt_id: str) -> int:
    """Return the number in the id of an attempt at a run, `<run id>/<number>`."""
    return int(attempt_id.rpartition("/")[2])


def run_of(attempt_id: str) -> str:
    """Return the run id in the id of an attempt at a run, `<run id>/<number>`."""
    return attempt_id.rpartition("/")[0]


_ACTIVE = ("PENDING", "ENQUEUED", "DELAYED")
_OVER = ("SUCCESS", "ERROR", "CANCELLED")

# Increase this if the arguments of `_execute` change: dbos gives attempts only to processes of the same version.
_VERSION = "2"
_APPLICATION = "threadkeep"
_QUEUE = "threadkeep-runs"
# The queue of runs that may have crashed a process. A worker executes one at a time, so a crash shows the guilty run.
_ALONE = "threadkeep-alone"
_THREADS = 16
# dbos needs a second connection only while it migrates its tables.
_POOL = 2
_PAGE = 500
# dbos receives connections, but also requires a database address, which it never uses.
_UNUSED_ADDRESS = {"sqlite": "sqlite:///unused", "postgresql": "postgresql://unused@unused/unused"}

# The function that dbos calls for each attempt. A process has at most one dbos.
_handlers: list[Callable[[str], Awaitable[None]]] = []
_taken = threading.Lock()
_nowhere = logging.NullHandler()
_CONSOLE = "__dbos_console_log_handler__"


@DBOS.workflow(name="execute", max_recovery_attempts=None)
async def _execute(run_id: str, _number: int) -> None:
    if not _handlers:
        # Without a handler, record no outcome, so that another process takes the attempt when this process has ended.
        raise asyncio.CancelledError
    await _handlers[0](run_id)


type ExecuteHere = Callable[[str], Future[Ending]]
"""A callback for other threads that executes a run in the event loop of the engine."""

_LEASE_SECONDS = 0.05
"""Seconds between two checks for a renewed lease."""

_RETENTION_SECONDS = 60.0
_CALLING_THREADS = 4


class RunQueue:
    """A queue of runs in a launched dbos. Each attempt at a run is a dbos workflow; in a worker, dbos executes it.

    `troubled` is called in other threads, with the name of each error that does not stop the queue. The synchronous
    methods wait for the database, so call them in threads.
    """

    def __init__(
        self, address: DatabaseAddress, lease: Lease, options: EngineOptions, execute: ExecuteHere, troubled: Troubled
    ) -> None:
        self._connections = Connections(address)
        self._database = self._connections.pool(_POOL)
        self._lease = lease
        self._options = options
        self._execute = execute
        self._troubled = troubled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._dbos: DBOS | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cleaning: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(_CALLING_THREADS, thread_name_prefix="threadkeep-runs")
        self._closing = threading.Event()

    def launch(self) -> None:
        """Launch dbos in a new thread. It calls `_attempt` for each attempt, in the event loop of that thread.

        Raises:
            StoreUnavailable: the database does not answer.
            InvalidInput: this process already has a dbos, launched by another engine or by the application itself.
        """
        with OnFailure(self.stop), translated():
            if not _taken.acquire(blocking=False):
                raise InvalidInput(
                    "This process already executes runs, for another database or for another app of this database; "
                    "close the other app first, or use another process."
                )
            _handlers.append(self._attempt)
            self._loop = asyncio.new_event_loop()
            # Without this handler, asyncio would log interrupted tasks with their data.
            self._loop.set_exception_handler(lambda _loop, _context: None)
            self._thread = threading.Thread(target=self._loop.run_forever, name="threadkeep-runs", daemon=True)
            self._thread.start()
            asyncio.run_coroutine_threadsafe(self._launch(), self._loop).result()
        if self._options.works:
            self._cleaning = threading.Thread(target=self._keep_removing, name="threadkeep-runs", daemon=True)
            self._cleaning.start()

    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Enqueue a run for any worker; see `Engine.enqueue`."""
        with translated():
            await asyncio.wrap_future(self._pool.submit(self._enqueue, run_id, alone))

    async def take_from_dead(self) -> Set[str]:
        """Mark the open attempts of dead processes as ended; return the ids of their runs."""
        with translated():
            found = await asyncio.wrap_future(self._pool.submit(self._open_attempts))
            dead = await self._lease.dead({name for _, name in found})
            left = [attempt_id for attempt_id, name in found if name in dead]
            await asyncio.wrap_future(self._pool.submit(self._end, left))
        return {run_of(attempt_id) for attempt_id in left}

    def take_no_more(self) -> None:
        """Take no more attempts from the queue; active attempts continue."""
        self._closing.set()
        if self._dbos is not None:
            for event in self._dbos.background_thread_stop_events:
                event.set()

    def stop(self) -> bool:
        """Stop dbos and its thread; return True if no attempt is active. Records of active attempts stay open."""
        self.take_no_more()
        if self._cleaning is not None:
            self._cleaning.join(STOP_SECONDS)
        is_idle = True
        if self._loop is not None:
            is_idle = asyncio.run_coroutine_threadsafe(_all_done(self._tasks), self._loop).result()
        # Close the connections first; otherwise dbos waits for a database that is down.
        self._connections.close()
        if self._dbos is not None:
            DBOS.destroy()
            self._dbos = None
        if self._loop is not None and self._thread is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(STOP_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None
            _handlers.clear()
            _taken.release()
        self._database.dispose()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return is_idle

    async def _launch(self) -> None:
        _silence()
        dbos = DBOS(config=self._config())
        if DBOS.executor_id != self._lease.name:
            raise InvalidInput(
                "This program uses DBOS itself, and a process can have only one instance; "
                "let Threadkeep execute its runs in another process (`threadkeep worker`)."
            )
        self._dbos = dbos
        DBOS.listen_queues([_QUEUE, _ALONE] if self._options.works else [])
        DBOS.launch()
        for queue, concurrency, seconds in (
            (_QUEUE, self._options.concurrency, self._options.poll_seconds),
            (_ALONE, 1, 2 * self._options.poll_seconds),
        ):
            await DBOS.register_queue_async(
                queue, worker_concurrency=concurrency, polling_interval_sec=seconds, on_conflict="always_update"
            )

    def _config(self) -> DBOSConfig:
        return {
            "name": _APPLICATION,
            "application_version": _VERSION,
            "executor_id": self._lease.name,
            "system_database_url": _UNUSED_ADDRESS[self._database.dialect.name],
            "system_database_engine": self._database,
            "dbos_system_schema": SCHEMA,
            "serializer": DBOSPortableJSONSerializer(),
            "max_executor_threads": _THREADS,
            "log_level": "CRITICAL",
            # Poll instead of using LISTEN. The shutdown waits for the poller, so its interval must be short.
            "use_listen_notify": False,
            "notification_listener_polling_interval_sec": 0.1,
        }

    async def _attempt(self, run_id: str) -> None:
        """Wait in dbos's event loop while the engine's event loop executes the run of an attempt.

        If this process stops or loses the run, record no outcome of the attempt, so that another process takes the run.
        """
        if (task := asyncio.current_task()) is not None:
            # Keep this task, so that `stop` can wait until dbos has recorded the outcome of the attempt.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while not self._lease.is_fresh() and not self._closing.is_set():  # noqa: ASYNC110 - another thread renews it
            await asyncio.sleep(_LEASE_SECONDS)
        if self._closing.is_set() or await asyncio.wrap_future(self._execute(run_id)) != "done":
            raise asyncio.CancelledError

    def _enqueue(self, run_id: str, alone: bool) -> None:
        """Enqueue an attempt at a run unless one is enqueued already; with `alone`, replace the enqueued one."""
        number = 1
        while True:
            with contextlib.suppress(dbos_error.DBOSWorkflowIDInUseError):
                with SetWorkflowID(f"{run_id}/{number}", workflow_id_reuse_policy="reject"):
                    DBOS.enqueue_workflow(_ALONE if alone else _QUEUE, _execute, run_id, number)
                return
            found = DBOS.list_workflows(workflow_id_prefix=f"{run_id}/", load_input=False, load_output=False)
            attempts = [each for each in found if run_of(each.workflow_id) == run_id]
            enqueued = [each.workflow_id for each in attempts if each.status == "ENQUEUED"]
            if enqueued and not alone:
                return
            self._end(enqueued)
            number = max((number_of(each.workflow_id) for each in attempts), default=0) + 1

    def _open_attempts(self) -> list[tuple[str, str]]:
        """Return the ids of the attempts in progress, each with the name of its process."""
        self._check()
        found = DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
        return [(each.workflow_id, each.executor_id or "") for each in found]

    def _end(self, attempt_ids: Iterable[str]) -> None:
        """Mark attempts at runs as ended in dbos's tables, because no process executes them any more."""
        for attempt_id in attempt_ids:
            DBOS.cancel_workflow(attempt_id)

    def _check(self) -> None:
        """Connect to the database, so that an error is raised at once if it is down; dbos itself would wait forever."""
        self._database.connect().close()

    def _keep_removing(self) -> None:
        """Remove old finished attempts every minute; begin at once, because a worker may live only briefly."""
        kept = timedelta(seconds=self._options.keep_finished_seconds)
        while True:
            # Catch all errors, because the removal is repeated as long as the process lives.
            with ErrorBoundary(lambda error: self._troubled(type(error).__name__)):
                self._check()
                _remove_finished((datetime.now(UTC) - kept).isoformat())
            if self._closing.wait(min(_RETENTION_SECONDS, self._options.keep_finished_seconds)):
                return


def _remove_finished(before: str) -> None:
    """Delete dbos's rows of attempts that ended before `before`, unless their run has an unfinished attempt."""
    found = DBOS.list_workflows(
        status=list(_OVER), completed_before=before, limit=_PAGE, load_input=False, load_output=False
    )
    if not found:
        return
    active = DBOS.list_workflows(status=list(_ACTIVE), load_input=False, load_output=False)
    runs = {run_of(each.workflow_id) for each in active}
    DBOS.delete_workflows([each.workflow_id for each in found if run_of(each.workflow_id) not in runs])


def _silence() -> None:
    """Silence dbos's logger, which would write messages that contain addresses to the terminal."""
    logger = logging.getLogger("dbos")
    for handler in [one for one in logger.handlers if one.name == _CONSOLE]:
        logger.removeHandler(handler)
    # Without any handler, dbos would add one that writes to the terminal.
    logger.addHandler(_nowhere)
    logger.propagate = False
    logger.setLevel(logging.CRITICAL)


async def _end_tasks() -> None:
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _all_done(tasks: Set[asyncio.Task[None]]) -> bool:
    """Wait up to 5 seconds until the tasks have recorded the outcomes of attempts; return False if some continue."""
    if not tasks:
        return True
    _, pending = await asyncio.wait(set(tasks), timeout=STOP_SECONDS)
    return not pending
