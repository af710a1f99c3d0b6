"""Raw SQL through psycopg: careful hand-written statements for Threadkeep's own tables, without any library.

A turn is the same transaction as in `raw_sqlite`. Connections have the settings of Threadkeep's driver, which read
faster than psycopg's defaults: times in UTC, JSON left as text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle

import psycopg
from psycopg.types.string import TextLoader

from bench.contenders import Place, TurnTexts
from bench.raw_rows import COLUMNS, dict_of, now_text, rows_of
from bench.threadkeep_memory import open_memory_here

type RawConnection = psycopg.AsyncConnection[tuple[object, ...]]
type Slot = tuple[RawConnection, asyncio.Lock]

_CONNECTIONS = 16
_MAKE = """INSERT INTO chat_sessions (session_id, created_at, updated_at) VALUES (%s, %s, %s)
ON CONFLICT (session_id) DO NOTHING"""
_COUNT_UP = """UPDATE chat_sessions SET
    last_seq = last_seq + 2, last_user_seq = last_seq + 1, message_count = message_count + 2, last_message = %s,
    updated_at = %s
WHERE session_id = %s RETURNING last_seq"""
_INSERT = f"INSERT INTO chat_messages ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"
_NEWEST = f"SELECT {', '.join(COLUMNS)} FROM chat_messages WHERE session_id = %s ORDER BY seq DESC LIMIT %s"


class RawConversation:
    """A session in the tables; sessions that share a connection take turns."""

    def __init__(self, slot: Slot, session_id: str, *, dicts: bool) -> None:
        self._raw, self._lock = slot
        self._session_id = session_id
        self._dicts = dicts

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn in a transaction of its own."""
        async with self._lock, self._raw.transaction():
            now = now_text()
            cursor = await self._raw.execute(_COUNT_UP, (turn.assistant[:100], now, self._session_id))
            [(last_seq,)] = await cursor.fetchall()
            await cursor.executemany(_INSERT, rows_of(self._session_id, int(str(last_seq)), turn, now))

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest rows, each as a dict or as a tuple."""
        cursor = await self._raw.execute(_NEWEST, (self._session_id, limit))
        rows = await cursor.fetchall()
        rows.reverse()
        return [dict_of(row) for row in rows] if self._dicts else rows


class RawContender:
    """Connections to a database with Threadkeep's schema; sessions are distributed over them."""

    def __init__(self, connections: Sequence[RawConnection], place: Place, *, dicts: bool) -> None:
        self._slots = cycle([(raw, asyncio.Lock()) for raw in connections])
        self._place = place
        self._dicts = dicts

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[RawConversation]:
        """Create the row of a session if it is missing, and yield the session."""
        slot = next(self._slots)
        await slot[0].execute(_MAKE, (session_id, now_text(), now_text()))
        yield RawConversation(slot, session_id, dicts=self._dicts)

    async def fill(self, session_id: str, turns: Sequence[TurnTexts]) -> None:
        """Store many turns with Threadkeep, which writes the same rows."""
        async with open_memory_here(self._place, background=False) as memory:
            await memory.fill(session_id, turns)

    async def settle(self) -> None:
        """Do nothing, because no work is deferred."""


@asynccontextmanager
async def open_dicts(place: Place) -> AsyncIterator[RawContender]:
    """Open one connection; each row is read into a plain dict."""
    async with _open(place, 1, dicts=True) as contender:
        yield contender


@asynccontextmanager
async def open_tuples(place: Place) -> AsyncIterator[RawContender]:
    """Open one connection; rows stay the tuples that the driver returns."""
    async with _open(place, 1, dicts=False) as contender:
        yield contender


@asynccontextmanager
async def open_many_connections(place: Place) -> AsyncIterator[RawContender]:
    """Open a connection for each of sixteen sessions; PostgreSQL may sync several commits at once."""
    async with _open(place, _CONNECTIONS, dicts=True) as contender:
        yield contender


@asynccontextmanager
async def _open(place: Place, connections: int, *, dicts: bool) -> AsyncIterator[RawContender]:
    async with open_memory_here(place, background=False):
        pass
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(await _connect(place)) for _ in range(connections)]
        yield RawContender(opened, place, dicts=dicts)


async def _connect(place: Place) -> RawConnection:
    raw: RawConnection = await psycopg.AsyncConnection.connect(place.url, autocommit=True, options="-c timezone=UTC")
    for name in ("json", "jsonb"):
        raw.adapters.register_loader(name, TextLoader)
    return raw
