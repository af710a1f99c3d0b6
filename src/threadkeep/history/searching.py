"""Search in messages: a search updates the index as far as it needs, and a background task does the rest."""

from __future__ import annotations

import asyncio
import contextlib
import time

from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.observe import IndexingBegan, IndexingDone, Observer
from threadkeep.records import SearchResult
from threadkeep.store.search import MUCH_UNINDEXED, Search

_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = 5.0


class Searching:
    """A service that searches and keeps the index up to date."""

    def __init__(self, index: Search, observer: Observer) -> None:
        self._index = index
        self._observer = observer

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> SearchResult:
        """Return messages that contain all words of a query, and the number of messages not indexed yet.

        It waits only for unindexed messages of the searched session or user, so it is soon complete even if much of
        other sessions waits.
        """
        complete = False
        # A database that accepts no writes (full disk, locked file) can still be searched.
        with contextlib.suppress(StoreUnavailable):
            complete = await self._index.catch_up(seconds=_TIMEOUT_SECONDS, user_id=user_id, session_id=session_id)
        unindexed = 0 if complete else await self._index.unindexed(user_id=user_id, session_id=session_id)
        hits = await self._index.search(query, limit=limit, user_id=user_id, session_id=session_id, after=after)
        return SearchResult(hits, unindexed)

    async def keep_up(self) -> None:
        """Keep the index up to date until cancelled; report when it is far behind; retry failures in the next round."""
        behind, began = 0, 0.0
        while True:
            with contextlib.suppress(StoreError):
                waiting = await self._index.unindexed()
                if waiting >= MUCH_UNINDEXED and not behind:
                    behind, began = waiting, time.monotonic()
                    self._observer.notify(IndexingBegan(messages=behind))
                if await self._index.catch_up() and behind:
                    taken = (time.monotonic() - began) * 1000
                    self._observer.notify(IndexingDone(messages=behind, milliseconds=taken))
                    behind = 0
            await asyncio.sleep(_PAUSE_SECONDS)
