"""What retention asks of whoever keeps messages."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from threadkeep.records import Retention
from threadkeep.store.retention import STEP_MESSAGES, Prunable, Removal, Removed


class Retaining(Protocol):
    """The sessions of one place, as far as retention goes; the laws are those of `RetentionRows`."""

    @property
    def archives(self) -> bool:
        """Whether the beginning of a session can be archived here; else it is deleted or it stays."""
        ...

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """Some sessions in the order of their ids; `with_own` only those that have limits of their own."""
        ...

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """One session; None when it is not there (or not this user's)."""
        ...

    async def end_of_older(self, session: Prunable, *, after: int, moment: datetime) -> int:
        """Where the messages end that follow a place and were all stored before a time."""
        ...

    async def extent(self, removal: Removal) -> Removed:
        """How much a removal would take now."""
        ...

    async def step(self, removal: Removal, *, messages: int = STEP_MESSAGES) -> Removed | None:
        """Take the next messages of a removal; None when it is over, or the session is not as it was."""
        ...

    async def delete_session(self, session_id: str, *, idle_before: datetime) -> bool:
        """Delete a session whose messages are all gone, if nothing was said in it since."""
        ...

    async def forget_ids(self) -> None:
        """Forget the ids of deleted messages whose platform does not send them again."""
        ...

    async def retention(self, session_id: str, *, user_id: str | None = None) -> tuple[bool, Retention | None]:
        """Whether a session is there (for this user), and its own retention."""
        ...

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Give a session limits of its own, or none; False when it is not there (or not this user's)."""
        ...

    async def give_back_room(self) -> bool:
        """Give freed room back to the disk; False where the database does so by itself."""
        ...
