"""The SQLite driver: one connection for writing, several for reading, in WAL mode."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import aiosqlite

from threadkeep.boundary import AsyncOnFailure, OnFailure
from threadkeep.errors import StoreClosed, StoreUnavailable
from threadkeep.store.driver import Appended, Backend, Driver, NewTurns, StoreOptions, check_loop, seconds_left
from threadkeep.store.private_files import is_read_only, make_private_file, tighten_database
from threadkeep.store.search_terms import RELEVANCE, relevance
from threadkeep.store.sqlite_connection import (
    Batch,
    BatchingConnection,
    Group,
    OpenFile,
    SqliteConnection,
    SqliteTransaction,
    connect,
    read_only_uri,
    sqlite_errors,
    translated,
)
from threadkeep.store.statements import load_statements

_READERS = 4
_STOP_SECONDS = 0.01
# The low byte of an SQLite error code is the primary code.
_KIND_OF_ERROR = 0xFF
# A commit writes whole pages to the WAL, and a turn changes about nine, so small pages save bytes.
_PAGE_BYTES = 4096


class SqliteDriver(Driver):
    """A SQLite database in a file, or in memory if there is no path.

    A database in memory has one connection, which serves one caller at a time. In one process, drivers with the same
    `memory_name` share a database.
    """

    backend: Final[Backend] = "sqlite"

    def __init__(
        self, path: Path | None, options: StoreOptions, *, read_only: bool = False, memory_name: str | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._path = path
        self._options = options
        self._read_only = read_only
        self._memory_name = memory_name
        self._sql = load_statements("transcripts.sql", "graph_turns.sql")
        self._write_lock = asyncio.Lock()
        self._writer: SqliteConnection | None = None
        self._readers: list[SqliteConnection] = []
        self._file: OpenFile | None = None
        self._reader_slots = asyncio.Semaphore(_READERS)
        self._closed = False

    async def check_file(self) -> None:
        """Check that the path still names the open file. Raises `DatabaseFileReplaced`."""
        if self._file is not None:
            await asyncio.to_thread(self._file.check)

    def reading(self) -> AbstractAsyncContextManager[SqliteConnection]:
        """Lend a connection for reading. If the caller is cancelled, its statement is interrupted."""
        if self._path is None:
            return self._reading_memory()
        return _Lent(self.take_reader, self.give_reader)

    @asynccontextmanager
    async def _reading_memory(self) -> AsyncIterator[SqliteConnection]:
        check_loop(self.loop)
        async with self._write_lock:
            connection = await self._writing_connection()
            try:
                yield connection
            except asyncio.CancelledError:
                await _to_its_end(_stop(connection.raw))
                raise

    async def take_reader(self) -> SqliteConnection:
        """Take a connection for reading; it belongs to the caller until it is passed to `give_reader`."""
        check_loop(self.loop)
        await self._reader_slots.acquire()
        with OnFailure(self._reader_slots.release):
            self._check_open()
            connection = self._readers.pop() if self._readers else await self._connect()
        return connection

    async def give_reader(self, connection: SqliteConnection, failure: type[BaseException] | None) -> None:
        """Give a reading connection back; interrupt the statement of a cancelled caller."""
        try:
            if failure is not None and issubclass(failure, asyncio.CancelledError):
                await _to_its_end(_stop(connection.raw))
            if self._closed:
                await connection.raw.close()
            else:
                self._readers.append(connection)
        finally:
            self._reader_slots.release()

    @asynccontextmanager
    async def writing(self, *, lock_timeout_seconds: float | None = None) -> AsyncIterator[SqliteConnection]:
        """Lend a connection in a write transaction. If `lock_timeout_seconds` is 0, wait for the lock forever."""
        async with _Lent(self.take_writer, self.give_writer) as connection:
            await _begin(connection, for_ever=lock_timeout_seconds == 0)
            yield connection
            await connection.fetch("COMMIT", {})

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqliteTransaction]:
        """Lend a write transaction; it is rolled back unless it was committed."""
        async with _Lent(self.take_writer, self.give_writer) as connection:
            transaction = SqliteTransaction(connection)
            yield transaction
            if transaction.is_open:
                await self._roll_back(connection)

    async def append(self, turns: NewTurns) -> Appended:
        """Store a group of new turns, in one call to the writing connection's thread."""
        async with _Lent(self.take_writer, self.give_writer) as connection:
            group = Group(self._sql, turns, {}, [], seconds_left())
            with translated():
                await connection.raw.execute("", group)
        at = len(turns.before)
        return Appended(group.counted, group.rows[:at], group.rows[at:])

    async def take_writer(self) -> SqliteConnection:
        """Take the only writing connection; the writers of this process take turns."""
        check_loop(self.loop)
        try:
            if (seconds := seconds_left()) is None:
                await self._write_lock.acquire()
            else:
                async with asyncio.timeout(seconds):
                    await self._write_lock.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                "The SQLite database was not free in time: another process locks it for too long, and calls of this "
                "process wait for each other. `threadkeep doctor` names the processes that use the file."
            ) from None
        if self._writer is not None:
            return self._writer
        with OnFailure(self._write_lock.release):
            return await self._writing_connection()

    async def give_writer(self, connection: SqliteConnection, failure: type[BaseException] | None) -> None:
        """Give the writing connection back; roll back if the caller failed."""
        try:
            if failure is not None:
                await self._roll_back(connection)
        finally:
            self._write_lock.release()

    async def close(self) -> None:
        """Close every connection."""
        async with self._write_lock:
            self._closed = True
            if self._writer is not None:
                await self._writer.raw.close()
                self._writer = None
        while self._readers:
            await self._readers.pop().raw.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The database was closed; use a memory inside its `async with open_memory(...)` block.")

    async def _writing_connection(self) -> SqliteConnection:
        self._check_open()
        if self._writer is None:
            self._writer = await self._connect()
        return self._writer

    async def _roll_back(self, connection: SqliteConnection) -> None:
        """Roll back the transaction; close the connection if that fails.

        Roll back even if no transaction seems open: the BEGIN of a cancelled caller may still be queued.
        """
        try:
            await asyncio.shield(connection.raw.rollback())
        except sqlite_errors(ValueError):
            self._writer = None
            await connection.raw.close()

    async def _connect(self) -> SqliteConnection:
        connector = _Connector(self._path, self._options, True, self._read_only, self._memory_name, self._file)
        with translated(self._path):
            raw = await _open(connector)
        self._file = connector.file
        return SqliteConnection(raw)


