"""LangGraph's checkpointer on PostgreSQL. This module imports LangGraph and psycopg."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep.store.driver import StoreOptions
from threadkeep.store.opening import SETUP_SECONDS
from threadkeep.store.postgres import exclusive, open_dict_pool
from threadkeep.store.postgres_connection import translated
from threadkeep.store.translating_saver import TranslatingSaver


class PostgresCheckpointer(TranslatingSaver, AsyncPostgresSaver):
    """LangGraph's checkpointer on PostgreSQL; it raises Threadkeep's errors instead of psycopg's."""

    translated = translated


@asynccontextmanager
async def open_postgres_saver(
    dsn: str, options: StoreOptions, serde: SerializerProtocol, *, set_up: bool
) -> AsyncIterator[PostgresCheckpointer]:
    """Open a checkpointer for one block; with `set_up`, create its tables if they are missing."""
    async with open_dict_pool(dsn, options) as pool:
        saver = PostgresCheckpointer(conn=pool, serde=serde)
        if set_up:
            async with exclusive(dsn, seconds=SETUP_SECONDS):
                with translated():
                    await saver.setup()
        yield saver
