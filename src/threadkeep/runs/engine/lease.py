"""The lease with which a process shows that it is alive, and the tables of the library dbos, which contain it.

The tables are in a separate schema on PostgreSQL, or in a file next to a SQLite database.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING
from uuid import uuid4

import sqlalchemy
from sqlalchemy import literal_column, select, text
from sqlalchemy.exc import SQLAlchemyError

from threadkeep.boundary import ErrorBoundary, OnFailure
from threadkeep.errors import StoreClosed, StoreUnavailable
from threadkeep.runs.engine.engine import CLOSED, STOP_SECONDS, EngineOptions, Troubled
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.private_files import in_use, make_private_file, tighten_database

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

SCHEMA = "threadkeep_engine"

_BUSY_MILLISECONDS = 30_000
_CONNECT_SECONDS = 10
_NAME = "threadkeep-engine"


def engine_path(path: Path) -> Path:
    """Return the path of dbos's own file, next to the SQLite database `path`: its writes there never block a turn."""
    return path.with_name(path.name + ".runs")


class Connections:
    """A factory of connection pools. After `close` no pool opens or keeps connections, so that dbos cannot retry."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self._closed = False
        # Without this, the pool would log a traceback for a lost connection, although the caller gets the error.
        logging.getLogger(f"sqlalchemy.pool.impl.QueuePool.{_NAME}").setLevel(logging.CRITICAL)

    def close(self) -> None:
        """Reject new connections from now on."""
        self._closed = True

    def pool(self, size: int) -> sqlalchemy.Engine:
        """Return a pool of connections. Its logs and errors never contain the DSN or a parameter."""
        path = self._address.path
        # Pass the DSN to the driver only: SQLAlchemy cannot parse all forms of a DSN, and could log the password.
        file = None if path is None else str(engine_path(path))
        url = sqlalchemy.URL.create("postgresql+psycopg" if file is None else "sqlite", database=file)
        engine = sqlalchemy.create_engine(
            url,
            pool_size=size,
            max_overflow=0,
            pool_pre_ping=path is None,
            pool_logging_name=_NAME,
            hide_parameters=True,
        )
        sqlalchemy.event.listen(engine, "do_connect", self._connect)
        sqlalchemy.event.listen(engine, "checkin", self._check_in)
        if path is not None:
            sqlalchemy.event.listen(engine, "connect", _prepare_sqlite)
        return engine

    def _check_in(self, _connection: object, record: ConnectionPoolEntry) -> None:
        if self._closed:
            # A thread of dbos may return a connection after `dispose`, and the pool would keep it open. So close it.
            record.invalidate()

    def _connect(
        self,
        _dialect: sqlalchemy.Dialect,
        _record: ConnectionPoolEntry,
        arguments: list[object],
        options: dict[str, object],
    ) -> None:
        if self._closed:
            raise StoreClosed(CLOSED)
        if self._address.path is not None:
            make_private_file(file := engine_path(self._address.path))
            tighten_database(file)
        if self._address.dsn is not None:
            arguments[:] = [self._address.dsn]
            options["connect_timeout"] = _CONNECT_SECONDS
            # Prepare no statements, because a pooler may give the next transaction another session, which lacks them.
            options["prepare_threshold"] = None


@contextmanager
def translated() -> Iterator[None]:
    """Replace SQLAlchemy's errors, whose messages contain statements, with `StoreUnavailable` and advice."""
    try:
        yield
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise StoreUnavailable(
            f"The engine of runs cannot use its database ({type(error).__name__}); check that it answers; "
            "`threadkeep doctor` names the rights that its user lacks."
        ) from error


