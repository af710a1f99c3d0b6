"""Messages that this process is answering without a recorded run, because the database could not store one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from threadkeep.records.runs import Run

_MOST_REMEMBERED: Final = 10_000

type _Place = tuple[str | None, str | None]


class UnrecordedTurns:
    """A registry that keeps runs from answering messages that are being answered without a record.

    Such a run was recorded unnoticed, or was active when the outage began. It waits, and then finds the answer in the
    transcript or among the pending writes.
    """

    def __init__(self) -> None:
        self._ends: dict[_Place, asyncio.Event] = {}
        self._answered: dict[_Place, None] = {}

    @contextmanager
    def answering(self, session_id: str, message_id: str) -> Iterator[None]:
        """Mark a message as being answered inside the block. There is one such block per message at a time."""
        end = self._ends[session_id, message_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[session_id, message_id]
            end.set()

    def answered(self, session_id: str, message_id: str) -> None:
        """Remember that a message was answered: a run of it that ends later must not end another turn."""
        self._answered[session_id, message_id] = None
        if len(self._answered) > _MOST_REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def has_answered(self, run: Run) -> bool:
        """Return whether all messages of a run were answered without it."""
        return bool(run.inputs) and all((run.session_id, one.message_id) in self._answered for one in run.inputs)

    async def over(self, session_id: str | None, message_id: str | None) -> None:
        """Wait until no unrecorded answer to a message is in progress."""
        while end := self._ends.get((session_id, message_id)):
            await end.wait()
