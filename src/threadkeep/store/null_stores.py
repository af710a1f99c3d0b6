"""Stores that store nothing: for runs without a session, and for data that is not stored if a graph store is used."""

from __future__ import annotations

from typing import Any, Final

from threadkeep.errors import SessionNotFound
from threadkeep.observe import Backend
from threadkeep.records import Page, Receipt, SearchHit, Turn
from threadkeep.store.contexts import Contexts, ContextState, Steps
from threadkeep.store.transcripts import Branching, Recent, Superseded


class NullContexts(Contexts):
    """A store without data for model calls: it has no anchors, summaries or tool calls."""

    def __init__(self) -> None:
        """Do nothing; there is no database."""

    async def state(self, *_: Any, **__: Any) -> ContextState:
        """Return an empty state."""
        return ContextState()

    async def move_anchor(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def anchor_statement(self, *_: Any, **__: Any) -> None:
        """Return None."""

    async def steps(self, *_: Any, **__: Any) -> list[Steps]:
        """Return no tool calls."""
        return []

    keep_steps = move_anchor


class NullSearch:
    """A search that finds nothing."""

    async def catch_up(self, *_: Any, **__: Any) -> bool:
        """Return True; there is nothing to index."""
        return True

    async def unindexed(self, *_: Any, **__: Any) -> int:
        """Return 0."""
        return 0

    async def search(self, *_: Any, **__: Any) -> list[SearchHit]:
        """Return no messages."""
        return []


class NullTranscripts:
    """A null transcript: it accepts messages and stores none."""

    backend: Final[Backend] = "other"

    async def append(self, turn: Turn) -> Receipt:
        """Accept a turn without storing it."""
        ids = tuple(str(message.id) for message in turn.messages)
        return Receipt(first_seq=1, last_seq=len(ids), ids=ids)

    async def newest(self, *_: Any, **__: Any) -> Page:
        """Return no messages."""
        return Page((), None)

    async def recent(self, *_: Any, **__: Any) -> Recent:
        """Return no messages."""
        return Recent(())

    async def find(self, *_: Any, **__: Any) -> None:
        """Do nothing and return None; there are no messages or sessions."""

    tell = session = change = reset = append_instead = find

    async def with_ids(self, *_: Any, **__: Any) -> list[Any]:
        """Return no messages, ranges or sessions."""
        return []

    at = answers_to = superseded = sessions = with_ids

    async def supersede(self, *_: Any, **__: Any) -> Superseded:
        """Do nothing; there are no messages."""
        return Superseded()

    async def branch(self, branching: Branching) -> None:
        """Raise `SessionNotFound`; there are no sessions."""
        raise SessionNotFound(branching.session_id)

    async def delete(self, *_: Any, **__: Any) -> bool:
        """Return False; there is nothing to delete."""
        return False
