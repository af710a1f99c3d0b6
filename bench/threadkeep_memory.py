"""Threadkeep, through its public path: `open_memory` with its defaults, `append` and `tail`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.contenders import Place, TurnTexts
from threadkeep import Memory, MemoryOptions, Message, Session, open_memory
from threadkeep.history.pending import PendingOptions

_TURNS_AT_ONCE = 2_500
_PATIENCE_SECONDS = 1.5


class MemoryConversation:
    """A session of Threadkeep."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn of two messages."""
        await self._session.append([Message("user", turn.user), Message("assistant", turn.assistant)])

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest messages, as `Message` records."""
        return await self._session.tail(limit)


class MemoryContender:
    """An open memory of Threadkeep."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[MemoryConversation]:
        """Open a session of the memory."""
        yield MemoryConversation(self._memory.session(session_id))

    async def fill(self, session_id: str, turns: Sequence[TurnTexts]) -> None:
        """Store many turns, many at once."""
        session = self._memory.session(session_id)
        for start in range(0, len(turns), _TURNS_AT_ONCE):
            some = turns[start : start + _TURNS_AT_ONCE]
            await session.append(
                [message for turn in some for message in (Message("user", turn.user), Message("assistant", turn[1]))]
            )

    async def settle(self) -> None:
        """Bring the search index up to date, as the memory does by itself every few seconds.

        A search waits up to two seconds for the index, so repeat it until it takes less: everything is then indexed.
        """
        patience_left = False
        while not patience_left:
            started = time.perf_counter()
            await self._memory.search("parcel", limit=1)
            patience_left = time.perf_counter() - started < _PATIENCE_SECONDS


@asynccontextmanager
async def open_memory_url(url: str) -> AsyncIterator[MemoryContender]:
    """Open a memory of a database, without work in the background."""
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        yield MemoryContender(memory)


@asynccontextmanager
async def open_memory_here(place: Place, *, background: bool = True) -> AsyncIterator[MemoryContender]:
    """Open a memory with the default options; its pending writes are in the same place."""
    options = MemoryOptions(pending=PendingOptions(folder=place.folder / "pending"), background=background)
    async with open_memory(place.url, options=options) as memory:
        yield MemoryContender(memory)
