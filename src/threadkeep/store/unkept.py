"""Where nothing is kept: for runs that belong to no session, and for what our tables know nothing of."""

from __future__ import annotations

from collections.abc import Collection

from threadkeep.observe import Backend
from threadkeep.records import Message, Page, Receipt, SearchHit, SessionInfo, Turn
from threadkeep.store.contexts import Contexts, ContextState
from threadkeep.store.transcripts import END, Recent, SessionChanges, SessionQuery


class UnkeptContexts(Contexts):
    """No anchors and no summaries."""

    def __init__(self) -> None:
        """There is no database."""

    async def state(self, session_id: str, profile: str, *, user_id: str | None = None) -> ContextState:
        """Nothing is known of any session."""
        return ContextState()

    async def move_anchor(self, session_id: str, profile: str, seq: int) -> None:
        """Nothing is noted."""


class UnkeptSearch:
    """Nothing to find."""

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """There is nothing to bring up."""
        return True

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """No message."""
        return 0

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """No message."""
        return []


class UnkeptTranscripts:
    """The verbs of a transcript over nothing: what is said is taken, and is not there afterwards."""

    @property
    def backend(self) -> Backend:
        """No engine is below."""
        return "other"

    async def append(self, turn: Turn) -> Receipt:
        """Take a turn."""
        ids = tuple(str(message.id) for message in turn.messages)
        return Receipt(first_seq=1, last_seq=len(ids), ids=ids)

    async def newest(self, session_id: str, *, limit: int, before: int = END, user_id: str | None = None) -> Page:
        """No messages."""
        return Page((), None)

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """No messages."""
        return Recent(())

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """No message."""
        return None

    async def at(self, session_id: str, places: Collection[int]) -> list[Message]:
        """No messages."""
        return []

    async def answer(self, session_id: str, *, after: int, run_id: str) -> Message | None:
        """No message."""
        return None

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """No session."""
        return None

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """No sessions."""
        return []

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """There is nothing to change."""

    async def reset(self, session_id: str, *, user_id: str | None = None) -> int | None:
        """There is nothing to reset."""
        return None

    async def delete(self, session_id: str) -> bool:
        """There is nothing to delete."""
        return False
