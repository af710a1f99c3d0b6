"""The SQLite driver: one writing connection, a few reading ones, WAL between them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import aiosqlite

from threadkeep.errors import StoreClosed, StoreError, StoreUnavailable
from threadkeep.store.driver import Backend, DuplicateRow, Parameters, Row, StoreOptions
from threadkeep.store.statements import load_statements

_READERS = 4
_STOP_SECONDS = 0.01

# aiosqlite's debug log has the parameters of every statement: what people said. No level may show it.
logging.getLogger("aiosqlite").addFilter(lambda record: record.levelno > logging.DEBUG)


class SqliteConnection:
    """A connection of aiosqlite behind the verbs of `threadkeep.store.driver.Connection`."""

    def __init__(self, raw: aiosqlite.Connection) -> None:
        self.raw = raw

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """All rows of a statement."""
        with _translated():
            return cast("list[Row]", await self.raw.execute_fetchall(sql, parameters))

    async def execute(self, sql: str, parameters: Parameters) -> int:
        """Run a statement; answers the number of rows it changed."""
        with _translated():
            cursor = await self.raw.execute(sql, parameters)
            return cursor.rowcount

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Run a statement once for each row of parameters."""
        with _translated():
            await self.raw.executemany(sql, rows)


class _Group(NamedTuple):
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


class _ThreadConnection(sqlite3.Connection):
    """What runs in aiosqlite's thread: a group is one call, since every call costs a visit to the thread and back."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement, or store a group."""
        return parameters.store(self) if isinstance(parameters, _Group) else super().execute(sql, parameters)


class SqliteDriver:
    """A SQLite database in a file, or in memory when there is no path.

    In memory there is one connection for everything, one user at a time: a second one would see another database.
    """

    def __init__(self, path: Path | None, options: StoreOptions) -> None:
        self._path = path
        self._options = options
        self._sql = load_statements("transcripts.sql")
        self._write_lock = asyncio.Lock()
        self._writer: SqliteConnection | None = None
        self._readers: list[SqliteConnection] = []
        self._reader_slots = asyncio.Semaphore(_READERS)
        self._closed = False

    @property
    def backend(self) -> Backend:
        """Which engine this is."""
        return "sqlite"

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[SqliteConnection]:
        """A connection to read from; when its user is cancelled, what it reads is stopped."""
        if self._path is None:
            async with self._write_lock:
                connection = await self._writing_connection()
                try:
                    yield connection
                except asyncio.CancelledError:
                    await asyncio.shield(_stop(connection.raw))
                    raise
            return
        async with self._reader_slots:
            self._check_open()
            connection = self._readers.pop() if self._readers else await self._connect()
            stop = False
            try:
                yield connection
            except asyncio.CancelledError:
                stop = True
                raise
            finally:
                taking = self._take_back(connection, stop=stop)
                await (asyncio.shield(taking) if stop else taking)

    @asynccontextmanager
    async def writing(self, *, lock_timeout_seconds: float | None = None) -> AsyncIterator[SqliteConnection]:
        """A connection inside a write transaction; the lock is the whole file's, its timeout that of the options."""
        async with self._write_lock:
            connection = await self._writing_connection()
            try:
                await connection.execute("BEGIN IMMEDIATE", {})
                yield connection
                await connection.execute("COMMIT", {})
            except BaseException:
                await self._roll_back(connection)
                raise

    async def append(self, sessions: Sequence[Parameters], messages: Sequence[Parameters]) -> list[Row]:
        """Store a group of new turns, in one visit to the writing connection's thread."""
        group = _Group(self._sql, sessions, messages, {})
        async with self._write_lock:
            connection = await self._writing_connection()
            try:
                with _translated():
                    await connection.raw.execute("", group)
            except BaseException:
                await self._roll_back(connection)
                raise
        return list(group.counted.items())

    async def close(self) -> None:
        """Close every connection."""
        async with self._write_lock:
            self._closed = True
            if self._writer is not None:
                await self._writer.raw.close()
                self._writer = None
        while self._readers:
            await self._readers.pop().raw.close()

    async def _take_back(self, connection: SqliteConnection, *, stop: bool = False) -> None:
        if stop:
            await _stop(connection.raw)
        if self._closed:
            await connection.raw.close()
        else:
            self._readers.append(connection)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The database was closed; use a memory inside its `async with open_memory(...)` block.")

    async def _writing_connection(self) -> SqliteConnection:
        self._check_open()
        if self._writer is None:
            self._writer = await self._connect()
        return self._writer

    async def _roll_back(self, connection: SqliteConnection) -> None:
        """End the transaction; a connection that cannot is given up, and the next writer opens another.

        It is asked for even where none seems to be open: a BEGIN whose caller was cancelled still stands in the queue
        of the connection's thread, and this goes behind it.
        """
        try:
            await asyncio.shield(connection.raw.rollback())
        except (sqlite3.Error, ValueError):
            self._writer = None
            await connection.raw.close()

    async def _connect(self) -> SqliteConnection:
        with _translated():
            return SqliteConnection(await _open(self._path, self._options))


