"""Null stores for runs without a session, and for data that a location does not store."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from threadkeep.errors import SessionNotFound
from threadkeep.observe import Backend
from threadkeep.records import Message, Page, Receipt, SearchHit, SessionInfo, Turn, View
from threadkeep.store.contexts import Contexts, ContextState, Steps
from threadkeep.store.driver import Statement
from threadkeep.store.transcripts import (
    END,
    Branching,
    Recent,
    SessionChanges,
    SessionQuery,
    Superseded,
    Superseding,
)


class NullContexts(Contexts):
    """A null store without anchors, summaries and steps."""

    def __init__(self) -> None:
        """Do nothing; there is no database."""

    async def state(self, session_id: str, profile: str, *, user_id: str | None = None) -> ContextState:
        """Return an empty state."""
        return ContextState()

    async def move_anchor(self, session_id: str, profile: str, seq: int, *, revision: int | None = None) -> None:
        """Do nothing."""

    def anchor_statement(
        self, session_id: str, profile: str, seq: int, *, revision: int | None = None
    ) -> Statement | None:
        """Return None."""
        return None

    async def steps(self, session_id: str, author: str, *, since: int) -> list[Steps]:
        """Return no steps."""
        return []

    async def keep_steps(
        self, session_id: str, steps: Steps, *, question_id: str, author: str, ordinal: int = 1, turns: int = 1
    ) -> None:
        """Do nothing."""


class NullSearch:
    """A search that finds nothing."""

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Return True; there is nothing to index."""
        return True

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """Return 0."""
        return 0

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return no messages."""
        return []


class NullTranscripts:
    """A null transcript: it accepts messages and stores none."""

    backend: Final[Backend] = "other"

    async def append(self, turn: Turn) -> Receipt:
        """Accept a turn without storing it."""
        ids = tuple(str(message.id) for message in turn.messages)
        return Receipt(first_seq=1, last_seq=len(ids), ids=ids)

    async def newest(
        self,
        session_id: str,
        *,
        limit: int,
        before: int = END,
        user_id: str | None = None,
        view: View = "active",
    ) -> Page:
        """Return no messages."""
        return Page((), None)

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """Return no messages."""
        return Recent(())

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """Return None."""
        return None

    async def with_ids(self, session_id: str, message_ids: Collection[str]) -> list[Message]:
        """Return no messages."""
        return []

    async def at(self, session_id: str, places: Collection[int]) -> list[Message]:
        """Return no messages."""
        return []

    async def answers_to(self, session_id: str, question: Message) -> list[Message]:
        """Return no answers."""
        return []

    async def tell(self, session_id: str, message_id: str) -> Message | None:
        """Return None."""
        return None

    async def supersede(self, superseding: Superseding) -> Superseded:
        """Do nothing; there are no messages."""
        return Superseded()

    async def superseded(self, session_id: str, *, after: int = 0, before: int = END) -> list[tuple[int, int]]:
        """Return no ranges."""
        return []

    async def branch(self, branching: Branching) -> None:
        """Raise `SessionNotFound`; there are no sessions."""
        raise SessionNotFound(branching.session_id)

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """Return None."""
        return None

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return no sessions."""
        return []

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Do nothing."""

    async def reset(self, session_id: str, *, user_id: str | None = None) -> int | None:
        """Return None; there is nothing to reset."""
        return None

    async def delete(self, session_id: str) -> bool:
        """Return False; there is nothing to delete."""
        return False
