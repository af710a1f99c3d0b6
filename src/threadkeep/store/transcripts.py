"""The transcript's contract: the verbs that every place where transcripts are kept must offer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from threadkeep.observe import Backend
from threadkeep.records import Json, Message, Page, Receipt, SessionInfo, Turn

END = 2**62
"""A `before` that is after every message."""


@dataclass(frozen=True)
class Recent:
    """The newest user and assistant messages since the last reset that are not archived, newest first.

    `newest_user` is the newest user message when it is older than all of `messages`: a window holds it all the same.
    Places up to `archived_seq` are archived, those up to `deleted_seq` are not there any more.
    """

    messages: tuple[Message, ...]
    reset_seq: int = 0
    newest_user: Message | None = None
    archived_seq: int = 0
    deleted_seq: int = 0


@dataclass(frozen=True)
class SessionQuery:
    """Which sessions to list: newest activity first, after the cursor, at most `limit`."""

    user_id: str | None = None
    query: str | None = None
    active: bool | None = None
    limit: int = 100
    cursor: tuple[datetime, str] | None = None


@dataclass(frozen=True)
class SessionChanges:
    """What to change of a session; None leaves a field as it is."""

    title: str | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Json] | None = None
    active: bool | None = None


class Transcripts(Protocol):
    """Where transcripts are kept.

    The laws of every implementation: a turn is stored whole or not at all, and durable when `append` returns; `seq` is
    1, 2, 3 … without gaps in each session, given in the transaction that stores the turn, whoever writes; an id that is
    in the session already is not stored again; messages are never rewritten, and what is left after the oldest were
    deleted keeps its `seq`. With a `user_id`, only that user's sessions are there to be read, and appending to
    another's raises `WrongUser`. A turn that answers a message which is
    not there raises `QuestionGone`, and begins no session. `append` may be called by many tasks at once.
    """

    @property
    def backend(self) -> Backend:
        """Which engine is below, for metrics."""
        ...

    async def append(self, turn: Turn) -> Receipt:
        """Store a turn. Raises `WrongUser`, `QuestionGone`, `InvalidMessage`, `StoreUnavailable`."""
        ...

    async def newest(self, session_id: str, *, limit: int, before: int = END, user_id: str | None = None) -> Page:
        """The newest messages before a `seq`, oldest first; nothing for a session that is not there."""
        ...

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """The raw material of a window between two places, which are both outside; see `Recent`."""
        ...

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """The message with an id."""
        ...

    async def at(self, session_id: str, places: Collection[int]) -> list[Message]:
        """The messages with these `seq`, in order; those that are there."""
        ...

    async def answer(self, session_id: str, *, after: int, run_id: str) -> Message | None:
        """The newest assistant message of a run that follows a message."""
        ...

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """What is known of a session, None when it is not there (or not this user's)."""
        ...

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Some sessions, newest activity first."""
        ...

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change what is known of a session."""
        ...

    async def reset(self, session_id: str, *, user_id: str | None = None) -> int | None:
        """Let later windows start after what is there now; answers the last `seq` before, None for no session."""
        ...

    async def delete(self, session_id: str) -> bool:
        """Delete a session, its messages and all that was derived from them; False when it was not there."""
        ...
