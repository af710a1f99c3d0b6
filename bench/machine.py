"""The hardware and versions of a run, without the name of the machine or its owner."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "aiosqlite",
    "psycopg",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "openai-agents",
    "sqlalchemy",
    "google-adk",
    "agno",
    "llama-index-core",
)


def machine_line(postgres: str | None) -> str:
    """Return one line: cores, and versions of Python, SQLite, PostgreSQL and the measured packages."""
    parts = [
        f"{os.cpu_count()} cores",
        platform.system(),
        f"Python {platform.python_version()}",
        f"SQLite {sqlite3.sqlite_version}",
    ]
    if postgres is not None:
        parts.append(f"PostgreSQL {postgres}")
    for package in _PACKAGES:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)
