"""Work that is put off a little, so that it is done once for all that comes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Postponed:
    """Does its work when it is due, in a task of its own; never beside whoever holds `working` and does it at once."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.working = asyncio.Lock()
        self._work = work
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def within(self, seconds: float) -> None:
        """Have it done after so many seconds, unless it is due before that."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + seconds:
            return
        self.disarm()
        self._timer = loop.call_later(seconds, self._due, seconds)

    def disarm(self) -> None:
        """Have nothing done, until it is asked for again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Begin nothing more, and return when what goes on is done."""
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
