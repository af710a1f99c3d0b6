"""Messages that this process answers at the moment without a record of it, since the database did not take one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from threadkeep.records.runs import Run

_MOST_REMEMBERED: Final = 10_000

type _Place = tuple[str | None, str | None]


class UnrecordedTurns:
    """Keeps a run from answering what is being answered: it was recorded unheard of, or was at work when it all began.

    It waits, and finds the answer in the transcript or among what waits to be written.
    """

    def __init__(self) -> None:
        self._ends: dict[_Place, asyncio.Event] = {}
        self._answered: dict[_Place, None] = {}

    @contextmanager
    def answering(self, session_id: str, message_id: str) -> Iterator[None]:
        """A message is being answered inside the block. There is one such block at a time for each."""
        end = self._ends[session_id, message_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[session_id, message_id]
            end.set()

    def answered(self, session_id: str, message_id: str) -> None:
        """Remember that a message got its answer: a run of it that comes to its end later ends no other turn."""
        self._answered[session_id, message_id] = None
        if len(self._answered) > _MOST_REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def has_answered(self, run: Run) -> bool:
        """Whether all messages of a run were answered without it."""
        return bool(run.inputs) and all((run.session_id, one.message_id) in self._answered for one in run.inputs)

    async def over(self, session_id: str | None, message_id: str | None) -> None:
        """Return when nobody answers a message without a record."""
        while end := self._ends.get((session_id, message_id)):
            await end.wait()
