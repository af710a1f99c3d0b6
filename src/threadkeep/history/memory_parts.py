"""The parts of a memory; their creator opens and closes them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from threadkeep.context.tokens import RememberedCounts, TokenCounter
from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.history.compressor import Compressor
from threadkeep.history.graph_conversations import GraphConversations
from threadkeep.history.manifests import Manifests
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.older_turns import OlderTurns
from threadkeep.history.pending import PendingTurns
from threadkeep.history.retention import Pruner
from threadkeep.history.run_retention import RunPruner
from threadkeep.history.stored_values import LearnedFactors
from threadkeep.observe import IndexingBegan, IndexingDone, Observer, Observers
from threadkeep.records import SearchResult
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.archive import Restoring
from threadkeep.store.backend import DamageRegister
from threadkeep.store.contexts import Contexts, ContextTables
from threadkeep.store.driver import Driver
from threadkeep.store.duties import ChannelTables
from threadkeep.store.runs import Runs
from threadkeep.store.search import MUCH_UNINDEXED, Search
from threadkeep.store.transcripts import Transcripts

_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = 5.0


class MessageSearch:
    """A search in messages that keeps its index up to date."""

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


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The storage of the sessions of a memory: transcripts, search, archive and retention."""

    transcripts: Transcripts
    index: MessageSearch
    archive: Restoring
    damages: DamageRegister
    contexts: Contexts
    older_turns: OlderTurns
    pending: PendingTurns
    retention: Pruner


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """The stores, background services, token counter, observers and clock of a memory."""

    address: DatabaseAddress
    options: MemoryOptions
    driver: Driver
    backend: Backend
    runs: Runs
    tables: ContextTables
    channels: ChannelTables
    conversations: GraphConversations
    manifests: Manifests
    run_retention: RunPruner
    compressor: Compressor
    learned_factors: LearnedFactors
    counter: TokenCounter
    remembered_counts: RememberedCounts
    observers: Observers
    clock: Callable[[], datetime]
    graphiti: GraphitiOptions | None = None
