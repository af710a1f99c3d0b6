"""Connections to SQLite files, encrypted with SQLCipher if there is a key, which needs the extra `sqlcipher`."""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path
from typing import Any, cast

from threadkeep.store.sqlite_connection import BatchingConnection, ThreadConnection


def connect(database: str | Path, key: str | None, **options: Any) -> sqlite3.Connection:
    """Return a connection with the options of `sqlite3.connect`. Blocking I/O.

    Whether a key fits is seen at the first statement.
    """
    if key is None:
        return sqlite3.connect(database, factory=ThreadConnection, **options)
    connection = _sqlcipher().connect(database, factory=_cipher_connection(), **options)
    # A wrong key is an error of ours, and no output on stderr.
    connection.execute("PRAGMA cipher_log_level = NONE").close()
    connection.execute(f"PRAGMA key = \"x'{key}'\"").close()
    return cast("sqlite3.Connection", connection)


def export_plain(source: Path, target: Path, key: str) -> None:
    """Write an encrypted copy of a plain file. Blocking I/O."""
    connection = _sqlcipher().connect(source.absolute().as_uri() + "?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute(f"ATTACH DATABASE ? AS copy KEY \"x'{key}'\"", (str(target),))
        connection.execute("SELECT sqlcipher_export('copy')").fetchall()
    finally:
        connection.close()


def _sqlcipher() -> Any:
    from sqlcipher3 import dbapi2  # the extra `sqlcipher`

    return dbapi2


@cache
def _cipher_connection() -> type:
    dbapi2 = _sqlcipher()

    class CipherConnection(BatchingConnection, dbapi2.Connection):  # type: ignore[misc, name-defined]
        """A connection of SQLCipher in aiosqlite's thread. Its statements raise the errors of Python's `sqlite3`."""

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            """Execute a statement, or a group of them."""
            try:
                return super().execute(sql, parameters)
            except dbapi2.Error as error:
                # LangGraph's checkpointer catches the errors of the standard library when it sets up its tables.
                known = getattr(sqlite3, type(error).__name__)(*error.args)
                known.sqlite_errorcode, known.sqlite_errorname = error.sqlite_errorcode, error.sqlite_errorname
                raise known from error

    return CipherConnection
