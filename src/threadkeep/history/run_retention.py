"""How long runs are kept that are over, with all that happened in them: their messages are no part of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from threadkeep.errors import InvalidInput
from threadkeep.observe import Observer, RunsPruned
from threadkeep.records import Json
from threadkeep.store.driver import RowLocked
from threadkeep.store.runs import Runs
from threadkeep.store.runs.retention import Cutoffs, FinishedTree, RemovedRuns

_PAGE_TREES = 200
_STEP_ROWS = 500
_LONGEST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True)
class RunRetention:
    """Days after which runs go that are over; None keeps them for good.

    Those that are set aside wait for a person, and go after `keep_set_aside_days` if there are any.
    """

    keep_days: float | None = 30.0
    keep_set_aside_days: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are none, or the wrong way round.

        Raises:
            InvalidInput: names the limit.
        """
        for name, days in asdict(self).items():
            if days is not None and not 0 <= days < float("inf"):
                raise InvalidInput(f"{name} is a number of days from 0, or None.")
        if self.keep_set_aside_days is not None and self.keep_set_aside_days < (self.keep_days or 0.0):
            raise InvalidInput("keep_set_aside_days is not below keep_days: what waits for a person is kept longer.")

    def cutoffs(self, now: datetime) -> Cutoffs | None:
        """The times before which runs ended that go now."""
        if self.keep_days is None:
            return None
        aside = self.keep_set_aside_days
        return Cutoffs(now - timedelta(days=self.keep_days), None if aside is None else now - timedelta(days=aside))


@dataclass(frozen=True)
class PrunedRuns:
    """What a round deleted: runs with their events, of how many trees; and versions that no run has any more.

    `busy` trees were left for the next round: somebody's transaction holds one of their runs.
    """

    trees: int = 0
    runs: int = 0
    events: int = 0
    versions: int = 0
    busy: int = 0

    def to_dict(self) -> dict[str, Json]:
        """The numbers as JSON values."""
        return asdict(self)


class RunPruner:
    """Deletes runs that are over for long, the oldest first; that of a memory has the rules it was opened with.

    Work is done in short steps, with as long a pause after each: whoever writes meanwhile waits for one step at most.
    """

    def __init__(self, runs: Runs, rules: RunRetention, *, observer: Observer, clock: Callable[[], datetime]) -> None:
        self.rules = rules
        self._runs = runs
        self._observer = observer
        self._clock = clock

    async def has_work(self) -> bool:
        """Whether runs ever go."""
        return self.rules.keep_days is not None

    async def plan(self, rules: RunRetention | None = None) -> AsyncIterator[FinishedTree]:
        """The trees that would go now; nothing is written."""
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
        told: Callable[[PrunedRuns], object] | None = None,
        goes_on: Callable[[], Awaitable[bool]] | None = None,
    ) -> PrunedRuns:
        """Delete what is to go now. Broken off, it can simply be begun again.

        Args:
            rules: in the place of those that the memory was opened with.
            told: hears after each step what is done so far.
            goes_on: is asked before each step; False stops the round.

        Raises:
            StoreError: the database does not take it; what was done until then is done.
        """
        cutoffs = (rules or self.rules).cutoffs(self._clock())
        if cutoffs is None:
            return PrunedRuns()
        work = _Round(self._runs, cutoffs, told=told, goes_on=goes_on)
        try:
            page = await self._page(cutoffs, None)
            while page and await work.take(page):
                page = await self._page(cutoffs, page[-1]) if len(page) == _PAGE_TREES else []
            if not page:
                await work.forget_versions()
        finally:
            done = work.done
            if done.runs or done.versions:
                self._observer.notify(RunsPruned(trees=done.trees, runs=done.runs, versions=done.versions))
        return work.done

    async def _page(self, cutoffs: Cutoffs, last: FinishedTree | None) -> list[FinishedTree]:
        after = None if last is None else last.cursor
        return await self._runs.finished.trees(cutoffs, after=after, limit=_PAGE_TREES)


class _Round:
    """The work on one group of trees after the other, and what is done of it."""

    def __init__(
        self,
        runs: Runs,
        cutoffs: Cutoffs,
        *,
        told: Callable[[PrunedRuns], object] | None,
        goes_on: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self.done = PrunedRuns()
        self._runs = runs
        self._cutoffs = cutoffs
        self._told = told
        self._goes_on = goes_on

    async def take(self, trees: Sequence[FinishedTree]) -> bool:
        """Delete trees; False when somebody has stopped the round."""
        for group in _groups(trees):
            try:
                if not await self._take_group(group):
                    return False
            except RowLocked:
                self.done = replace(self.done, busy=self.done.busy + len(group))
        return True

    async def forget_versions(self) -> None:
        """Delete versions of workflows that no run has any more."""
        versions = self._runs.workflows
        while unused := await versions.unused(self._cutoffs.before):
            forgotten = await versions.forget(unused)
            self._count(RemovedRuns(), versions=forgotten)
            if not forgotten:
                return

    async def _take_group(self, group: Sequence[FinishedTree]) -> bool:
        if len(group) == 1:
            (large,) = group
            while large.events > _STEP_ROWS:
                if not await self._may_go_on():
                    return False
                started = time.perf_counter()
                taken = await self._runs.finished.delete_some_events(large, self._cutoffs, limit=_STEP_ROWS)
                large = replace(large, events=max(0, large.events - taken.events))
                await self._rest(taken, started)
                if taken.events < _STEP_ROWS:
                    # What is left is in few rows: the events of a run that is over are in one.
                    break
            group = [large]
        if not await self._may_go_on():
            return False
        started = time.perf_counter()
        await self._rest(await self._runs.finished.delete(group, self._cutoffs), started)
        return True

    async def _may_go_on(self) -> bool:
        return self._goes_on is None or await self._goes_on()

    async def _rest(self, taken: RemovedRuns, started: float) -> None:
        """Let others have the database as long as a step took."""
        self._count(taken)
        await asyncio.sleep(min(time.perf_counter() - started, _LONGEST_PAUSE_SECONDS))

    def _count(self, taken: RemovedRuns, *, versions: int = 0) -> None:
        done = self.done
        self.done = replace(
            done,
            trees=done.trees + taken.trees,
            runs=done.runs + taken.runs,
            events=done.events + taken.events,
            versions=done.versions + versions,
        )
        if self._told is not None:
            self._told(self.done)


def _groups(trees: Sequence[FinishedTree]) -> list[list[FinishedTree]]:
    """As many trees together as one step takes; a large one alone."""
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
