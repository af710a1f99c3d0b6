"""Retention of all messages: in the sessions of a memory and in the conversations that agents keep."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from threadkeep.errors import SessionNotFound
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.keys import check_session_id
from threadkeep.history.memory import Memory
from threadkeep.history.pruning import PlannedRemoval, Pruned
from threadkeep.history.retention import Pruner
from threadkeep.records import Retention


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
        told: Callable[[Pruned], object] | None = None,
        goes_on: Callable[[], Awaitable[bool]] | None = None,
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
                if told is not None:
                    told(before + here)

            done += await chosen.pruner.prune(
                rules, session_ids=chosen.session_ids, user_id=user_id, told=add, goes_on=goes_on
            )
        return done

    async def change(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> None:
        """Set or remove a session's own limits.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
            InvalidInput: it is in a location where sessions have no own limits.
        """
        for _, keeper in await AllSessions(self._memory).places():
            try:
                await keeper.retention.change(session_id, retention, user_id=user_id)
            except SessionNotFound:
                continue
            return
        raise SessionNotFound(session_id)

    async def _chosen(self, session_ids: Sequence[str], user_id: str | None) -> list[_Chosen]:
        places = await AllSessions(self._memory).places()
        if not session_ids:
            return [_Chosen(keeper.retention) for _, keeper in places]
        for session_id in session_ids:
            check_session_id(session_id)
        chosen: list[_Chosen] = []
        missing = dict.fromkeys(session_ids)
        for _, keeper in places:
            there: list[str] = []
            for session_id in dict.fromkeys(session_ids):
                with contextlib.suppress(SessionNotFound):
                    await keeper.retention.of(session_id, user_id=user_id)
                    there.append(session_id)
                    missing.pop(session_id, None)
            if there:
                chosen.append(_Chosen(keeper.retention, tuple(there)))
        for session_id in missing:
            raise SessionNotFound(session_id)
        return chosen
