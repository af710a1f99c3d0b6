"""Tests of `threadkeep migrate` and `threadkeep bench`."""

from __future__ import annotations

import importlib
import logging
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.cli.running import CommandLine
from tests.conftest import url_of
from tests.databases import execute, query
from threadkeep.errors import StoreUnavailable
from threadkeep.store import migrations
from threadkeep.store.condition import Condition, read_condition
from threadkeep.store.driver import Driver
from threadkeep.store.search import SearchIndex


def test_a_new_database_gets_its_schema(cli: CommandLine) -> None:
    first = cli("migrate", "--json")
    assert first.exit_code == 0
    assert first.json["schema"] == 0
    assert first.json["applied"] == [version for version, _ in migrations.known_migrations("sqlite")]
    assert cli("migrate", "--json").json["applied"] == []
    assert "up to date" in cli("migrate").out


def test_a_server_that_is_starting_is_waited_for(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, postgres_url: str, tmp_path: Path
) -> None:
    """A line says at once what the command waits for."""
    folder = psycopg.conninfo.conninfo_to_dict(postgres_url)["host"]
    cli.set(THREADKEEP_DATABASE_URL=postgres_url.replace(f"host={folder}", f"host={tmp_path / 'run'}"))

    def start(_: object) -> bool:
        (tmp_path / "run").symlink_to(str(folder))
        return True

    monkeypatch.setattr(logging.getLogger("threadkeep.store"), "filters", [start])
    outcome = cli("migrate")
    assert outcome.exit_code == 0
    assert outcome.err.startswith("waiting up to 30 seconds for PostgreSQL (")


