"""The rows that a conversation of a graph store has in our tables: its numbers, and those of its messages.

No text is in them. Summaries, anchors, manifests and vectors belong to sessions of the tables, and lists of sessions
come from them. The rows follow the graph store, which alone is right: whoever finds them behind brings them up to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple

from threadkeep.errors import StoreError
from threadkeep.records import Message, dump_json
from threadkeep.store.codec import Counter, message_parameters
from threadkeep.store.driver import Connection, Driver, Row
from threadkeep.store.graph_transcripts.reading import ConversationReader
from threadkeep.store.graph_transcripts.shapes import Conversation
from threadkeep.store.statements import load_statements
from threadkeep.store.tables import delete_session, deletion_statements
from threadkeep.store.times import time_of, time_text

_STEP_MESSAGES = 500
_PAGE_SESSIONS = 500


class Indexed(NamedTuple):
    """How far the rows of a session have come; `version` is None where its messages are in the tables."""

    last_seq: int
    created_at: datetime
    version: int | None


class SessionIndex:
    """Keeps the rows of conversations."""

    def __init__(self, driver: Driver, reader: ConversationReader, *, count: Counter) -> None:
        self._driver = driver
        self._reader = reader
        self._count = count
        self._sql = load_statements("graph_index.sql")
        self._deletion = deletion_statements(driver.backend)

    async def follow(self, session_id: str) -> None:
        """Bring the rows of a session up to its conversation; without one they go, with all that hangs on them.

        Raises:
            StoreError: the messages of a session of this name are in the tables.
        """
        while await self._step(session_id):
            pass

    async def versions(self) -> AsyncIterator[tuple[str, int]]:
        """The sessions that have rows, and which version of its conversation each follows."""
        after: str | None = ""
        while after is not None:
            parameters = {"after": after, "limit": _PAGE_SESSIONS}
            async with self._driver.reading() as connection:
                rows = await connection.fetch(self._sql["all_indexed"], parameters)
            for session_id, version in rows:
                yield session_id, int(version)
            after = rows[-1][0] if len(rows) == _PAGE_SESSIONS else None

    async def hide_summaries(self, session_id: str) -> None:
        """Let nothing count any more that stands for what is there now."""
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["hide_before"], {"session_id": session_id})

    async def delete(self, session_id: str) -> bool:
        """Delete the rows of a session, and all that was derived from it; False when there are none."""
        async with self._driver.writing() as connection:
            return await delete_session(connection, self._deletion, session_id)

    async def _step(self, session_id: str) -> bool:
        """Take the next messages of a conversation up; True when more is to be done."""
        place = {"session_id": session_id}
        async with self._driver.reading() as connection:
            seen = _indexed(await connection.fetch(self._sql["indexed"], place))
        # Read after the row: so it is at least as new as what the row follows.
        conversation = await self._reader.conversation(session_id)
        if seen is not None and seen.version is None:
            raise StoreError(
                f"The messages of session {session_id!r} are in the tables of this database, not in the graph store; "
                "export and delete it with THREADKEEP_TRANSCRIPTS=tables, then import it."
            )
        if conversation is None:
            return seen is not None and not await self._forget(session_id, seen)
        begun = _begun(seen, conversation)
        if begun and seen is not None and seen.version == conversation.version:
            return False
        after = seen.last_seq if begun and seen is not None else conversation.deleted_seq
        upto = min(after + _STEP_MESSAGES, conversation.last_seq)
        messages = await self._reader.between(conversation, after + 1, upto)
        async with self._driver.writing() as connection:
            if _indexed(await connection.fetch(self._sql["hold_indexed"], place)) != seen:
                return True
            if seen is not None and not begun:
                await delete_session(connection, self._deletion, session_id)
            if not await self._write(connection, conversation, messages, upto, begun=begun):
                return True
        return upto < conversation.last_seq

    async def _forget(self, session_id: str, seen: Indexed) -> bool:
        async with self._driver.writing() as connection:
            if _indexed(await connection.fetch(self._sql["hold_indexed"], {"session_id": session_id})) != seen:
                return False
            await delete_session(connection, self._deletion, session_id)
        return True

    async def _write(
        self, connection: Connection, conversation: Conversation, messages: list[Message], upto: int, *, begun: bool
    ) -> bool:
        """Write the next rows; False when somebody else has begun meanwhile."""
        row = _session_row(conversation, upto)
        if not begun and not await connection.execute(self._sql["begin_indexing"], row):
            return False
        if messages:
            await connection.execute_many(
                self._sql["index_message"], [self._message_row(conversation, message) for message in messages]
            )
        await connection.execute(self._sql["index_session"], row)
        return True

    def _message_row(self, conversation: Conversation, message: Message) -> dict[str, object]:
        now = time_text(message.created_at or conversation.updated_at)
        columns = message_parameters(message, count=self._count, now=now)
        # One that somebody else wrote may have no id.
        message_id = message.id or f"{conversation.session_id}#{message.seq}"
        return {**columns, "session_id": conversation.session_id, "seq": message.seq, "id": message_id}


def _begun(seen: Indexed | None, conversation: Conversation) -> bool:
    """Whether the rows are of this conversation, not of an earlier one of its name."""
    return seen is not None and seen.created_at == conversation.created_at and seen.last_seq <= conversation.last_seq


def _session_row(conversation: Conversation, upto: int) -> dict[str, object]:
    complete = upto == conversation.last_seq
    return {
        "session_id": conversation.session_id,
        "user_id": conversation.user_id,
        "title": conversation.title,
        "last_message": conversation.last_message,
        "last_seq": upto,
        "last_user_seq": min(conversation.last_user_seq, upto),
        "reset_seq": min(conversation.reset_seq, upto),
        "deleted_seq": conversation.deleted_seq,
        "active": conversation.active,
        "tags": dump_json(list(conversation.tags)),
        "metadata": conversation.metadata,
        "created_at": time_text(conversation.created_at),
        "updated_at": time_text(conversation.updated_at),
        "graph_version": conversation.version if complete else -1,
    }


def _indexed(rows: list[Row]) -> Indexed | None:
    if not rows:
        return None
    last_seq, created_at, version = rows[0]
    return Indexed(int(last_seq), time_of(created_at), None if version is None else int(version))
