"""The sessions of Google's Agent Development Kit in a SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai.types import Content, Part

from bench.contenders import OneByOne, Place, TurnTexts, write_ahead

_OWNER = {"app_name": "bench", "user_id": "ann"}


class AdkConversation:
    """A session that was read from the database, as the kit's runner reads it before each turn."""

    def __init__(self, service: DatabaseSessionService, session: Session) -> None:
        self._service = service
        self._session = session

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn as two events, each in a transaction, as the kit's runner does."""
        invocation = str(uuid4())
        for author, role, text in (("user", "user", turn.user), ("agent", "model", turn.assistant)):
            content = Content(role=role, parts=[Part(text=text)])
            await self._service.append_event(
                self._session, Event(author=author, invocation_id=invocation, content=content)
            )

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest events."""
        newest = GetSessionConfig(num_recent_events=limit)
        found = await self._service.get_session(**_OWNER, session_id=self._session.id, config=newest)
        return [] if found is None else found.events


class AdkContender(OneByOne):
    """A session service."""

    def __init__(self, service: DatabaseSessionService) -> None:
        self._service = service

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[AdkConversation]:
        """Read a session without its events, or create it."""
        no_events = GetSessionConfig(num_recent_events=0)
        session = await self._service.get_session(**_OWNER, session_id=session_id, config=no_events)
        yield AdkConversation(
            self._service, session or await self._service.create_session(**_OWNER, session_id=session_id)
        )


@asynccontextmanager
async def open_sqlite(place: Place) -> AsyncIterator[AdkContender]:
    """`DatabaseSessionService`, with the file in WAL mode as those of the other contenders."""
    write_ahead(place.file)
    async with DatabaseSessionService(f"sqlite+aiosqlite:///{place.file}") as service:
        yield AdkContender(service)
