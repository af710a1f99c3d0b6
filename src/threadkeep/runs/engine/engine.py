"""The interface of engines: a few methods, the same for one process and for many."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Set
from dataclasses import dataclass
from typing import Literal, Protocol

type Execute = Callable[[str], Coroutine[object, object, None]]
"""A callback that executes a run. A repeated call for the same run resumes from the stored progress."""

type Troubled = Callable[[str], None]
"""A callback that gets the name of an error, mostly of the database, that keeps the engine from its work for now."""

type Stop = Literal["closing", "lost"]
"""The reason why the engine stops a run: it is closing, or this process was declared dead and lost the run."""

STOP_SECONDS = 5.0
"""Seconds to wait for a run that was stopped."""

CLOSED = "The engine was closed and accepts no more runs; start runs inside its `async with open_engine(...)` block."


class Engine(Protocol):
    """An engine that calls `execute(run_id)`; it knows nothing else about runs.

    - `start` executes a run in this process. If the process dies, the run's record names an owner that is `dead`.
    - `enqueue` records a run and has any worker execute it. If the worker dies, `take_from_dead` returns the run.
    - A process never executes a run twice at the same time. A run that is started during its execution is executed
      again afterwards. Between processes, the record of the run decides which one executes it.
    - If its task is cancelled, `execute` must end soon and leave the run as it is, so that another process resumes it.
      To cancel a run, note the request in the record of the run and let its `execute` end by itself.
    - The engine retries nothing. If `execute` raises, the error is reported and the engine is done with the run.
    """

    @property
    def name(self) -> str:
        """The name of this process; it changes after the process was declared dead.

        Raises:
            StoreClosed: the engine was never ready.
        """

    async def ready(self) -> None:
        """Register this process as a worker; afterwards the engine has a name.

        Raises:
            StoreClosed: the engine takes no more runs.
            StoreUnavailable: the database does not answer.
        """

    async def start(self, run_id: str) -> None:
        """Execute a run in this process.

        Raises:
            StoreClosed: the engine takes no more runs.
        """

    async def enqueue(self, run_id: str, *, alone: bool = False) -> None:
        """Enqueue a run for any worker. Each worker executes a few at a time, but only one run that is `alone`.

        Raises:
            StoreClosed: the engine takes no more runs.
        """

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that are dead; a dead process stays dead.

        Raises:
            StoreUnavailable: the database does not answer.
        """

    async def take_from_dead(self) -> Set[str]:
        """Remove the runs that dead processes had dequeued from the queue, and return their ids.

        Raises:
            StoreUnavailable: the database does not answer.
        """

    def stopping(self, run_id: str) -> Stop | None:
        """Return why the `execute` of a run in this process is being stopped; None if it is not."""

    def holds(self, run_id: str) -> bool:
        """Return whether this process certainly still owns a run; call it before work that must not be done twice.

        It is False if this process has not renewed its lease for too long: another process may own the run by now.
        """

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait `seconds` for active ones, and leave the rest to other processes."""


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine. Times are in seconds.

    A process that `works` takes enqueued runs, at most `concurrency` at a time, not counting runs of `start`. A
    process without a heartbeat for `dead_seconds` is declared dead; if processes share a SQLite file, the operating
    system reports it at once.
    """

    works: bool = True
    concurrency: int = 8
    poll_seconds: float = 0.25
    dead_seconds: float = 8.0
    close_seconds: float = 10.0
    keep_finished_seconds: float = 600.0
