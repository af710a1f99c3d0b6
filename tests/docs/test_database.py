"""Tests that the page about the database names every table, and that its queries work on both engines."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import page
from tests.docs.tables import code_in, section
from threadkeep import Message, Scope, open_memory

DATABASE = page("docs/reference/database.md")
QUERIES = [block.text for block in DATABASE.blocks_in("sql")]


async def fill(url: str) -> None:
    """Store a session with two messages, and a fact."""
    async with open_memory(url) as memory:
        messages = [
            Message(role="user", content="hi", metadata={"page": "/checkout"}),
            Message(role="assistant", content="hello", status="interrupted", escalated=True),
        ]
        await memory.session("telegram:123", user_id="u1").append(messages)
        await memory.knowledge.remember(Scope("user", "u1"), "diet", "vegan")


def queries_for(engine: str) -> list[str]:
    """Return the queries for all engines and for this engine."""
    return [query for query in QUERIES if not query.startswith("-- ") or query.startswith(f"-- {engine}\n")]


@pytest.fixture
def filled_path(tmp_path: Path, sqlite_url: str) -> Path:
    """Return an SQLite file with a session."""
    asyncio.run(fill(sqlite_url))
    return tmp_path / "threadkeep.db"


def test_every_table_and_column_is_described(filled_path: Path) -> None:
    """The page has all columns of the two main tables, and the names of all others."""
    with contextlib.closing(sqlite3.connect(filled_path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        for table in ("chat_sessions", "chat_messages"):
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            first_cells = [line.split("|")[1] for line in section(DATABASE, table).splitlines() if line.startswith("|")]
            assert {name for cell in first_cells for name in code_in(cell)} == columns
    # FTS5 stores its data in more tables with this prefix.
    ours = {name for (name,) in tables if not name.startswith(("sqlite_", "chat_search_"))}
    assert ours <= set(code_in(DATABASE.text)) | {"chat_sessions", "chat_messages"}


def test_the_queries_work_on_sqlite(filled_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(filled_path)) as connection:
        answers = {query: connection.execute(query).fetchall() for query in queries_for("SQLite")}
    empty = [query for query, rows in answers.items() if not rows]
    assert len(answers) > 8
    assert all("HAVING" in query or "chat_runs" in query for query in empty)


def test_the_queries_work_on_postgres(postgres_url: str) -> None:
    asyncio.run(fill(postgres_url))
    with psycopg.connect(postgres_url) as connection:
        answers = {query: connection.execute(query.encode()).fetchall() for query in queries_for("PostgreSQL")}
    empty = [query for query, rows in answers.items() if not rows]
    assert len(answers) > 8
    assert all("HAVING" in query or "chat_runs" in query for query in empty)
