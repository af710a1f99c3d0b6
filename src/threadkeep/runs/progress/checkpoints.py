"""Checkpoints belong to runs, and go with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.store.runs.records import RunRecords


def thread_of(run_id: str) -> RunnableConfig:
    """Where the checkpoints of a run are: its thread has its id."""
    return {"configurable": {"thread_id": run_id}}


class RunCheckpoints:
    """Removes the checkpoints of runs that are over. Any number of processes may do so at once."""

    def __init__(self, records: RunRecords, saver: BaseCheckpointSaver[str]) -> None:
        self._records = records
        self._saver = saver

    async def remove(self, run_ids: Sequence[str], *, unstored: bool = False) -> None:
        """Remove the checkpoints of runs, which are over; of those `unstored` none was ever stored.

        What one that is lost to this process still writes after that is found again by nobody; it is little, and rare.
        """
        for run_id in () if unstored else run_ids:
            await self._saver.adelete_thread(run_id)
        await self._records.checkpoints_removed(run_ids)

    async def remove_before(self, moment: datetime, *, limit: int) -> int:
        """Remove those of runs that are done or gone, or were over at a time; answers of how many."""
        run_ids = await self._records.with_checkpoints(moment, limit=limit)
        await self.remove(run_ids)
        return len(run_ids)
