"""The tables of the library dbos: in a separate schema on PostgreSQL, or in a file next to a SQLite database."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy

from threadkeep.errors import StoreClosed, StoreUnavailable
from threadkeep.runs.engine.engine import CLOSED
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.private_files import make_private_file, tighten_database

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
            f"The engine of runs cannot use its database ({type(error).__name__}); check that it answers, and that its "
            "user may create a schema in it."
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
