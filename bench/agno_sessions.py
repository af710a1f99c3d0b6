"""The sessions of agno's agents in a SQLite file, written and read as its `Agent` does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from agno.db.base import SessionType
from agno.db.sqlite import AsyncSqliteDb
from agno.models.message import Message
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession

from bench.contenders import OneByOne, Place, TurnTexts

_AGENT = "bench"


class AgnoConversation:
    """A session that was read from the database, as an agent reads it before each run."""

    def __init__(self, database: AsyncSqliteDb, session: AgentSession) -> None:
        self._database = database
        self._session = session

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn as a run, and the session's row."""
        session = self._session
        run = RunOutput(
            run_id=str(uuid4()),
            session_id=session.session_id,
            agent_id=_AGENT,
            messages=[Message(role="user", content=turn.user), Message(role="assistant", content=turn.assistant)],
            content=turn.assistant,
            status=RunStatus.completed,
        )
        session.upsert_run(run)
        await self._database.upsert_session(session)
        position = len(session.runs or ()) - 1
        await self._database.upsert_run(run, session_id=session.session_id, run_index=position)

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest messages; a run has two."""
        found = await self._database.get_session(self._session.session_id, SessionType.AGENT, runs_limit=limit // 2)
        return found.get_messages(limit=limit) if isinstance(found, AgentSession) else []


class AgnoContender(OneByOne):
    """A database of agno."""

    def __init__(self, database: AsyncSqliteDb) -> None:
        self._database = database

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[AgnoConversation]:
        """Read a session with its runs, or create it."""
        session = await self._database.get_session(session_id, SessionType.AGENT)
        if not isinstance(session, AgentSession):
            session = AgentSession(session_id, agent_id=_AGENT, session_data={}, created_at=int(time.time()))
        yield AgnoConversation(self._database, session)


@asynccontextmanager
async def open_sqlite(place: Place) -> AsyncIterator[AgnoContender]:
    """`AsyncSqliteDb`, which turns WAL on by itself."""
    yield AgnoContender(AsyncSqliteDb(db_file=str(place.file)))
