"""The sessions of the OpenAI Agents SDK, each made as its documentation shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing

from agents import SQLiteSession
from agents.extensions.memory import AsyncSQLiteSession, SQLAlchemySession
from agents.items import TResponseInputItem
from agents.memory.session import Session
from sqlalchemy.ext.asyncio import create_async_engine

from bench.contenders import Place, TurnTexts

_POOL_CONNECTIONS = 16


type Opener = Callable[[str], AbstractAsyncContextManager[Session]]


class AgentConversation:
    """A session of the SDK."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn as two items."""
        await self._session.add_items(_items([turn]))

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest items, as dicts."""
        return await self._session.get_items(limit)


class AgentContender:
    """One kind of the SDK's sessions."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[AgentConversation]:
        """Open a session, and close it at the end."""
        async with self._opener(session_id) as session:
            yield AgentConversation(session)

    async def fill(self, session_id: str, turns: Sequence[TurnTexts]) -> None:
        """Store many turns at once."""
        async with self._opener(session_id) as session:
            await session.add_items(_items(turns))

    async def settle(self) -> None:
        """Do nothing, because no work is deferred."""


@asynccontextmanager
async def open_sqlite(place: Place) -> AsyncIterator[AgentContender]:
    """`SQLiteSession`: the standard library's sqlite3 in threads."""

    @asynccontextmanager
    async def opener(session_id: str) -> AsyncIterator[Session]:
        with closing(SQLiteSession(session_id, place.file)) as session:
            yield session

    yield AgentContender(opener)


@asynccontextmanager
async def open_async_sqlite(place: Place) -> AsyncIterator[AgentContender]:
    """`AsyncSQLiteSession`: aiosqlite, a connection for each session."""

    @asynccontextmanager
    async def opener(session_id: str) -> AsyncIterator[Session]:
        session = AsyncSQLiteSession(session_id, place.file)
        try:
            yield session
        finally:
            await session.close()

    yield AgentContender(opener)


@asynccontextmanager
async def open_sqlalchemy(place: Place) -> AsyncIterator[AgentContender]:
    """`SQLAlchemySession` on one engine with a pool, over aiosqlite or psycopg."""
    url = place.url.replace("postgresql://", "postgresql+psycopg://").replace("sqlite://", "sqlite+aiosqlite://")
    engine = create_async_engine(url, pool_size=_POOL_CONNECTIONS)
    made = SQLAlchemySession("bench:tables", engine=engine, create_tables=True)
    await made.get_items(1)

    @asynccontextmanager
    async def opener(session_id: str) -> AsyncIterator[Session]:
        yield SQLAlchemySession(session_id, engine=engine)

    try:
        yield AgentContender(opener)
    finally:
        await engine.dispose()


def _items(turns: Sequence[TurnTexts]) -> list[TResponseInputItem]:
    items: list[TResponseInputItem] = []
    for turn in turns:
        items.append({"role": "user", "content": turn.user})
        items.append({"role": "assistant", "content": turn.assistant})
    return items
