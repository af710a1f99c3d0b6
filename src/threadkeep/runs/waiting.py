"""Work that is retried until the database is available, that outlives its caller, or that is done once for many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from threadkeep.errors import StoreUnavailable

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


async def retry_until_available[T](work: Callable[[], Awaitable[T]]) -> T:
    """Do work, and retry until the database is available; the caller may be cancelled."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


async def shielded[T](work: Coroutine[object, object, T]) -> T:
    """Do work to its end; a caller that is cancelled meanwhile waits for it and is cancelled afterwards."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, because no caller will
        raise
    return task.result()


class Debounced:
    """Delayed work in its own task; it never runs at the same time as a holder of `working` that does it directly."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.working = asyncio.Lock()
        self._work = work
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def within(self, seconds: float) -> None:
        """Schedule the work within `seconds`, unless it is due earlier."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + seconds:
            return
        self.disarm()
        self._timer = loop.call_later(seconds, self._due, seconds)

    def disarm(self) -> None:
        """Cancel the scheduled work until the next request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Cancel scheduled work, and wait for work in progress."""
        self.disarm()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _due(self, seconds: float) -> None:
        self._timer = None
        if self.working.locked():
            self.within(seconds)
            return
        task = asyncio.create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
