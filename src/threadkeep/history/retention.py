"""Retention of messages: limits for sessions, and the removal of messages beyond them.

Messages are removed from the beginning of a session, so that the rest has no gaps.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from threadkeep.errors import InvalidInput, RecordUnreadable, SessionDamaged, SessionNotFound
from threadkeep.graph_store.retention import ConversationRetention
from threadkeep.history.keys import check_session_id
from threadkeep.history.retention_rounds import Round
from threadkeep.observe import MessagesPruned, Observer, PruningFailed
from threadkeep.records import Retention, RetentionLimits
from threadkeep.records.sessions import check_argument, check_each
from threadkeep.store.driver import RowLocked
from threadkeep.store.retention import STEP_MESSAGES, Action, Counts, Prunable, Removal, RetentionRows

if TYPE_CHECKING:
    from threadkeep.history.pending import PendingTurns

type Retaining = RetentionRows | ConversationRetention
"""The sessions in tables or in a LangGraph store; see the guarantees of `RetentionRows`."""

# Appends wait while a step removes messages. If a step takes longer than this, the next step is smaller.
_LONG_STEP_SECONDS = 0.03
_LEAST_MESSAGES = 25

_PAGE_SESSIONS = 500


@dataclass(frozen=True)
class PlannedRemoval:
    """A range of messages that retention would remove now, or the whole session."""

    session_id: str
    action: Action
    first_seq: int
    last_seq: int
    messages: int
    tokens: int
    whole_session: bool = False


@dataclass(frozen=True)
class Amount(Counts):
    """The numbers of removed messages, tokens and sessions."""

    sessions: int = 0
    messages: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Pruned(Counts):
    """The result of a retention round so far.

    `whole_sessions` were deleted entirely. `busy` sessions are left for the next round, because a turn is pending,
    another transaction has locked the session, or an item is damaged.
    """

    archived: Amount = Amount()
    deleted: Amount = Amount()
    whole_sessions: int = 0
    busy: int = 0

    @classmethod
    def by(cls, action: Action, amount: Amount, *, whole_sessions: int = 0) -> Pruned:
        """Return a result with the amount that one action (archiving or deletion) removed, and zero for the other."""
        if action == "archive":
            return cls(archived=amount)
        return cls(deleted=amount, whole_sessions=whole_sessions)

    @property
    def messages(self) -> int:
        """The total number of archived and deleted messages."""
        return self.archived.messages + self.deleted.messages


class MessageRound:
    """The archiving and deletion of messages in one retention round, session by session."""

    def __init__(self, rows: Retaining, work: Round[Pruned]) -> None:
        self._rows = rows
        self._work = work
        self._messages = STEP_MESSAGES

    def skip(self) -> None:
        """Count a session as `busy`: its messages are left for the next round."""
        self._work.done += Pruned(busy=1)

    async def remove(self, removals: Sequence[Removal]) -> None:
        """Remove messages of a session, or count it as busy if it is locked or damaged."""
        try:
            for removal in removals:
                if not await self._remove(removal):
                    break
        except (RowLocked, SessionDamaged):
            self.skip()

    async def _remove(self, removal: Removal) -> bool:
        """Remove messages step by step. Return False if the session's other removals must wait for the next round."""
        sessions, after = 1, removal.after_seq
        while after < removal.upto_seq:
            if not await self._work.begin_step():
                return False
            removed = await self._rows.step(replace(removal, after_seq=after), messages=self._messages)
            if removed is None:
                return False
            amount = Amount(sessions, removed.messages, removed.tokens)
            self._adapt(await self._work.end_step(Pruned.by(removal.action, amount)))
            sessions, after = 0, removed.upto_seq
        if removal.idle_before is not None and removal.whole_session:
            if not await self._rows.delete_session(removal.session_id, idle_before=removal.idle_before):
                return False
            self._work.count(Pruned(deleted=Amount(sessions), whole_sessions=1))
        return True

    def _adapt(self, seconds: float) -> None:
        """Let the next step remove fewer messages after a long step, and more after a short one."""
        if seconds > _LONG_STEP_SECONDS:
            self._messages = max(self._messages // 2, _LEAST_MESSAGES)
        elif seconds < _LONG_STEP_SECONDS / 2:
            self._messages = min(self._messages * 2, STEP_MESSAGES)


@dataclass(frozen=True)
class RetentionOptions:
    """Options for archiving and deletion while a memory is open; by default nothing is removed.

    `rules` apply to sessions without limits of their own. A round runs every `interval_seconds`, in one of the
    processes that have the database open.
    """

    rules: Retention = Retention()
    interval_seconds: float = 3600.0

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the interval is a positive, finite number."""
        if not 0 < self.interval_seconds < float("inf"):
            raise InvalidInput("interval_seconds must be a number of seconds above 0.")


class Pruner:
    """A service that applies retention limits; `rules` are for sessions without their own limits.

    If a given session id is not a session of the user, `plan` and `prune` raise `SessionNotFound` when they reach it.
    """

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

    def of_namespace(self, rows: Retaining, pending: PendingTurns) -> Pruner:
        """Return a pruner with the same rules for the conversations in a LangGraph store namespace."""
        return Pruner(rows, self.rules, pending=pending, observer=self._observer, clock=self._clock)

    async def of(self, session_id: str, *, user_id: str | None = None) -> Retention | None:
        """Return the retention limits of one session, or None if the default rules apply.

        Raises:
            SessionNotFound: the session does not exist, or belongs to another user.
        """
        check_argument("session_id", session_id, str, required=True)
        check_argument("user_id", user_id, str)
        exists, retention = await self._rows.retention(session_id, user_id=user_id)
        if not exists:
            raise SessionNotFound(session_id)
        return retention

    async def change(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> None:
        """Set the limits of one session, which replace all default rules; None removes them.

        With `Retention()`, a session keeps everything.

        Raises:
            SessionNotFound: the session does not exist, or belongs to another user.
        """
        check_argument("session_id", session_id, str, required=True)
        check_argument("retention", retention, Retention)
        check_argument("user_id", user_id, str)
        if not await self._rows.set_retention(session_id, retention, user_id=user_id):
            raise SessionNotFound(session_id)

    async def plan(
        self, rules: Retention | None = None, *, session_ids: Sequence[str] = (), user_id: str | None = None
    ) -> AsyncIterator[PlannedRemoval]:
        """Yield the removals that are due now, session by session; write nothing.

        Args:
            rules: replaces the rules of the memory's options.
            session_ids: only these sessions; all if empty.
            user_id: only this user's sessions.
        """
        _check_scope(rules, session_ids, user_id)
        now = self._clock()
        rules = self.rules if rules is None else rules
        async for session in self._sessions(rules, session_ids, user_id):
            # Skip sessions that cannot be read: `prune` removes nothing from them.
            with contextlib.suppress(SessionDamaged, RecordUnreadable):
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
        report: Callable[[Pruned], object] | None = None,
        may_continue: Callable[[], Awaitable[bool]] | None = None,
    ) -> Pruned:
        """Archive and delete messages and idle sessions beyond the limits. An interrupted call can be repeated.

        Args:
            rules: replaces the rules of the memory's options.
            session_ids: only these sessions; all if empty.
            user_id: only this user's sessions.
            report: called after each step with the result so far.
            may_continue: called before each step; False stops the round.

        Raises:
            StoreError: the database is not available; completed steps stay done.
        """
        _check_scope(rules, session_ids, user_id)
        now = self._clock()
        rules = self.rules if rules is None else rules
        work = Round(Pruned(), report, may_continue)
        messages = MessageRound(self._rows, work)
        try:
            async for session in self._sessions(rules, session_ids, user_id):
                if not await work.begin_step():
                    break
                try:
                    removals = await self._removals(session, rules, now)
                except (SessionDamaged, RecordUnreadable) as error:
                    self._observer.notify(PruningFailed(session_id=session.session_id, error=type(error).__name__))
                    messages.skip()
                    continue
                waits = any(entry.turn.session_id == session.session_id for entry in self._pending.own)
                if waits and any(removal.idle_before for removal in removals):
                    messages.skip()  # a new turn of the idle session is pending
                elif removals:
                    await messages.remove(removals)
        finally:
            self._notify(work.done)
        await self._rows.forget_ids()
        return work.done

    async def reclaim_space(self) -> bool:
        """Shrink the SQLite file; other writes wait meanwhile. Return False on PostgreSQL, which needs no such call."""
        return await self._rows.reclaim_space()

    async def has_work(self) -> bool:
        """Return True if there are default rules, or if any session has its own limits."""
        return not self.rules.nothing or bool(await self._rows.sessions(after="", limit=1, with_own=True))

    async def _sessions(
        self, rules: Retention, session_ids: Sequence[str], user_id: str | None
    ) -> AsyncIterator[Prunable]:
        """Yield the sessions with these ids or, if no ids are given, all sessions that may have limits."""
        for session_id in dict.fromkeys(session_ids):
            check_session_id(session_id)
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
        """Return the ranges of a session's messages to delete and to archive now."""
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
            surplus = session.last_seq - limits.max_messages
            if session.has_superseded and limits.max_messages:
                surplus = await self._rows.end_before_newest(session, limits.max_messages)
            # Keep the newest user message and its turn, which may still be running.
            newest_user = session.last_user_seq or session.last_seq + 1
            upto = max(upto, min(surplus, newest_user - 1))
        return Removal(session.session_id, action, after, upto) if upto > after else None

    async def _end_of_old(self, session: Prunable, action: Action, limits: RetentionLimits, now: datetime) -> int:
        """Return the last `seq` of the messages that are older than `limits` allow, or 0 if there are none."""
        after = session.archived_seq if action == "archive" else session.deleted_seq
        first_at = session.first_live_at if action == "archive" else session.first_stored_at
        if limits.max_age_days is None or first_at is None or after >= session.last_seq:
            return 0
        moment = now - timedelta(days=limits.max_age_days)
        return await self._rows.end_of_older(session, after=after, moment=moment) if first_at < moment else 0

    def _notify(self, done: Pruned) -> None:
        amounts: dict[Action, Amount] = {"archive": done.archived, "delete": done.deleted}
        for action, amount in amounts.items():
            if amount.sessions:
                self._observer.notify(MessagesPruned(action=action, sessions=amount.sessions, messages=amount.messages))


def _check_scope(rules: Retention | None, session_ids: Sequence[str], user_id: str | None) -> None:
    """Raise `InvalidInput` if an argument of `plan` or `prune` has a wrong type."""
    check_argument("rules", rules, Retention)
    check_each("session_ids", session_ids, str)
    check_argument("user_id", user_id, str)
