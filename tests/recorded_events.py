"""An observer for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.limits import HANG_SECONDS
from threadkeep.observe import Event


class RecordedEvents:
    """An observer that records events."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._changed = asyncio.Event()

    def notify(self, event: Event, /) -> None:
        """Record an event."""
        self.all.append(event)
        self._changed.set()

    def of[E: Event](self, kind: type[E]) -> list[E]:
        """Return the recorded events of a kind, in order."""
        return [event for event in self.all if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; check it after each event.

        Raises:
            TimeoutError: the condition does not hold in time.
        """
        async with asyncio.timeout(HANG_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