@dataclass
class _Lent:
    """A context manager that lends a connection, and is faster than an `asynccontextmanager`."""

    take: Callable[[], Awaitable[SqliteConnection]]
    give: Callable[[SqliteConnection, type[BaseException] | None], Awaitable[None]]

    async def __aenter__(self) -> SqliteConnection:
        self._connection = await self.take()
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        await self.give(self._connection, kind)


@asynccontextmanager
async def open_sqlite(
    path: Path | None, options: StoreOptions, *, autocommit: bool = True, read_only: bool = False
) -> AsyncIterator[aiosqlite.Connection]:
    """Open a separate connection to a database, for other libraries such as LangGraph."""
    with translated(path):
        raw = await _open(_Connector(path, options, autocommit=autocommit, read_only=read_only))
    try:
        yield raw
    finally:
        await raw.close()


class RollbackLock(asyncio.Lock):
    """A lock for LangGraph's use of a connection. It rolls back if the locked block fails.

    Otherwise an open transaction of LangGraph could lock the file for all others.
    """

    def __init__(self, raw: aiosqlite.Connection) -> None:
        super().__init__()
        self._raw = raw

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Roll back if the block failed, and release the lock."""
        try:
            if kind is not None:
                with suppress(*sqlite_errors(ValueError)):
                    await asyncio.shield(self._raw.rollback())
        finally:
            self.release()


@dataclass
class _Connector:
    """A callable that opens and sets up a connection; aiosqlite calls it once, in the connection's thread."""

    path: Path | None
    options: StoreOptions
    autocommit: bool = True
    read_only: bool = False
    memory_name: str | None = None
    file: OpenFile | None = None
    needs_wal: bool = False

    def __call__(self) -> sqlite3.Connection:
        """Return the connection. This is blocking I/O. Raises `DatabaseFileReplaced` if the path names another file."""
        path, key = self.path, None if self.path is None else self.options.key
        if self.file is not None:
            self.file.check()
        read_only = self.read_only or (path is not None and is_read_only(path))
        if path is not None and not read_only:
            make_private_file(path)
        database, is_uri = _database(path, read_only=read_only, memory_name=self.memory_name)
        # With `autocommit`, every transaction is begun and ended by explicit statements.
        isolation, timeout = None if self.autocommit else "DEFERRED", self.options.lock_timeout_seconds
        connection = connect(database, key, isolation_level=isolation, timeout=timeout, uri=is_uri)
        with OnFailure(connection.close):
            connection.create_function(RELEVANCE, 2, relevance, deterministic=True)
            connection.create_function("translate", 3, _translate, deterministic=True)
            if path is not None and isinstance(connection, BatchingConnection):
                connection.file = self.file = self.file or OpenFile.of(path)
            if self.read_only:  # an import counts texts of another system that are not UTF-8
                connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
            if read_only:
                return connection
            for pragma in ("foreign_keys = ON", "secure_delete = ON", f"synchronous = {self.options.synchronous}"):
                connection.execute(f"PRAGMA {pragma}").close()
            [[mode]] = connection.execute("PRAGMA journal_mode").fetchall()
            if path is not None:
                tighten_database(path)
            self.needs_wal = path is not None and mode != "wal"
            # Do not set this with SQLCipher, which can read only its own page size.
            if self.needs_wal and key is None:
                connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}").close()
        return connection


