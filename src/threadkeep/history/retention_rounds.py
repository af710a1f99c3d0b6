"""Rounds of retention: over all locations of messages, and scheduled in one of the processes of a database."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from langchain_core.utils.uuid import uuid7

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import SessionNotFound, StoreError
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.keys import check_session_id
from threadkeep.history.memory import Memory
from threadkeep.history.retention import PlannedRemoval, Pruned, Pruner
from threadkeep.history.run_retention import RunPruner
from threadkeep.observe import Observer, PruningFailed
from threadkeep.records import Retention
from threadkeep.store.duties import Duties

_CLAIM_SECONDS = 60.0
_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class _Chosen:
    """The sessions to prune in one location; all if none is named."""

    pruner: Pruner
    session_ids: tuple[str, ...] = ()


class AllRetention:
    """A pruner that runs the `Pruner` of each location in turn, for the interfaces and the schedule.

    A session id means every session or conversation with that id.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def has_work(self) -> bool:
        """Return whether there are rules, or sessions with limits of their own."""
        return await self._memory.retention.has_work()

    async def plan(
        self, rules: Retention | None = None, *, session_ids: Sequence[str] = (), user_id: str | None = None
    ) -> AsyncIterator[PlannedRemoval]:
        """Yield the removals that are due now, location by location; nothing is written.

        Raises:
            SessionNotFound: a named session does not exist, or not for this user.
        """
        for chosen in await self._chosen(session_ids, user_id):
            async for removal in chosen.pruner.plan(rules, session_ids=chosen.session_ids, user_id=user_id):
                yield removal

    async def prune(
        self,
        rules: Retention | None = None,
        *,
        session_ids: Sequence[str] = (),
        user_id: str | None = None,
        report: Callable[[Pruned], object] | None = None,
        may_continue: Callable[[], Awaitable[bool]] | None = None,
    ) -> Pruned:
        """Archive and delete messages beyond the limits, as `Pruner.prune` in each location.

        Raises:
            SessionNotFound: a named session does not exist, or not for this user; nothing was done.
            StoreError: a database is not available; completed steps stay done.
        """
        done = Pruned()
        for chosen in await self._chosen(session_ids, user_id):
            before = done

            def add(here: Pruned, before: Pruned = before) -> None:
                if report is not None:
                    report(before + here)

            done += await chosen.pruner.prune(
                rules, session_ids=chosen.session_ids, user_id=user_id, report=add, may_continue=may_continue
            )
        return done

    async def change(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> None:
        """Set or remove a session's own limits.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
            InvalidInput: it is in a location where sessions have no own limits.
        """
        for _, memory in await AllSessions(self._memory).locations():
            try:
                await memory.retention.change(session_id, retention, user_id=user_id)
            except SessionNotFound:
                continue
            return
        raise SessionNotFound(session_id)

    async def _chosen(self, session_ids: Sequence[str], user_id: str | None) -> list[_Chosen]:
        locations = await AllSessions(self._memory).locations()
        if not session_ids:
            return [_Chosen(memory.retention) for _, memory in locations]
        for session_id in session_ids:
            check_session_id(session_id)
        chosen: list[_Chosen] = []
        missing = dict.fromkeys(session_ids)
        for _, memory in locations:
            there: list[str] = []
            for session_id in dict.fromkeys(session_ids):
                with contextlib.suppress(SessionNotFound):
                    await memory.retention.of(session_id, user_id=user_id)
                    there.append(session_id)
                    missing.pop(session_id, None)
            if there:
                chosen.append(_Chosen(memory.retention, tuple(there)))
        for session_id in missing:
            raise SessionNotFound(session_id)
        return chosen


class RetentionSchedule:
    """A schedule of pruning rounds; a failed round is reported and repeated at the next check."""

    def __init__(
        self,
        pruner: AllRetention | RunPruner,
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
        """Archive and delete if a round is due; return False if not, or if another process makes it.

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
            # If this fails, the claim expires by itself.
            with contextlib.suppress(StoreError):
                await (self._duties.done if done else self._duties.release)(self.duty, self._owner)
        return True

    async def _claim(self) -> bool:
        self._claimed = time.monotonic()
        return await self._duties.claim(
            self.duty, self._owner, seconds=_CLAIM_SECONDS, every_seconds=self._interval_seconds
        )

    async def _keeps_claim(self) -> bool:
        """Return whether this process still has the claim; renew it in time."""
        return time.monotonic() - self._claimed < _CLAIM_SECONDS / 3 or await self._claim()
