"""Conversations that agents store in a LangGraph store, and access to this store."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from threadkeep.context.manifest import ConversationLocation
from threadkeep.errors import StoreError
from threadkeep.graph_store.items import ConversationChanged, Items, TabledStore
from threadkeep.graph_store.layout import ConversationLayouts, GraphLayout
from threadkeep.graph_store.opening import langgraph_stores
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Observer
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.codec import Counter
from threadkeep.store.driver import StoreOptions
from threadkeep.store.erasing import empty_log
from threadkeep.store.opening import open_database
from threadkeep.store.statements import load_statements

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


_REGISTER_SECONDS = 5.0
_GIVEN_STORE = "deleted items of the graph store that the application opened, until its database overwrites them"
_STORE_ROWS = "dead rows of the graph store's PostgreSQL until VACUUM, and its WAL"
_STORE_LOG = "the WAL file of the graph store, which a reader keeps: stop other processes, and repeat"
_OWN = "own"
_NO_SESSION = "\x1f"
"""The first character of each `order_name`: a control character, so no session id begins with it."""


class Opening(NamedTuple):
    """The exit stack that closes a store, and the options for opening it."""

    stack: AsyncExitStack
    options: StoreOptions


class GraphConversations:
    """Access to a memory's LangGraph store, which is opened on first use, and to conversations in any such store.

    `given` is an open store or the database of one; `layouts` has the registered layouts (namespaces and keys).
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
        self._registered: set[GraphLayout] = set()

    async def store(self) -> BaseStore:
        """Return the memory's store, opened on first use. Raises `StoreUnavailable` if its database does not answer."""
        async with self._opening:
            if self._store is None:
                self._store = await self._opened()
            return self._store

    async def exists(self) -> bool:
        """Return True if the memory's LangGraph store is open, or if the database that was given for it has one."""
        address = self.given
        if self._store is not None or not isinstance(address, DatabaseAddress):
            return True
        if address.in_memory or (address.path is not None and not address.path.exists()):
            return False
        options, sql = self._to_open.options, load_statements("foreign.sql")
        async with open_database(address, options, read_only=True) as driver:
            rows = await driver.fetch(sql[f"columns_{driver.backend}"], {})
        return any(table == "store" for table, _ in rows)

    async def overwrite(self, own: DatabaseAddress, *, vacuum: bool) -> str | None:
        """Overwrite deleted items in the file of the LangGraph store; return a description of remaining data.

        If `vacuum` is true, the file is rewritten. Operators must overwrite deleted rows in PostgreSQL and in stores
        that the application opened. `TableErasing` overwrites the memory's own file.
        """
        address = self.given
        if not isinstance(address, DatabaseAddress):
            return _GIVEN_STORE
        if address.fingerprint == own.fingerprint or address.in_memory or not await self.exists():
            return None
        if address.dsn is not None:
            return _STORE_ROWS
        with contextlib.suppress(StoreError):
            async with open_database(address, self._to_open.options) as driver:
                if await empty_log(driver, vacuum=vacuum):
                    return None
        return _STORE_LOG

    async def _opened(self) -> BaseStore:
        address = self.given
        if not isinstance(address, DatabaseAddress):
            return address
        stack, options = self._to_open
        store: BaseStore = await stack.enter_async_context(langgraph_stores().open_own_store(address, options))
        return store

    def name_of(self, store: BaseStore) -> object:
        """Return a hashable identity of a store. It is the same for all objects that access the memory's own store."""
        if store is self._store:
            return _OWN
        address = self.given if isinstance(self.given, DatabaseAddress) else None
        same = address is not None and isinstance(store, TabledStore) and store.fingerprint == address.fingerprint
        return _OWN if same else store

    def is_own(self, store: BaseStore) -> bool:
        """Return True if a LangGraph store is the one that belongs to this memory."""
        return self.name_of(store) == _OWN

    def is_unregistered(self, store: BaseStore, layout: GraphLayout) -> bool:
        """Return True if a store is the memory's own and this process has not registered the layout yet."""
        return layout not in self._registered and self.is_own(store)

    async def register(self, layout: GraphLayout) -> None:
        """Record a layout of the memory's own store for other processes; after a failure, the next call retries."""
        self._registered.add(layout)
        try:
            async with asyncio.timeout(_REGISTER_SECONDS):
                await self.layouts.add(layout)
        except (StoreError, TimeoutError):
            self._registered.discard(layout)

    def transcripts(self, store: BaseStore, layout: GraphLayout) -> GraphTranscripts:
        """Return an object that reads and writes the conversations of a layout in a store."""
        items: Items = langgraph_stores().items_of(store)

        def conflicted(session_id: str) -> None:
            events = SessionEvents(self._observer, items.backend, session_id)
            events.write_failed(ConversationChanged(), "conflict")

        return GraphTranscripts(items, layout, count=self._count, clock=self._clock, conflicted=conflicted)


def location_in(layout: GraphLayout, key: str) -> ConversationLocation:
    """Return the location (key, namespace and so on) by which records of model calls refer to a conversation."""
    return ConversationLocation(key, layout.namespace, layout.meta_key_suffix, layout.value_field)


def order_name(layout: GraphLayout, key: str) -> str:
    """Return the name of the queue that orders a conversation's turns. No session id can be equal to this name."""
    parts = [layout.namespace, layout.meta_key_suffix, layout.value_field, key]
    return _NO_SESSION + json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def of_order_name(name: str) -> tuple[GraphLayout, str] | None:
    """Return the layout and the key in an `order_name`, or None for another name."""
    if not name.startswith(_NO_SESSION):
        return None
    namespace, suffix, value_field, key = json.loads(name.removeprefix(_NO_SESSION))
    return GraphLayout(tuple(namespace), suffix, value_field=value_field), str(key)


def folder_of(layout: GraphLayout) -> str:
    """Return the name of the folder for a layout's pending turns, which wait to be written to the store."""
    name = "\0".join([*layout.namespace, layout.meta_key_suffix, layout.value_field])
    return f"store-{sha256(name.encode()).hexdigest()[:16]}"
