"""Rows in Threadkeep's tables for the sessions and messages of a graph store. The rows have no message texts.

Summaries, anchors, manifests and vectors refer to these rows, and lists of sessions are read from them. The graph store
is authoritative.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import NamedTuple

from threadkeep.errors import StoreError
from threadkeep.graph_store.appending import Written
from threadkeep.graph_store.layout import size_of
from threadkeep.graph_store.reading import ConversationReader
from threadkeep.graph_store.shapes import Conversation
from threadkeep.records import Message, dump_json
from threadkeep.store.codec import Counter, marks_of, message_parameters, time_of, time_text
from threadkeep.store.driver import Connection, Driver, DuplicateRow, Parameters, Row, Statement
from threadkeep.store.statements import load_statements
from threadkeep.store.superseding import Span, SupersedingWriter
from threadkeep.store.tables import changing, delete_session, deletion_statements, may_change
from threadkeep.store.transcripts import END, Branching

_STEP_MESSAGES = 500
_PAGE_SESSIONS = 500


class Indexed(NamedTuple):
    """A session's row. `version` is its conversation's version, or None if its messages are in the tables."""

    last_seq: int
    created_at: datetime
    version: int | None
    revision: int = 0


class SessionIndex:
    """A writer of index rows: rows in Threadkeep's tables for conversations whose messages are in a graph store."""

    def __init__(self, driver: Driver, reader: ConversationReader, *, count: Counter) -> None:
        self._driver = driver
        self._reader = reader
        self._count = count
        self._sql = load_statements("superseding.sql", "graph_index.sql")
        self._superseding = SupersedingWriter()
        self._deletion = deletion_statements(driver.backend)

    async def follow(self, session_id: str) -> None:
        """Update a session's rows from its conversation in the graph store; delete them if there is no conversation.

        Raises:
            StoreError: the messages of a session with this id are in the tables.
        """
        while await self._step(session_id):
            pass

    async def add(self, written: Written) -> bool:
        """Add rows for a turn's messages. Return False if rows may still be missing; the caller then calls `follow`."""
        statements = self.additions(written)
        try:
            return bool(statements) and bool((await self._driver.write(statements))[-1])
        except DuplicateRow:  # there are rows of an earlier conversation with this id
            return False

    def additions(self, written: Written) -> list[Statement]:
        """Return the statements that add rows for a turn's messages. The last one returns a row if all succeed."""
        appended, former = written.appended, written.former_version
        if appended is None:
            return []
        conversation = appended.conversation
        session = {**_session_row(conversation, conversation.last_seq), "former_version": former}
        beginning = [(self._sql["begin_indexing"], session)] if former < 0 else []
        no_marks: dict[str, object] = {"superseded_at": None, "superseded_by": None}
        return [*beginning, *self._indexing(session, [{**no_marks, **row} for row in appended.rows])]

    def _indexing(self, session: Parameters, rows: Iterable[Parameters]) -> list[Statement]:
        """Return the statements that change a session's row, and then add rows of messages."""
        changed = {name: session[name] for name in ("session_id", "graph_version")}
        changed["begun_at"] = session["created_at"]
        messages = [(self._sql["index_message"], {**row, **changed}) for row in rows]
        return [(self._sql["index_session"], session), *messages]

    async def versions(self) -> AsyncIterator[tuple[str, int]]:
        """Yield the id of each session with index rows, and the version of the conversation that the rows describe."""
        after: str | None = ""
        while after is not None:
            parameters = {"after": after, "limit": _PAGE_SESSIONS}
            rows = await self._driver.fetch(self._sql["all_indexed"], parameters)
            for session_id, version in rows:
                yield session_id, int(version)
            after = rows[-1][0] if len(rows) == _PAGE_SESSIONS else None

    async def hide_summaries(self, session_id: str, *, run_id: str | None) -> bool:
        """Deactivate a session's summaries before the session is reset. Return False if the run may not reset it."""
        async with self._driver.writing() as connection:
            if run_id is not None and not await may_change(connection, self._deletion, session_id, run_id):
                return False
            await connection.execute(self._sql["hide_before"], {"session_id": session_id})
        return True

    async def may_change(self, session_id: str, run_id: str) -> bool:
        """Return True if a run may delete or reset a session: the run is executing, and has not deleted it before."""
        return bool(await self._driver.fetch(self._deletion["changing"], changing(session_id, run_id)))

    async def forget_derived(self, session_id: str, *ranges: tuple[int, int]) -> None:
        """Deactivate summaries and delete other data derived from the messages in ranges of `seq`."""
        async with self._driver.writing() as connection:
            rows = await connection.fetch(self._sql["hold_indexed"], {"session_id": session_id})
            for first, last in ranges:
                if rows and rows[0][0] >= first:
                    await self._superseding.forget_derived(connection, session_id, first, min(rows[0][0], last))

    async def copy_summaries(self, branching: Branching) -> None:
        """Copy a session's summaries to its branch, if the branch has copies of all messages that they cover."""
        at = END if branching.at is None else branching.at
        parameters = {"session_id": branching.session_id, "branch_id": branching.branch_id, "at": at}
        async with self._driver.writing() as connection:
            rows = await connection.fetch(self._sql["place_at"], parameters)
            active = branching.at is None or (bool(rows) and rows[0][1] is None)
            if active and not await connection.fetch(self._sql["any_summary"], {"session_id": branching.branch_id}):
                await connection.execute(self._sql["copy_summaries"], {**parameters, "since": None})

    async def delete(self, session_id: str, *, run_id: str | None = None) -> bool | None:
        """Delete a session's data in the tables. Return False if it has no rows, None if the run may not delete it."""
        async with self._driver.writing() as connection:
            return await delete_session(connection, self._deletion, session_id, run_id=run_id)

    async def _step(self, session_id: str) -> bool:
        """Add or update rows for up to 500 messages of a conversation; return True if another call is needed."""
        parameters = {"session_id": session_id}
        seen = _indexed(await self._driver.fetch(self._sql["indexed"], parameters))
        # Read the conversation after its row, so that it is not older than the row's version.
        conversation = await self._reader.conversation(session_id)
        if seen is not None and seen.version is None:
            raise StoreError(
                f"The messages of session {session_id!r} are in the tables of this database, not in the graph store; "
                "export and delete it with THREADKEEP_TRANSCRIPTS=tables, then import it."
            )
        if conversation is None:
            return seen is not None and not await self._forget(session_id, seen)
        known = seen
        if seen and (seen.created_at != conversation.created_at or seen.last_seq > conversation.last_seq):
            known = None  # the row belongs to an earlier conversation with the same id
        if known is not None and known.version == conversation.version:
            return False
        after = conversation.deleted_seq if known is None else known.last_seq
        upto = min(after + _STEP_MESSAGES, conversation.last_seq)
        messages = await self._reader.between(conversation, after + 1, upto)
        async with self._driver.writing() as connection:
            if _indexed(await connection.fetch(self._sql["hold_indexed"], parameters)) != seen:
                return True
            if seen is not None and known is None:
                await delete_session(connection, self._deletion, session_id)
            if known is not None and known.revision != conversation.revision:
                # Mark superseded answers before new rows are added: the table accepts only one active answer with the
                # same question, author and ordinal.
                await self._mark(connection, conversation, upto)
            former = None if known is None else known.version
            if not await self._write(connection, conversation, messages, upto, former=former):
                return True
        return upto < conversation.last_seq

    async def _forget(self, session_id: str, seen: Indexed) -> bool:
        async with self._driver.writing() as connection:
            if _indexed(await connection.fetch(self._sql["hold_indexed"], {"session_id": session_id})) != seen:
                return False
            await delete_session(connection, self._deletion, session_id)
        return True

    async def _write(
        self,
        connection: Connection,
        conversation: Conversation,
        messages: list[Message],
        upto: int,
        *,
        former: int | None,
    ) -> bool:
        """Add rows of messages. If `former` is None, first add the session's row; return False if that row exists."""
        row = _session_row(conversation, upto)
        if former is None and not await connection.execute(self._sql["begin_indexing"], row):
            return False
        session = {**row, "former_version": -1 if former is None else former}
        rows = [self._message_row(conversation, message) for message in messages]
        await connection.fetch_each(self._indexing(session, rows))
        return True

    async def _mark(self, connection: Connection, conversation: Conversation, upto: int) -> None:
        """Mark rows of messages that are superseded in the graph store; deactivate data derived from these messages."""
        session_id, now = conversation.session_id, time_text(conversation.updated_at)
        for first, last in conversation.superseded_between(conversation.deleted_seq + 1, upto):
            if seqs := await self._superseding.mark(connection, session_id, Span(first, last), now=now):
                await self._superseding.forget_derived(connection, session_id, min(seqs), max(seqs))

    def _message_row(self, conversation: Conversation, message: Message) -> dict[str, object]:
        now = time_text(message.created_at or conversation.updated_at)
        columns = message_parameters(message, count=self._count, now=now)
        # Another program may have written the message without an id.
        message_id = message.id or f"{conversation.session_id}#{message.seq}"
        return {**columns, **marks_of(message), "seq": message.seq, "id": message_id}


def _session_row(conversation: Conversation, upto: int) -> dict[str, object]:
    complete = upto == conversation.last_seq
    superseded = size_of(conversation.superseded_between(conversation.deleted_seq + 1, upto))
    return {
        **vars(conversation),
        "message_count": upto - conversation.deleted_seq - superseded,
        "last_seq": upto,
        "last_user_seq": min(conversation.last_user_seq, upto),
        "reset_seq": min(conversation.reset_seq, upto),
        "tags": dump_json(list(conversation.tags)),
        "created_at": time_text(conversation.created_at),
        "updated_at": time_text(conversation.updated_at),
        "graph_version": conversation.version if complete else -1,
    }


def _indexed(rows: list[Row]) -> Indexed | None:
    if not rows:
        return None
    last_seq, created_at, version, revision = rows[0]
    return Indexed(int(last_seq), time_of(created_at), None if version is None else int(version), int(revision))
