"""The `Memory` of LlamaIndex's agents in a SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.contenders import OneByOne, Place, TurnTexts, write_ahead
from bench.plan import TAIL_MESSAGES


class LlamaConversation:
    """A memory of one session."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn of two messages."""
        await self._memory.aput_messages(
            [ChatMessage(role="user", content=turn.user), ChatMessage(role="assistant", content=turn.assistant)]
        )

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest messages of the memory's token limit; of all stored messages, if more are wanted."""
        found = await (self._memory.aget() if limit <= TAIL_MESSAGES else self._memory.aget_all())
        return found[-limit:]


class LlamaContender(OneByOne):
    """The memories of one database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def conversation(self, session_id: str) -> AsyncIterator[LlamaConversation]:
        """Yield the memory of a session, with the default limits."""
        yield LlamaConversation(Memory.from_defaults(session_id=session_id, async_engine=self._engine))


@asynccontextmanager
async def open_sqlite(place: Place) -> AsyncIterator[LlamaContender]:
    """`Memory` on one engine, with the file in WAL mode as those of the other contenders."""
    write_ahead(place.file)
    engine = create_async_engine(f"sqlite+aiosqlite:///{place.file}")
    try:
        yield LlamaContender(engine)
    finally:
        await engine.dispose()
