"""Lists of sessions. It imports little, so that a command that lists sessions starts fast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from threadkeep.errors import InvalidInput
from threadkeep.records import SessionInfo
from threadkeep.store.codec import clean_text, session_of
from threadkeep.store.driver import Driver
from threadkeep.store.statements import like_pattern, load_statements
from threadkeep.store.times import time_text

_LAST_TIME = "9999-12-31T23:59:59.999999+00:00"
_LAST_ID = "~"

type Cursor = tuple[datetime, str]


@dataclass(frozen=True)
class SessionQuery:
    """The filter of a list of sessions: newest activity first, after the cursor, at most `limit`."""

    user_id: str | None = None
    query: str | None = None
    active: bool | None = None
    limit: int = 100
    cursor: tuple[datetime, str] | None = None


class Sessions(Protocol):
    """A list of sessions: of the tables, or of a graph store."""

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return sessions, newest activity first."""
        ...


class TableSessions:
    """The sessions of the table `chat_sessions`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return sessions, newest activity first."""
        updated_at, session_id = query.cursor or (None, _LAST_ID)
        parameters = {
            "user_id": query.user_id,
            "updated_at": time_text(updated_at) if updated_at else _LAST_TIME,
            "session_id": session_id,
            "active": query.active,
            "pattern": None if query.query is None else like_pattern(clean_text(query.query)),
            "limit": query.limit,
        }
        sql = load_statements("transcripts.sql")["sessions" if query.user_id is None else "sessions_of_user"]
        async with self._driver.reading() as connection:
            rows = await connection.fetch(sql, parameters)
        return [session_of(row) for row in rows]

    async def are_all(self) -> bool:
        """Return whether no agent keeps conversations of its own in a graph store."""
        async with self._driver.reading() as connection:
            return not await connection.fetch(load_statements("conversation_layouts.sql")["layouts"], {})


async def sessions_page(sessions: Sessions, query: SessionQuery) -> tuple[list[SessionInfo], Cursor | None]:
    """Return one page of sessions, and the cursor of the next (None at the end).

    Raises:
        InvalidInput: the limit is below 1.
    """
    if query.limit < 1:
        raise InvalidInput("A page of sessions has at least one.")
    found = await sessions.sessions(replace(query, limit=query.limit + 1))
    if len(found) <= query.limit:
        return found, None
    last = found[query.limit - 1]
    return found[: query.limit], (last.updated_at, last.session_id)
