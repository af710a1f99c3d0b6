"""Scheduled retention: one round at a time, in one of the processes that have the database open."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import StoreError
from threadkeep.observe import Observer, PruningFailed
from threadkeep.store.duties import Duties

_CLAIM_SECONDS = 60.0
_LOOK_SECONDS = 30.0


class Prunes(Protocol):
    """A service that deletes expired data."""

    async def has_work(self) -> bool:
        """Return whether it can ever delete anything."""
        ...

    async def prune(self, *, goes_on: Callable[[], Awaitable[bool]] | None = None) -> object:
        """Delete expired data; `goes_on` is called before each step, and False stops the round."""
        ...


class RetentionSchedule:
    """A schedule of pruning rounds; a failed round is reported and repeated at the next check."""

    def __init__(
        self, pruner: Prunes, duties: Duties, *, duty: str, interval_seconds: float, observer: Observer
    ) -> None:
        self._pruner = pruner
        self._duties = duties
        self.duty = duty
        self._interval_seconds = interval_seconds
        self._observer = observer
        self._owner = str(uuid7())
        self._claimed = 0.0

    async def keep_pruning(self) -> None:
        """Check periodically whether a round is due, until cancelled."""
        while True:
            await asyncio.sleep(min(self._interval_seconds, _LOOK_SECONDS))
            try:
                await self.make_round()
            except Exception as error:  # noqa: BLE001 - the loop outlives any failure, which is told
                self._observer.notify(PruningFailed(error=type(error).__name__))

    async def make_round(self) -> bool:
        """Archive and delete if a round is due; return False if not, or if another process makes it.

        Raises:
            StoreError: the database is not available; completed steps stay done.
        """
        if not await self._pruner.has_work() or not await self._claim():
            return False
        done = False
        try:
            await self._pruner.prune(goes_on=self._goes_on)
            done = True
        finally:
            # If this fails, the claim expires by itself.
            with contextlib.suppress(StoreError):
                await (self._duties.done if done else self._duties.release)(self.duty, self._owner)
        return True

    async def _claim(self) -> bool:
        self._claimed = time.monotonic()
        return await self._duties.claim(
            self.duty, self._owner, seconds=_CLAIM_SECONDS, every_seconds=self._interval_seconds
        )

    async def _goes_on(self) -> bool:
        """Return whether this process still has the claim; renew it in time."""
        return time.monotonic() - self._claimed < _CLAIM_SECONDS / 3 or await self._claim()
