"""The restoration of exported sessions, with their messages and summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import WrongUser
from threadkeep.records import Message, SessionInfo, Summary, Turn, dump_json
from threadkeep.store.codec import (
    Counter,
    clean_message,
    clean_text,
    identified,
    json_text,
    marks_of,
    message_parameters,
    session_parameters,
    time_text,
)
from threadkeep.store.driver import Backend, Connection, Driver
from threadkeep.store.statements import for_values, load_statements
from threadkeep.store.summaries import ArchivedSummary, add_summary
from threadkeep.store.superseding import SupersedingWriter
from threadkeep.store.transcripts import END


class SummaryArchive:
    """A writer that stores the summaries of exported sessions in a database.

    A summary is stored only if its messages exist here and no unarchived message separates it from active summaries.
    """

    def __init__(self, backend: Backend, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._sql: Mapping[str, str] = load_statements("summaries.sql", f"{backend}/sessions.sql")

    async def restore(
        self, connection: Connection, session_id: str, archived: Iterable[ArchivedSummary]
    ) -> tuple[int, int]:
        """Store the summaries that are not stored yet; return how many were stored, and how many were rejected."""
        stored = left_out = 0
        for item in archived:
            parameters = {"session_id": session_id, "id": item.summary.id}
            if await connection.fetch(self._sql["with_id"], parameters):
                continue
            summary = await self._renumbered(connection, session_id, item)
            added = summary is not None and await add_summary(
                connection, self._sql, summary, frozenset(), now=self._clock()
            )
            stored += added
            left_out += not added
        return stored, left_out

    async def _renumbered(self, connection: Connection, session_id: str, item: ArchivedSummary) -> Summary | None:
        """Return the summary with its messages' `seq` range in this database, or None if the messages differ."""
        summary = item.summary
        deleted_upto = summary.last_seq - item.messages
        last_seq = await self._seq(connection, session_id, item.last_id, summary.last_seq)
        first_seq = await self._seq(connection, session_id, item.first_id, deleted_upto + 1)
        if last_seq is None or first_seq is None:
            return None
        moved_by = last_seq - summary.last_seq
        if first_seq != deleted_upto + 1 + moved_by or summary.first_seq + moved_by < 1:
            return None
        here = replace(
            summary, session_id=session_id, first_seq=summary.first_seq + moved_by, last_seq=summary.last_seq + moved_by
        )
        parameters = {"session_id": session_id, "first_seq": here.first_seq, "last_seq": here.last_seq}
        [(deleted_seq, messages)] = await connection.fetch(self._sql["extent"], parameters)
        # The first messages of the summary may have been deleted before the export. Then the messages that have their
        # `seq` values in this database must be deleted too; otherwise the summary would cover other messages.
        deleted_here = deleted_upto < summary.first_seq or deleted_upto + moved_by <= int(deleted_seq)
        return here if deleted_here and int(messages) == item.messages else None

    async def _seq(self, connection: Connection, session_id: str, message_id: str | None, otherwise: int) -> int | None:
        """Return a message's `seq` in this database, None if it is missing, or `otherwise` if `message_id` is None."""
        if message_id is None:
            return otherwise
        rows = await connection.fetch(self._sql["seq_of"], {"session_id": session_id, "id": message_id})
        return int(rows[0][0]) if rows else None


@dataclass(frozen=True)
class ArchivedPart:
    """A part of an exported session, with messages in order of `seq`.

    The counts and the last message in `info` are ignored. A summary must be in the part that contains the last message
    that it covers, or in a later part.
    """

    info: SessionInfo
    messages: tuple[Message, ...]
    summaries: tuple[ArchivedSummary, ...] = ()


@dataclass(frozen=True)
class Restored:
    """Counts of messages and summaries that were restored, or left out, from one `ArchivedPart`.

    - `stored`: new messages. `known`: messages that existed already.
    - `moved`: stored messages that got another `seq` than in the export.
    - `cleaned`: stored messages in which characters that databases reject were replaced.
    - `summaries`: stored summaries. `summaries_left_out`: summaries that were not stored, because the covered messages
      have changed or another summary covers them.
    - `unarchived`: messages in a graph store that were archived and are active now.
    - `limits_left_out`: sessions in a graph store whose own retention limits were not stored.
    """

    stored: int = 0
    known: int = 0
    moved: int = 0
    cleaned: int = 0
    summaries: int = 0
    summaries_left_out: int = 0
    unarchived: int = 0
    limits_left_out: int = 0


class Restoring(Protocol):
    """The interface of a service that stores exported sessions in a database again."""

    async def restore(self, parts: Sequence[ArchivedPart]) -> list[Restored | WrongUser]:
        """Store the parts. Return one result per part, in order: its counts, or `WrongUser` if it was rejected."""


