"""The interface of engines: a few methods, the same for one process and for many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from typing import Literal, Protocol

type CarryOut = Callable[[str], Awaitable[None]]
"""A callback that executes a run. It may be called again for the same run and finds its progress in its own records."""

type Stop = Literal["closing", "lost"]
"""The reason why the engine stops a run: it closes, or another process has the run after this one was declared dead."""

LETTING_GO_SECONDS = 5.0
"""Seconds to wait for a run that was stopped."""

CLOSED = "The engine takes no more runs: it was closed; start runs inside its `async with open_engine(...)` block."


class Listener(Protocol):
    """A listener for runs whose `carry_out` does not end well."""

    async def gave_up(self, run_id: str, attempts: int) -> None:
        """Handle a run that is given up after `attempts` attempts; it may be called twice for the same run."""
        ...

    def troubled(self, error: str) -> None:
        """Handle the name of an error, mostly of the database, that keeps the engine from its work for now."""
        ...


class Engine(Protocol):
    """An engine that calls `carry_out(run_id)`; it knows nothing else about runs.

    - `start` executes a run in this process. If the process dies, the run's record names an owner that is `dead`.
    - `enqueue` records a run and has any worker execute it: after a `kill -9` another process executes it.
    - A process never executes a run twice at the same time. Starting a run that is being executed executes it again
      afterwards. Between processes the record of the run decides.
    - A `carry_out` whose task is cancelled must end soon and leave the run as it is: another process continues it. To
      cancel a run, note the request in the run's own record and let its `carry_out` end by itself.
    - A `carry_out` that raises is retried after a pause; if the process of an enqueued run dies, another retries it.
      After `max_attempts` the run is set aside, and the listener is called.
    """

    @property
    def name(self) -> str:
        """The name of this process; it changes after the process was declared dead.

        Raises:
            StoreClosed: the engine was never ready.
        """
        ...

    async def ready(self) -> None:
        """Register this process as one that executes runs; afterwards the engine has a name.

        Raises:
            StoreClosed: the engine takes no more runs.
            StoreUnavailable: the database does not answer.
        """
        ...

    async def start(self, run_id: str) -> None:
        """Execute a run in this process.

        Raises:
            StoreClosed: the engine takes no more runs.
        """
        ...

    async def enqueue(self, run_id: str, *, failures: int = 0) -> None:
        """Enqueue a run for any worker, a few at a time in each; `failures` counts earlier failed attempts.

        Raises:
            StoreClosed: the engine takes no more runs.
        """
        ...

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that are dead; a dead process stays dead.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        ...

    def stopping(self, run_id: str) -> Stop | None:
        """Return why the `carry_out` of a run in this process is being stopped; None if it is not."""
        ...

    def holds(self, run_id: str) -> bool:
        """Return whether this process certainly still owns a run; call it before work that must not be done twice.

        It is False if this process has not renewed its lease for too long: another process may own the run by now.
        """
        ...

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait `seconds` for active ones, and leave the rest to other processes."""
        ...


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine. Times are in seconds.

    A process that `works` takes enqueued runs and runs that other processes left: at most `concurrency` at a time,
    without counting those of `start`. A process without a heartbeat for `dead_seconds` is declared dead; if processes
    share a SQLite file, the operating system reports it at once. Each failed attempt doubles the pause before the next
    one.
    """

    works: bool = True
    concurrency: int = 8
    poll_seconds: float = 0.25
    dead_seconds: float = 8.0
    max_attempts: int = 3
    pause_seconds: float = 1.0
    close_seconds: float = 10.0
    keep_finished_seconds: float = 600.0