def test_a_wait_for_a_locked_database_is_shown(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The note says how to end the wait. After the lock is released, the command completes."""
    notes: list[str] = []
    with closing(sqlite3.connect(tmp_path / "threadkeep.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN IMMEDIATE")

        def note(text: str) -> None:
            notes.append(text)
            other.execute("ROLLBACK")

        monkeypatch.setattr("threadkeep.store.migrations._LOCK_NOTE_SECONDS", 0.0)
        monkeypatch.setattr("threadkeep.cli.terminal.terminal.note", note)
        assert cli("migrate").exit_code == 0
    assert len(notes) == 1
    assert "stop that process" in notes[0]


def test_writers_continue_while_an_upgrade_waits_for_a_reader(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, old_postgres_url: str
) -> None:
    """The upgrade gives up its locks between its tries, and shows a note. Each migration has one line."""
    cli.set(THREADKEEP_DATABASE_URL=old_postgres_url)
    notes: list[str] = []
    with psycopg.connect(old_postgres_url) as reader, psycopg.connect(old_postgres_url, autocommit=True) as writer:
        reader.execute("SELECT * FROM chat_token_factors")

        def note(text: str) -> None:
            notes.append(text)
            if "stop that process" in text:
                writer.execute("SET lock_timeout = '1s'")
                writer.execute("UPDATE chat_sessions SET title = 'written meanwhile' WHERE session_id = 'room'")
                reader.rollback()

        monkeypatch.setattr("threadkeep.store.partitions._PAUSE_SECONDS", 0.0)
        monkeypatch.setattr("threadkeep.cli.terminal.terminal.note", note)
        assert cli("migrate").exit_code == 0
    lines = [name for version, name in migrations.known_migrations("postgres") if version > 20]
    assert [words.split(" % ")[-1] for words in notes if words.startswith("Migrating")] == [
        name.removesuffix(".sql").replace("_", " ") for name in lines
    ]
    assert len([words for words in notes if "stop that process" in words]) == 1
    assert query(old_postgres_url, "SELECT title FROM chat_sessions WHERE session_id = 'room'") == [
        ("written meanwhile",)
    ]


def test_an_upgrade_that_waits_too_long_names_the_cure(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, old_postgres_url: str
) -> None:
    """The error does not blame a setting. Nothing is changed, and `doctor` finds the transaction."""
    cli.set(THREADKEEP_DATABASE_URL=old_postgres_url)
    monkeypatch.setattr("threadkeep.store.partitions._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("threadkeep.store.partitions._MOST_TRIES", 1)
    monkeypatch.setattr("threadkeep.store.condition._LONG_SECONDS", 0.0)
    with psycopg.connect(old_postgres_url, application_name="the reader") as reader:
        reader.execute("SELECT * FROM chat_token_factors")
        problem = cli("migrate", "--json").problem
        locks = [one for one in cli("doctor", "--json").json["findings"] if one["check"] == "locks"]
    assert problem["type"] == "urn:threadkeep:row-locked"
    assert "find them with `threadkeep doctor`, and end them" in problem["detail"]
    assert "THREADKEEP_LOCK_TIMEOUT" not in problem["detail"]
    assert "the reader" in locks[0]["detail"]
    assert query(old_postgres_url, "SELECT max(version) FROM threadkeep_migrations") == [(20,)]


def test_a_check_changes_nothing(cli: CommandLine, tmp_path: Path) -> None:
    outcome = cli("migrate", "--check", "--json")
    assert outcome.exit_code == 1
    assert outcome.json["waiting"]
    assert not (tmp_path / "threadkeep.db").exists()
    assert "at schema 0" in cli("migrate", "--check").out

    cli("migrate")
    assert cli("migrate", "--check").exit_code == 0


def test_an_empty_postgres_database_is_migrated(
    request: pytest.FixtureRequest, cli: CommandLine, empty_postgres_url: str
) -> None:
    cli.set(THREADKEEP_DATABASE_URL=empty_postgres_url)
    assert cli("migrate", "--check").exit_code == 1
    assert cli("migrate").exit_code == 0
    assert cli("migrate", "--check").exit_code == 0


@pytest.fixture
def lines_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a progress line for every step."""
    monkeypatch.setattr("threadkeep.cli.terminal.LINE_SECONDS", 0.0)
    monkeypatch.setattr("threadkeep.cli.database._SLICE_SECONDS", 0.0)
    monkeypatch.setattr("threadkeep.store.search._STEP_MESSAGES", 2)


@pytest.mark.usefixtures("lines_at_once")
def test_the_search_index_is_filled(any_cli: CommandLine) -> None:
    for name in ("a", "b"):
        any_cli.store(name, "one", "two")
    assert any_cli("migrate", "--check", "--json").json["unindexed"] == 4
    told = any_cli("migrate", "--no-search-index")
    assert (told.exit_code, told.err) == (0, "")
    assert "4 messages still missing in the search index; `threadkeep migrate`" in told.out
    filled = any_cli("migrate")
    assert filled.exit_code == 0
    assert filled.err.splitlines() == [
        "Filling the search index: 50 % 2 of 4 messages",
        "Filling the search index: 100 % 4 of 4 messages",
    ]
    assert filled.out.splitlines()[1:] == ["4 messages added to the search index."]
    again = any_cli("migrate", "--json")
    assert (again.json["indexed"], again.json["unindexed"], again.err) == (0, 0, "")


@pytest.mark.usefixtures("lines_at_once")
def test_an_interrupted_fill_of_the_index_continues_later(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        cli.store(name, "one", "two")
    step, errors = SearchIndex._step, iter([None, StoreUnavailable("The disk is full.")])  # noqa: SLF001

    async def failing(index: SearchIndex, *arguments: object) -> object:
        if error := next(errors):
            raise error
        return await step(index, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as broken:
        broken.setattr(SearchIndex, "_step", failing)
        outcome = cli("migrate")
    assert outcome.exit_code == 1
    assert "Interrupted: 2 of 4 messages are in the search index. Run the command again to continue" in outcome.err
    assert cli("migrate", "--json").json["indexed"] == 2


def test_messages_that_arrive_later_are_not_unindexed(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may store messages during the migration; they are no failure."""
    cli.store("a", "one")

    async def later(driver: Driver) -> Condition:
        return replace(await read_condition(driver), unindexed=1)

    monkeypatch.setattr("threadkeep.store.condition.read_condition", later)
    outcome = cli("migrate", "--json")
    assert (outcome.exit_code, outcome.json["indexed"], outcome.json["unindexed"]) == (0, 1, 0)


def test_locked_sessions_are_skipped_by_the_index(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    """On PostgreSQL, the command does not wait forever, and exits with 1 if the index is incomplete."""
    cli.set(THREADKEEP_DATABASE_URL=postgres_url)
    cli.url = postgres_url
    for name in ("a", "b"):
        cli.store(name, "one", "two")
    monkeypatch.setattr("threadkeep.store.search.GROUP_LOCK_SECONDS", 0.01)
    monkeypatch.setattr("threadkeep.cli.database._MOST_IDLE_PASSES", 2)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT 1 FROM chat_sessions WHERE session_id = 'a' FOR UPDATE")
        outcome = cli("migrate", "--json")
    assert outcome.exit_code == 1
    assert (outcome.json["indexed"], outcome.json["unindexed"]) == (2, 2)


@pytest.mark.parametrize("kind", ["sqlite_url", "empty_postgres_url"])
def test_an_upgrade_shows_progress_and_free_space(
    request: pytest.FixtureRequest, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each migration has a line. On SQLite, the output has the free space and the command that returns it."""
    url = request.getfixturevalue(kind)
    cli.set(THREADKEEP_DATABASE_URL=url)
    known = migrations.known_migrations
    # If `doctor` below is the first to import this module, the module would keep the function that is set here.
    importlib.import_module("threadkeep.cli.database_checks")
    assert cli("migrate").err == ""
    monkeypatch.setattr(migrations, "known_migrations", lambda backend: [*known(backend), (9998, "9998_later.sql")])
    monkeypatch.setattr(migrations, "load_script", lambda _: ["SELECT 1"])
    # More room than our tables take.
    execute(url, f"CREATE TABLE filler AS SELECT '{'x' * 1_000_000}' AS text")
    execute(url, "DROP TABLE filler")
    monkeypatch.setattr("threadkeep.store.condition._MUCH_FREE_BYTES", 1)
    monkeypatch.setattr("threadkeep.store.condition._MUCH_FREE_SHARE", 0.0)
    upgrade = cli("migrate")
    assert re.fullmatch(r"Migrating: 0 % 9998 later\n(Migrating: \d+ % .*\n)*", upgrade.err)
    assert ("are free for later messages; `threadkeep sessions prune --vacuum`" in upgrade.out) == (
        kind == "sqlite_url"
    )
    assert (cli("migrate", "--json").json["free_bytes"] > 0) == (kind == "sqlite_url")
    assert ("--vacuum" in cli("doctor").out) == (kind == "sqlite_url")


def test_a_migration_by_another_process_is_no_failure(any_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may migrate between the command's first look and its own attempt."""
    any_cli("migrate")
    newest = any_cli("migrate", "--json").json["newest"]
    schema_version, looks = migrations.schema_version, iter([newest - 1])

    async def later(driver: Driver) -> int:
        return next(looks, await schema_version(driver))

    monkeypatch.setattr(migrations, "schema_version", later)
    outcome = any_cli("migrate", "--json")
    assert (outcome.exit_code, outcome.json["schema"], outcome.json["waiting"]) == (0, newest, [])


def test_a_newer_schema_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    cli("migrate")
    with closing(sqlite3.connect(tmp_path / "threadkeep.db")) as connection, connection:
        connection.execute("INSERT INTO threadkeep_migrations VALUES (999, 'x', 'now')")
    connection.close()
    for command in (["migrate"], ["migrate", "--check"], ["sessions", "list"]):
        outcome = cli(*command)
        assert outcome.exit_code == 1
        assert "schema 999" in outcome.err
        assert "upgrade Threadkeep" in outcome.err


@pytest.mark.parametrize("database", ["sqlite_url", "empty_postgres_url"])
def test_a_schema_that_cannot_be_upgraded_is_refused_with_the_cure(
    cli: CommandLine, request: pytest.FixtureRequest, database: str
) -> None:
    """The tables of such a schema may lack columns that later statements use."""
    url = str(request.getfixturevalue(database))
    cli.set(THREADKEEP_DATABASE_URL=url)
    execute(url, "CREATE TABLE threadkeep_migrations (version INTEGER PRIMARY KEY, name TEXT, applied_at TEXT)")
    execute(url, "INSERT INTO threadkeep_migrations VALUES (12, 'old', '')")
    execute(url, "CREATE TABLE chat_sessions (session_id TEXT)")
    for command in (["migrate"], ["migrate", "--check"], ["sessions", "list"]):
        outcome = cli(*command)
        assert outcome.exit_code == 1
        assert "schema 12, which a version before 0.1.0 created" in outcome.err
        assert "export its sessions with the old version" in outcome.err
    outcome = cli("doctor", "--json")
    assert outcome.exit_code == 1
    assert [(one["check"], one["cure"]) for one in outcome.json["findings"] if one["level"] == "fail"] == [
        ("schema", "Export its sessions with the old version, and import them into a new database.")
    ]


@pytest.mark.parametrize(
    ("query", "says"), [("", "PostgreSQL cannot be reached"), ("?sslmod=off", "check the parameters after its ?")]
)
def test_a_password_is_never_shown(cli: CommandLine, query: str, says: str) -> None:
    cli.set(THREADKEEP_DATABASE_URL=f"postgresql://somebody:secret@127.0.0.1:1/db{query}")
    cli.set(THREADKEEP_POSTGRES_POOL_TIMEOUT="0.2")
    outcome = cli("migrate")
    assert outcome.exit_code == 1
    assert says in outcome.err
    assert "secret" not in outcome.err + outcome.out


def test_a_file_that_is_no_database_is_reported(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "threadkeep.db").write_text("This is a letter to a friend, and not a database. " * 100)
    outcome = cli("sessions", "list", "--database", str(tmp_path / "threadkeep.db"))
    assert outcome.exit_code == 1
    assert "not an SQLite database" in outcome.err
    assert "THREADKEEP_DATABASE_URL" not in outcome.err  # the file may be named by an option, or be a source


@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
def test_the_bench_leaves_no_sessions(request: pytest.FixtureRequest, cli: CommandLine, kind: str) -> None:
    cli.set(THREADKEEP_DATABASE_URL=url_of(request, kind))
    cli.store("a", "Mine.")
    outcome = cli("bench", "--turns", "12", "--json")
    assert outcome.exit_code == 0
    names = [result["name"] for result in outcome.json["results"]]
    assert names == ["append a turn of two messages", "tail(20)", "window(20 messages, 4000 tokens)"]
    assert all(0 < result["median_ms"] <= result["p95_ms"] for result in outcome.json["results"])
    assert not [s for s in cli("sessions", "list", "--json").json["sessions"] if s["session_id"] != "a"]


def test_the_bench_shows_a_table(cli: CommandLine) -> None:
    outcome = cli("bench", "--turns", "10")
    assert "median ms" in outcome.out
    assert "Measuring: 100 %" in outcome.err
