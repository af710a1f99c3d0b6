"""Tests of SQL files: statements by name, for many rows, and with psycopg's placeholders."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import pytest

from threadkeep.store.migrations import known_migrations
from threadkeep.store.statements import for_psycopg, for_rows, load_script, load_statements, row_parameters

_FILES = [
    "transcripts.sql",
    "runs.sql",
    "runs_order.sql",
    "runs_trace.sql",
    "runs_records.sql",
    "search.sql",
    "sqlite/search.sql",
    "postgres/search.sql",
]


def test_the_values_row_is_written_for_each_row() -> None:
    assert for_rows("INSERT INTO t (a, b)\nVALUES (:a, :b)\nRETURNING a", 2) == (
        "INSERT INTO t (a, b)\nVALUES (:a_0, :b_0), (:a_1, :b_1)\nRETURNING a"
    )


def test_each_row_has_its_numbered_parameters() -> None:
    with closing(sqlite3.connect(":memory:")) as database, database:
        database.execute("CREATE TABLE t (a, b)")
        rows: list[dict[str, object]] = [{"a": 1, "b": "one"}, {"a": 2, "b": None}, {"a": 3, "b": ":a_0"}]
        database.execute(for_rows("INSERT INTO t (a, b)\nVALUES (:a, :b)", 3), row_parameters(rows))
        assert database.execute("SELECT a, b FROM t").fetchall() == [(1, "one"), (2, None), (3, ":a_0")]
    database.close()


def test_a_statement_without_a_values_row_is_refused() -> None:
    with pytest.raises(ValueError, match="no VALUES row"):
        for_rows("SELECT 1", 2)


def test_psycopg_gets_its_own_placeholders() -> None:
    """Names become %(name)s, percent signs are doubled, and casts stay."""
    assert for_psycopg("SELECT :a::text, 5 % 2 WHERE b = :b_1") == "SELECT %(a)s::text, 5 %% 2 WHERE b = %(b_1)s"


def test_a_time_in_a_statement_is_no_parameter() -> None:
    """A colon after a letter or a digit begins no parameter."""
    assert for_psycopg("SELECT '12:30'") == "SELECT '12:30'"


@pytest.mark.parametrize("path", _FILES)
def test_every_statement_has_a_unique_name_and_a_text(path: str) -> None:
    statements = load_statements(path)
    assert statements
    for name, sql in statements.items():
        assert sql, name
        assert "--" not in sql, name
        assert ";" not in sql, name


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_a_gap(backend: str) -> None:
    known = known_migrations("sqlite" if backend == "sqlite" else "postgres")
    first = known[0][0]
    assert [version for version, _ in known] == list(range(first, first + len(known)))
    for _, name in known:
        assert re.fullmatch(r"\d{4}_[a-z_]+\.sql", name)
        assert load_script(f"{backend}/{name}")


def test_a_deletion_deletes_exactly_the_locked_runs() -> None:
    """Deleting rows that were not locked in order before could deadlock."""
    held, head = load_statements("postgres/runs.sql")["hold_runs"], "\nSELECT 1 FROM chat_runs"
    gone, tail = load_statements("transcripts.sql")["delete_runs"], "\nDELETE FROM chat_runs"
    assert held.partition(head)[0] == gone.partition(tail)[0] != gone
