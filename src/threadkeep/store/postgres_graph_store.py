"""LangGraph's store on PostgreSQL, with a way to its table. Importing this imports LangGraph and psycopg."""

from __future__ import annotations

from collections.abc import Iterable

from langgraph.store.base import Op, Result
from langgraph.store.postgres.aio import AsyncPostgresStore

from threadkeep.store.graph_transcripts.table import TabledStore
from threadkeep.store.postgres_connection import translated


class PostgresGraphStore(TabledStore, AsyncPostgresStore):
    """LangGraph's store, with our errors."""

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out; the answers are in their order."""
        with translated():
            return await super().abatch(ops)