@asynccontextmanager
async def open_sqlite(
    path: Path | None, options: StoreOptions, *, autocommit: bool = True
) -> AsyncIterator[aiosqlite.Connection]:
    """A connection of its own to a file (or a database in memory), for libraries that bring their own statements."""
    with _translated():
        raw = await _open(path, options, autocommit=autocommit)
    try:
        yield raw
    finally:
        await raw.close()


async def _open(path: Path | None, options: StoreOptions, *, autocommit: bool = True) -> aiosqlite.Connection:
    # Autocommit means: every transaction is begun and ended by name.
    isolation = None if autocommit else "DEFERRED"
    raw = await _open_file(
        aiosqlite.connect(
            path or ":memory:",
            isolation_level=isolation,
            timeout=options.lock_timeout_seconds,
            factory=_ThreadConnection,
        )
    )
    try:
        await raw.execute("PRAGMA foreign_keys = ON")
        await raw.execute(f"PRAGMA synchronous = {options.synchronous}")
        [[mode]] = await raw.execute_fetchall("PRAGMA journal_mode")
        if path is not None and mode != "wal":
            await _switch_to_wal(raw, options.lock_timeout_seconds)
    except BaseException:
        await raw.close()
        raise
    return raw


async def _open_file(connection: aiosqlite.Connection) -> aiosqlite.Connection:
    opening = asyncio.ensure_future(connection)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await (await opening).close()
        raise
    except sqlite3.Error:
        # Its thread has a last word for this event loop, which may be closed a moment later.
        await asyncio.to_thread(connection._thread.join)  # noqa: SLF001 - there is no other way to wait for it
        raise


async def _stop(raw: aiosqlite.Connection) -> None:
    """End the statement that nobody waits for any more, so that the next one does not stand behind it."""
    # Again and again: the statement may still be in the queue of the connection's thread. This one goes behind it.
    behind = asyncio.ensure_future(raw.execute_fetchall("SELECT 1"))
    while not behind.done():
        with suppress(ValueError, sqlite3.Error):
            await raw.interrupt()
        await asyncio.wait([behind], timeout=_STOP_SECONDS)
    behind.exception()  # it may have been stopped itself


async def _switch_to_wal(raw: aiosqlite.Connection, seconds: float) -> None:
    """Turn WAL on. SQLite does not wait for its lock here, so several first starters take turns by trying again."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            await raw.execute_fetchall("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.02)


_CURES = (
    ("locked", "Another process holds its lock for too long; see `threadkeep doctor` for who uses the file."),
    ("busy", "Another process holds its lock for too long; see `threadkeep doctor` for who uses the file."),
    ("full", "The disk (or the quota) is full; make room and try again."),
    ("readonly", "The file or its folder is read-only for this user; change its permissions."),
    ("unable to open", "The file or its folder cannot be opened; check that the folder exists and its permissions."),
    ("disk i/o", "The disk failed to read or write; check the disk and the free space."),
    ("malformed", "The file is damaged; restore it from a backup."),
    ("not a database", "The file is not an SQLite database; check THREADKEEP_DATABASE_URL."),
)


@contextmanager
def _translated() -> Iterator[None]:
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
