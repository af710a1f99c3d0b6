"""LangGraph's store on SQLite, adapted to several processes. Importing this imports LangGraph."""

from __future__ import annotations

from collections.abc import Iterable

from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite.aio import AsyncSqliteStore

from threadkeep.errors import InvalidInput
from threadkeep.graph_store.foreign import IndexedStore
from threadkeep.graph_store.items import TabledStore
from threadkeep.store.sqlite_connection import translated


class SqliteGraphStore(TabledStore, IndexedStore, AsyncSqliteStore):
    """LangGraph's store with our errors, and with batches that either read or write.

    Concurrent operations arrive as one batch in one transaction. A transaction that has read cannot write if another
    process has written meanwhile: SQLite refuses it at once, without waiting for its lock.
    """

    async def set_up(self) -> None:
        """Create the tables, and the index if one is configured.

        Raises:
            InvalidInput: this Python's SQLite cannot have an index.
        """
        with translated():
            try:
                await self.setup()
            except AttributeError as error:
                # Some builds of Python do not have `enable_load_extension`.
                if self.index_config is None:
                    raise
                raise InvalidInput(
                    "The SQLite of this Python loads no extensions, which the index of a graph store needs; keep the "
                    "graph store in PostgreSQL, or use a Python whose sqlite3 loads them."
                ) from error

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Read, then write; return the results in the order of the operations."""
        with translated():
            return await self._reads_first(list(ops))

    async def _reads_first(self, batch: list[Op]) -> list[Result]:
        reads = [place for place, op in enumerate(batch) if not isinstance(op, PutOp)]
        writes = [op for op in batch if isinstance(op, PutOp)]
        if not reads or not writes:
            return await super().abatch(batch)
        results: list[Result] = [None] * len(batch)
        for place, found in zip(reads, await super().abatch([batch[place] for place in reads]), strict=True):
            results[place] = found
        await super().abatch(writes)
        return results
