"""Rounds of retention in short steps, their schedule, and the retention of finished runs.

A step delays concurrent appends, so each step is followed by a pause of the same length. An interrupted round leaves
only complete steps, and the next round removes the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from langchain_core.utils.uuid import uuid7

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import InvalidInput, StoreError
from threadkeep.observe import Observer, PruningFailed, RunsPruned
from threadkeep.records.sessions import check_argument
from threadkeep.store.driver import RowLocked
from threadkeep.store.duties import Duties
from threadkeep.store.retention import Counts, Cutoffs, FinishedTree, PrunedRuns
from threadkeep.store.runs import Runs

_LONGEST_PAUSE_SECONDS = 0.25
_CLAIM_SECONDS = 60.0
_LOOK_SECONDS = 30.0


@dataclass
class Round[R: Counts]:
    """A round of removals in short steps, and its result so far.

    `report` is called after each step, and `may_continue` before each step; if it returns False, the round stops.
    """

    done: R
    report: Callable[[R], object] | None = None
    may_continue: Callable[[], Awaitable[bool]] | None = None
    _begun: float = 0.0

    async def begin_step(self) -> bool:
        """Begin a step of the round; return False if `may_continue` has stopped the round."""
        if self.may_continue is not None and not await self.may_continue():
            return False
        self._begun = time.perf_counter()
        return True

    async def end_step(self, removed: R) -> float:
        """Count the removals of a step, then pause. Return the seconds that the step took, without the pause."""
        seconds = time.perf_counter() - self._begun
        self.count(removed)
        await asyncio.sleep(min(seconds, _LONGEST_PAUSE_SECONDS))
        return seconds

    def count(self, removed: R) -> None:
        """Add a removal to the result, and report the whole result."""
        self.done += removed
        if self.report is not None:
            self.report(self.done)


class Scheduled(Protocol):
    """The methods that a schedule calls on a pruner, a service that removes old messages or runs."""

    async def has_work(self) -> bool:
        """Return True if there may be messages or runs to remove, now or later."""

    async def prune(self, *, may_continue: Callable[[], Awaitable[bool]] | None = None) -> object:
        """Run one round of removals; `may_continue` is called before each step, and False stops the round."""


class RetentionSchedule:
    """A schedule of rounds that remove old data, each in one process. A failed round is reported and repeated."""

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
        """Check regularly whether a round is due, and run it, until cancelled."""
        while True:
            await asyncio.sleep(min(self._interval_seconds, _LOOK_SECONDS))
            with ErrorBoundary(lambda error: self._observer.notify(PruningFailed(error=type(error).__name__))):
                await self.make_round()

    async def make_round(self) -> bool:
        """Run a round of removals; return False if none is due, there is nothing to remove, or another process runs it.

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
            # If the claim cannot be released, it expires after 60 seconds.
            with contextlib.suppress(StoreError):
                await (self._duties.done if done else self._duties.release)(self.duty, self._owner)
        return True

    async def _claim(self) -> bool:
        self._claimed = time.monotonic()
        return await self._duties.claim(
            self.duty, self._owner, seconds=_CLAIM_SECONDS, every_seconds=self._interval_seconds
        )

    async def _keeps_claim(self) -> bool:
        """Return True if this process still has the claim on the round. Renew the claim long before it expires."""
        return time.monotonic() - self._claimed < _CLAIM_SECONDS / 3 or await self._claim()


_PAGE_TREES = 200
_STEP_ROWS = 500


@dataclass(frozen=True)
class RunRetention:
    """The number of days for which finished runs are kept; None keeps them forever.

    A run that the workers have given up is set aside until a person decides what to do. It is kept for
    `keep_set_aside_days`. If one of the limits is None, runs that are set aside are never deleted.
    """

    keep_days: float | None = 30.0
    keep_set_aside_days: float | None = None

    def __post_init__(self) -> None:
        """Reject invalid or contradictory limits with an `InvalidInput` that names the limit."""
        for name, days in asdict(self).items():
            if days is not None and not 0 <= days <= 365_000:
                raise InvalidInput(f"{name} must be a number of days from 0 to 365000, or None.")
        if self.keep_set_aside_days is not None and self.keep_set_aside_days < (self.keep_days or 0.0):
            raise InvalidInput("keep_set_aside_days must not be below keep_days: runs set aside are kept longer.")

    def cutoffs(self, now: datetime) -> Cutoffs | None:
        """Return the times before which runs must have ended to be deleted; None if all runs are kept."""
        if self.keep_days is None:
            return None
        aside = self.keep_set_aside_days
        return Cutoffs(now - timedelta(days=self.keep_days), None if aside is None else now - timedelta(days=aside))


