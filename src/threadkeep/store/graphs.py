"""LangGraph's stores and checkpointers on our databases: pooled, in WAL mode, and safe for concurrent first starts."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from threadkeep.errors import StoreUnavailable
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.graph_transcripts.table import TabledStore, TableItems
from threadkeep.store.private_files import make_private_folder

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore, IndexConfig, TTLConfig
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from langgraph.store.postgres.base import PostgresIndexConfig
    from langgraph.store.sqlite.aio import AsyncSqliteStore

_POLL_SECONDS = 0.05
_SETUP_SECONDS = 60.0


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
    from threadkeep.store.postgres import PostgresDriver, exclusive, open_dict_pool
    from threadkeep.store.postgres_graph_store import PostgresGraphStore

    async with open_dict_pool(dsn, options) as pool, AsyncExitStack() as stack:
        store = PostgresGraphStore(conn=pool, index=cast("PostgresIndexConfig | None", index), ttl=ttl)
        await stack.enter_async_context(store)
        async with exclusive(dsn, seconds=_SETUP_SECONDS):
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
    from threadkeep.store.graph_store import SqliteGraphStore
    from threadkeep.store.sqlite import SqliteDriver, open_sqlite

    _make_folder(address.path)
    async with open_sqlite(address.path, options) as raw, AsyncExitStack() as stack:
        store = SqliteGraphStore(raw, index=index, ttl=ttl)
        await stack.enter_async_context(store)
        async with _one_at_a_time(address.path):
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
async def open_checkpointer(address: DatabaseAddress, options: StoreOptions) -> AsyncIterator[BaseCheckpointSaver[str]]:
    """Open a LangGraph checkpointer for `graph.compile(checkpointer=…)`. Open one per application.

    While graphs run it raises the store's errors: `StoreUnavailable` if the database does not answer.
    """
    if address.dsn is not None:
        from threadkeep.store.postgres import exclusive, open_dict_pool
        from threadkeep.store.postgres_checkpointer import PostgresCheckpointer

        async with open_dict_pool(address.dsn, options) as pool:
            postgres = PostgresCheckpointer(conn=pool)
            async with exclusive(address.dsn, seconds=_SETUP_SECONDS):
                with PostgresCheckpointer.translated():
                    await postgres.setup()
            yield postgres
        return
    from threadkeep.store.sqlite import open_sqlite
    from threadkeep.store.sqlite_checkpointer import SqliteCheckpointer

    _make_folder(address.path)
    # The saver commits by itself and relies on implicit transactions.
    async with open_sqlite(address.path, options, autocommit=False) as raw:
        saver = SqliteCheckpointer(raw)
        async with _one_at_a_time(address.path):
            with SqliteCheckpointer.translated():
                await saver.setup()
        yield saver


def _make_folder(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):  # opening the file reports the error, with the cure
            make_private_folder(path.parent)


@asynccontextmanager
async def _one_at_a_time(path: Path | None) -> AsyncIterator[None]:
    """Let one process at a time set up a SQLite file. The lock is a separate file, because SQLite locks its own."""
    if path is None:
        yield
        return
    descriptor = os.open(path.with_name(path.name + ".setup-lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _SETUP_SECONDS
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise StoreUnavailable("Another process has been setting this database up for long; see who it is.")
            await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
