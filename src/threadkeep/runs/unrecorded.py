"""Messages that this process answers at the moment without a record of it, since the database did not take one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class UnrecordedTurns:
    """Keeps a run from answering what is being answered: it was recorded unheard of, or was at work when it all began.

    It waits, and finds the answer in the transcript or among what waits to be written.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[str | None, str | None], asyncio.Event] = {}

    @contextmanager
    def answering(self, session_id: str, message_id: str) -> Iterator[None]:
        """A message is being answered inside the block. There is one such block at a time for each."""
        end = self._ends[session_id, message_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[session_id, message_id]
            end.set()

    async def over(self, session_id: str | None, message_id: str | None) -> None:
        """Return when nobody answers a message without a record."""
        while end := self._ends.get((session_id, message_id)):
            await end.wait()
