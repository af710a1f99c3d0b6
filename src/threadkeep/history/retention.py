"""How long messages stay: limits, of all sessions or of one, and what of a session is beyond them.

What goes is always the beginning of a session, so that what is left has no gaps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from threadkeep.errors import InvalidInput, SessionNotFound
from threadkeep.history.keys import check_key
from threadkeep.history.pruning import Amount, PlannedRemoval, Pruned, PruningRound
from threadkeep.observe import MessagesPruned, Observer
from threadkeep.records import Retention, RetentionLimits
from threadkeep.store.retaining import Retaining
from threadkeep.store.retention import Action, Prunable, Removal

if TYPE_CHECKING:
    from threadkeep.history.pending import PendingTurns

_PAGE_SESSIONS = 500


@dataclass(frozen=True)
class RetentionOptions:
    """What a memory archives and deletes while it is open: by default nothing.

    The `rules` are for every session that has no limits of its own. A round is made every `interval_seconds`, by one of
    all the processes that have the database open.
    """

    rules: Retention = Retention()
    interval_seconds: float = 3600.0

    def __post_init__(self) -> None:
        """Refuse an interval that is none.

        Raises:
            InvalidInput: names it.
        """
        if not 0 < self.interval_seconds < float("inf"):
            raise InvalidInput("interval_seconds is a number of seconds above 0.")


class Pruner:
    """Carries out the limits of retention; that of a memory has the rules that the memory was opened with."""

    def __init__(
        self,
        rows: Retaining,
        rules: Retention,
        *,
        pending: PendingTurns,
        observer: Observer,
        clock: Callable[[], datetime],
    ) -> None:
        self.rules = rules
        self._rows = rows
        self._pending = pending
        self._observer = observer
        self._clock = clock

    def beside(self, rows: Retaining, pending: PendingTurns) -> Pruner:
        """The one of another place, by the same rules."""
        return Pruner(rows, self.rules, pending=pending, observer=self._observer, clock=self._clock)

    async def of(self, session_id: str, *, user_id: str | None = None) -> Retention | None:
        """The limits that a session has of its own; None where the rules are its too.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
        """
        there, retention = await self._rows.retention(session_id, user_id=user_id)
        if not there:
            raise SessionNotFound(session_id)
        return retention

    async def change(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> None:
        """Give a session limits of its own, which stand in the place of all rules; None takes them away.

        `Retention()` has no limits: everything of such a session stays.

        Raises:
            SessionNotFound: there is no such session, or not for this user.
        """
        if not await self._rows.set_retention(session_id, retention, user_id=user_id):
            raise SessionNotFound(session_id)

    async def plan(
        self, rules: Retention | None = None, *, session_ids: Sequence[str] = (), user_id: str | None = None
    ) -> AsyncIterator[PlannedRemoval]:
        """What would go now, session by session; nothing is written.

        Args:
            rules: in the place of those that the memory was opened with.
            session_ids: only of these sessions; of all when there is none.
            user_id: only of this user's sessions.
        """
        now = self._clock()
        rules = self.rules if rules is None else rules
        async for session in self._sessions(rules, session_ids, user_id):
            for removal in await self._removals(session, rules, now):
                extent = await self._rows.extent(removal)
                yield PlannedRemoval(
                    session.session_id,
                    removal.action,
                    removal.after_seq + 1,
                    removal.upto_seq,
                    messages=extent.messages,
                    tokens=extent.tokens,
                    whole_session=removal.whole_session,
                )

    async def prune(
        self,
        rules: Retention | None = None,
        *,
        session_ids: Sequence[str] = (),
        user_id: str | None = None,
        told: Callable[[Pruned], object] | None = None,
        goes_on: Callable[[], Awaitable[bool]] | None = None,
    ) -> Pruned:
        """Archive and delete what is beyond the limits. Broken off, it can simply be begun again.

        Args:
            rules: in the place of those that the memory was opened with.
            session_ids: only of these sessions; of all when there is none.
            user_id: only of this user's sessions.
            told: hears after each step what is done so far.
            goes_on: is asked before each step; False stops the round.

        Raises:
            StoreError: the database does not take it; what was done until then is done.
        """
        now = self._clock()
        rules = self.rules if rules is None else rules
        work = PruningRound(self._rows, told=told, goes_on=goes_on)
        try:
            async for session in self._sessions(rules, session_ids, user_id):
                if not await work.goes_on():
                    break
                removals = await self._removals(session, rules, now)
                if any(removal.idle_before for removal in removals) and self._waits(session.session_id):
                    work.leave()  # somebody has spoken there
                elif removals:
                    await work.take(removals)
        finally:
            self._tell(work.done)
        await self._rows.forget_ids()
        return work.done

    async def give_back_room(self) -> bool:
        """Shrink SQLite's file to what it holds, while nobody can write; False on PostgreSQL: it does so by itself."""
        return await self._rows.give_back_room()

    async def has_work(self) -> bool:
        """Whether there are any rules, or sessions with limits of their own."""
        return not self.rules.nothing or bool(await self._rows.sessions(after="", limit=1, with_own=True))

    async def _sessions(
        self, rules: Retention, session_ids: Sequence[str], user_id: str | None
    ) -> AsyncIterator[Prunable]:
        """The sessions that may have something beyond their limits."""
        for session_id in dict.fromkeys(session_ids):
            check_key(session_id)
            if (session := await self._rows.session(session_id, user_id=user_id)) is None:
                raise SessionNotFound(session_id)
            yield session
        after = None if session_ids else ""
        while after is not None:
            page = await self._rows.sessions(after=after, limit=_PAGE_SESSIONS, user_id=user_id, with_own=rules.nothing)
            for session in page:
                yield session
            after = page[-1].session_id if len(page) == _PAGE_SESSIONS else None

    async def _removals(self, session: Prunable, rules: Retention, now: datetime) -> list[Removal]:
        """What is to go from a session: first what is deleted, then what is archived of the rest."""
        own = rules if session.retention is None else session.retention
        deletion = await self._removal(session, "delete", own.delete, now)
        if not self._rows.archives or (deletion is not None and deletion.whole_session):
            return [] if deletion is None else [deletion]
        rest = session
        if deletion is not None and deletion.upto_seq > session.archived_seq:
            rest = replace(session, archived_seq=deletion.upto_seq)
        archiving = await self._removal(rest, "archive", own.archive, now)
        return [removal for removal in (deletion, archiving) if removal is not None]

    async def _removal(
        self, session: Prunable, action: Action, limits: RetentionLimits, now: datetime
    ) -> Removal | None:
        after = session.archived_seq if action == "archive" else session.deleted_seq
        if limits.max_idle_days is not None:
            idle_before = now - timedelta(days=limits.max_idle_days)
            if session.updated_at < idle_before and (action == "delete" or after < session.last_seq):
                return Removal(session.session_id, action, after, session.last_seq, idle_before)
        upto = await self._end_of_old(session, action, limits, now)
        if limits.max_messages is not None:
            # The newest user message and what follows it stay: they may be of a turn that is at work.
            newest_user = session.last_user_seq or session.last_seq + 1
            upto = max(upto, min(session.last_seq - limits.max_messages, newest_user - 1))
        return Removal(session.session_id, action, after, upto) if upto > after else None

    async def _end_of_old(self, session: Prunable, action: Action, limits: RetentionLimits, now: datetime) -> int:
        """Where the messages end that are older than they may be; 0 when there are none."""
        after = session.archived_seq if action == "archive" else session.deleted_seq
        first_at = session.first_live_at if action == "archive" else session.first_stored_at
        if limits.max_age_days is None or first_at is None or after >= session.last_seq:
            return 0
        moment = now - timedelta(days=limits.max_age_days)
        return await self._rows.end_of_older(session, after=after, moment=moment) if first_at < moment else 0

    def _waits(self, session_id: str) -> bool:
        return any(entry.turn.session_id == session_id for entry in self._pending.entries)

    def _tell(self, done: Pruned) -> None:
        amounts: dict[Action, Amount] = {"archive": done.archived, "delete": done.deleted}
        for action, amount in amounts.items():
            if amount.sessions:
                self._observer.notify(MessagesPruned(action=action, sessions=amount.sessions, messages=amount.messages))
