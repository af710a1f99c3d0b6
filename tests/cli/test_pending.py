"""Tests of `threadkeep pending`: the list of unwritten turns, and dropping one."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.cli.running import CommandLine
from threadkeep.history.pending import folder_of
from threadkeep.records import Message, Turn
from threadkeep.store.address import parse_address
from threadkeep.store.spool import PendingTurn, SpoolFile

KEPT_AT = datetime(2026, 1, 1, tzinfo=UTC)


def spool_turn(
    cli: CommandLine, entry_id: str = "entry-1", *, error: str | None = None, url: str | None = None
) -> SpoolFile:
    """Write a turn to a spool file; its process counts as alive until the file is closed."""
    file = SpoolFile.create(folder_of(parse_address(url or cli.url), cli.folder / "pending"))
    message = Message(role="user", content="canary words", id=f"id-{entry_id}")
    entry = PendingTurn(entry_id, Turn("telegram:1", (message,), "u1"), KEPT_AT, error=error)
    file.keep(entry)
    if error is not None:
        file.failed(entry)
    return file


def test_a_new_database_has_no_pending_turns(cli: CommandLine) -> None:
    assert cli("pending", "list").err == "There are no pending turns.\n"
    assert cli("pending", "list", "--json").json == {"entries": [], "unreadable": []}


def test_pending_turns_are_listed_without_their_text(cli: CommandLine) -> None:
    cli.set(THREADKEEP_DATABASE_URL=cli.url)
    spool_turn(cli, error="WrongUser").close()
    living = spool_turn(cli, "entry-2")

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


def test_dropping_a_turn_needs_a_confirmation(cli: CommandLine) -> None:
    spool_turn(cli).close()
    assert cli("pending", "drop", "entry-1").exit_code == 2
    assert len(cli("pending", "list", "--json").json["entries"]) == 1

    assert cli("pending", "drop", "entry-1", "--yes", "--json").json["dropped"] == "entry-1"
    assert cli("pending", "list", "--json").json["entries"] == []


def test_a_turn_of_a_running_process_is_not_dropped(cli: CommandLine) -> None:
    """A running process would still write the turn. The error says to stop the process."""
    living = spool_turn(cli)
    outcome = cli("pending", "drop", "entry-1", "--yes")
    living.close()
    assert outcome.exit_code == 1
    assert "stop that process" in outcome.err
    assert len(cli("pending", "list", "--json").json["entries"]) == 1


def test_an_unknown_entry_is_a_failure(cli: CommandLine) -> None:
    outcome = cli("pending", "drop", "entry-1", "--yes")
    assert outcome.exit_code == 1
    assert "threadkeep pending list" in outcome.err


def test_damaged_lines_are_listed_and_can_be_dropped(cli: CommandLine) -> None:
    """Damaged lines are listed without their text, even before a start has moved them."""
    file = spool_turn(cli)
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
    """The doctor finds the problem before an outage does."""
    cli("migrate")
    (cli.folder / "pending").write_text("not a folder")
    findings = cli("doctor", "--json").json["findings"]
    assert [
        f["level"] for f in findings if f["check"] == "pending writes" and "THREADKEEP_PENDING_DIR" in (f["cure"] or "")
    ]
