"""Transcripts in the tables `chat_sessions` and `chat_messages`, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import batched

from threadkeep.records import Message, Page, Receipt, SessionInfo, Turn, View
from threadkeep.records.runs import deletion_key
from threadkeep.store.codec import (
    Counter,
    GraphTurns,
    clean_text,
    marked_message_of,
    message_of,
    prepare,
    prepare_turn,
    session_of,
    time_text,
)
from threadkeep.store.commits import GroupCommit, TurnWriter
from threadkeep.store.driver import (
    Backend,
    Connection,
    Driver,
    Joined,
    Parameters,
    PreparedTurn,
    Row,
    Statement,
    TurnRefused,
)
from threadkeep.store.partitions import index_statements
from threadkeep.store.statements import for_values, load_statements
from threadkeep.store.superseding import SupersedingWriter
from threadkeep.store.transcripts import (
    END,
    Branching,
    Marks,
    Recent,
    SessionChanges,
    SessionQuery,
    Superseded,
    Superseding,
    TableSessions,
)

_ANSWER_REACH = 10_000
_KEYS_AT_ONCE = 500
_UNINDEXED_AT_ONCE = 1000
_PAUSE_SECONDS = 0.01
# The statements that delete a session, in order. Each database omits the statements that it does not need.
_DELETION = (
    "hold_runs",
    "delete_runs",
    "forget_answered",
    "forget_active_session",
    "forget_outgoing",
    "forget_channel_session",
    "forget_created_thread",
)


class TableTranscripts:
    """Transcripts in SQL tables; for the guarantees, see `threadkeep.store.transcripts.Transcripts`.

    `count` counts the tokens of a text once, when it is stored. With `graph_turns`, turns are also queued for Graphiti.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        count: Counter,
        clock: Callable[[], datetime],
        graph_turns: GraphTurns | None = None,
    ) -> None:
        self._driver = driver
        self.backend: Backend = driver.backend
        self._count = count
        self._clock = clock
        self._commits = GroupCommit(driver, graph_turns)
        self._turns = TurnWriter(graph_turns)
        self._superseding = SupersedingWriter()
        self._sql = load_statements("transcripts.sql", "superseding.sql")
        self._deletion = deletion_statements(driver.backend)

    async def append(self, turn: Turn) -> Receipt:
        """Store the messages of a turn in one transaction."""
        prepared = self._prepare(turn)
        if turn.completes is None:
            return await self._commits.append(prepared)
        async with self._driver.writing() as connection:
            return await self._turns.store(connection, prepared)

    async def append_joined(
        self, turn: Turn, join: Joined | Callable[[Sequence[Message]], Joined | None]
    ) -> tuple[Receipt, Sequence[list[Row]]]:
        """Store a new turn and execute the statements of `join`, in one transaction.

        Return the receipt and the rows. If `join` is a function, it gets the messages as they will be stored; it
        returns None if its statements are too large.

        Raises:
            TurnRefused: nothing was stored, because a message is stored already, `join` returned None, or a statement
                rejected the turn.
        """
        prepared = self._prepare(turn)
        joined = join if isinstance(join, Joined) else join(prepared.messages)
        if joined is None:
            raise TurnRefused("The statements that belong to the turn are too large; store them after the turn.")
        prepared.before, prepared.after, prepared.is_joined = joined.before, joined.after, True
        if joined.supersedes_after is not None:
            return await self._append_instead(prepared, joined.supersedes_after)
        return await self._commits.append(prepared), prepared.rows

    async def append_instead(self, turn: Turn, seq: int, seen: tuple[int, int]) -> None:
        """Supersede the messages after `seq`, and store a turn instead, if `last_seq` and `revision` equal `seen`."""
        await self._append_instead(self._prepare(turn), seq, seen)

    async def _append_instead(
        self, prepared: PreparedTurn, seq: int, seen: tuple[int, int] | None = None
    ) -> tuple[Receipt, Sequence[list[Row]]]:
        async with self._driver.writing() as connection:
            found = await self._superseding.supersede_after(connection, prepared.turn.session_id, seq, now=prepared.now)
            if seen not in (None, found):
                raise TurnRefused("Another writer has changed the session since it was read.")
            rows = await connection.fetch_each(prepared.before)
            receipt = await self._turns.store(connection, prepared)
            if receipt.duplicates:
                raise TurnRefused("A message of the turn is stored already.")  # this rolls the transaction back
            return receipt, [*rows, *await connection.fetch_each(prepared.after)]

    async def newest(
        self,
        session_id: str,
        *,
        limit: int,
        before: int = END,
        user_id: str | None = None,
        view: View = "active",
    ) -> Page:
        """Return the newest `limit` messages whose `seq` is below `before`, oldest first."""
        if limit <= 0:
            return Page((), None)
        # Read one extra row, which shows whether there is an older page.
        parameters = {"session_id": session_id, "before": min(before, END), "limit": limit + 1, "user_id": user_id}
        statement, read = ("newest", message_of) if view == "active" else ("newest_of_history", marked_message_of)
        sql = self._sql[statement if user_id is None else f"{statement}_of_user"]
        rows = await self._driver.fetch(sql, parameters)
        is_end = len(rows) <= limit
        rows = rows[:limit]
        rows.reverse()
        messages = tuple([read(row) for row in rows])
        return Page(messages, None if is_end else messages[0].seq)

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """Return the newest messages for a model call, and the `Marks` that show later changes of the session."""
        sql, parameters = self.recent_statement(session_id, limit=limit, before=before, after=after, user_id=user_id)
        async with self._driver.reading() as connection:
            rows = await connection.fetch(sql, parameters)
            if not rows:
                # Rows of messages have the session's `Marks`. Without messages, read the marks from the session's row.
                found = await connection.fetch(self._sql["session"], {"session_id": session_id, "user_id": user_id})
                info = session_of(found[0]) if found else None
                borders = (info.archived_seq, info.deleted_seq, info.revision) if info else ()
                return Recent((), info.reset_seq, None, *borders) if info else Recent(())
            messages = tuple([message_of(row) for row in rows])
            marks, last_user_seq = marks_in(rows[0]), rows[0][-1]
            users: list[Row] = []
            low = max(marks.reset_seq, marks.archived_seq, after)
            if low < last_user_seq and all(message.role != "user" for message in messages):
                span = {"session_id": session_id, "after": low, "before": min(last_user_seq + 1, rows[-1][0])}
                users = await connection.fetch(self._sql["newest_user"], span)
        newest_user = message_of(users[0]) if users else None
        reset_seq, archived_seq, deleted_seq, revision, *_ = marks
        return Recent(messages, reset_seq, newest_user, archived_seq, deleted_seq, revision, marks)

    def recent_statement(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Statement:
        """Return the statement that reads the newest messages for a model call, each with the session's `Marks`."""
        between = {"session_id": session_id, "after": after, "before": min(before, END)}
        return self._sql["recent"], {**between, "user_id": user_id, "limit": limit}

    async def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements that only read, in one round trip; return the rows of each statement."""
        async with self._driver.reading() as connection:
            return await connection.fetch_each(statements)

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """Return the message with this id, even if it is superseded; None if it is missing."""
        if clean_text(message_id) != message_id:
            return None
        rows = await self._driver.fetch(self._sql["message_with_id"], {"session_id": session_id, "id": message_id})
        return marked_message_of(rows[0]) if rows else None

    async def with_ids(self, session_id: str, message_ids: Collection[str]) -> list[Message]:
        """Return the existing messages with these ids, including superseded ones, in order."""
        wanted = sorted({message_id for message_id in message_ids if clean_text(message_id) == message_id})
        found = await self._messages("with_ids", session_id, "id", wanted)
        return sorted(found, key=lambda message: message.seq or 0)

    async def at(self, session_id: str, seqs: Collection[int]) -> list[Message]:
        """Return the existing messages with these `seq` values, including superseded ones, in order."""
        return await self._messages("at_places", session_id, "seq", sorted(set(seqs)))

    async def answers_to(self, session_id: str, question: Message) -> list[Message]:
        """Return the complete answers to a question, in order; superseded ones only if the question is superseded."""
        key = {"session_id": session_id, "question": question.id, "run_id": question.run_id}
        followers = {**key, "after": question.seq or 0, "reach": _ANSWER_REACH}
        async with self._driver.reading() as connection:
            if question.superseded_at is not None:
                rows = await connection.fetch(self._sql["answers_to_superseded"], followers)
            else:
                rows = await connection.fetch(self._sql["answers_to"], key)
            if not rows and question.run_id is not None:
                # Also find answers stored before version 0.2, which do not name their question.
                rows = await connection.fetch(self._sql["answer_of_run"], followers)
        return [message_of(row) for row in rows]

    async def tell(self, session_id: str, message_id: str) -> Message | None:
        """Mark an answer, or its newest replacement, as delivered to a caller; return it, or None if it is missing."""
        key: dict[str, object] = {"session_id": session_id, "id": message_id, "now": time_text(self._clock())}
        async with self._driver.writing() as connection:
            while not await connection.execute(self._sql["mark_told"], key):
                rows = await connection.fetch(self._sql["superseding"], key)
                if not rows or rows[0][0] is None:
                    break
                key["id"] = rows[0][0]
            rows = await connection.fetch(self._sql["message_with_id"], key)
        return marked_message_of(rows[0]) if rows else None

    async def supersede(self, superseding: Superseding) -> Superseded:
        """Supersede the messages that a request selects, in one transaction."""
        now = time_text(self._clock())
        given = () if superseding.by is None else (superseding.by,)
        new = prepare(given, count=self._count, stored_at=now) if given else None
        async with self._driver.writing() as connection:
            return await self._superseding.supersede(connection, superseding, new, now=now)

    async def superseded(self, session_id: str, *, after: int = 0, before: int = END) -> list[tuple[int, int]]:
        """Return the `seq` ranges of superseded messages between `after` and `before`, both excluded."""
        between = {"session_id": session_id, "after": after, "before": min(before, END)}
        return [
            (int(first), int(last)) for first, last in await self._driver.fetch(self._sql["superseded_ranges"], between)
        ]

    async def branch(self, branching: Branching) -> None:
        """Create a session with copies of another session's messages, in one transaction."""
        async with self._driver.writing() as connection:
            await self._superseding.branch(connection, branching, now=time_text(self._clock()))

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """Return the metadata of a session, or None if it does not exist or belongs to another user."""
        rows = await self._driver.fetch(self._sql["session"], {"session_id": session_id, "user_id": user_id})
        return session_of(rows[0]) if rows else None

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return one page of sessions that match a query, newest activity first."""
        return await TableSessions(self._driver).sessions(query)

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change fields of a session; do nothing if it does not exist."""
        await self._driver.write(changes.statements(session_id))

    async def reset(self, session_id: str, *, user_id: str | None = None, run_id: str | None = None) -> int | None:
        """Let later model calls omit all stored messages. Return the last `seq`, or None if nothing was reset."""
        async with self._driver.writing() as connection:
            if run_id is not None and not await may_change(connection, self._sql, session_id, run_id):
                return None
            rows = await connection.fetch(self._sql["reset"], {"session_id": session_id, "user_id": user_id})
        return rows[0][0] if rows else None

    async def delete(self, session_id: str, *, run_id: str | None = None) -> bool | None:
        """Delete a session with its data. Return False if it did not exist, None if `run_id` may not delete it."""
        if "unindex" in self._deletion:
            await self._unindex(session_id)
        async with self._driver.writing() as connection:
            return await delete_session(connection, self._deletion, session_id, run_id=run_id)

    async def _unindex(self, session_id: str) -> None:
        """Remove most texts of a long session from SQLite's index, in short transactions, so that others can write.

        If the session is not deleted afterwards, its messages are indexed again.
        """
        rows = await self._driver.fetch(self._deletion["indexed"], {"session_id": session_id})
        for archived_seq, indexed_seq in rows:
            for upto in range(indexed_seq, archived_seq + _UNINDEXED_AT_ONCE, -_UNINDEXED_AT_ONCE):
                step = {"session_id": session_id, "after": upto - _UNINDEXED_AT_ONCE, "upto": upto}
                await self._driver.write([(self._deletion[name], step) for name in ("unindex", "forget_range")])
                await asyncio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        """Reject further turns, and write the queued ones."""
        await self._commits.close()

    def _prepare(self, turn: Turn) -> PreparedTurn:
        now = time_text(self._clock())
        ready = prepare_turn(turn, count=self._count, now=now)
        return PreparedTurn(turn, ready.messages, ready.columns, now, ready.cleaned)

    async def _messages(self, statement: str, session_id: str, name: str, values: Iterable[object]) -> list[Message]:
        """Return the messages that the named statement finds by `values` of the column `name`."""
        found: list[Message] = []
        async with self._driver.reading() as connection:
            for some in batched(values, _KEYS_AT_ONCE):
                wanted = for_values(self._sql[statement], name, some, {"session_id": session_id})
                found += [marked_message_of(row) for row in await connection.fetch(*wanted)]
        return found


def marks_in(row: Row) -> Marks:
    """Return the `Marks` of the session from a row of the statement `recent`."""
    return Marks(*row[-7:-1])


def deletion_statements(backend: Backend) -> Mapping[str, str]:
    """Return the SQL statements that `delete_session` executes, by name."""
    return load_statements("transcripts.sql", f"{backend}/search.sql", f"{backend}/runs.sql")


def changing(session_id: str, run_id: str) -> Parameters:
    """Return the parameters of the statement `changing`, which checks whether a run may change a session."""
    return {"run_id": run_id, "deletion": deletion_key(session_id)}


async def may_change(connection: Connection, sql: Mapping[str, str], session_id: str, run_id: str) -> bool:
    """Lock a session; return True if the run is being executed and its message has not deleted the session before."""
    await connection.execute(sql["lock_session"], {"session_id": session_id})
    return bool(await connection.fetch(sql["changing"], changing(session_id, run_id)))


async def delete_session(
    connection: Connection, sql: Mapping[str, str], session_id: str, *, run_id: str | None = None
) -> bool | None:
    """Delete a session, all derived data and its agents' conversations.

    Return False if it did not exist, and None, without deleting, if the run `run_id` may not delete it.
    """
    key = {"session_id": session_id}
    exists = await connection.execute(sql["lock_session"], key) > 0
    if run_id is not None:
        noted = changing(session_id, run_id)
        if not (found := await connection.fetch(sql["changing"], noted)):
            return None
        if found[0][0] is not None and not await connection.execute(sql["note_deletion"], noted):
            return None
    # If the session did not exist, keep the index: another transaction may have created the session since.
    if exists:
        for (child_id,) in await connection.fetch(sql["own_sessions"], key):
            await delete_session(connection, sql, child_id)
        index = await index_statements(connection, sql)
        await connection.execute(index["forget_range"], {**key, "after": 0, "upto": END})
    for name in _DELETION:
        if name in sql:
            await connection.execute(sql[name], key)
    return exists and await connection.execute(sql["delete_session"], key) > 0
