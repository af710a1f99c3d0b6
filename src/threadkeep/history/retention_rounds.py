"""Rounds of retention in short steps, and their schedule.

Each step is followed by an equally long pause, so a concurrent append waits for one step at most. An interrupted round
has completed only whole steps, and the next round continues from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from langchain_core.utils.uuid import uuid7

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import StoreError
from threadkeep.observe import Observer, PruningFailed
from threadkeep.store.duties import Duties
from threadkeep.store.retention import Counts

_LONGEST_PAUSE_SECONDS = 0.25
_CLAIM_SECONDS = 60.0
_LOOK_SECONDS = 30.0


@dataclass
class Round[R: Counts]:
    """A round of removals in short steps, and its result so far.

    `report` is called with the result after each step. `may_continue` is called before each step; False stops the
    round.
    """

    done: R
    report: Callable[[R], object] | None = None
    may_continue: Callable[[], Awaitable[bool]] | None = None
    _begun: float = 0.0

    async def begin_step(self) -> bool:
        """Begin a step; return False if the round was stopped."""
        if self.may_continue is not None and not await self.may_continue():
            return False
        self._begun = time.perf_counter()
        return True

    async def end_step(self, removed: R) -> float:
        """Count the removals of a step, and pause; return the seconds that the step took."""
        seconds = time.perf_counter() - self._begun
        self.count(removed)
        await asyncio.sleep(min(seconds, _LONGEST_PAUSE_SECONDS))
        return seconds

    def count(self, removed: R) -> None:
        """Add a removal to the result, and report the result."""
        self.done += removed
        if self.report is not None:
            self.report(self.done)


class Scheduled(Protocol):
    """The pruner that a schedule runs."""

    async def has_work(self) -> bool:
        """Return True if there is anything to remove, now or later."""

    async def prune(self, *, may_continue: Callable[[], Awaitable[bool]] | None = None) -> object:
        """Run one round; `may_continue` is called before each step, and False stops the round."""


class RetentionSchedule:
    """A schedule of pruning rounds. A failed round is reported and repeated at the next check."""

    def __init__(
        self,
        pruner: Scheduled,
        duties: Duties,
        *,
        duty: str,
        interval_seconds: float,
        observer: Observer,
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
            with ErrorBoundary(lambda error: self._observer.notify(PruningFailed(error=type(error).__name__))):
                await self.make_round()

    async def make_round(self) -> bool:
        """Run a round if it is due; return False if it is not due or if another process runs it.

        Raises:
            StoreError: the database is not available; completed steps stay done.
        """
        if not await self._pruner.has_work() or not await self._claim():
            return False
        done = False
        try:
            await self._pruner.prune(may_continue=self._keeps_claim)
            done = True
        finally:
            # If the release fails, the claim expires by itself.
            with contextlib.suppress(StoreError):
                await (self._duties.done if done else self._duties.release)(self.duty, self._owner)
        return True

    async def _claim(self) -> bool:
        self._claimed = time.monotonic()
        return await self._duties.claim(
            self.duty, self._owner, seconds=_CLAIM_SECONDS, every_seconds=self._interval_seconds
        )

    async def _keeps_claim(self) -> bool:
        """Return True if this process still has the claim; renew it in time."""
        return time.monotonic() - self._claimed < _CLAIM_SECONDS / 3 or await self._claim()
