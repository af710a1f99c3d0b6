"""What retention is told where transcripts are in a graph store: that it is not available there."""

from __future__ import annotations

from threadkeep.errors import InvalidInput
from threadkeep.records import Retention
from threadkeep.store.retention import Prunable, RetentionRows

NOT_AVAILABLE = (
    "Retention is not available while transcripts are in a graph store: delete whole sessions, or keep transcripts in "
    "the tables (THREADKEEP_TRANSCRIPTS=tables)."
)


class UnretainedRows(RetentionRows):
    """Refuses limits, so that nobody relies on what nothing carries out."""

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """No session has limits of its own.

        Raises:
            InvalidInput: those of rules are asked for.
        """
        if with_own:
            return []
        raise InvalidInput(NOT_AVAILABLE)

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """Refused.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(NOT_AVAILABLE)

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Refused.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(NOT_AVAILABLE)
