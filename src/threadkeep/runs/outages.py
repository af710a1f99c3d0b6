"""Outages of the database during a run: they are waited for and do not count as attempts."""

from __future__ import annotations

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.errors import StoreUnavailable
from threadkeep.runs.failures import kind_of
from threadkeep.runs.live import LiveRun, Outcome
from threadkeep.runs.progress.progress import thread_of
from threadkeep.runs.waiting import retry_until_available
from threadkeep.store.runs import Runs

_MOST_LATE = 3


class Outages:
    """The outages during one run; without a `saver` it stores nothing and waits for none."""

    def __init__(self, runs: Runs, saver: BaseCheckpointSaver[str] | None, live: LiveRun) -> None:
        self._runs = runs
        self._saver = saver
        self._live = live
        self._late = 0

    async def outlasted(self, error: Exception) -> bool:
        """Return whether the database was down when the run failed and is available again."""
        saver = self._saver
        if saver is None:
            return False
        try:
            await self._answers(saver)
        except StoreUnavailable as away:
            # Not final; but a caller that waits for the run may not want to wait for the database.
            self._live.came_out(Outcome("failed", error=kind_of(away)))
            await retry_until_available(lambda: self._answers(saver))
            return True
        # One pool of connections may recover a moment later than another.
        late = isinstance(error, StoreUnavailable) and self._late < _MOST_LATE
        self._late += late
        return late

    async def _answers(self, saver: BaseCheckpointSaver[str]) -> None:
        """Query the run and its checkpoints, each through its own connections.

        Raises:
            StoreUnavailable: one of them cannot be had now.
        """
        await self._runs.run(self._live.run_id)
        await saver.aget_tuple(thread_of(self._live.run_id))
