"""A SQLite connection: the code that aiosqlite runs in its thread, and the translation of its errors."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import aiosqlite

from threadkeep.errors import DatabaseFileReplaced, InvalidInput, StoreClosed, StoreError, StoreUnavailable
from threadkeep.store.driver import DuplicateRow, NewTurns, Parameters, Row, Statement, seconds_left, unstorable_text
from threadkeep.store.private_files import is_read_only

# aiosqlite's debug log contains statement parameters, which are people's texts, so it is off at every log level.
logging.getLogger("aiosqlite").addFilter(lambda record: record.levelno > logging.DEBUG)


class SqliteConnection:
    """An aiosqlite connection with the methods of the protocol `Connection`."""

    def __init__(self, raw: aiosqlite.Connection) -> None:
        self.raw = raw

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """Return all rows of a statement."""
        with translated():
            return cast("list[Row]", await self.raw.execute_fetchall(sql, parameters))

    async def execute(self, sql: str, parameters: Parameters) -> int:
        """Execute a statement; return the number of changed rows."""
        with translated():
            cursor = await self.raw.execute(sql, parameters)
            if cursor.rowcount >= 0:
                return cursor.rowcount
            # Ask SQLite, because Python does not count the changes of a statement that begins with WITH.
            [(changed,)] = await self.raw.execute_fetchall("SELECT changes()")
            return int(changed)

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements in one call to the thread; return the rows of each statement."""
        return await self.run(Batch(statements, []))

    async def run(self, batch: Batch) -> list[list[Row]]:
        """Execute a batch in the connection's thread; return the rows of each statement."""
        with translated():
            await self.raw.execute("", batch)
        return batch.rows

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Execute a statement once for each row of parameters."""
        with translated():
            await self.raw.executemany(sql, rows)


def read_only_uri(path: Path) -> str:
    """Return the SQLite URI that opens a file for reading only.

    A file that this process cannot write is opened as immutable if it has no WAL, because SQLite could not create one.
    This is safe: a file without a WAL has no writer.
    """
    wal = path.with_name(path.name + "-wal")
    immutable = is_read_only(path) and not (wal.exists() and wal.stat().st_size)
    return f"file:{quote(os.fsencode(path))}?mode=ro{'&immutable=1' if immutable else ''}"


class Batch(NamedTuple):
    """Statements to execute in one call, passed to aiosqlite in place of parameters; their rows are added to `rows`.

    If `begins` is true, a transaction is begun first, and waits up to `wait_seconds` for the file's lock. If `commits`
    is true, a COMMIT is executed last.
    """

    statements: Sequence[Statement]
    rows: list[list[Row]]
    begins: bool = False
    commits: bool = False
    wait_seconds: float | None = None

    def store(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Execute the statements; if one fails, the caller must roll back the transaction."""
        if self.begins:
            begin(connection, self.wait_seconds)
        for sql, parameters in self.statements:
            self.rows.append(connection.execute(sql, parameters).fetchall())
        # Return no rows: an unread row keeps its statement active, and an interrupt then makes later statements fail.
        return connection.execute("COMMIT") if self.commits else connection.cursor()


class SqliteTransaction:
    """A write transaction; each of its methods makes one call to the connection's thread."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self.is_open = False

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements in one call to the thread; return the rows of each statement."""
        begins, self.is_open = not self.is_open, True
        return await self._connection.run(Batch(statements, [], begins, wait_seconds=seconds_left()))

    async def commit(self, statements: Sequence[Statement], beside: Sequence[Statement] = ()) -> list[list[Row]]:
        """Execute `statements`, then `beside`, and commit; return the rows of each statement."""
        every = [*statements, *beside]
        rows = await self._connection.run(Batch(every, [], not self.is_open, True, seconds_left()))
        self.is_open = False
        return rows


def begin(connection: sqlite3.Connection, wait_seconds: float | None) -> None:
    """Begin a write transaction. Wait for the lock up to `wait_seconds`, but not beyond the connection's timeout.

    Raises:
        DatabaseFileReplaced: the file was removed or replaced.
        sqlite3.OperationalError: the lock was not free in time.
    """
    if isinstance(connection, BatchingConnection) and connection.file is not None:
        connection.file.check()
    if wait_seconds is None:
        connection.execute("BEGIN IMMEDIATE")
        return
    [(usual,)] = connection.execute("PRAGMA busy_timeout").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {min(int(wait_seconds * 1000), usual)}").close()
    try:
        connection.execute("BEGIN IMMEDIATE")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {usual}").close()


