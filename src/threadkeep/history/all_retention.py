"""Retention of all that people said: of the sessions of a memory, and of the conversations beside them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from threadkeep.errors import SessionNotFound
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.keys import check_key
from threadkeep.history.memory import Memory
from threadkeep.history.pruning import PlannedRemoval, Pruned
from threadkeep.history.retention import Pruner
from threadkeep.records import Retention


@dataclass(frozen=True)
class _Chosen:
    """What to look at in one place: some sessions, or all where none is named."""

    pruner: Pruner
    session_ids: tuple[str, ...] = ()


class AllRetention:
    """The `Pruner` of each place after the other, as one for the faces and for the schedule.

    A session that is named is whatever has the id.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def has_work(self) -> bool:
        """Whether there are any rules, or sessions with limits of their own."""
        return await self._memory.retention.has_work()

    async def plan(
        self, rules: Retention | None = None, *, session_ids: Sequence[str] = (), user_id: str | None = None
    ) -> AsyncIterator[PlannedRemoval]:
        """What would go now, place by place; nothing is written.

        Raises:
            SessionNotFound: one of those that are named is nowhere, or not for this user.
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
        """Archive and delete what is beyond the limits; as `Pruner.prune` in each place.

        Raises:
            SessionNotFound: one of those that are named is nowhere, or not for this user; nothing was done.
            StoreError: a database does not take it; what was done until then is done.
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
        """Give a session limits of its own, or take them away.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
            InvalidInput: it is in a place where sessions have none.
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
            check_key(session_id)
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
