"""Restoring of summaries with their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from threadkeep.records import Summary
from threadkeep.store.driver import Backend, Connection
from threadkeep.store.statements import load_statements
from threadkeep.store.summaries import ArchivedSummary, add_summary


class SummaryArchive:
    """A restorer of exported summaries.

    A summary is stored only if it covers the same adjacent messages here, and follows the active summaries here.
    """

    def __init__(self, backend: Backend, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._sql: Mapping[str, str] = load_statements("summaries.sql", f"{backend}/sessions.sql")

    async def restore(
        self, connection: Connection, session_id: str, archived: Iterable[ArchivedSummary]
    ) -> tuple[int, int]:
        """Store summaries after their messages; return how many were stored, and how many were skipped."""
        stored = left_out = 0
        for item in archived:
            place = {"session_id": session_id, "id": item.summary.id}
            if await connection.fetch(self._sql["with_id"], place):
                continue
            summary = await self._here(connection, session_id, item)
            added = summary is not None and await add_summary(
                connection, self._sql, summary, frozenset(), now=self._clock()
            )
            stored += added
            left_out += not added
        return stored, left_out

    async def _here(self, connection: Connection, session_id: str, item: ArchivedSummary) -> Summary | None:
        """Return the summary with the range of its messages here; None if they are incomplete or not adjacent."""
        summary = item.summary
        gone_upto = summary.last_seq - item.messages
        last_seq = await self._seq(connection, session_id, item.last_id, summary.last_seq)
        first_seq = await self._seq(connection, session_id, item.first_id, gone_upto + 1)
        if last_seq is None or first_seq is None:
            return None
        moved_by = last_seq - summary.last_seq
        if first_seq != gone_upto + 1 + moved_by or summary.first_seq + moved_by < 1:
            return None
        here = replace(
            summary, session_id=session_id, first_seq=summary.first_seq + moved_by, last_seq=summary.last_seq + moved_by
        )
        place = {"session_id": session_id, "first_seq": here.first_seq, "last_seq": here.last_seq}
        [(deleted_seq, messages)] = await connection.fetch(self._sql["extent"], place)
        # Messages missing there must be missing here: otherwise other messages have their place.
        gone_here = gone_upto < summary.first_seq or gone_upto + moved_by <= int(deleted_seq)
        return here if gone_here and int(messages) == item.messages else None

    async def _seq(self, connection: Connection, session_id: str, message_id: str | None, otherwise: int) -> int | None:
        """Return the `seq` of a message here; the given one if no message was named."""
        if message_id is None:
            return otherwise
        rows = await connection.fetch(self._sql["seq_of"], {"session_id": session_id, "id": message_id})
        return int(rows[0][0]) if rows else None