class RunPruner:
    """A service that deletes finished runs that are older than the rules allow, the oldest first."""

    def __init__(self, runs: Runs, rules: RunRetention, *, observer: Observer, clock: Callable[[], datetime]) -> None:
        self.rules = rules
        self._runs = runs
        self._observer = observer
        self._clock = clock

    async def has_work(self) -> bool:
        """Return True if the rules limit how long finished runs are kept."""
        return self.rules.keep_days is not None

    async def plan(self, rules: RunRetention | None = None) -> AsyncIterator[FinishedTree]:
        """Yield the trees (runs with their descendants) of finished runs that would be deleted now; write nothing."""
        check_argument("rules", rules, RunRetention)
        cutoffs = (rules or self.rules).cutoffs(self._clock())
        page = None if cutoffs is None else await self._page(cutoffs, None)
        while cutoffs is not None and page:
            for tree in page:
                yield tree
            page = await self._page(cutoffs, page[-1]) if len(page) == _PAGE_TREES else None

    async def prune(
        self,
        rules: RunRetention | None = None,
        *,
        report: Callable[[PrunedRuns], object] | None = None,
        may_continue: Callable[[], Awaitable[bool]] | None = None,
    ) -> PrunedRuns:
        """Delete expired runs, and workflow versions that no run uses. An interrupted call can be repeated.

        Args:
            rules: replaces the rules of the memory's options.
            report: called after each step with the result so far.
            may_continue: called before each step; False stops the round.

        Raises:
            StoreError: the database is not available; completed steps stay done.
        """
        check_argument("rules", rules, RunRetention)
        cutoffs = (rules or self.rules).cutoffs(self._clock())
        if cutoffs is None:
            return PrunedRuns()
        work = Round(PrunedRuns(), report, may_continue)
        try:
            page = await self._page(cutoffs, None)
            while page and await self._remove(page, cutoffs, work):
                page = await self._page(cutoffs, page[-1]) if len(page) == _PAGE_TREES else []
            if not page:
                versions, forgotten = self._runs.workflows, 1
                while forgotten and (unused := await versions.unused(cutoffs.before)):
                    forgotten = await versions.forget(unused)
                    work.count(PrunedRuns(versions=forgotten))
        finally:
            done = work.done
            if done.runs or done.versions:
                self._observer.notify(RunsPruned(trees=done.trees, runs=done.runs, versions=done.versions))
        return work.done

    async def _page(self, cutoffs: Cutoffs, last: FinishedTree | None) -> list[FinishedTree]:
        after = None if last is None else last.cursor
        return await self._runs.finished.trees(cutoffs, after=after, limit=_PAGE_TREES)

    async def _remove(self, trees: Sequence[FinishedTree], cutoffs: Cutoffs, work: Round[PrunedRuns]) -> bool:
        """Delete trees of runs, except those with locked rows; return False if `may_continue` stopped the round."""
        for group in _groups(trees):
            try:
                if not await self._remove_group(group, cutoffs, work):
                    return False
            except RowLocked:
                work.done += PrunedRuns(busy=len(group))
        return True

    async def _remove_group(self, group: Sequence[FinishedTree], cutoffs: Cutoffs, work: Round[PrunedRuns]) -> bool:
        finished = self._runs.finished
        if len(group) == 1:
            (large,) = group
            while large.events > _STEP_ROWS:
                if not await work.begin_step():
                    return False
                removed = await finished.delete_some_events(large, cutoffs, limit=_STEP_ROWS)
                large = replace(large, events=max(0, large.events - removed.events))
                await work.end_step(removed)
                if removed.events < _STEP_ROWS:
                    # No rows are left, or a run was retried. `large.events` may exceed 0: a row can have many events.
                    break
            group = [large]
        if not await work.begin_step():
            return False
        await work.end_step(await finished.delete(group, cutoffs))
        return True


def _groups(trees: Sequence[FinishedTree]) -> list[list[FinishedTree]]:
    """Divide trees into groups that are deleted in one step each. A tree that is too large is a group of its own."""
    groups: list[list[FinishedTree]] = []
    rows = _STEP_ROWS
    for tree in trees:
        size = tree.runs + tree.events
        if rows + size > _STEP_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(tree)
        rows += size
    return groups
