"""The one dbos that a process can have, in a thread of its own, behind a few verbs about attempts.

dbos replaces the thread pool of every event loop that it is called in, and its calls wait for the database; so it gets
an event loop that nobody else uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Literal

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetEnqueueOptions, SetWorkflowID, WorkflowStatus
from dbos import error as dbos_error

from threadkeep.errors import InvalidInput
from threadkeep.runs.engine.attempts import Attempt, number_of, run_of
from threadkeep.runs.engine.dbos_database import SCHEMA, Connections
from threadkeep.runs.engine.engine import EngineOptions

type AttemptStatus = Literal["PENDING", "ENQUEUED", "DELAYED", "SUCCESS", "ERROR", "CANCELLED"]

ACTIVE: tuple[AttemptStatus, ...] = ("PENDING", "ENQUEUED", "DELAYED")
_OVER: tuple[AttemptStatus, ...] = ("SUCCESS", "ERROR", "CANCELLED")

# Attempts are taken up by processes of the same version only: another number when their arguments change.
_VERSION = "1"
_APPLICATION = "threadkeep"
_QUEUE = "threadkeep-runs"
# Of runs that have failed twice one is tried at a time: if it kills its process, no other is blamed for it.
_SUSPECTS = "threadkeep-suspects"
_THREADS = 16
_POOL = 8
_STOP_SECONDS = 5.0
_PAGE = 500
# dbos wants the address of a database though it is given the connections; nobody connects to this one.
_UNUSED_ADDRESS = {"sqlite": "sqlite:///unused", "postgresql": "postgresql://unused@unused/unused"}

# Who carries the attempts of the dbos that is launched: none or one, as there is none or one dbos.
_carriers: list[Callable[[Attempt], Awaitable[None]]] = []
_taken = threading.Lock()
_nowhere = logging.NullHandler()
_CONSOLE = "__dbos_console_log_handler__"


@DBOS.workflow(name="carry_out", max_recovery_attempts=None)
async def _carry_out(run_id: str, number: int, failures: int) -> None:
    if not _carriers:
        # Without an outcome the attempt stays open, and is another process's as soon as this one has left.
        raise asyncio.CancelledError
    await _carriers[0](Attempt(run_id, number, failures))


class DbosProcess:
    """dbos, launched. Methods that are not async wait for the database: they are for threads."""

    def __init__(self, connections: Connections, options: EngineOptions, name: str) -> None:
        self.name = name
        self._options = options
        self._pool = connections.pool(_POOL)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._dbos: DBOS | None = None

    def launch(self, carry: Callable[[Attempt], Awaitable[None]]) -> None:
        """Begin to work; attempts are handed to `carry`, in this thread's event loop."""
        if not _taken.acquire(blocking=False):
            raise InvalidInput(
                "This process carries out runs already, for another database or another app of the same one; "
                "close that one first, or use another process."
            )
        _carriers.append(carry)
        self._loop = asyncio.new_event_loop()
        # What asyncio would log of a task that was cut off quotes it; the attempts are looked after anyway.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._thread = threading.Thread(target=self._loop.run_forever, name="threadkeep-runs", daemon=True)
        self._thread.start()
        self.submit(self._launch()).result()

    def submit[T](self, work: Coroutine[object, object, T]) -> Future[T]:
        """Run a coroutine in dbos's event loop."""
        assert self._loop is not None, "not launched"  # noqa: S101 - a fault of this room's own
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def is_running(self) -> bool:
        """Whether dbos's event loop takes work."""
        return self._loop is not None

    def check(self) -> None:
        """Raise at once if the database is down, where dbos would wait for it without an end."""
        self._pool.connect().close()

    def take_no_more(self) -> None:
        """Leave to others what is in the queues."""
        if self._dbos is not None:
            for event in self._dbos.background_thread_stop_events:
                event.set()

    def stop(self) -> None:
        """End everything; attempts that still run stay open in the records."""
        if self._dbos is not None:
            DBOS.destroy()
            self._dbos = None
        if self._loop is not None and self._thread is not None:
            with contextlib.suppress(TimeoutError):
                self.submit(_end_tasks()).result(_STOP_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None
            _carriers.clear()
            _taken.release()
        self._pool.dispose()

    async def start(self, attempt: Attempt) -> bool:
        """Record an attempt and begin it, in dbos's event loop; False if there is such an attempt already."""
        try:
            with SetWorkflowID(attempt.id, workflow_id_reuse_policy="reject"):
                await DBOS.start_workflow_async(_carry_out, attempt.run_id, attempt.number, attempt.failures)
        except dbos_error.DBOSWorkflowIDInUseError:
            return False
        return True

    def put(self, attempt: Attempt, *, after_seconds: float = 0.0) -> bool:
        """Record an attempt for any process to make; False if there is such an attempt already."""
        queue = _QUEUE if attempt.failures < 2 else _SUSPECTS
        try:
            with (
                SetWorkflowID(attempt.id, workflow_id_reuse_policy="reject"),
                SetEnqueueOptions(delay_seconds=after_seconds or None),
            ):
                DBOS.enqueue_workflow(queue, _carry_out, attempt.run_id, attempt.number, attempt.failures)
        except dbos_error.DBOSWorkflowIDInUseError:
            return False
        return True

    def attempts(self, run_id: str, status: Sequence[AttemptStatus] | None = None) -> dict[str, AttemptStatus]:
        """The attempts at a run that are still on record, by their ids."""
        found = DBOS.list_workflows(
            workflow_id_prefix=f"{run_id}/",
            status=None if status is None else list(status),
            load_input=False,
            load_output=False,
        )
        return {each.workflow_id: _status(each) for each in found if run_of(each.workflow_id) == run_id}

    def open_attempts(self) -> list[tuple[Attempt, str]]:
        """The attempts that processes are making, with the names of the processes."""
        found = DBOS.list_workflows(status="PENDING", load_output=False)
        return [(_attempt(each), each.executor_id or "") for each in found]

    def put_to_their_end(self, attempt_ids: Sequence[str]) -> list[str]:
        """Those of some attempts of which somebody has said that no process makes them any more."""
        found = DBOS.list_workflows(
            workflow_ids=list(attempt_ids), status="CANCELLED", load_input=False, load_output=False
        )
        return [each.workflow_id for each in found]

    def end(self, attempt_id: str) -> None:
        """Put an attempt to its end that no process makes any more."""
        DBOS.cancel_workflow(attempt_id)

    def remove_finished(self, before: str) -> None:
        """Remove the attempts that ended before a time, but for those whose run is still tried.

        The numbers of a run's attempts begin anew when all of them are gone.
        """
        found = DBOS.list_workflows(
            status=list(_OVER), completed_before=before, limit=_PAGE, load_input=False, load_output=False
        )
        if not found:
            return
        active = DBOS.list_workflows(status=list(ACTIVE), load_input=False, load_output=False)
        runs = {run_of(each.workflow_id) for each in active}
        DBOS.delete_workflows([each.workflow_id for each in found if run_of(each.workflow_id) not in runs])

    async def _launch(self) -> None:
        _silence()
        dbos = DBOS(config=self._config())
        if DBOS.executor_id != self.name:
            raise InvalidInput(
                "This program has a DBOS of its own, and a process can have one only; "
                "let Threadkeep carry out its runs in another process (`threadkeep worker`)."
            )
        self._dbos = dbos
        DBOS.listen_queues([_QUEUE, _SUSPECTS] if self._options.works else [])
        DBOS.launch()
        for queue, concurrency, seconds in (
            (_QUEUE, self._options.concurrency, self._options.poll_seconds),
            (_SUSPECTS, 1, 2 * self._options.poll_seconds),
        ):
            await DBOS.register_queue_async(
                queue, worker_concurrency=concurrency, polling_interval_sec=seconds, on_conflict="always_update"
            )

    def _config(self) -> DBOSConfig:
        return {
            "name": _APPLICATION,
            "application_version": _VERSION,
            "executor_id": self.name,
            "system_database_url": _UNUSED_ADDRESS[self._pool.dialect.name],
            "system_database_engine": self._pool,
            "dbos_system_schema": SCHEMA,
            "serializer": DBOSPortableJSONSerializer(),
            "max_executor_threads": _THREADS,
            "log_level": "CRITICAL",
            # Nothing here waits for dbos's notifications; short, because the end waits for this pause.
            "use_listen_notify": False,
            "notification_listener_polling_interval_sec": 0.1,
        }


def next_number(attempt_ids: Sequence[str]) -> int:
    """The number of the next attempt at a run."""
    return max((number_of(each) for each in attempt_ids), default=0) + 1


def _attempt(found: WorkflowStatus) -> Attempt:
    """The attempt of a record that was read with its arguments."""
    arguments = found.input["args"] if found.input else ()
    run_id, number, failures = arguments
    return Attempt(str(run_id), int(number), int(failures))


def _status(found: WorkflowStatus) -> AttemptStatus:
    match found.status:
        case "PENDING" | "ENQUEUED" | "DELAYED" | "SUCCESS" | "ERROR" | "CANCELLED" as status:
            return status
        case _:
            return "ERROR"


def _silence() -> None:
    """Let dbos print nothing: it would write to the terminal by itself, with addresses in its sentences."""
    logger = logging.getLogger("dbos")
    for handler in [one for one in logger.handlers if one.name == _CONSOLE]:
        logger.removeHandler(handler)
    # It adds one for the terminal itself where there is none.
    logger.addHandler(_nowhere)
    logger.propagate = False
    logger.setLevel(logging.CRITICAL)


async def _end_tasks() -> None:
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