class Group(NamedTuple):
    """A group of new turns, passed to aiosqlite in place of a statement's parameters.

    `store` fills `counted` with the new `last_seq` of each session, and `rows` with the results of `turns.before` and
    `turns.after`.
    """

    sql: Mapping[str, str]
    turns: NewTurns
    counted: dict[str, int]
    rows: list[list[Row]]
    wait_seconds: float | None

    def store(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Store the group in a transaction; if this fails, the caller must roll back."""
        turns = self.turns
        begin(connection, self.wait_seconds)
        self.rows.extend([connection.execute(sql, parameters).fetchall() for sql, parameters in turns.before])
        pruned: set[str] = set()
        for session in turns.sessions:
            for session_id, last_seq, deleted_seq in connection.execute(self.sql["reserve"], session).fetchall():
                self.counted[session_id] = last_seq
                if deleted_seq:
                    pruned.add(session_id)
        numbered = [
            {**message, "seq": last_seq - int(str(message["behind"]))}
            for message in turns.messages
            if (last_seq := self.counted.get(str(message["session_id"]))) is not None
        ]
        answers = [
            message for message in turns.messages if message["question"] and message["session_id"] in self.counted
        ]
        if answers:  # before the insert, because a turn cannot answer its own message
            connection.executemany(self.sql["refuse_unanswered"], answers)
        connection.executemany(self.sql["insert_message"], numbered)
        if pruned:
            known = [message for message in turns.messages if message["session_id"] in pruned]
            connection.executemany(self.sql["refuse_deleted_id"], known)
        if turns.graph_turns:
            connection.executemany(self.sql["add_graph_turn"], self._graph_rows())
        self.rows.extend([connection.execute(sql, parameters).fetchall() for sql, parameters in turns.after])
        return connection.execute("COMMIT")

    def _graph_rows(self) -> Iterator[Parameters]:
        for turn in self.turns.graph_turns:
            if (last_seq := self.counted.get(str(turn["session_id"]))) is not None:
                first, last = int(str(turn["first_behind"])), int(str(turn["last_behind"]))
                yield {**turn, "first_seq": last_seq - first, "last_seq": last_seq - last}


class OpenFile(NamedTuple):
    """The file of an open database, by device and inode.

    SQLite does not notice when its file is removed or replaced: commits would go to a file without a name.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> OpenFile | None:
        """Return the file that is now at `path`, or None if there is none."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return cls(path, found.st_dev, found.st_ino)

    def check(self) -> None:
        """Check that the path still names this file. This is blocking I/O.

        Raises:
            DatabaseFileReplaced: the path names no file, or another file.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise DatabaseFileReplaced(self.path) from None
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise DatabaseFileReplaced(self.path)


_CALLS = (Group, Batch)


class BatchingConnection:
    """A connection that executes several statements in one call to its thread, to save thread switches."""

    file: OpenFile | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement, or the statements of a `Batch` or `Group` that is passed as `parameters`."""
        if isinstance(parameters, _CALLS):
            return parameters.store(cast("sqlite3.Connection", self))
        return super().execute(sql, parameters)  # type: ignore[misc,no-any-return]


class ThreadConnection(BatchingConnection, sqlite3.Connection):
    """A connection of Python's `sqlite3`, for databases without an encryption key."""


_CURES = {
    "locked": "Another process holds its lock for too long; end that process. `threadkeep doctor` names it.",
    "busy": "Another process holds its lock for too long; end that process. `threadkeep doctor` names it.",
    "full": "The disk (or the quota) is full; free some space and try again.",
    "readonly": "The file or its folder is read-only for this user; change its permissions.",
    "unable to open": (
        "It cannot be opened; check that the path is not a folder, that its folder exists, and the permissions. "
        "If it has a -wal file on a read-only mount, copy both to a writable folder."
    ),
    "disk i/o": "The disk failed to read or write; check the disk and the free space.",
    "malformed": "The file is damaged; restore it from a backup.",
    "not a database": (
        "The file is not an SQLite database, or has another key; check its path and THREADKEEP_DATABASE_KEY, or "
        "restore a backup."
    ),
}
_NOT_UTF8 = re.compile("Could not decode to UTF-8 column '(.*?)' with text")


def sqlite_errors(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Return `others` and the base classes of SQLite's and SQLCipher's errors."""
    cipher = sys.modules.get("sqlcipher3.dbapi2")
    return (*others, sqlite3.Error) if cipher is None else (*others, sqlite3.Error, cipher.Error)


@dataclass(slots=True)
class translated(AbstractContextManager["translated", None]):  # noqa: N801 - used like a function, as the classes in contextlib
    """A context manager that translates SQLite's errors into Threadkeep's errors, which name the `path`, if given."""

    path: Path | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise Threadkeep's error instead of SQLite's."""
        if error is None:
            return
        if isinstance(error, sqlite_errors()):
            if not_utf8 := _NOT_UTF8.match(str(error)):
                # Suppress the cause, because it quotes the text.
                raise StoreError(f"The column {not_utf8[1]} is not UTF-8; correct it, or restore a backup.") from None
            raise _translation(error, self.path) from error
        if isinstance(error, UnicodeEncodeError):
            # Suppress the cause, because it contains a person's text.
            raise unstorable_text() from None
        if isinstance(error, OverflowError):
            raise InvalidInput("A number is too large for the database; use one below 2**63.") from error
        # aiosqlite raises ValueError with these messages if its thread has ended.
        if isinstance(error, ValueError) and str(error) in ("Connection closed", "no active connection"):
            raise StoreClosed("The database was closed; use a memory inside its `async with` block.") from error


def _translation(error: BaseException, path: Path | None) -> StoreError:
    text = str(error).lower()
    if type(error).__name__ == sqlite3.IntegrityError.__name__ and "unique" in text:
        return DuplicateRow("A row with this key exists already.")
    for sign, cure in _CURES.items():
        if sign in text:
            named = f"SQLite database {path}" if path else "SQLite database"
            return StoreUnavailable(f"The {named} cannot execute this call ({error}). {cure}")
    if "closed" in text:
        return StoreClosed("The database was closed; use a memory inside its `async with` block.")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreError(f"SQLite rejected this call ({name}); check the tables with `threadkeep doctor`.")


def connect(database: str | Path, key: str | None, **options: Any) -> sqlite3.Connection:
    """Open a connection with the options of `sqlite3.connect`. This is blocking I/O.

    A wrong key is detected at the first statement.
    """
    if key is None:
        return sqlite3.connect(database, factory=ThreadConnection, **options)
    connection = _sqlcipher().connect(database, factory=_cipher_connection(), **options)
    # Turn the log off, because a wrong key must not write to stderr.
    connection.execute("PRAGMA cipher_log_level = NONE").close()
    connection.execute(f"PRAGMA key = \"x'{key}'\"").close()
    return cast("sqlite3.Connection", connection)


def export_plain(source: Path, target: Path, key: str) -> None:
    """Write an encrypted copy of an unencrypted database file. This is blocking I/O."""
    connection = _sqlcipher().connect(source.absolute().as_uri() + "?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute(f"ATTACH DATABASE ? AS copy KEY \"x'{key}'\"", (str(target),))
        connection.execute("SELECT sqlcipher_export('copy')").fetchall()
    finally:
        connection.close()


def _sqlcipher() -> Any:
    from sqlcipher3 import dbapi2  # it needs the extra `sqlcipher`

    return dbapi2


@cache
def _cipher_connection() -> type:
    dbapi2 = _sqlcipher()

    class CipherConnection(BatchingConnection, dbapi2.Connection):  # type: ignore[misc, name-defined]
        """A connection of SQLCipher whose statements raise the errors of Python's `sqlite3`."""

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            """Execute a statement, or the statements of a `Batch` or `Group` that is passed as `parameters`."""
            try:
                return super().execute(sql, parameters)
            except dbapi2.Error as error:
                # Raise the error that LangGraph's checkpointer expects when it sets up its tables.
                known = getattr(sqlite3, type(error).__name__)(*error.args)
                known.sqlite_errorcode, known.sqlite_errorname = error.sqlite_errorcode, error.sqlite_errorname
                raise known from error

    return CipherConnection
