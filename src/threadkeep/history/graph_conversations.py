"""Conversations that agents keep in a graph store by themselves: where it is, and what reads and writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Observer
from threadkeep.store.codec import Counter
from threadkeep.store.graph_transcripts.items import ConversationChanged
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.graph_transcripts.transcripts import GraphTranscripts

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    type OpenStore = Callable[[], Awaitable[BaseStore]]


class GraphConversations:
    """The graph store of a memory, opened at its first use, and the transcripts that conversations in any store are."""

    def __init__(
        self, open_store: OpenStore, *, count: Counter, clock: Callable[[], datetime], observer: Observer
    ) -> None:
        self._open_store = open_store
        self._count = count
        self._clock = clock
        self._observer = observer
        self._store: BaseStore | None = None
        self._opening = asyncio.Lock()

    async def store(self) -> BaseStore:
        """The store, which closes with the memory. Raises `StoreUnavailable` when its database does not answer."""
        async with self._opening:
            if self._store is None:
                self._store = await self._open_store()
            return self._store

    def transcripts(self, store: BaseStore, layout: GraphLayout) -> GraphTranscripts:
        """The conversations of a layout in a store."""
        # It knows LangGraph, which a memory of the tables alone does without.
        from threadkeep.store.graph_transcripts.opening import items_of

        items = items_of(store)

        def conflicted(session_id: str) -> None:
            events = SessionEvents(self._observer, items.backend, session_id)
            events.write_failed(ConversationChanged(), "conflict")

        return GraphTranscripts(items, layout, count=self._count, clock=self._clock, conflicted=conflicted)


def folder_of(layout: GraphLayout) -> str:
    """Where turns wait that a store does not take: each layout has a folder of its own."""
    name = "\0".join([*layout.namespace, layout.meta_key_suffix, layout.value_field])
    return f"store-{sha256(name.encode()).hexdigest()[:16]}"