def _prepare_sqlite(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
    """Set the options of a connection as dbos does, and some further options.

    With `synchronous = NORMAL` a power cut can lose the last commits; a crash of the process loses none. The rows of
    runs and turns are in the main database file, whose durability is set separately.
    """
    connection.isolation_level = "IMMEDIATE"
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    _switch_to_wal(connection)
    if sqlite3.sqlite_version_info < (3, 42):
        # dbos uses unixepoch('subsec'), which older versions of SQLite lack.
        connection.create_function("unixepoch", -1, _unix_time)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Turn WAL mode on, with retries, because SQLite ignores the busy timeout here."""
    deadline = time.monotonic() + _BUSY_MILLISECONDS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _unix_time(*modifiers: str) -> float:
    return time.time() if modifiers == ("subsec",) else float(int(time.time()))


_LOCK_NUMBER = 7310865114


class LockedFiles:
    """A lease on SQLite: a locked file for each process. The operating system releases the lock when a process dies.

    A suspended process (in a debugger, on a sleeping laptop) keeps its lock and therefore its runs.
    """

    def __init__(self, database: Path, name: str) -> None:
        self._database = database
        self._name = name
        self._descriptor: int | None = None

    def enter(self) -> None:
        """Create and lock this process's file, then rename it, so that no process sees it unlocked."""
        make_private_file(made := self._path(self._name).with_suffix(".new"))
        self._descriptor = os.open(made, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        made.rename(self._path(self._name))

    def is_fresh(self) -> bool:
        """Return True, because a lock does not expire."""
        return True

    def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` whose file is unlocked or missing; remove all unlocked files."""
        files = self._database.parent.glob(f"{glob.escape(self._database.name)}.*.lock")
        known = names | {file.suffixes[-2].removeprefix(".") for file in files}
        dead = {name for name in known if name != self._name and not in_use(self._path(name))}
        for name in dead:
            self._path(name).unlink(missing_ok=True)
        return dead & names

    def leave(self) -> None:
        """Remove this process's file."""
        if self._descriptor is not None:
            self._path(self._name).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _path(self, name: str) -> Path:
        return self._database.with_name(f"{self._database.name}.{name}.lock")


_TABLES = sqlalchemy.MetaData(schema=SCHEMA)
_PROCESSES = sqlalchemy.Table(
    "processes",
    _TABLES,
    sqlalchemy.Column("name", sqlalchemy.Text, primary_key=True),
    sqlalchemy.Column("beats", sqlalchemy.BigInteger, nullable=False),
)


class Heartbeats:
    """A lease on PostgreSQL: each process has a row with a counter, which increases while the process lives.

    Clocks of different processes are never compared. A process reads the counters repeatedly. It declares another
    process dead if the other's counter does not change for `dead_seconds`. A process that was suspended, or could not
    reach the database for a while, observes the counters for this time again before it declares any process dead.
    """

    def __init__(self, pool: sqlalchemy.Engine, name: str, dead_seconds: float) -> None:
        self._pool = pool
        self._name = name
        self._dead_seconds = dead_seconds
        self._shown_at = 0.0
        self._looked_at = 0.0
        self._seen: dict[str, tuple[int, float]] = {}

    def enter(self) -> None:
        """Insert this process's row; the first process creates the table."""
        # Set the level on the connection; the pool's level, AUTOCOMMIT, would override the level of a copy of the pool.
        with self._pool.connect() as connection, connection.execution_options(isolation_level="READ COMMITTED").begin():
            lock = sqlalchemy.func.pg_advisory_xact_lock(_LOCK_NUMBER)
            connection.execute(sqlalchemy.select(lock))
            if not sqlalchemy.inspect(connection).has_schema(SCHEMA):
                connection.execute(sqlalchemy.schema.CreateSchema(SCHEMA))
            _TABLES.create_all(connection)
            connection.execute(_PROCESSES.insert().values(name=self._name, beats=0))
        self._shown_at = _now()

    def renew(self) -> bool:
        """Increase the counter in this process's row; return False if another process has deleted the row."""
        began = _now()
        statement = _PROCESSES.update().where(_PROCESSES.c.name == self._name).values(beats=_PROCESSES.c.beats + 1)
        with self._pool.begin() as connection:
            if connection.execute(statement).rowcount == 0:
                return False
        self._shown_at = began
        return True

    def is_fresh(self) -> bool:
        """Return whether the last heartbeat is so recent that no other process can have declared this one dead."""
        return _now() - self._shown_at < self._dead_seconds

    def dead(self, names: Set[str]) -> Set[str]:
        """Remove the rows of dead processes; return the processes among `names` that now have no row."""
        now = _now()
        with self._pool.begin() as connection:
            rows = {str(row.name): int(row.beats) for row in connection.execute(_PROCESSES.select())}
        if now - self._looked_at > self._dead_seconds / 2:
            self._seen = {}
        self._looked_at = now
        since = {name: self._since(name, beats, now) for name, beats in rows.items()}
        self._seen = {name: (rows[name], at) for name, at in since.items()}
        still = {name for name, at in since.items() if now - at >= self._dead_seconds and name != self._name}
        removed = {name for name in still if self._remove(name, rows[name])}
        return {name for name in names if name not in rows or name in removed} - {self._name}

    def leave(self) -> None:
        """Delete this process's row."""
        with self._pool.begin() as connection:
            connection.execute(_PROCESSES.delete().where(_PROCESSES.c.name == self._name))

    def _since(self, name: str, beats: int, now: float) -> float:
        before = self._seen.get(name)
        return before[1] if before is not None and before[0] == beats else now

    def _remove(self, name: str, beats: int) -> bool:
        """Delete the row of a dead process, unless its counter no longer equals `beats`: then the process lives."""
        row = (_PROCESSES.c.name == name) & (_PROCESSES.c.beats == beats)
        with self._pool.begin() as connection:
            return connection.execute(_PROCESSES.delete().where(row)).rowcount > 0


def _now() -> float:
    """Return a monotonic time in seconds. It includes the time that the machine slept, if the system can tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


_RECORDS = "workflow_status"


class Lease:
    """A lease of this process, under a name that is never used again.

    `lost` is called from another thread when the lease is lost, because other processes may then take over its runs.
    `troubled` is called with the name of each error that delays a renewal.
    """

    def __init__(
        self,
        address: DatabaseAddress,
        options: EngineOptions,
        *,
        lost: Callable[[], None],
        troubled: Troubled,
    ) -> None:
        self.name = uuid4().hex
        self._connections = Connections(address)
        self._options = options
        self._lost = lost
        self._troubled = troubled
        self._path = address.path
        # A separate pool, so that heartbeats never wait for dbos. Autocommit saves two round trips for each statement.
        self._pool = self._connections.pool(1).execution_options(isolation_level="AUTOCOMMIT")
        self._table = _RECORDS if address.path is not None else f"{SCHEMA}.{_RECORDS}"
        self._is_made = False
        self._presence: Heartbeats | LockedFiles = (
            Heartbeats(self._pool, self.name, options.dead_seconds)
            if address.path is None
            else LockedFiles(engine_path(address.path), self.name)
        )
        self._is_lost = False
        self._checking = Lock()
        self._ended = Event()
        self._renewing: Thread | None = None

    async def enter(self) -> None:
        """Acquire the lease.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        with OnFailure(self._connections.close), OnFailure(self._pool.dispose), translated():
            await asyncio.to_thread(self._presence.enter)
            # On SQLite this also removes the files of dead processes.
            await asyncio.to_thread(self._presence.dead, set())
        if isinstance(heartbeats := self._presence, Heartbeats):
            # Renew in an OS thread, so that a blocked event loop does not lose the lease.
            self._renewing = Thread(target=self._renew, args=[heartbeats], name="threadkeep-lease", daemon=True)
            self._renewing.start()

    async def has_records(self) -> bool:
        """Return whether dbos has records of runs in this database."""
        with translated():
            return await asyncio.to_thread(self._has_records)

    def _has_records(self) -> bool:
        if self._path is not None and not engine_path(self._path).exists():
            return False
        with self._pool.connect() as connection:
            if not self._is_made:
                # Once the table exists, skip this query: a worker that has not launched dbos calls this every 2 s.
                made = (
                    "SELECT name FROM sqlite_master WHERE name = :table" if self._path else "SELECT to_regclass(:table)"
                )
                self._is_made = connection.execute(text(made), {"table": self._table}).scalar() is not None
            return (
                self._is_made
                and connection.execute(select(literal_column("1")).select_from(text(self._table)).limit(1)).first()
                is not None
            )

    def is_fresh(self) -> bool:
        """Return whether it is certain that no other process has declared this one dead."""
        return not self._is_lost and self._presence.is_fresh()

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that have no lease any more."""
        with translated():
            return await asyncio.to_thread(self._dead, names)

    async def leave(self, *, is_idle: bool) -> None:
        """Release the lease if the process is idle; otherwise keep it until the process ends or the lease expires."""
        self._ended.set()
        if self._renewing is not None:
            await asyncio.to_thread(self._renewing.join, STOP_SECONDS)
        if is_idle:
            with contextlib.suppress(SQLAlchemyError):  # the lease expires by itself
                await asyncio.to_thread(self._presence.leave)
        self._connections.close()
        await asyncio.to_thread(self._pool.dispose)

    def _dead(self, names: Set[str]) -> Set[str]:
        with self._checking:
            return self._presence.dead(names)

    def _renew(self, heartbeats: Heartbeats) -> None:
        while not self._ended.wait(max(0.05, self._options.dead_seconds / 4)):
            # Catch all errors, because the renewal is repeated as long as the process lives.
            with ErrorBoundary(lambda error: self._troubled(type(error).__name__)):
                if not heartbeats.renew():
                    self._is_lost = True
                    self._lost()
                    return
