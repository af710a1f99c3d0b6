"""Opening of LangGraph stores on our databases, and of transcripts in one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from threadkeep.errors import InvalidSettings
from threadkeep.graph_store.archive import IndexedArchive
from threadkeep.graph_store.index import SessionIndex
from threadkeep.graph_store.indexed import IndexedTranscripts, UnavailableRetention
from threadkeep.graph_store.items import ConversationChanged, Items, TabledStore, TableItems
from threadkeep.graph_store.search import ConversationSearch
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.backend import VARIABLE, BackendDependencies, TranscriptBackend, first_session
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.opening import SETUP_SECONDS, make_folder, one_at_a_time
from threadkeep.store.tables import TableTranscripts

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore, IndexConfig, TTLConfig
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from langgraph.store.postgres.base import PostgresIndexConfig
    from langgraph.store.sqlite.aio import AsyncSqliteStore


@asynccontextmanager
async def open_graph_store(
    address: DatabaseAddress,
    options: StoreOptions,
    *,
    index: IndexConfig | None = None,
    ttl: TTLConfig | None = None,
) -> AsyncIterator[BaseStore]:
    """Open a LangGraph store for `graph.compile(store=…)`. Open one per application, not one per run.

    Expired items are deleted in the background if `ttl` has an interval.

    Raises:
        InvalidInput: the database cannot have an index.
    """
    if address.dsn is not None:
        opening: AbstractAsyncContextManager[BaseStore] = _open_postgres_store(
            address.dsn, address, options, index=index, ttl=ttl
        )
    else:
        opening = _open_sqlite_store(address, options, index=index, ttl=ttl)
    async with opening as store:
        yield store


@asynccontextmanager
async def _open_postgres_store(
    dsn: str, address: DatabaseAddress, options: StoreOptions, *, index: IndexConfig | None, ttl: TTLConfig | None
) -> AsyncIterator[BaseStore]:
    from threadkeep.graph_store.postgres_store import PostgresGraphStore
    from threadkeep.store.postgres import PostgresDriver, exclusive, open_dict_pool

    async with open_dict_pool(dsn, options) as pool, AsyncExitStack() as stack:
        store = PostgresGraphStore(conn=pool, index=cast("PostgresIndexConfig | None", index), ttl=ttl)
        await stack.enter_async_context(store)
        async with exclusive(dsn, seconds=SETUP_SECONDS):
            await store.set_up()
        # No connection until conversations are kept in the store.
        driver = await PostgresDriver.open(dsn, replace(options, pool_min_size=0))
        await stack.enter_async_context(_keeping_conversations(store, driver, address))
        await stack.enter_async_context(_sweeping(store, ttl))
        yield store


@asynccontextmanager
async def _open_sqlite_store(
    address: DatabaseAddress, options: StoreOptions, *, index: IndexConfig | None, ttl: TTLConfig | None
) -> AsyncIterator[BaseStore]:
    from threadkeep.graph_store.sqlite_store import SqliteGraphStore
    from threadkeep.store.sqlite import SqliteDriver, open_sqlite

    make_folder(address.path)
    async with open_sqlite(address.path, options) as raw, AsyncExitStack() as stack:
        store = SqliteGraphStore(raw, index=index, ttl=ttl)
        await stack.enter_async_context(store)
        async with one_at_a_time(address.path):
            await store.set_up()
        if address.path is not None:
            driver = SqliteDriver(address.path, options)
            await stack.enter_async_context(_keeping_conversations(store, driver, address))
        await stack.enter_async_context(_sweeping(store, ttl))
        yield store


@asynccontextmanager
async def _sweeping(store: AsyncPostgresStore | AsyncSqliteStore, ttl: TTLConfig | None) -> AsyncIterator[None]:
    """Let a store delete expired items, at its configured interval."""
    if not (ttl or {}).get("sweep_interval_minutes"):
        yield
        return
    _ = await store.start_ttl_sweeper()
    try:
        yield
    finally:
        await store.stop_ttl_sweeper()


@asynccontextmanager
async def _keeping_conversations(store: BaseStore, driver: Driver, address: DatabaseAddress) -> AsyncIterator[None]:
    """Let a driver write the conversations of our store; the driver is closed after the block."""
    try:
        if isinstance(store, TabledStore):
            store.items = TableItems(driver)
            store.fingerprint = address.fingerprint
        yield
    finally:
        await driver.close()


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
        conversations = GraphTranscripts(
            items,
            count=dependencies.count,
            clock=dependencies.clock,
            conflicted=lambda session_id: dependencies.troubled(items.backend, session_id, ConversationChanged()),
        )
        index = SessionIndex(dependencies.driver, conversations.reader, count=dependencies.count)
        listed = TableTranscripts(dependencies.driver, count=dependencies.count, clock=dependencies.clock)
        conversations.reader.owner_of = partial(_owner, listed)
        transcripts = IndexedTranscripts(
            conversations, index, listed, failed=partial(dependencies.troubled, items.backend)
        )
        yield TranscriptBackend(
            transcripts,
            ConversationSearch(transcripts, conversations.reader),
            IndexedArchive(
                dependencies.driver, conversations.writer, index, count=dependencies.count, clock=dependencies.clock
            ),
            UnavailableRetention(dependencies.driver, clock=dependencies.clock),
            conversations.reader.damages,
        )


@asynccontextmanager
async def _open_items(
    driver: Driver, store: BaseStore | DatabaseAddress, own: DatabaseAddress, options: StoreOptions
) -> AsyncIterator[Items]:
    from threadkeep.graph_store.foreign import items_of

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
