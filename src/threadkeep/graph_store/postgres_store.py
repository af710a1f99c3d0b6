"""LangGraph's store on PostgreSQL, with access to its table. Importing this imports LangGraph and psycopg."""

from __future__ import annotations

from collections.abc import Iterable

from langgraph.store.base import Op, Result
from langgraph.store.postgres.aio import AsyncPostgresStore

from threadkeep.errors import InvalidInput, StoreError, StoreUnavailable
from threadkeep.graph_store.foreign import IndexedStore
from threadkeep.graph_store.items import TabledStore
from threadkeep.store.postgres_connection import translated


class PostgresGraphStore(TabledStore, IndexedStore, AsyncPostgresStore):
    """LangGraph's store, with our errors."""

    async def set_up(self) -> None:
        """Create the tables, and the index if one is configured.

        Raises:
            InvalidInput: the server cannot have an index.
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
        """Execute operations; return the results in their order."""
        with translated():
            return await super().abatch(ops)
