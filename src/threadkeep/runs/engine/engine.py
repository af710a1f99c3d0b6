"""The interface of engines: a few methods, the same for one process and for many."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Set
from dataclasses import dataclass
from typing import Literal, Protocol

type Execute = Callable[[str], Coroutine[object, object, None]]
"""A callback that executes a run. It may be called again for the same run and finds its progress in its own records."""

type Troubled = Callable[[str], None]
"""A callback with the name of an error, mostly of the database, that keeps the engine from its work for now."""

type Stop = Literal["closing", "lost"]
"""The reason why the engine stops a run: it closes, or another process has the run after this one was declared dead."""

STOP_SECONDS = 5.0
"""Seconds to wait for a run that was stopped."""

CLOSED = "The engine takes no more runs: it was closed; start runs inside its `async with open_engine(...)` block."


class Engine(Protocol):
    """An engine that calls `execute(run_id)`; it knows nothing else about runs.

    - `start` executes a run in this process. If the process dies, the run's record names an owner that is `dead`.
    - `enqueue` records a run and has any worker execute it. If the worker dies, `take_from_dead` returns the run.
    - A process never executes a run twice at the same time. Starting a run that is being executed executes it again
      afterwards. Between processes the record of the run decides.
    - An `execute` whose task is cancelled must end soon and leave the run as it is: another process continues it. To
      cancel a run, note the request in the run's own record and let its `execute` end by itself.
    - The engine retries nothing. An `execute` that raises is reported, and the run is over for the engine.
    """

    @property
    def name(self) -> str:
        """The name of this process; it changes after the process was declared dead.

        Raises:
            StoreClosed: the engine was never ready.
        """

    async def ready(self) -> None:
        """Register this process as one that executes runs; afterwards the engine has a name.

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
        """Enqueue a run for any worker, a few at a time in each; runs that are tried `alone`, one at a time in each.

        Raises:
            StoreClosed: the engine takes no more runs.
        """

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that are dead; a dead process stays dead.

        Raises:
            StoreUnavailable: the database does not answer.
        """

    async def take_from_dead(self) -> Set[str]:
        """Remove the runs from the queue that dead processes had begun to execute, and return their ids.

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

    A process that `works` takes enqueued runs: at most `concurrency` at a time, without counting those of `start`. A
    process without a heartbeat for `dead_seconds` is declared dead; if processes share a SQLite file, the operating
    system reports it at once.
    """

    works: bool = True
    concurrency: int = 8
    poll_seconds: float = 0.25
    dead_seconds: float = 8.0
    close_seconds: float = 10.0
    keep_finished_seconds: float = 600.0
