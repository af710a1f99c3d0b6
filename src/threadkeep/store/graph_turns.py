"""Turns for Graphiti: a row that is stored with each turn, in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from threadkeep.records import Message, Turn
from threadkeep.records.graphiti import CONSENT_VERSION


@dataclass(frozen=True)
class GraphTurns:
    """The selection of turns for Graphiti: turns with a complete answer, if they may be sent to the endpoint.

    The statement that stores the row checks the permission. `workspace` applies to turns that name none.
    """

    endpoint: str
    workspace: str | None = None

    def row(self, turn: Turn, messages: Sequence[Message], *, now: str) -> dict[str, object] | None:
        """Return the columns of a turn's row without the `seq` values; None if the turn has no answer."""
        if not any(message.role == "assistant" and message.status == "complete" for message in messages):
            return None
        return {
            "session_id": turn.session_id,
            "workspace": turn.workspace or self.workspace,
            "endpoint": self.endpoint,
            "version": CONSENT_VERSION,
            "now": now,
        }
