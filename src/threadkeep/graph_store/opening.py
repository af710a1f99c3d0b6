"""Opening of transcripts in a LangGraph store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from threadkeep.errors import InvalidSettings
from threadkeep.graph_store.archive import IndexedArchive
from threadkeep.graph_store.indexed import IndexedTranscripts, UnavailableRetention
from threadkeep.graph_store.items import Items, TableItems
from threadkeep.graph_store.search import ConversationSearch
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.backend import VARIABLE, BackendDependencies, TranscriptBackend, first_session
from threadkeep.store.driver import Driver, StoreOptions

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


@asynccontextmanager
async def open_graph_backend(
    dependencies: BackendDependencies,
    store: BaseStore | DatabaseAddress,
    *,
    own: DatabaseAddress,
    options: StoreOptions,
) -> AsyncIterator[TranscriptBackend]:
    """Open transcripts in a LangGraph store: a given one that stays open, or the store of a database.

    Args:
        dependencies: our tables and other dependencies.
        store: the location of conversations.
        own: the database of our tables; if it is the same, its connections serve both.
        options: options for opening databases.

    Raises:
        InvalidSettings: the transcripts of this database are in its tables.
    """
    if await first_session(dependencies.driver, "any_kept_here"):
        raise InvalidSettings(
            f"The messages of this database's sessions are in its tables: set {VARIABLE}=tables, or export them with "
            "it and import them into another database.",
            variable=VARIABLE,
        )
    async with AsyncExitStack() as stack:
        items = await stack.enter_async_context(_open_items(dependencies.driver, store, own, options))
        transcripts = IndexedTranscripts(
            items,
            dependencies.driver,
            count=dependencies.count,
            clock=dependencies.clock,
            failed=partial(dependencies.troubled, items.backend),
        )
        yield TranscriptBackend(
            transcripts,
            ConversationSearch(transcripts),
            IndexedArchive(
                dependencies.driver,
                transcripts.writer,
                transcripts.index,
                count=dependencies.count,
                clock=dependencies.clock,
            ),
            UnavailableRetention(dependencies.driver, clock=dependencies.clock),
            transcripts.reader.damages,
        )


@asynccontextmanager
async def _open_items(
    driver: Driver, store: BaseStore | DatabaseAddress, own: DatabaseAddress, options: StoreOptions
) -> AsyncIterator[Items]:
    # Imports LangGraph, which a memory on tables alone does not need.
    from threadkeep.graph_store.langgraph_stores import items_of, open_own_store

    if not isinstance(store, DatabaseAddress):
        yield items_of(store)
        return
    async with open_own_store(store, options) as opened:
        if store.in_memory or store.fingerprint != own.fingerprint:
            yield items_of(opened)
            return
    # LangGraph has created its table; our driver's connections suffice for it.
    yield TableItems(driver)
