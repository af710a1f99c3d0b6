"""Full text search in conversations of a graph store: all texts are read, the newest sessions first.

LangGraph's stores search by likeness, where they are given a model for it, and not by words. There is no index here
that a conversation could be forgotten in; whoever searches much keeps transcripts in the tables.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

from threadkeep.errors import StoreUnavailable
from threadkeep.records import Message, SearchHit
from threadkeep.store.codec import clean_text
from threadkeep.store.graph_transcripts.indexed import IndexedTranscripts
from threadkeep.store.graph_transcripts.reading import ConversationReader
from threadkeep.store.graph_transcripts.shapes import Conversation
from threadkeep.store.transcripts import END, SessionQuery, Transcripts

_SEARCH_SECONDS = 5.0
_SEARCHES = 2


class TextSearch:
    """Searches conversations, as a list of sessions names them."""

    def __init__(self, transcripts: Transcripts, reader: ConversationReader, *, page_sessions: int = 100) -> None:
        self._transcripts = transcripts
        self._reader = reader
        self._page_sessions = page_sessions
        self._searches = asyncio.Semaphore(_SEARCHES)

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """There is nothing to bring up."""
        return True

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """None: every text is read."""
        return 0

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Messages with all the words of a query, best first; of one user, or of one session after a place.

        Raises:
            StoreUnavailable: there is too much to read in time, with whoever else is searching.
        """
        words = clean_text(query).casefold().split()
        if not words or limit <= 0:
            return []
        best: list[tuple[float, float, int, SearchHit]] = []
        number = count()
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), self._searches:
                async for conversation in self._conversations(user_id, session_id):
                    low = max(after, conversation.deleted_seq) + 1
                    async for message in self._reader.down(conversation, END, low):
                        if score := _score(message, words):
                            time = message.created_at.timestamp() if message.created_at else 0.0
                            hit = SearchHit(conversation.session_id, message, score)
                            entry = (score, time, -next(number), hit)
                            (heapq.heappush if len(best) < limit else heapq.heappushpop)(best, entry)
        except TimeoutError:
            raise StoreUnavailable(
                f"The search took longer than {_SEARCH_SECONDS:g} seconds: in a graph store every text is read. Search "
                "one session or one user, or keep transcripts in the tables (THREADKEEP_TRANSCRIPTS=tables)."
            ) from None
        return [hit for *_, hit in sorted(best, reverse=True)]

    async def _conversations(self, user_id: str | None, session_id: str | None) -> AsyncIterator[Conversation]:
        if session_id is not None:
            if conversation := await self._reader.conversation(session_id, user_id=user_id):
                yield conversation
            return
        query: SessionQuery | None = SessionQuery(user_id, limit=self._page_sessions)
        while query is not None:
            page = await self._transcripts.sessions(query)
            for info in page:
                if conversation := await self._reader.conversation(info.session_id, user_id=user_id):
                    yield conversation
            last = page[-1] if len(page) == query.limit else None
            query = None if last is None else replace(query, cursor=(last.updated_at, last.session_id))


class ConversationSearch(TextSearch):
    """The same over transcripts with rows in the tables; keeps these up, where the tables' search keeps an index up."""

    def __init__(self, transcripts: IndexedTranscripts, reader: ConversationReader) -> None:
        super().__init__(transcripts, reader)
        self._indexed = transcripts

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Bring up the rows of all sessions that are behind; True when nothing is left."""
        try:
            async with asyncio.timeout(seconds):
                await self._indexed.catch_up()
        except TimeoutError:
            return False
        return True


def _score(message: Message, words: list[str]) -> float:
    """How much of a text the words are, 0 where one of them is not in it."""
    text = message.content.casefold()
    counts = [text.count(word) for word in words]
    return sum(counts) / math.log2(2 + len(text)) if all(counts) else 0.0
