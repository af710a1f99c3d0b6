"""LangGraph's store on PostgreSQL. This module imports LangGraph and psycopg."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

from langgraph.store.base import IndexConfig, Op, Result, TTLConfig
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.postgres.base import PostgresIndexConfig

from threadkeep.errors import InvalidInput, StoreError, StoreUnavailable
from threadkeep.graph_store.foreign import IndexedStore
from threadkeep.graph_store.items import TabledStore
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.opening import SETUP_SECONDS
from threadkeep.store.postgres import PostgresDriver, exclusive, open_dict_pool
from threadkeep.store.postgres_connection import translated


class PostgresGraphStore(TabledStore, IndexedStore, AsyncPostgresStore):
    """LangGraph's store on PostgreSQL; it raises Threadkeep's errors instead of psycopg's."""

    async def set_up(self) -> None:
        """Create LangGraph's tables, and its vector index if one is configured.

        Raises:
            InvalidInput: an index is configured, but the server has no pgvector.
        """
        try:
            with translated():
                await self.setup()
        except StoreUnavailable:
            raise
        except StoreError as error:
            if self.index_config is None:
                raise
            raise InvalidInput(
                "An index of the graph store needs PostgreSQL's extension pgvector; have an administrator install it "
                f"and run: CREATE EXTENSION vector. {error}"
            ) from error

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations; return the results in the order of the operations."""
        with translated():
            return await super().abatch(ops)


@asynccontextmanager
async def open_postgres_store(
    dsn: str, options: StoreOptions, *, index: IndexConfig | None, ttl: TTLConfig | None
) -> AsyncIterator[tuple[PostgresGraphStore, Driver]]:
    """Open LangGraph's store, and a `Driver` for the same database, with which Threadkeep accesses conversations."""
    async with open_dict_pool(dsn, options) as pool:
        store = PostgresGraphStore(conn=pool, index=cast("PostgresIndexConfig | None", index), ttl=ttl)
        async with store:
            async with exclusive(dsn, seconds=SETUP_SECONDS):
                await store.set_up()
            # Open no connections until conversations are read or written.
            driver = await PostgresDriver.open(dsn, replace(options, pool_min_size=0))
            try:
                yield store, driver
            finally:
                await driver.close()
