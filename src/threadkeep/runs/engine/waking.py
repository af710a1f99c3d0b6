"""Having runs carried out by others, for those who are no part of the processes that carry runs out."""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.engine.opening import open_engine
from threadkeep.store.address import DatabaseAddress


async def wake(address: DatabaseAddress, run_ids: Iterable[str]) -> None:
    """Put runs of a database into the queue from which all processes that work take them.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process carries out runs itself.
        StoreUnavailable: the database does not answer.
    """
    options = EngineOptions(works=False, close_seconds=0.0)
    async with open_engine(address, _carry_nothing_out, options, listener=_Nobody()) as engine:
        for run_id in run_ids:
            await engine.enqueue(run_id)


class _Nobody:
    """Hears of runs that are not carried out here."""

    async def gave_up(self, run_id: str, attempts: int) -> None:
        """Nothing is tried here."""

    def troubled(self, error: str) -> None:
        """Whoever enqueues hears of it by an error."""


async def _carry_nothing_out(run_id: str) -> None:
    raise AssertionError(f"run {run_id} was carried out by a process that does not work")
