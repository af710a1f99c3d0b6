"""Where dbos keeps its records: a schema of its own on PostgreSQL, a file of its own beside a SQLite database."""

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

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

SCHEMA = "threadkeep_engine"

_BUSY_MILLISECONDS = 30_000
_CONNECT_SECONDS = 10
_NAME = "threadkeep-engine"


def engine_path(path: Path) -> Path:
    """The file beside a SQLite database. One of its own: so the engine's many small writes never lock a turn out."""
    return path.with_name(path.name + ".runs")


class Connections:
    """Makes pools of connections, until it is closed: dbos tries a database that is down again for ever."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self._closed = False
        # Of a lost connection the pool tells at length, with a traceback; whoever used it is told anyway.
        logging.getLogger(f"sqlalchemy.pool.impl.QueuePool.{_NAME}").setLevel(logging.CRITICAL)

    def close(self) -> None:
        """Let nobody connect any more."""
        self._closed = True

    def pool(self, size: int) -> sqlalchemy.Engine:
        """A pool of connections. Nothing that is printed of it has the DSN or a parameter."""
        path = self._address.path
        # The driver is given the DSN itself: SQLAlchemy does not know all forms of it, and has no password to print.
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
        if path is not None:
            sqlalchemy.event.listen(engine, "connect", _prepare_sqlite)
        return engine

    def _connect(
        self,
        _dialect: sqlalchemy.Dialect,
        _record: ConnectionPoolEntry,
        arguments: list[object],
        options: dict[str, object],
    ) -> None:
        if self._closed:
            raise StoreClosed(CLOSED)
        if self._address.dsn is not None:
            arguments[:] = [self._address.dsn]
            options["connect_timeout"] = _CONNECT_SECONDS


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of SQLAlchemy into ours. Its sentences have statements in them, and ours the cure."""
    try:
        yield
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise StoreUnavailable(
            f"The engine of runs cannot use its database ({type(error).__name__}); check that it answers, and that its "
            "user may create a schema in it."
        ) from error


def _prepare_sqlite(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
    """Set a connection up as dbos does, and in WAL mode.

    NORMAL loses at most the last moments at a power cut, never at the death of a process; the rows of runs and turns,
    in the other file, are as durable as its own options say.
    """
    connection.isolation_level = "IMMEDIATE"
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    _switch_to_wal(connection)
    if sqlite3.sqlite_version_info < (3, 42):
        # dbos writes unixepoch('subsec'), which older libraries do not know.
        connection.create_function("unixepoch", -1, _unix_time)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Turn WAL on. SQLite does not wait for its lock here, so several first starters take turns by trying again."""
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
