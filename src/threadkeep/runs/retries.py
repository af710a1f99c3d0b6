"""Pauses between attempts, and helpers for work that waits, is delayed, or must not be cancelled."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final

from threadkeep.boundary import retrieve_exception
from threadkeep.errors import StoreUnavailable

RUN_ERRORS: Final[Mapping[str, str]] = {
    "BudgetSpent": "It used up its budget; retry it with a larger max_tokens or max_cost.",
    "DeadlinePassed": "It took longer than its deadline_seconds; a retry gets the same time again.",
    "ExitRequested": "A node or a tool called sys.exit; let it raise another error, then retry the run.",
    "GaveUp": "The processes that executed it died; see their logs, then retry it.",
    "ParentCancelled": "The run that started it was cancelled.",
    "ParentOver": "The run that started it ended before it.",
    "RecordTooNew": "A newer Threadkeep wrote a record of the run; upgrade Threadkeep on this machine.",
    "RecordUnreadable": "Its stored input, question or result is damaged; restore a backup of the database.",
    "WorkflowGone": "A worker has no workflow of that name; register it there, and retry the run if it has ended.",
    "WorkflowVersionGone": (
        "The code of its workflow has changed since it began, and code is not stored; "
        "retry it where the old version is deployed, or start a new run."
    ),
}
"""Explanations of some error kinds, with advice. Any other kind is the name of an error class, or `Cancelled`."""


def pause_before(try_number: int, *, first_seconds: float, longest_seconds: float) -> float:
    """Return the seconds to pause before attempt `try_number`, with exponential growth and jitter."""
    full = min(first_seconds * 2.0 ** (try_number - 2), longest_seconds)
    return full * random.uniform(0.5, 1.0)


_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


async def retry_until_available[T](work: Callable[[], Awaitable[T]]) -> T:
    """Call and await `work`; repeat it while it raises `StoreUnavailable`. Cancelling the caller stops the retries."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


async def shielded[T](work: Coroutine[object, object, T]) -> T:
    """Await `work`. If the caller is cancelled, the cancellation is raised only when the work has ended.

    If the caller is cancelled twice, the cancellation is raised at once, and the work continues.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(retrieve_exception)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    return task.result()


class Debounced(ABC):
    """A base class that calls `_store` later, in a separate task, when the lock `working` is free."""

    def __init__(self) -> None:
        self.working = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def _store(self) -> None: ...

    def within(self, seconds: float) -> None:
        """Schedule a call of `_store` in `seconds`, unless a call is scheduled for an earlier time."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + seconds:
            return
        self.disarm()
        self._timer = loop.call_later(seconds, self._due, seconds)

    def disarm(self) -> None:
        """Cancel the scheduled call of `_store`. The next call of `within` schedules one again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Cancel the scheduled call of `_store`, and wait for calls in progress."""
        self.disarm()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _due(self, seconds: float) -> None:
        self._timer = None
        if self.working.locked():
            self.within(seconds)
            return
        task = asyncio.create_task(self._store())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
