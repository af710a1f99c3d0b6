"""LangGraph's stores on Threadkeep's databases. This module imports LangGraph."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from langgraph.store.base import BaseStore, IndexConfig, Op, PutOp, Result, TTLConfig
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from threadkeep.errors import InvalidInput
from threadkeep.graph_store.foreign import IndexedStore, StoreItems
from threadkeep.graph_store.items import Items, TabledStore, TableItems
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.opening import make_folder, one_at_a_time
from threadkeep.store.sqlite import RollbackLock, SqliteDriver, open_sqlite
from threadkeep.store.sqlite_connection import sqlite_errors, translated

if TYPE_CHECKING:
    from threadkeep.graph_store.postgres_store import PostgresGraphStore

_RECORD_NEXT: Final = "INSERT INTO store_migrations (v) SELECT coalesce(max(v), -1) + 1 FROM store_migrations"
"""Records a migration that an interrupted `setup` executed but did not record, so that the next `setup` succeeds."""


class SqliteGraphStore(TabledStore, IndexedStore, AsyncSqliteStore):
    """LangGraph's store on SQLite, with Threadkeep's errors, and separate batches for reads and writes.

    LangGraph executes concurrent operations in one transaction. If another process writes after the transaction's
    reads, SQLite rejects the transaction's writes at once instead of waiting for the lock.
    """

    async def set_up(self) -> None:
        """Create LangGraph's tables, and its vector index if one is configured.

        Raises:
            InvalidInput: an index is configured, but this Python's SQLite cannot have one.
        """
        with translated():
            try:
                await self._migrate()
            except AttributeError as error:
                # Some builds of Python lack the method `enable_load_extension`; explain this error.
                if self.index_config is None:
                    raise
                raise InvalidInput(
                    "The SQLite of this Python loads no extensions, which the index of a graph store needs; keep the "
                    "graph store in PostgreSQL, or use a Python whose sqlite3 loads them."
                ) from error

    async def _migrate(self) -> None:
        """Call `setup`. If an earlier call was interrupted before it recorded a migration, record it and call again."""
        while True:
            try:
                await self.setup()
            except sqlite_errors() as error:
                if "duplicate column name" not in str(error):
                    raise
                await self.conn.execute(_RECORD_NEXT)
            else:
                return

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute the reads, then the writes; return the results in the original order."""
        with translated():
            return await self._reads_first(list(ops))

    async def _reads_first(self, batch: list[Op]) -> list[Result]:
        reads = [index for index, op in enumerate(batch) if not isinstance(op, PutOp)]
        writes = [op for op in batch if isinstance(op, PutOp)]
        if not reads or not writes:
            return await super().abatch(batch)
        results: list[Result] = [None] * len(batch)
        for index, found in zip(reads, await super().abatch([batch[index] for index in reads]), strict=True):
            results[index] = found
        await super().abatch(writes)
        return results


@asynccontextmanager
async def open_graph_store(
    address: DatabaseAddress,
    options: StoreOptions,
    *,
    index: IndexConfig | None = None,
    ttl: TTLConfig | None = None,
) -> AsyncIterator[BaseStore]:
    """Open a LangGraph store for `graph.compile(store=…)`, once per application, not per run.

    Expired items are deleted in the background if `ttl` has an interval.

    Raises:
        InvalidInput: an index is requested, but the database cannot have one.
    """
    async with AsyncExitStack() as stack:
        store, driver = await stack.enter_async_context(_opened(address, options, index=index, ttl=ttl))
        stack.push_async_callback(store.end_batches)
        if driver is not None:
            store.items = TableItems(driver)
            store.fingerprint = address.fingerprint
        if (ttl or {}).get("sweep_interval_minutes"):
            _ = await store.start_ttl_sweeper()
            stack.push_async_callback(store.stop_ttl_sweeper)
        yield store


def _opened(
    address: DatabaseAddress, options: StoreOptions, *, index: IndexConfig | None, ttl: TTLConfig | None
) -> AbstractAsyncContextManager[tuple[SqliteGraphStore | PostgresGraphStore, Driver | None]]:
    if address.dsn is None:
        return _open_sqlite_store(address, options, index=index, ttl=ttl)
    from threadkeep.graph_store.postgres_store import open_postgres_store  # it needs the extra `postgres`

    return open_postgres_store(address.dsn, options, index=index, ttl=ttl)


@asynccontextmanager
async def _open_sqlite_store(
    address: DatabaseAddress, options: StoreOptions, *, index: IndexConfig | None, ttl: TTLConfig | None
) -> AsyncIterator[tuple[SqliteGraphStore, Driver | None]]:
    make_folder(address.path)
    async with open_sqlite(address.path, options) as raw:
        store = SqliteGraphStore(raw, index=index, ttl=ttl)
        store.lock = RollbackLock(raw)
        async with store:
            async with one_at_a_time(address.path):
                await store.set_up()
            if address.path is None:
                yield store, None
                return
            driver = SqliteDriver(address.path, options)
            try:
                yield store, driver
            finally:
                await driver.close()


def open_own_store(address: DatabaseAddress, options: StoreOptions) -> AbstractAsyncContextManager[BaseStore]:
    """Open the LangGraph store in which Threadkeep keeps conversations: in RAM, if the database is in memory."""
    return nullcontext(InMemoryStore()) if address.in_memory else open_graph_store(address, options)


def items_of(store: BaseStore) -> Items:
    """Return an object that accesses a store's items: by SQL if Threadkeep opened it, else by the store's methods."""
    if isinstance(store, TabledStore) and store.items is not None:
        return store.items
    return StoreItems(store)
