"""What carries runs out: a few verbs, the same in one process and in many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

type CarryOut = Callable[[str], Awaitable[None]]
"""Does what a run is about. It may be called again for the same run, and finds in its own records how far it came."""

type Stop = Literal["closing", "lost"]
"""Why the engine stops a run: it closes, or another process has it, since this one was taken for dead."""

LETTING_GO_SECONDS = 5.0
"""How long a run that was stopped is waited for."""

CLOSED = "The engine takes no more runs: it was closed; start runs inside its `async with open_engine(...)` block."


class Listener(Protocol):
    """Whoever wants to know what becomes of runs when their `carry_out` does not end well."""

    async def gave_up(self, run_id: str, attempts: int) -> None:
        """Hear of a run that is not tried any more, and how often it was; maybe twice of the same run."""
        ...

    def troubled(self, error: str) -> None:
        """Hear the name of an error, of the database mostly, that keeps the engine from looking after runs for now."""
        ...


class Engine(Protocol):
    """Carries runs out by calling `carry_out(run_id)`; it knows their ids and nothing else of them.

    - A run that was started or enqueued is carried out to its end, by this process or by another one of the same
      database: after a `kill -9` by one that works, or by this one after its restart.
    - No run is carried out twice at one time. Who starts one that is being carried out has it carried out once more,
      afterwards; so nothing that was written for it before its start is overlooked.
    - A `carry_out` whose task is cancelled has to end soon, and leaves the run as it is: somebody else goes on. Who
      wants a run cancelled notes that in the run's own records, and has its `carry_out` end by itself.
    - A `carry_out` that raises is tried again after a pause, and one whose process dies is tried elsewhere. After
      `max_attempts` that ended so the run is set aside, and the listener is told.
    """

    async def ready(self) -> None:
        """Do now what the first run would have to wait for.

        Raises:
            StoreClosed: the engine takes no more runs.
        """
        ...

    async def start(self, run_id: str) -> None:
        """Carry a run out in this process, from now on; when this returns, the run survives the process.

        Raises:
            StoreClosed: the engine takes no more runs.
        """
        ...

    async def begin(self, run_id: str) -> None:
        """Carry a run out in this process, for whoever finds it again by records of their own if this process dies.

        It begins at once, and is recorded meanwhile: as soon as that is done, it survives the process by itself.

        Raises:
            StoreClosed: the engine takes no more runs.
        """
        ...

    async def enqueue(self, run_id: str) -> None:
        """Have a run carried out by any process that works, a few at a time in each.

        Raises:
            StoreClosed: the engine takes no more runs.
        """
        ...

    def stopping(self, run_id: str) -> Stop | None:
        """Why the `carry_out` of a run in this process is being stopped; None if it is not."""
        ...

    def holds(self, run_id: str) -> bool:
        """Whether this process still has a run for certain, to be asked before what may not be done twice.

        It is False for a process that has not been able to say for long that it lives: another may have the run by now.
        """
        ...

    async def close(self, seconds: float) -> None:
        """Take no more runs, give those that are being carried out so long to end, and leave the rest to others."""
        ...


@dataclass(frozen=True)
class EngineOptions:
    """How runs are carried out. Times in seconds.

    A process that `works` takes enqueued runs and those that others left: at most `concurrency` at a time, those of
    `start` not counted. One that has not shown itself for `dead_seconds` is taken for dead; where processes share a
    SQLite file, the operating system tells it at once. Each failed attempt doubles the pause before the next one.
    """

    works: bool = True
    concurrency: int = 8
    poll_seconds: float = 0.25
    dead_seconds: float = 8.0
    max_attempts: int = 3
    pause_seconds: float = 1.0
    close_seconds: float = 10.0
    keep_finished_seconds: float = 600.0
