"""LangGraph's own stores and checkpointers on our databases: pooled, in WAL mode, and safe at a crowded first start."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from threadkeep.errors import StoreUnavailable
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.graph_transcripts.table import TabledStore, TableItems

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

_POLL_SECONDS = 0.05
_SETUP_SECONDS = 60.0


@asynccontextmanager
async def open_graph_store(address: DatabaseAddress, options: StoreOptions) -> AsyncIterator[BaseStore]:
    """A LangGraph store for `graph.compile(store=…)`, set up. Open one for the whole application, not one a run."""
    if address.dsn is not None:
        from threadkeep.store.postgres import PostgresDriver, exclusive, open_dict_pool
        from threadkeep.store.postgres_graph_store import PostgresGraphStore

        async with open_dict_pool(address.dsn, options) as pool, PostgresGraphStore(conn=pool) as postgres:
            async with exclusive(address.dsn, seconds=_SETUP_SECONDS):
                await postgres.setup()
            # No connection before somebody keeps conversations in the store.
            driver = await PostgresDriver.open(address.dsn, replace(options, pool_min_size=0))
            async with _keeping_conversations(postgres, driver, address):
                yield postgres
        return
    from threadkeep.store.graph_store import SqliteGraphStore
    from threadkeep.store.sqlite import SqliteDriver, open_sqlite

    _make_folder(address.path)
    async with open_sqlite(address.path, options) as raw, SqliteGraphStore(raw) as sqlite:
        async with _one_at_a_time(address.path):
            await sqlite.setup()
        if address.path is None:
            yield sqlite
            return
        async with _keeping_conversations(sqlite, SqliteDriver(address.path, options), address):
            yield sqlite


@asynccontextmanager
async def _keeping_conversations(store: BaseStore, driver: Driver, address: DatabaseAddress) -> AsyncIterator[None]:
    """Let the conversations of a store of ours be written by a driver, which is closed after the block."""
    try:
        if isinstance(store, TabledStore):
            store.items = TableItems(driver)
            store.fingerprint = address.fingerprint
        yield
    finally:
        await driver.close()


@asynccontextmanager
async def open_checkpointer(address: DatabaseAddress, options: StoreOptions) -> AsyncIterator[BaseCheckpointSaver[str]]:
    """A LangGraph checkpointer for `graph.compile(checkpointer=…)`, set up. Open one for the whole application.

    While graphs run it raises what the store raises: `StoreUnavailable` where the database does not answer.
    """
    if address.dsn is not None:
        from threadkeep.store.postgres import exclusive, open_dict_pool
        from threadkeep.store.postgres_checkpointer import PostgresCheckpointer

        async with open_dict_pool(address.dsn, options) as pool:
            postgres = PostgresCheckpointer(conn=pool)
            async with exclusive(address.dsn, seconds=_SETUP_SECONDS):
                await postgres.setup()
            yield postgres
        return
    from threadkeep.store.sqlite import open_sqlite
    from threadkeep.store.sqlite_checkpointer import SqliteCheckpointer

    _make_folder(address.path)
    # The saver commits by itself and relies on transactions that begin by themselves.
    async with open_sqlite(address.path, options, autocommit=False) as raw:
        saver = SqliteCheckpointer(raw)
        async with _one_at_a_time(address.path):
            await saver.setup()
        yield saver


def _make_folder(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):  # opening the file tells what is wrong, with the cure
            path.parent.mkdir(parents=True, exist_ok=True)


@asynccontextmanager
async def _one_at_a_time(path: Path | None) -> AsyncIterator[None]:
    """Let one process at a time set a SQLite file up. The lock is a file beside it: locks on the file are SQLite's."""
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
