"""The retention interface for transcripts in a graph store, where retention is not available."""

from __future__ import annotations

from threadkeep.errors import InvalidInput
from threadkeep.records import Retention
from threadkeep.store.retention import Prunable, RetentionRows

NOT_AVAILABLE = (
    "Retention is not available while transcripts are in a graph store: delete whole sessions, or keep transcripts in "
    "the tables (THREADKEEP_TRANSCRIPTS=tables)."
)


class UnretainedRows(RetentionRows):
    """A retention interface that refuses limits, because nothing would apply them."""

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """Return no sessions, because none has limits of its own.

        Raises:
            InvalidInput: sessions for the rules are requested.
        """
        if with_own:
            return []
        raise InvalidInput(NOT_AVAILABLE)

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """Refuse retention.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(NOT_AVAILABLE)

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Refuse limits.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(NOT_AVAILABLE)
