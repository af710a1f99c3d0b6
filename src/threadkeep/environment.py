"""The database that the environment names; it is read without pydantic, because importing pydantic takes long."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

from threadkeep.store.address import DatabaseAddress, parse_address

PREFIX = "THREADKEEP_"

_URL = f"{PREFIX}DATABASE_URL"
# Prefixes of settings (after `THREADKEEP_`) that change which sessions are read, or how. `DATA` also matches misspelt
# names of `DATABASE_URL`.
_OTHERS = ("DATA", "SQLITE_", "LOCK_TIMEOUT", "POSTGRES_", "GRAPH_STORE_", "TRANSCRIPTS")


def default_database() -> Path:
    """Return the SQLite file that is used if no database is named."""
    return user_data_path("threadkeep") / "threadkeep.db"


def plain_database(url: str | None = None) -> DatabaseAddress | None:
    """Return the database at a URL, by default that of the environment; None if other settings or `.env` may apply.

    Raises:
        InvalidSettings: the URL is not a database URL.
    """
    given = {name.upper(): value for name, value in os.environ.items() if name.upper().startswith(PREFIX)}
    others = tuple(PREFIX + name for name in _OTHERS)
    if any(name.startswith(others) and name != _URL for name in given) or Path(".env").exists():
        return None
    return parse_address(url or given.get(_URL) or f"sqlite:///{default_database()}")
