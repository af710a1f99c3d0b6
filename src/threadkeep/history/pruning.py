"""Pruning of sessions: removal of messages beyond the limits of retention, one session after the other.

Work is done in short steps, with an equally long pause after each: a concurrent append waits for one step at most. An
interrupted round has completed whole steps only, and the next round continues from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace

from threadkeep.errors import SessionDamaged
from threadkeep.records import Json
from threadkeep.store.driver import RowLocked
from threadkeep.store.retention import STEP_MESSAGES, Action, Removal, Retaining

_LONGEST_PAUSE_SECONDS = 0.25
# A slow or busy database gets shorter steps, because appends wait for them.
_LONG_STEP_SECONDS = 0.03
_LEAST_MESSAGES = 25


@dataclass(frozen=True)
class PlannedRemoval:
    """Messages to remove now, both ends included; with `whole_session` the session itself is deleted too."""

    session_id: str
    action: Action
    first_seq: int
    last_seq: int
    messages: int
    tokens: int
    whole_session: bool = False


@dataclass(frozen=True)
class Amount:
    """An amount of removed messages: the messages, their tokens, and the number of sessions."""

    sessions: int = 0
    messages: int = 0
    tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.sessions + other.sessions, self.messages + other.messages, self.tokens + other.tokens)


@dataclass(frozen=True)
class Pruned:
    """The result of a round, or of its plan.

    `whole_sessions` of the deleted ones were deleted entirely. `busy` sessions were left for the next round: one of
    their turns waits to be written, another transaction locks them, or an item of them is damaged.
    """

    archived: Amount = Amount()
    deleted: Amount = Amount()
    whole_sessions: int = 0
    busy: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            self.archived + other.archived,
            self.deleted + other.deleted,
            self.whole_sessions + other.whole_sessions,
            self.busy + other.busy,
        )

    @property
    def messages(self) -> int:
        """The number of archived and deleted messages."""
        return self.archived.messages + self.deleted.messages

    def to_dict(self) -> dict[str, Json]:
        """Return the numbers as JSON values."""
        return asdict(self)


class PruningRound:
    """A round of pruning over sessions, and its result so far."""

    def __init__(
        self,
        rows: Retaining,
        *,
        told: Callable[[Pruned], object] | None = None,
        goes_on: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.done = Pruned()
        self._rows = rows
        self._told = told
        self._asked = goes_on
        self._messages = STEP_MESSAGES

    async def goes_on(self) -> bool:
        """Return whether the round was not stopped."""
        return self._asked is None or await self._asked()

    def leave(self) -> None:
        """Count a session that is left for the next round."""
        self.done = replace(self.done, busy=self.done.busy + 1)

    async def take(self, removals: Sequence[Removal]) -> None:
        """Remove messages of a session, until it is locked or damaged."""
        try:
            for removal in removals:
                if not await self._carry_out(removal):
                    break
        except (RowLocked, SessionDamaged):
            self.leave()

    async def _carry_out(self, removal: Removal) -> bool:
        """Remove in steps; return False if the session has changed or the round is stopped."""
        sessions = 1
        after = removal.after_seq
        while after < removal.upto_seq:
            if not await self.goes_on():
                return False
            started = time.perf_counter()
            removed = await self._rows.step(replace(removal, after_seq=after), messages=self._messages)
            if removed is None:
                return False
            after = removed.upto_seq
            self._count(removal.action, Amount(sessions, removed.messages, removed.tokens))
            sessions = 0
            await self._leave_time(time.perf_counter() - started)
        if removal.idle_before is not None and removal.whole_session:
            if not await self._rows.delete_session(removal.session_id, idle_before=removal.idle_before):
                return False
            self.done = replace(self.done, whole_sessions=self.done.whole_sessions + 1)
            self._count("delete", Amount(sessions))
        return True

    async def _leave_time(self, seconds: float) -> None:
        """Pause for as long as a step took, and adapt the size of the next step."""
        if seconds > _LONG_STEP_SECONDS:
            self._messages = max(self._messages // 2, _LEAST_MESSAGES)
        elif seconds < _LONG_STEP_SECONDS / 2:
            self._messages = min(self._messages * 2, STEP_MESSAGES)
        await asyncio.sleep(min(seconds, _LONGEST_PAUSE_SECONDS))

    def _count(self, action: Action, amount: Amount) -> None:
        if action == "archive":
            self.done = replace(self.done, archived=self.done.archived + amount)
        else:
            self.done = replace(self.done, deleted=self.done.deleted + amount)
        if self._told is not None:
            self._told(self.done)
