"""The SQLite driver: one writing connection, a few reading ones, WAL between them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiosqlite

from threadkeep.errors import StoreClosed, StoreUnavailable
from threadkeep.store.driver import Backend, Parameters, Row, Statement, StoreOptions
from threadkeep.store.relevance import RELEVANCE, relevance
from threadkeep.store.sqlite_connection import Batch, Group, SqliteConnection, ThreadConnection, translated
from threadkeep.store.statements import load_statements

_READERS = 4
_STOP_SECONDS = 0.01
# What SQLite adds above says which of its kind an error is.
_KIND_OF_ERROR = 0xFF
# Of SQLite's 4,096 bytes more would be left empty: where the next text is longer than what is left of a page, and where
# a row without a rowid takes more than a quarter of one and gets another for itself.
_PAGE_BYTES = 8192


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
        """A connection inside a write transaction; the lock is the whole file's, and so is its timeout, but for 0."""
        async with self._write_lock:
            connection = await self._writing_connection()
            try:
                await _begin(connection, for_ever=lock_timeout_seconds == 0)
                yield connection
                await connection.fetch("COMMIT", {})
            except BaseException:
                await self._roll_back(connection)
                raise

    async def write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """All rows of each of some statements in a write transaction, in one visit to the connection's thread."""
        async with self._write_lock:
            connection = await self._writing_connection()
            try:
                return await connection.run(Batch(statements, [], whole=True))
            except BaseException:
                await self._roll_back(connection)
                raise

    async def append(self, sessions: Sequence[Parameters], messages: Sequence[Parameters]) -> list[Row]:
        """Store a group of new turns, in one visit to the writing connection's thread."""
        group = Group(self._sql, sessions, messages, {})
        async with self._write_lock:
            connection = await self._writing_connection()
            try:
                with translated():
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
        with translated():
            return SqliteConnection(await _open(self._path, self._options))


@asynccontextmanager
async def open_sqlite(
    path: Path | None, options: StoreOptions, *, autocommit: bool = True
) -> AsyncIterator[aiosqlite.Connection]:
    """A connection of its own to a file (or a database in memory), for libraries that bring their own statements."""
    with translated():
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
            factory=ThreadConnection,
        )
    )
    try:
        await raw.create_function(RELEVANCE, 2, relevance, deterministic=True)
        await raw.execute("PRAGMA foreign_keys = ON")
        await raw.execute(f"PRAGMA synchronous = {options.synchronous}")
        [[mode]] = await raw.execute_fetchall("PRAGMA journal_mode")
        if path is not None and mode != "wal":
            # Of a file that is there already the pages stay as they are.
            await raw.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
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


async def _begin(connection: SqliteConnection, *, for_ever: bool) -> None:
    """Take the file's lock, also after more than one timeout if it shall be waited for `for_ever`."""
    while True:
        try:
            await connection.fetch("BEGIN IMMEDIATE", {})
            return
        except StoreUnavailable as error:
            code = getattr(error.__cause__, "sqlite_errorcode", 0) & _KIND_OF_ERROR
            if not for_ever or code != sqlite3.SQLITE_BUSY:
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
