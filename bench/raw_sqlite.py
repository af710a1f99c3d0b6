"""Raw SQL through aiosqlite: careful hand-written statements for Threadkeep's own tables, without any library.

There is one connection, with WAL and synchronous=FULL as in Threadkeep. A turn is one transaction: begin, increase the
counters of the session, insert two messages with all their columns, commit. Token counts are given, not computed, and
the row of the session already exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiosqlite

from bench.contenders import Place, TurnTexts
from bench.raw_rows import COLUMNS, dict_of, now_text, rows_of
from bench.threadkeep_memory import open_memory_here

_MAKE = """INSERT INTO chat_sessions (session_id, created_at, updated_at) VALUES (?, ?, ?)
ON CONFLICT (session_id) DO NOTHING"""
_COUNT_UP = """UPDATE chat_sessions SET
    last_seq = last_seq + 2, last_user_seq = last_seq + 1, message_count = message_count + 2, last_message = ?,
    updated_at = ?
WHERE session_id = ? RETURNING last_seq"""
_INSERT = f"INSERT INTO chat_messages ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_NEWEST = f"SELECT {', '.join(COLUMNS)} FROM chat_messages WHERE session_id = ? ORDER BY seq DESC LIMIT ?"


class RawConversation:
    """A session in the tables; all share one connection, one transaction at a time."""

    def __init__(self, raw: aiosqlite.Connection, lock: asyncio.Lock, session_id: str, *, dicts: bool) -> None:
        self._raw = raw
        self._lock = lock
        self._session_id = session_id
        self._dicts = dicts

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn in a transaction of its own."""
        async with self._lock:
            await self._raw.execute("BEGIN IMMEDIATE")
            now = now_text()
            counted = await self._raw.execute_fetchall(_COUNT_UP, (turn.assistant[:100], now, self._session_id))
            [(last_seq,)] = counted
            await self._raw.executemany(_INSERT, rows_of(self._session_id, last_seq, turn, now))
            await self._raw.commit()

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest rows, each as a dict or as a tuple."""
        rows = list(await self._raw.execute_fetchall(_NEWEST, (self._session_id, limit)))
        rows.reverse()
        return [dict_of(row) for row in rows] if self._dicts else rows


class RawContender:
    """One connection to a database with Threadkeep's schema."""

    def __init__(self, raw: aiosqlite.Connection, place: Place, *, dicts: bool) -> None:
        self._raw = raw
        self._place = place
        self._dicts = dicts
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[RawConversation]:
        """Create the row of a session if it is missing, and yield the session."""
        await self._raw.execute(_MAKE, (session_id, now_text(), now_text()))
        yield RawConversation(self._raw, self._lock, session_id, dicts=self._dicts)

    async def fill(self, session_id: str, turns: Sequence[TurnTexts]) -> None:
        """Store many turns with Threadkeep, which writes the same rows."""
        async with open_memory_here(self._place, background=False) as memory:
            await memory.fill(session_id, turns)

    async def settle(self) -> None:
        """Do nothing, because no work is deferred."""


@asynccontextmanager
async def open_dicts(place: Place) -> AsyncIterator[RawContender]:
    """Open a connection; each row is read into a plain dict."""
    async with _open(place, dicts=True) as contender:
        yield contender


@asynccontextmanager
async def open_tuples(place: Place) -> AsyncIterator[RawContender]:
    """Open a connection; rows stay the tuples that the driver returns."""
    async with _open(place, dicts=False) as contender:
        yield contender


@asynccontextmanager
async def _open(place: Place, *, dicts: bool) -> AsyncIterator[RawContender]:
    async with open_memory_here(place, background=False):
        pass
    async with aiosqlite.connect(place.file, isolation_level=None) as raw:
        await raw.execute("PRAGMA synchronous = FULL")
        await raw.execute("PRAGMA foreign_keys = ON")
        yield RawContender(raw, place, dicts=dicts)
