"""Transcripts in the tables `chat_sessions` and `chat_messages`, on either engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from threadkeep.records import Message, Page, Receipt, SessionInfo, Turn, dump_json
from threadkeep.store.codec import (
    Counter,
    clean_json,
    clean_text,
    message_of,
    session_of,
)
from threadkeep.store.commits import GroupCommit, PreparedTurn
from threadkeep.store.driver import Backend, Connection, Driver, Parameters, Row
from threadkeep.store.preparing import prepare
from threadkeep.store.statements import for_rows, load_statements, row_parameters
from threadkeep.store.times import time_text
from threadkeep.store.transcripts import END, Recent, SessionChanges, SessionQuery

_LAST_TIME = "9999-12-31T23:59:59.999999+00:00"
_LAST_ID = "~"
_ANSWER_REACH = 10_000
_PLACES_AT_ONCE = 500
# In this order; those that an engine does not need are not in its files.
_DELETION = (
    "hold_runs",
    "delete_runs",
    "forget_answered",
    "forget_active_session",
)


class TableTranscripts:
    """The transcript's contract on SQL tables; see `threadkeep.store.transcripts.Transcripts` for its laws.

    `count` counts the tokens of a text, once, when it is stored. `clock` gives `created_at` and `updated_at`.
    """

    def __init__(self, driver: Driver, *, count: Counter, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._count = count
        self._clock = clock
        self._commits = GroupCommit(driver)
        self._sql = load_statements("transcripts.sql")
        self._deletion = deletion_statements(driver.backend)

    @property
    def backend(self) -> Backend:
        """Which engine is below, for metrics."""
        return self._driver.backend

    async def append(self, turn: Turn) -> Receipt:
        """Store a turn."""
        return await self._commits.append(self._prepare(turn))

    async def newest(self, session_id: str, *, limit: int, before: int = END, user_id: str | None = None) -> Page:
        """The newest messages before a `seq`, oldest first."""
        if limit <= 0:
            return Page((), None)
        # One more than asked for tells whether there is an older page: the first message is not always number 1.
        parameters = {"session_id": session_id, "user_id": user_id, "before": min(before, END), "limit": limit + 1}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["newest" if user_id is None else "newest_of_user"], parameters)
        messages = tuple([message_of(row) for row in reversed(rows[:limit])])
        return Page(messages, messages[0].seq if len(rows) > limit else None)

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """The raw material of a window."""
        between = {"session_id": session_id, "after": after, "before": min(before, END)}
        parameters = {**between, "user_id": user_id, "limit": limit}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["recent"], parameters)
            if not rows:
                # Nothing since the reset: the row of the session alone knows of it.
                found = await connection.fetch(self._sql["session"], {"session_id": session_id, "user_id": user_id})
                info = session_of(found[0]) if found else None
                return Recent((), info.reset_seq, None, info.archived_seq, info.deleted_seq) if info else Recent(())
            messages = tuple([message_of(row) for row in rows])
            reset_seq, archived_seq, deleted_seq, last_user_seq = rows[0][-4:]
            users: list[Row] = []
            low = max(reset_seq, archived_seq, after)
            if low < last_user_seq and all(message.role != "user" for message in messages):
                place = {"session_id": session_id, "after": low, "before": min(last_user_seq + 1, rows[-1][0])}
                users = await connection.fetch(self._sql["newest_user"], place)
        newest_user = message_of(users[0]) if users else None
        return Recent(messages, reset_seq, newest_user, archived_seq, deleted_seq)

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """The message with an id."""
        if clean_text(message_id) != message_id:
            return None
        return await self._one_message("message_with_id", {"session_id": session_id, "id": message_id})

    async def at(self, session_id: str, places: Collection[int]) -> list[Message]:
        """The messages with these `seq`, in order; those that are there."""
        wanted = sorted(set(places))
        found: list[Message] = []
        async with self._driver.reading() as connection:
            for start in range(0, len(wanted), _PLACES_AT_ONCE):
                rows = [{"seq": seq} for seq in wanted[start : start + _PLACES_AT_ONCE]]
                statement = for_rows(self._sql["at_places"], len(rows))
                parameters = {**row_parameters(rows), "session_id": session_id}
                found += [message_of(row) for row in await connection.fetch(statement, parameters)]
        return found

    async def answer(self, session_id: str, *, after: int, run_id: str) -> Message | None:
        """The newest assistant message of a run that follows a message."""
        parameters = {"session_id": session_id, "after": after, "reach": _ANSWER_REACH, "run_id": run_id}
        return await self._one_message("answer_of_run", parameters)

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """What is known of a session."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["session"], {"session_id": session_id, "user_id": user_id})
        return session_of(rows[0]) if rows else None

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Some sessions, newest activity first."""
        updated_at, session_id = query.cursor or (None, _LAST_ID)
        parameters = {
            "user_id": query.user_id,
            "updated_at": time_text(updated_at) if updated_at else _LAST_TIME,
            "session_id": session_id,
            "active": query.active,
            "pattern": None if query.query is None else like_pattern(clean_text(query.query)),
            "limit": query.limit,
        }
        async with self._driver.reading() as connection:
            rows = await connection.fetch(
                self._sql["sessions" if query.user_id is None else "sessions_of_user"], parameters
            )
        return [session_of(row) for row in rows]

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change what is known of a session."""
        values: dict[str, object] = {}
        if changes.title is not None:
            values["set_title"] = clean_text(changes.title)
        if changes.tags is not None:
            values["set_tags"] = dump_json(clean_json(list(changes.tags)))
        if changes.metadata is not None:
            values["set_metadata"] = dump_json(clean_json(dict(changes.metadata)))
        if changes.active is not None:
            values["set_active"] = changes.active
        async with self._driver.writing() as connection:
            for name, value in values.items():
                await connection.execute(self._sql[name], {"session_id": session_id, "value": value})

    async def reset(self, session_id: str, *, user_id: str | None = None) -> int | None:
        """Let later windows start after what is there now."""
        async with self._driver.writing() as connection:
            rows = await connection.fetch(self._sql["reset"], {"session_id": session_id, "user_id": user_id})
        return rows[0][0] if rows else None

    async def delete(self, session_id: str) -> bool:
        """Delete a session, its messages and all that was derived from them."""
        async with self._driver.writing() as connection:
            return await delete_session(connection, self._deletion, session_id)

    async def close(self) -> None:
        """Write what is waiting."""
        await self._commits.close()

    def _prepare(self, turn: Turn) -> PreparedTurn:
        now = time_text(self._clock())
        ready = prepare(turn.messages, count=self._count, stored_at=lambda _: now)
        return PreparedTurn(turn, ready.messages, ready.columns, now, ready.cleaned)

    async def _one_message(self, statement: str, parameters: Parameters) -> Message | None:
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql[statement], parameters)
        return message_of(rows[0]) if rows else None


def deletion_statements(backend: Backend) -> Mapping[str, str]:
    """The statements of `delete_session`."""
    return load_statements("transcripts.sql", f"{backend}/search.sql", f"{backend}/runs.sql")


async def delete_session(connection: Connection, sql: Mapping[str, str], session_id: str) -> bool:
    """Delete a session and all that was derived from it, in a transaction that is open; False when it was not there."""
    key = {"session_id": session_id}
    there = await connection.execute(sql["lock_session"], key) > 0
    # Where there was none one may have begun since, which no lock keeps from being indexed: that one stays.
    if there:
        await connection.execute(sql["forget_texts"], key)
    for name in _DELETION:
        if name in sql:
            await connection.execute(sql[name], key)
    return there and await connection.execute(sql["delete_session"], key) > 0


def like_pattern(text: str) -> str:
    r"""The LIKE pattern (with ESCAPE '\') of everything that contains a text."""
    return "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"
