"""LangGraph's store on SQLite, made fit for several processes. Importing this imports LangGraph."""

from __future__ import annotations

from collections.abc import Iterable

from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite.aio import AsyncSqliteStore

from threadkeep.store.graph_transcripts.table import TabledStore
from threadkeep.store.sqlite_connection import translated


class SqliteGraphStore(TabledStore, AsyncSqliteStore):
    """LangGraph's store, with our errors, and batches that either read or write.

    What is asked for at one moment comes as one batch, in one transaction. One that has read cannot write any more when
    another process has written meanwhile: SQLite refuses it at once, without waiting for its lock.
    """

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Read, then write; the answers are in the order of the operations."""
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
