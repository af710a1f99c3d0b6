"""`threadkeep migrate`: the schema, brought up to date or only looked at."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.running import CommandLine
from tests.conftest import url_of


def test_a_new_database_gets_its_schema(cli: CommandLine) -> None:
    """The second time there is nothing to do."""
    first = cli("migrate", "--json")
    assert first.exit_code == 0
    assert first.json["schema"] == 0
    assert first.json["applied"] == list(range(1, first.json["newest"] + 1))
    assert cli("migrate", "--json").json["applied"] == []
    assert "up to date" in cli("migrate").out


def test_a_check_changes_nothing(cli: CommandLine, tmp_path: Path) -> None:
    """Not even a file is made; that migrations wait is said with the exit code too."""
    outcome = cli("migrate", "--check", "--json")
    assert outcome.exit_code == 1
    assert outcome.json["waiting"]
    assert not (tmp_path / "threadkeep.db").exists()
    assert "at schema 0" in cli("migrate", "--check").out

    cli("migrate")
    assert cli("migrate", "--check").exit_code == 0


def test_an_empty_postgres_is_brought_up_to_date(
    request: pytest.FixtureRequest, cli: CommandLine, empty_postgres_url: str
) -> None:
    """Like SQLite."""
    cli.set(THREADKEEP_DATABASE_URL=empty_postgres_url)
    assert cli("migrate", "--check").exit_code == 1
    assert cli("migrate").exit_code == 0
    assert cli("migrate", "--check").exit_code == 0


def test_a_database_of_the_future_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    """By every command, with the cure."""
    cli("migrate")
    with closing(sqlite3.connect(tmp_path / "threadkeep.db")) as connection, connection:
        connection.execute("INSERT INTO threadkeep_migrations VALUES (999, 'x', 'now')")
    connection.close()
    for command in (["migrate"], ["migrate", "--check"], ["sessions", "list"]):
        outcome = cli(*command)
        assert outcome.exit_code == 1
        assert "schema 999" in outcome.err
        assert "upgrade Threadkeep" in outcome.err


def test_a_password_is_never_shown(cli: CommandLine) -> None:
    """The address is, without it."""
    cli.set(THREADKEEP_DATABASE_URL="postgresql://somebody:secret@127.0.0.1:1/db")
    cli.set(THREADKEEP_POSTGRES_POOL_TIMEOUT="0.2")
    outcome = cli("migrate")
    assert outcome.exit_code == 1
    assert "PostgreSQL gave no connection" in outcome.err
    assert "secret" not in outcome.err + outcome.out


def test_commands_say_what_is_wrong_with_a_file(cli: CommandLine, tmp_path: Path) -> None:
    """It is not a database."""
    (tmp_path / "threadkeep.db").write_text("This is a letter to a friend, and not a database. " * 100)
    outcome = cli("sessions", "list")
    assert outcome.exit_code == 1
    assert "not an SQLite database" in outcome.err


@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
def test_the_bench_measures_and_leaves_nothing(request: pytest.FixtureRequest, cli: CommandLine, kind: str) -> None:
    """Medians and 95th percentiles of three operations, on the user's own database."""
    cli.set(THREADKEEP_DATABASE_URL=url_of(request, kind))
    cli.store("a", "Mine.")
    outcome = cli("bench", "--turns", "12", "--json")
    assert outcome.exit_code == 0
    names = [result["name"] for result in outcome.json["results"]]
    assert names == ["append a turn of two messages", "tail(20)", "window(20 messages, 4000 tokens)"]
    assert all(0 < result["median_ms"] <= result["p95_ms"] for result in outcome.json["results"])
    assert not [s for s in cli("sessions", "list", "--json").json["sessions"] if s["session_id"] != "a"]


def test_the_bench_shows_a_table(cli: CommandLine) -> None:
    """And how far it has come."""
    outcome = cli("bench", "--turns", "10")
    assert "median ms" in outcome.out
    assert "Measuring: 100 %" in outcome.err
