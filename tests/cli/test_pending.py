"""`threadkeep pending`: what waits to be written, and how a person gives it up."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.cli.running import CommandLine
from threadkeep.history.pending import folder_of
from threadkeep.records import Message, Turn
from threadkeep.store.address import parse_address
from threadkeep.store.spool import PendingTurn, SpoolFile

KEPT_AT = datetime(2026, 1, 1, tzinfo=UTC)


def keep(cli: CommandLine, entry_id: str = "entry-1", *, error: str | None = None, url: str | None = None) -> SpoolFile:
    """A turn in a spool of the command line's database, of a process that lives until the file is closed."""
    file = SpoolFile.create(folder_of(parse_address(url or cli.url), cli.folder / "pending"))
    message = Message(role="user", content="canary words", id=f"id-{entry_id}")
    entry = PendingTurn(entry_id, Turn("telegram:1", (message,), "u1"), KEPT_AT, error=error)
    file.keep(entry)
    if error is not None:
        file.failed(entry)
    return file


def test_nothing_waits_in_the_beginning(cli: CommandLine) -> None:
    """Which is said on stderr."""
    assert cli("pending", "list").err == "There are no pending turns.\n"
    assert cli("pending", "list", "--json").json == {"entries": [], "unreadable": []}


def test_what_waits_is_listed_without_its_words(cli: CommandLine) -> None:
    """Whose it is, since when, why, and whether its process lives. The database is not needed."""
    cli.set(THREADKEEP_DATABASE_URL=cli.url)
    keep(cli, error="WrongUser").close()
    living = keep(cli, "entry-2")

    first, second = cli("pending", "list", "--json").json["entries"]
    living.close()
    assert (first["entry"], first["session_id"], first["messages"], first["error"]) == (
        "entry-1",
        "telegram:1",
        1,
        "WrongUser",
    )
    assert (first["process"], second["process"]) == ("gone", "running")
    assert first["kept_at"] == KEPT_AT.isoformat()
    shown = cli("pending", "list")
    assert "entry-1" in shown.out
    assert "WrongUser" in shown.out
    assert "canary" not in shown.out + cli("pending", "list", "--json").out


def test_dropping_wants_a_yes(cli: CommandLine) -> None:
    """The turn is lost for good."""
    keep(cli).close()
    assert cli("pending", "drop", "entry-1").exit_code == 2
    assert len(cli("pending", "list", "--json").json["entries"]) == 1

    assert cli("pending", "drop", "entry-1", "--yes", "--json").json["dropped"] == "entry-1"
    assert cli("pending", "list", "--json").json["entries"] == []


def test_what_a_living_process_keeps_is_not_dropped(cli: CommandLine) -> None:
    """It would write it all the same; the sentence says what to do."""
    living = keep(cli)
    outcome = cli("pending", "drop", "entry-1", "--yes")
    living.close()
    assert outcome.exit_code == 1
    assert "stop that process" in outcome.err
    assert len(cli("pending", "list", "--json").json["entries"]) == 1


def test_an_entry_that_waits_nowhere_is_a_failure(cli: CommandLine) -> None:
    """The sentence says how to find those there are."""
    outcome = cli("pending", "drop", "entry-1", "--yes")
    assert outcome.exit_code == 1
    assert "threadkeep pending list" in outcome.err


def test_damaged_lines_are_listed_and_dropped_by_a_person(cli: CommandLine) -> None:
    """Before any start has moved them, and without their words."""
    file = keep(cli)
    file.close()
    file.path.write_bytes(b"#" + file.path.read_bytes())
    [damaged] = cli("pending", "list", "--json").json["unreadable"]
    assert damaged["bytes"] == len(file.path.read_bytes()) - 1
    shown = cli("pending", "list")
    assert damaged["entry"] in shown.out
    assert "canary" not in shown.out + shown.err
    assert "There are no pending turns" not in shown.err
    [finding] = [f for f in cli("doctor", "--json").json["findings"] if "cannot be read" in f["detail"]]
    assert (finding["check"], finding["level"]) == ("pending writes", "fail")

    assert cli("pending", "drop", damaged["entry"], "--yes").exit_code == 0
    assert cli("pending", "list", "--json").json == {"entries": [], "unreadable": []}
    assert cli("pending", "drop", damaged["entry"], "--yes").exit_code == 1


def test_an_unusable_folder_is_found_by_the_doctor(cli: CommandLine) -> None:
    """Before an outage finds it."""
    cli("migrate")
    (cli.folder / "pending").write_text("not a folder")
    findings = cli("doctor", "--json").json["findings"]
    assert [
        f["level"] for f in findings if f["check"] == "pending writes" and "THREADKEEP_PENDING_DIR" in (f["cure"] or "")
    ]
