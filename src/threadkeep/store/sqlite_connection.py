"""One connection of SQLite: what runs in its thread, and its errors in our words."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import aiosqlite

from threadkeep.errors import StoreClosed, StoreError, StoreUnavailable
from threadkeep.store.driver import DuplicateRow, Parameters, Row, Statement

# aiosqlite's debug log has the parameters of every statement: what people said. No level may show it.
logging.getLogger("aiosqlite").addFilter(lambda record: record.levelno > logging.DEBUG)


class SqliteConnection:
    """A connection of aiosqlite behind the verbs of `threadkeep.store.driver.Connection`."""

    def __init__(self, raw: aiosqlite.Connection) -> None:
        self.raw = raw

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """All rows of a statement."""
        with translated():
            return cast("list[Row]", await self.raw.execute_fetchall(sql, parameters))

    async def execute(self, sql: str, parameters: Parameters) -> int:
        """Run a statement; answers the number of rows it changed."""
        with translated():
            cursor = await self.raw.execute(sql, parameters)
            if cursor.rowcount >= 0:
                return cursor.rowcount
            # Python counts for statements that begin with their verb alone, not for those that begin WITH something.
            [(changed,)] = await self.raw.execute_fetchall("SELECT changes()")
            return int(changed)

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """All rows of each of some statements, in one visit to the connection's thread."""
        return await self.run(Batch(statements, []))

    async def run(self, batch: Batch) -> list[list[Row]]:
        """The rows of each statement of a batch."""
        with translated():
            await self.raw.execute("", batch)
        return batch.rows

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Run a statement once for each row of parameters."""
        with translated():
            await self.raw.executemany(sql, rows)


class Batch(NamedTuple):
    """Some statements that stand in the place of a statement's parameters; `rows` takes the answers."""

    statements: Sequence[Statement]
    rows: list[list[Row]]
    whole: bool = False

    def store(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Run them: as a transaction if they are the whole of one, which whoever asked for it rolls back."""
        if self.whole:
            connection.execute("BEGIN IMMEDIATE")
        for sql, parameters in self.statements:
            self.rows.append(connection.execute(sql, parameters).fetchall())
        return connection.execute("COMMIT" if self.whole else "SELECT 1")


class Group(NamedTuple):
    """A group of new turns that stands in the place of a statement's parameters; `counted` takes the answer."""

    sql: Mapping[str, str]
    sessions: Sequence[Parameters]
    messages: Sequence[Parameters]
    counted: dict[str, int]

    def store(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Store the group in a transaction; whoever asked for it rolls back when this raises."""
        connection.execute("BEGIN IMMEDIATE")
        pruned: set[str] = set()
        for session in self.sessions:
            for session_id, last_seq, deleted_seq in connection.execute(self.sql["reserve"], session).fetchall():
                self.counted[session_id] = last_seq
                if deleted_seq:
                    pruned.add(session_id)
        connection.executemany(self.sql["insert_message"], self._numbered())
        if pruned:
            known = [message for message in self.messages if message["session_id"] in pruned]
            connection.executemany(self.sql["refuse_deleted_id"], known)
        answers = [message for message in self.messages if message["answers"] and message["session_id"] in self.counted]
        if answers:
            connection.executemany(self.sql["refuse_unanswered"], answers)
        return connection.execute("COMMIT")

    def _numbered(self) -> Iterator[Parameters]:
        for message in self.messages:
            if (last_seq := self.counted.get(str(message["session_id"]))) is not None:
                yield {**message, "seq": last_seq - int(str(message["behind"]))}


class ThreadConnection(sqlite3.Connection):
    """What runs in aiosqlite's thread: a group is one call, since every call costs a visit to the thread and back."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement, or a group of them."""
        return parameters.store(self) if isinstance(parameters, Group | Batch) else super().execute(sql, parameters)


_CURES = (
    ("locked", "Another process holds its lock for too long; see `threadkeep doctor` for who uses the file."),
    ("busy", "Another process holds its lock for too long; see `threadkeep doctor` for who uses the file."),
    ("full", "The disk (or the quota) is full; make room and try again."),
    ("readonly", "The file or its folder is read-only for this user; change its permissions."),
    (
        "unable to open",
        "It cannot be opened; check that the path is no folder itself, that its folder exists, and the permissions.",
    ),
    ("disk i/o", "The disk failed to read or write; check the disk and the free space."),
    ("malformed", "The file is damaged; restore it from a backup."),
    ("not a database", "The file is not an SQLite database; check THREADKEEP_DATABASE_URL."),
)


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of SQLite into ours, each with its cure."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error).lower()
        if isinstance(error, sqlite3.IntegrityError) and "unique" in text:
            raise DuplicateRow("A row with this key is there already.") from error
        for sign, cure in _CURES:
            if sign in text:
                raise StoreUnavailable(f"The SQLite database does not take this call ({error}). {cure}") from error
        if "closed" in text:
            raise StoreClosed("The database was closed; use a memory inside its `async with` block.") from error
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StoreError(
            f"SQLite refused this call ({name}); see what `threadkeep doctor` says of its tables."
        ) from error
    except ValueError as error:
        # aiosqlite's word for a connection whose thread has ended.
        if "closed" in str(error) or "no active connection" in str(error):
            raise StoreClosed("The database was closed; use a memory inside its `async with` block.") from error
        raise
