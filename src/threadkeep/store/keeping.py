"""Backends of transcripts: the tables, or a LangGraph store with rows of numbers in the tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from threadkeep.errors import InvalidSettings, StoreError
from threadkeep.observe import Backend
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.address import Keeping as Keeping  # noqa: PLC0414 - others name it as a part of this module
from threadkeep.store.archive import Archive, Restoring
from threadkeep.store.codec import Counter
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.graph_transcripts.archive import IndexedArchive
from threadkeep.store.graph_transcripts.damage import DamageRegister
from threadkeep.store.graph_transcripts.index import SessionIndex
from threadkeep.store.graph_transcripts.indexed import IndexedTranscripts
from threadkeep.store.graph_transcripts.items import ConversationChanged, Items
from threadkeep.store.graph_transcripts.search import ConversationSearch
from threadkeep.store.graph_transcripts.table import TableItems
from threadkeep.store.graph_transcripts.transcripts import GraphTranscripts
from threadkeep.store.graph_transcripts.unretained import UnretainedRows
from threadkeep.store.graph_turns import GraphTurns
from threadkeep.store.graphs import open_graph_store
from threadkeep.store.retention import RetentionRows
from threadkeep.store.search import Search, SearchIndex
from threadkeep.store.statements import load_statements
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import Transcripts

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

_VARIABLE = "THREADKEEP_TRANSCRIPTS"


@dataclass(frozen=True)
class Kept:
    """The transcripts of a memory, and the services that depend on their location."""

    transcripts: Transcripts
    search: Search
    archive: Restoring
    retention: RetentionRows
    damages: DamageRegister = field(default_factory=DamageRegister)


@dataclass(frozen=True)
class Means:
    """The dependencies of a transcripts backend: our tables, token counter, clock, and error callback.

    `troubled` is called for a session whose conversation another writer changed during a write (`ConversationChanged`,
    once per attempt), and for a session whose rows could not be updated.
    """

    driver: Driver
    count: Counter
    clock: Callable[[], datetime]
    troubled: Callable[[Backend, str, StoreError], object]
    graph_turns: GraphTurns | None = None


@asynccontextmanager
async def keep_in_tables(means: Means) -> AsyncIterator[Kept]:
    """Open transcripts in our tables.

    Raises:
        InvalidSettings: the transcripts of this database are in a graph store.
    """
    if await _first(means.driver, "any_indexed"):
        raise InvalidSettings(
            f"The messages of this database's sessions are in a graph store: set {_VARIABLE}=graph_store, or export "
            "them with it and import them into another database.",
            variable=_VARIABLE,
        )
    transcripts = TableTranscripts(means.driver, count=means.count, clock=means.clock, graph_turns=means.graph_turns)
    try:
        yield Kept(
            transcripts,
            SearchIndex(means.driver),
            Archive(means.driver, count=means.count, clock=means.clock),
            RetentionRows(means.driver, clock=means.clock),
        )
    finally:
        await transcripts.close()


@asynccontextmanager
async def keep_in_graph_store(
    means: Means, store: BaseStore | DatabaseAddress, *, own: DatabaseAddress, options: StoreOptions
) -> AsyncIterator[Kept]:
    """Open transcripts in a LangGraph store: a given one that stays open, or the store of a database.

    Args:
        means: our tables and other dependencies.
        store: the location of conversations.
        own: the database of our tables; if it is the same, its connections serve both.
        options: options for opening databases.

    Raises:
        InvalidSettings: the transcripts of this database are in its tables.
    """
    if await _first(means.driver, "any_kept_here"):
        raise InvalidSettings(
            f"The messages of this database's sessions are in its tables: set {_VARIABLE}=tables, or export them with "
            "it and import them into another database.",
            variable=_VARIABLE,
        )
    async with AsyncExitStack() as stack:
        items = await stack.enter_async_context(_open_items(means.driver, store, own, options))
        conversations = GraphTranscripts(
            items,
            count=means.count,
            clock=means.clock,
            conflicted=lambda session_id: means.troubled(items.backend, session_id, ConversationChanged()),
        )
        index = SessionIndex(means.driver, conversations.reader, count=means.count)
        listed = TableTranscripts(means.driver, count=means.count, clock=means.clock)
        conversations.reader.owner_of = partial(_owner, listed)
        transcripts = IndexedTranscripts(conversations, index, listed, failed=partial(means.troubled, items.backend))
        yield Kept(
            transcripts,
            ConversationSearch(transcripts, conversations.reader),
            IndexedArchive(means.driver, conversations.writer, index, count=means.count, clock=means.clock),
            UnretainedRows(means.driver, clock=means.clock),
            conversations.reader.damages,
        )


@asynccontextmanager
async def _open_items(
    driver: Driver, store: BaseStore | DatabaseAddress, own: DatabaseAddress, options: StoreOptions
) -> AsyncIterator[Items]:
    from threadkeep.store.graph_transcripts.opening import items_of

    if not isinstance(store, DatabaseAddress):
        yield items_of(store)
        return
    if store.path is None and store.dsn is None:
        from langgraph.store.memory import InMemoryStore

        yield items_of(InMemoryStore())
        return
    async with open_graph_store(store, options) as opened:
        if store.fingerprint != own.fingerprint:
            yield items_of(opened)
            return
    # LangGraph has created its table; our driver's connections suffice for it.
    yield TableItems(driver)


async def _owner(listed: TableTranscripts, session_id: str) -> str | None:
    info = await listed.session(session_id)
    return None if info is None else info.user_id


async def _first(driver: Driver, statement: str) -> str | None:
    async with driver.reading() as connection:
        rows = await connection.fetch(load_statements("graph_index.sql")[statement], {})
    return rows[0][0] if rows else None
