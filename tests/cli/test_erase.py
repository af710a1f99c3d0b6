"""Tests of `threadkeep erase`: the dry run, the erase with its receipt, and the verification of the receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import CommandLine
from tests.databases import execute
from threadkeep.errors import StoreUnavailable
from threadkeep.store.erasing import TableErasing


def test_a_person_is_erased_with_a_receipt(any_cli: CommandLine) -> None:
    """A dry run erases nothing. The receipt can be verified, and a changed receipt is refused."""
    any_cli.store("room", "canary words", "noted", user_id="ann")
    assert any_cli("erase", "user", "ann").exit_code == 2
    plan = any_cli("erase", "user", "ann", "--dry-run", "--json").json
    assert (plan["sessions"], plan["dry_run"], plan["complete"]) == (1, True, False)
    file = any_cli.folder / "receipt.json"
    done = any_cli("erase", "user", "ann", "--yes", "--receipt", str(file), "--json")
    assert (done.exit_code, done.json["complete"]) == (0, True)
    assert "canary" not in file.read_text()
    assert any_cli("sessions", "list", "--json").json["sessions"] == []
    assert any_cli("erase", "verify", str(file), "--json").json == {"result": "gone"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "sessions": 9}))
    assert any_cli("erase", "verify", str(file)).exit_code == 1
    file.write_text("[]")
    assert any_cli("erase", "verify", str(file)).exit_code == 2


def test_a_read_only_server_shows_a_dry_run(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The server has no key for the signature of a receipt, and cannot store one."""
    cli = CommandLine(tmp_path, postgres_url, monkeypatch=monkeypatch, captured=capsysbinary)
    cli.store("room", "hi", "hello", user_id="ann")
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    for subject in (("user", "ann"), ("session", "room")):
        plan = cli("erase", *subject, "--dry-run", "--json")
        assert (plan.exit_code, plan.json["sessions"]) == (0, 1), plan.err
        refused = cli("erase", *subject, "--yes")
        assert (refused.exit_code, "No receipt can be signed" in refused.err) == (1, True)


def test_a_receipt_that_cannot_be_written_stops_the_erase(cli: CommandLine) -> None:
    """The path is checked before anything is erased. If the write fails afterwards, the receipt is on stdout."""
    cli.store("a", "hi", "hello", user_id="ann")
    for subject in (("user", "ann"), ("session", "a")):
        refused = cli("erase", *subject, "--yes", "--receipt", str(cli.folder / "nodir" / "r.json"))
        assert refused.exit_code == 2
        assert "nothing was erased" in refused.err
        assert cli("sessions", "list", "--json").json["sessions"] != []
    refused = cli("erase", "user", "ann", "--yes", "--receipt", str(cli.folder))
    assert refused.exit_code == 2
    done = cli("erase", "user", "ann", "--yes", "--receipt", "/dev/full")
    assert (done.exit_code, done.json["complete"]) == (1, True)
    assert done.json["signature"]
    assert "could not be written" in done.err


def test_a_receipt_replaces_only_an_incomplete_receipt(cli: CommandLine) -> None:
    """An interrupted erase is repeated with the same file. Nothing is erased if the file has other contents."""
    cli.store("a", "hi", "hello", user_id="ann")
    (cli.folder / "letter").write_text("words")
    (cli.folder / "nested").write_text("[" * 200_000)
    (cli.folder / "link").symlink_to("threadkeep.db")
    for name in ("letter", "nested", "link", "threadkeep.db", "threadkeep.db-wal"):
        refused = cli("erase", "user", "ann", "--yes", "--receipt", str(cli.folder / name))
        assert (refused.exit_code, "name another file" in refused.err) == (2, True), name
    assert (cli.folder / "letter").read_text() == "words"
    assert cli.info("a").message_count == 2
    file = cli.folder / "receipt"
    assert cli("erase", "user", "ann", "--dry-run", "--receipt", str(file)).exit_code == 0
    assert cli("erase", "user", "ann", "--yes", "--receipt", str(file)).exit_code == 0
    known = file.read_text()
    refused = cli("erase", "user", "bob", "--yes", "--receipt", str(file))
    assert (refused.exit_code, "receipt of a complete erase" in refused.err) == (2, True)
    assert file.read_text() == known


@pytest.mark.parametrize(
    "words",
    [
        "erase session a --dry-run",
        "erase session a --dry-run --json",
        "sessions list",
        "sessions list --json",
        "sessions export --all --output a.jsonl",
        "runs list",
        "chat",
        "migrate",
        "backup --replace a.copy",
        "pending list",
        "workflows list",
    ],
)
def test_a_misspelt_variable_is_named(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Otherwise the command would use the default database without a word."""
    cli.store("room", "hi", "hello")
    monkeypatch.setenv("THREADKEEP_DATABSE_URL", "sqlite:////elsewhere.db")
    named = "THREADKEEP_DATABSE_URL is not a setting and has no effect; did you mean THREADKEEP_DATABASE_URL?"
    assert cli(*words.split()).err.count(named) == 1
    monkeypatch.delenv("THREADKEEP_DATABSE_URL")
    monkeypatch.setenv("THREADKEEP_MODLE", "demo")
    assert cli(*words.split()).err.count("did you mean THREADKEEP_MODEL?") == 1


def test_a_session_is_erased(cli: CommandLine) -> None:
    cli.store("a", "hi", "hello")
    cli.store("b", "hi", "hello")
    assert cli("erase", "session", "a", "--yes").out.endswith("Erased.\n")
    assert [session["session_id"] for session in cli("sessions", "list", "--json").json["sessions"]] == ["b"]


def test_an_id_without_data_is_not_reported_as_erased(cli: CommandLine) -> None:
    """The output asks to check the id, which may be mistyped."""
    cli.store("a", "hi", "hello", user_id="ann")
    for subject in (("user", "anm"), ("session", "b")):
        for options in (["--yes"], ["--dry-run"]):
            done = cli("erase", *subject, *options)
            assert (done.exit_code, done.out) == (0, "No data was found; check the id.\n")
    assert cli("erase", "user", "ann", "--yes").out.endswith("Erased.\n")
    assert cli("persons", "list").err == "There are no persons yet.\n"


@pytest.mark.parametrize("subject", ["user", "session"])
def test_an_interrupted_erase_says_that_some_data_may_be_erased(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    """The disk becomes full after the sessions are deleted; a second call does the rest, and its receipt counts all."""
    cli.store("a", "hi", "hello", user_id="ann")
    command = ("erase", subject, {"user": "ann", "session": "a"}[subject], "--yes", "--json")

    async def full(*_: object) -> None:
        raise StoreUnavailable("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(TableErasing, "delete_person", full)
        failed = cli(*command)
    assert failed.exit_code == 1
    assert "The disk is full. Some data may be erased already; erase again to continue." in failed.err
    assert cli("sessions", "list", "--json").json["sessions"] == []
    done = cli(*command)
    assert (done.exit_code, done.json["complete"], done.json["sessions"]) == (0, True, 1)