class Archive:
    """A service that restores exported sessions into the tables.

    - A message keeps its id, times, tokens and status; a superseded one stays superseded. No id is stored twice.
    - A stored message is marked as superseded if it is superseded in the export. If the question of a restored answer
      already has an active answer, the restored answer is stored as superseded by it.
    - An existing session keeps its title, tags and metadata. The restored messages follow its own messages.
    - The last reset follows the same message as in the export, unless the existing session has a later reset.
    - Archived messages are archived again if they keep their `seq`.
    - All parts of one call are stored in one transaction. A part is rejected if its session belongs to another user.
    """

    def __init__(self, driver: Driver, *, count: Counter, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._count = count
        self._clock = clock
        self._sql = load_statements("transcripts.sql", "superseding.sql", "archive.sql")
        self._summaries = SummaryArchive(driver.backend, clock=clock)
        self._superseding = SupersedingWriter()

    async def restore(self, parts: Sequence[ArchivedPart]) -> list[Restored | WrongUser]:
        """Store the parts in one transaction. Return one result per part, in order: its counts, or `WrongUser`."""
        outcomes: dict[int, Restored | WrongUser] = {}
        # Lock sessions in the order of their ids, as all writers do, which prevents deadlocks.
        indexes = sorted(range(len(parts)), key=lambda index: parts[index].info.session_id)
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["note_restored"], {"value": str(uuid7())})
            for index in indexes:
                try:
                    outcomes[index] = await self._restore(connection, parts[index])
                except WrongUser as error:
                    outcomes[index] = error
        return [outcomes[index] for index in range(len(parts))]

    async def _restore(self, connection: Connection, part: ArchivedPart) -> Restored:
        info = part.info
        await connection.execute(self._sql["restore_session"], _session_row(info))
        if not (counted := await connection.fetch(self._sql["reserve"], _reserve_parameters(info, []))):
            raise WrongUser(info.session_id)
        last_seq = counted[0][1]
        messages = [identified(message) for message in part.messages]
        ids = [message.id for message in messages]
        wanted = for_values(self._sql["seqs_of"], "id", ids, {"session_id": info.session_id})
        known = {str(one): int(seq) for one, seq in await connection.fetch(*wanted)} if ids else {}
        await self._supersede(connection, info.session_id, [message for message in messages if message.id in known])
        fresh: list[Message] = []
        seqs = dict(known)
        for message in messages:
            if str(message.id) not in seqs:
                fresh.append(message)
                seqs[str(message.id)] = last_seq + len(fresh)
        cleaned = await self._insert(connection, part, fresh, seqs) if fresh else 0
        await self._restore_borders(connection, info, messages, seqs)
        moved = sum(1 for message in fresh if message.seq is not None and message.seq != seqs[str(message.id)])
        summaries = await self._summaries.restore(connection, info.session_id, part.summaries)
        return Restored(len(fresh), len(messages) - len(fresh), moved, cleaned, *summaries)

    async def _supersede(self, connection: Connection, session_id: str, known: Sequence[Message]) -> None:
        """Mark stored messages as superseded if they are superseded in the export."""
        marks = [{**marks_of(message), "id": message.id} for message in known if message.superseded_at is not None]
        seqs: list[int] = []
        for mark in marks:
            parameters = {**mark, "session_id": session_id, "now": mark["superseded_at"]}
            seqs += [int(seq) for (seq,) in await connection.fetch(self._sql["supersede"], parameters)]
        if seqs:
            await self._superseding.refresh(connection, session_id, seqs)

    async def _insert(
        self, connection: Connection, part: ArchivedPart, fresh: Sequence[Message], seqs: Mapping[str, int]
    ) -> int:
        """Store messages under the given `seq` values; return how many had characters that databases cannot store."""
        now = self._clock()
        kept = [clean_message(message) for message in fresh]
        await connection.fetch(self._sql["reserve"], _reserve_parameters(part.info, kept))
        rows = [
            {
                **message_parameters(message, count=self._count, now=time_text(message.created_at or now)),
                **marks_of(message),
                "session_id": part.info.session_id,
                "seq": seqs[str(message.id)],
            }
            for message in kept
        ]
        await connection.execute_many(self._sql["insert_restored"], rows)
        inserted = {"session_id": part.info.session_id, "after": seqs[str(fresh[0].id)] - 1, "before": END}
        ranges = await connection.fetch(self._sql["superseded_ranges"], inserted)
        if superseded := [seq for first, last in ranges for seq in range(first, last + 1)]:
            await self._superseding.refresh(connection, part.info.session_id, superseded)
        return sum(1 for given, message in zip(fresh, kept, strict=True) if given is not message)

    async def _restore_borders(
        self, connection: Connection, info: SessionInfo, messages: Sequence[Message], seqs: Mapping[str, int]
    ) -> None:
        """Restore where the last reset is and where the archived messages end, as in the export."""
        here = {message.seq: seqs[str(message.id)] for message in messages if message.seq}
        if info.reset_seq in here:
            parameters = {"session_id": info.session_id, "reset_seq": here[info.reset_seq]}
            await connection.execute(self._sql["restore_reset"], parameters)
        # Archiving covers all messages up to a `seq`. If the last one got a new `seq`, some before it may be active.
        if here.get(info.archived_seq) == info.archived_seq:
            border = {"session_id": info.session_id, "archived_seq": info.archived_seq}
            await connection.execute(self._sql["restore_archived"], border)


def _reserve_parameters(info: SessionInfo, messages: list[Message]) -> dict[str, object]:
    """Return the parameters of the statement `reserve`. If `messages` is empty, it only locks the session's row."""
    turn = Turn(info.session_id, (), info.user_id)
    return session_parameters(turn, messages, now=time_text(info.updated_at))


def _session_row(info: SessionInfo) -> dict[str, object]:
    return {
        **vars(info),
        "title": None if info.title is None else clean_text(info.title),
        "reset_seq": min(info.reset_seq, info.deleted_seq),
        "retention": None if info.retention is None else dump_json(info.retention.to_dict()),
        "tags": json_text(list(info.tags)),
        "metadata": json_text(dict(info.metadata)),
        "created_at": time_text(info.created_at),
        "updated_at": time_text(info.updated_at),
    }
