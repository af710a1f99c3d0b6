"""An observer for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.limits import HANG_SECONDS
from threadkeep.observe import Event


class RecordedEvents:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._told = asyncio.Event()

    def notify(self, event: Event, /) -> None:
        """Keep one event."""
        self.all.append(event)
        self._told.set()

    def of[E: Event](self, kind: type[E]) -> list[E]:
        """The events of a kind so far, in order."""
        return [event for event in self.all if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; it is looked at again after each event.

        Raises:
            TimeoutError: it takes too long.
        """
        async with asyncio.timeout(HANG_SECONDS):
            while not condition():
                self._told.clear()
                await self._told.wait()
