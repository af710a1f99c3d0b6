"""Full text search in conversations of a graph store: it reads all texts, the newest sessions first.

LangGraph's stores search by similarity, if they have a model for it, and not by words. There is no index here that
would have to be kept in step; users who search often should keep transcripts in the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

from threadkeep.errors import SessionDamaged, StoreUnavailable
from threadkeep.graph_store.indexed import IndexedTranscripts
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.records import Message, SearchHit
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import END, SessionQuery

_SEARCH_SECONDS = 5.0
_SEARCHES = 2


class TextSearch:
    """A search over the conversations that a list of sessions names."""

    def __init__(self, transcripts: GraphTranscripts, *, page_sessions: int = 100) -> None:
        self._transcripts = transcripts
        self._reader = transcripts.reader
        self._page_sessions = page_sessions
        self._searches = asyncio.Semaphore(_SEARCHES)

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Return True; there is no index to update."""
        return True

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """Return 0; every text is read."""
        return 0

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return messages that contain all words of a query, best first; filter by user, or by session and `seq`.

        Damaged sessions are skipped and listed in the reader's `damages`.

        Raises:
            StoreUnavailable: there is too much to read in time, with other searches.
            SessionDamaged: the one session cannot be read.
        """
        words = clean_text(query).casefold().split()
        if not words or limit <= 0:
            return []
        best: list[tuple[float, float, int, SearchHit]] = []
        number = count()
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), self._searches:
                async for found_in, message in self._messages(user_id, session_id, after):
                    if score := _score(message, words):
                        time = message.created_at.timestamp() if message.created_at else 0.0
                        entry = (score, time, -next(number), SearchHit(found_in, message, score))
                        (heapq.heappush if len(best) < limit else heapq.heappushpop)(best, entry)
        except TimeoutError:
            raise StoreUnavailable(
                f"The search took longer than {_SEARCH_SECONDS:g} seconds: in a graph store every text is read. Search "
                "one session or one user, or keep transcripts in the tables (THREADKEEP_TRANSCRIPTS=tables)."
            ) from None
        return [hit for *_, hit in sorted(best, reverse=True)]

    async def _messages(
        self, user_id: str | None, session_id: str | None, after: int
    ) -> AsyncIterator[tuple[str, Message]]:
        """Yield the messages to search, each with its session."""
        if session_id is not None:
            async for message in self._down(session_id, user_id, after):
                yield session_id, message
            return
        async for found in self._sessions(user_id):
            with contextlib.suppress(SessionDamaged):
                async for message in self._down(found, user_id, after):
                    yield found, message

    async def _down(self, session_id: str, user_id: str | None, after: int) -> AsyncIterator[Message]:
        if conversation := await self._reader.conversation(session_id, user_id=user_id):
            low = max(after, conversation.deleted_seq) + 1
            async for message in self._reader.down(conversation, END, low, active=True):
                yield message

    async def _sessions(self, user_id: str | None) -> AsyncIterator[str]:
        query: SessionQuery | None = SessionQuery(user_id, limit=self._page_sessions)
        while query is not None:
            page = await self._transcripts.sessions(query)
            for info in page:
                yield info.session_id
            last = page[-1] if len(page) == query.limit else None
            query = None if last is None else replace(query, cursor=(last.updated_at, last.session_id))


class ConversationSearch(TextSearch):
    """A search over transcripts with rows in the tables; its `catch_up` updates these rows."""

    def __init__(self, transcripts: IndexedTranscripts) -> None:
        super().__init__(transcripts)
        self._indexed = transcripts

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Update the rows of all sessions that are behind; return True when none is left."""
        try:
            async with asyncio.timeout(seconds):
                await self._indexed.catch_up()
        except TimeoutError:
            return False
        return True


def _score(message: Message, words: list[str]) -> float:
    """Return the share of the words in a text, 0 if one of them is missing."""
    text = message.content.casefold()
    counts = [text.count(word) for word in words]
    return sum(counts) / math.log2(2 + len(text)) if all(counts) else 0.0
