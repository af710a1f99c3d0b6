"""Conversations that agents keep in a graph store by themselves: where it is, and what reads and writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from threadkeep.context.manifest import ConversationPlace
from threadkeep.errors import StoreError
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Observer
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.archive import Restoring
from threadkeep.store.codec import Counter
from threadkeep.store.conversation_layouts import ConversationLayouts
from threadkeep.store.driver import StoreOptions
from threadkeep.store.graph_transcripts.archive import ConversationArchive
from threadkeep.store.graph_transcripts.items import ConversationChanged
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.graph_transcripts.retention import ConversationRetention
from threadkeep.store.graph_transcripts.search import TextSearch
from threadkeep.store.graph_transcripts.table import TabledStore
from threadkeep.store.graph_transcripts.transcripts import GraphTranscripts
from threadkeep.store.graphs import open_graph_store
from threadkeep.store.retaining import Retaining
from threadkeep.store.search import Search

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


_NOTING_SECONDS = 5.0
_OWN = "own"
_ALL_AT_ONCE = 1_000_000  # a page of them reads the metadata of all


class Opening(NamedTuple):
    """What a store is opened on, which closes it, and how."""

    stack: AsyncExitStack
    options: StoreOptions


class GraphConversations:
    """The graph store of a memory, opened at its first use, and the transcripts that conversations in any store are.

    The store is `given`, or the database that it is in; `layouts` are those of the conversations that agents keep
    there.
    """

    def __init__(
        self,
        given: DatabaseAddress | BaseStore,
        layouts: ConversationLayouts,
        opening: Opening,
        *,
        count: Counter,
        clock: Callable[[], datetime],
        observer: Observer,
    ) -> None:
        self.given = given
        self.layouts = layouts
        self._to_open = opening
        self._count = count
        self._clock = clock
        self._observer = observer
        self._store = None if isinstance(given, DatabaseAddress) else given
        self._opening = asyncio.Lock()
        self._noted: set[GraphLayout] = set()

    async def store(self) -> BaseStore:
        """The store, which closes with the memory. Raises `StoreUnavailable` when its database does not answer."""
        async with self._opening:
            if self._store is None:
                self._store = await self._opened()
            return self._store

    async def _opened(self) -> BaseStore:
        address = self.given
        if not isinstance(address, DatabaseAddress):
            return address
        if address.path is None and address.dsn is None:
            from langgraph.store.memory import InMemoryStore

            return InMemoryStore()
        stack, options = self._to_open
        return await stack.enter_async_context(open_graph_store(address, options))

    def name_of(self, store: BaseStore) -> object:
        """What a store is known by: every way to the memory's own has the same name, any other is itself."""
        if store is self._store:
            return _OWN
        address = self.given if isinstance(self.given, DatabaseAddress) else None
        same = address is not None and isinstance(store, TabledStore) and store.fingerprint == address.fingerprint
        return _OWN if same else store

    def is_own(self, store: BaseStore) -> bool:
        """Whether a store is the memory's own."""
        return self.name_of(store) == _OWN

    def is_news(self, store: BaseStore, layout: GraphLayout) -> bool:
        """Whether other processes do not know for certain that agents keep conversations so."""
        return layout not in self._noted and self.is_own(store)

    async def note(self, layout: GraphLayout) -> None:
        """Let other processes know of a layout in the memory's own store; what fails is tried again the next time."""
        self._noted.add(layout)
        try:
            async with asyncio.timeout(_NOTING_SECONDS):
                await self.layouts.add(layout)
        except (StoreError, TimeoutError):
            self._noted.discard(layout)

    def transcripts(self, store: BaseStore, layout: GraphLayout) -> GraphTranscripts:
        """The conversations of a layout in a store."""
        # It knows LangGraph, which a memory of the tables alone does without.
        from threadkeep.store.graph_transcripts.opening import items_of

        items = items_of(store)

        def conflicted(session_id: str) -> None:
            events = SessionEvents(self._observer, items.backend, session_id)
            events.write_failed(ConversationChanged(), "conflict")

        return GraphTranscripts(items, layout, count=self._count, clock=self._clock, conflicted=conflicted)

    def archive(self, transcripts: GraphTranscripts) -> Restoring:
        """What brings exported conversations back."""
        return ConversationArchive(transcripts.writer, count=self._count, clock=self._clock)

    def retention(
        self, transcripts: GraphTranscripts, forget_runs: Callable[[Sequence[str]], Awaitable[object]]
    ) -> Retaining:
        """What retention asks of conversations."""
        return ConversationRetention(transcripts, forget_runs=forget_runs)

    def search(self, transcripts: GraphTranscripts) -> Search:
        """What finds words in conversations."""
        return TextSearch(transcripts, transcripts.reader, page_sessions=_ALL_AT_ONCE)


def place_in(layout: GraphLayout, key: str) -> ConversationPlace:
    """Where a conversation of a layout is, as the records of model calls name it."""
    return ConversationPlace(key, layout.namespace, layout.meta_key_suffix, layout.value_field)


def folder_of(layout: GraphLayout) -> str:
    """Where turns wait that a store does not take: each layout has a folder of its own."""
    name = "\0".join([*layout.namespace, layout.meta_key_suffix, layout.value_field])
    return f"store-{sha256(name.encode()).hexdigest()[:16]}"