async def _open(connector: _Connector) -> aiosqlite.Connection:
    raw = await _open_file(aiosqlite.Connection(connector, iter_chunk_size=64))
    if connector.needs_wal:
        async with AsyncOnFailure(raw.close):
            await _switch_to_wal(raw, connector.options.lock_timeout_seconds)
    return raw


def _translate(text: object, characters: str, replacements: str) -> str | None:
    """Replace characters as PostgreSQL's `translate` does; no replacement may be one of `characters`."""
    if text is None:
        return None
    result = str(text)
    # Do not use `str.translate`, which is slower for so few characters.
    for char, replacement in zip(characters, replacements, strict=True):
        result = result.replace(char, replacement)
    return result


def _database(path: Path | None, *, read_only: bool, memory_name: str | None) -> tuple[str | Path, bool]:
    """Return the database argument for `sqlite3.connect`, and whether it is a URI."""
    if path is not None:
        return (read_only_uri(path), True) if read_only else (path, False)
    return (":memory:", False) if memory_name is None else (f"file:/{memory_name}?vfs=memdb", True)


async def _open_file(connection: aiosqlite.Connection) -> aiosqlite.Connection:
    opening = asyncio.ensure_future(connection)
    try:
        return await asyncio.shield(opening)
    except sqlite_errors(asyncio.CancelledError, StoreUnavailable):
        # If `opening` fails as well, still raise this error: if a cancellation were lost, retries would never end.
        await _to_its_end(_close_opened(connection, opening))
        raise


async def _close_opened(connection: aiosqlite.Connection, opening: asyncio.Future[aiosqlite.Connection]) -> None:
    """Close a connection that no caller will use, as soon as it is open."""
    await asyncio.wait([opening])
    if opening.exception() is None:
        await connection.close()
    else:
        # Wait until the connection's thread has ended. It may otherwise use the event loop after the loop was closed.
        await asyncio.to_thread(connection._thread.join)  # noqa: SLF001 - there is no other way to wait for it


async def _begin(connection: SqliteConnection, *, for_ever: bool) -> None:
    while True:
        try:
            with translated():
                await connection.raw.execute("", Batch((), [], begins=True, wait_seconds=seconds_left()))
            return
        except StoreUnavailable as error:
            code = getattr(error.__cause__, "sqlite_errorcode", 0) & _KIND_OF_ERROR
            if not for_ever or code != sqlite3.SQLITE_BUSY:
                raise


async def _to_its_end(work: Coroutine[object, object, None]) -> None:
    """Wait for `work` to end, even if the caller is cancelled."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _stop(raw: aiosqlite.Connection) -> None:
    """Interrupt a statement that no caller awaits, so that it does not delay the next one."""
    # Repeat the interrupt, because the statement may still be queued. `behind` is queued after the statement, so when
    # it is done, the statement has ended.
    behind = asyncio.ensure_future(raw.execute_fetchall("SELECT 1"))
    while not behind.done():
        with suppress(*sqlite_errors(ValueError)):
            await raw.interrupt()
        await asyncio.wait([behind], timeout=_STOP_SECONDS)
    behind.exception()  # the query may have been interrupted too


async def _switch_to_wal(raw: aiosqlite.Connection, seconds: float) -> None:
    """Turn WAL mode on. This needs a lock for which SQLite does not wait, so retry for up to `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            await raw.execute_fetchall("PRAGMA journal_mode = WAL")
            return
        except sqlite_errors() as error:
            if "locked" not in str(error) or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.02)
