"""The interface between retention and the stores of messages."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from threadkeep.records import Retention
from threadkeep.store.retention import STEP_MESSAGES, Prunable, Removal, Removed


class Retaining(Protocol):
    """The sessions of one location for retention; the guarantees are those of `RetentionRows`."""

    @property
    def archives(self) -> bool:
        """True if the beginning of a session can be archived; otherwise it can only be deleted."""
        ...

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """Return sessions in the order of their ids; `with_own` only sessions with their own limits."""
        ...

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """Return one session; None if it does not exist (or is not this user's)."""
        ...

    async def end_of_older(self, session: Prunable, *, after: int, moment: datetime) -> int:
        """Return the last `seq` of the messages after `after` that were all stored before a time."""
        ...

    async def end_before_newest(self, session: Prunable, messages: int) -> int:
        """Return the last `seq` before the newest active messages; 0 if there are no more than these."""
        ...

    async def extent(self, removal: Removal) -> Removed:
        """Return how much a removal would take now."""
        ...

    async def step(self, removal: Removal, *, messages: int = STEP_MESSAGES) -> Removed | None:
        """Remove the next messages; return None if the removal is complete or the session has changed."""
        ...

    async def delete_session(self, session_id: str, *, idle_before: datetime) -> bool:
        """Delete a session whose messages are all gone, unless new ones came since."""
        ...

    async def forget_ids(self) -> None:
        """Forget the ids of deleted messages that their platform no longer sends again."""
        ...

    async def retention(self, session_id: str, *, user_id: str | None = None) -> tuple[bool, Retention | None]:
        """Return whether a session exists (for this user), and its own limits."""
        ...

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Set or remove a session's own limits; return False if it does not exist (or is not this user's)."""
        ...

    async def give_back_room(self) -> bool:
        """Return free space to the disk; return False if the database does so by itself."""
        ...
