"""Any text is a session id on the command line too: it is typed, shown, exported and imported as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import CommandLine

IDS = ["me@example.com", "C024.1700000000.12", "+351912345678", "a/b", "🙂", "a b", "[red]x", ":smile:", "-x"]


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
@pytest.mark.slow
def test_commands_take_any_id_and_show_it(any_cli: CommandLine, transcripts: str, tmp_path: Path) -> None:
    """Import, list, show, search, prune, reset, export, delete, import again."""
    any_cli.set(THREADKEEP_TRANSCRIPTS=transcripts)
    given = "".join(
        json.dumps({"type": "message", "session_id": session_id, "role": role, "content": f"a parasol {session_id}"})
        + "\n"
        for session_id in IDS
        for role in ("user", "assistant", "user", "assistant")
    )
    assert any_cli("sessions", "import", "-", given=given).exit_code == 0
    listed = any_cli("sessions", "list")
    assert all(session_id in listed.out for session_id in IDS)
    found = any_cli("sessions", "search", "parasol", "--limit", "100", "--json").json["hits"]
    assert {hit["session_id"] for hit in found} == set(IDS)
    planned = any_cli("sessions", "prune", "--dry-run", "--delete", "--max-messages", "2", "--json", "--", *IDS)
    if transcripts == "tables":
        assert {removal["session_id"] for removal in planned.json["sessions"]} == set(IDS)
    for session_id in IDS:
        shown = any_cli("sessions", "show", "--json", "--", session_id).json
        assert (shown["session_id"], shown["messages"][0]["content"]) == (session_id, f"a parasol {session_id}")
        assert session_id in any_cli("sessions", "reset", "--", session_id).out
        assert any_cli("context", "show", "--session", session_id, "--next", "--json").exit_code == 0
    file = tmp_path / "all.jsonl"
    assert any_cli("sessions", "export", "--all", "--output", str(file)).exit_code == 0
    exported = {json.loads(line)["session_id"] for line in file.read_text(encoding="utf-8").splitlines()}
    assert exported == set(IDS)
    deleted = any_cli("sessions", "delete", "--yes", "--", *IDS)
    assert (deleted.exit_code, all(session_id in deleted.out for session_id in IDS)) == (0, True)
    assert any_cli("sessions", "list", "--json").json["sessions"] == []
    assert any_cli("sessions", "import", str(file)).exit_code == 0
    back = {info["session_id"] for info in any_cli("sessions", "list", "--json").json["sessions"]}
    assert back == set(IDS)


def test_a_chat_goes_on_in_a_session_of_any_id(cli: CommandLine) -> None:
    """The option takes an id that looks like one."""
    first = cli.process("chat", "--session", "-x a/b", "--json", given="Hello!\n")
    assert (first.exit_code, json.loads(first.out)["session_id"]) == (0, "-x a/b")
    second = cli.process("chat", "--session", "-x a/b", "--json", given="/stats\n")
    assert (json.loads(second.out)["session_id"], json.loads(second.out)["messages"]) == ("-x a/b", 2)


def test_a_chat_with_an_empty_id_is_refused(cli: CommandLine) -> None:
    """It is no wish for a new session: a script may have lost its variable."""
    refused = cli.process("chat", "--session", "", given="Hello!\n")
    assert (refused.exit_code, refused.out) == (2, "")
    assert "at least one character" in refused.err


def test_a_hint_can_be_typed_as_it_is(cli: CommandLine) -> None:
    """The shell takes the id for one word, and the command for an argument."""
    cli.store("-a b's", "one", "two")
    hint = cli("sessions", "show", "--limit", "1", "--", "-a b's").err
    assert """threadkeep sessions show --limit 1 --before 2 -- '-a b'"'"'s'""" in hint


def test_an_id_does_not_steer_the_terminal(cli: CommandLine) -> None:
    """Characters that turn the direction of writing are shown as what they are: no letters."""
    cli.store("a\u202eb", "one")
    assert "\u202e" not in cli("sessions", "list").out
    assert cli("sessions", "list", "--json").json["sessions"][0]["session_id"] == "a\u202eb"


@pytest.mark.parametrize("session_id", ["", "telegram:", "a\nb", "x" * 257])
def test_what_names_nothing_is_refused_with_what_to_type(cli: CommandLine, session_id: str) -> None:
    """Which ids there are is told by a command."""
    refused = cli("sessions", "show", session_id)
    assert refused.exit_code == 2
    assert "threadkeep sessions list" in refused.err
    assert "threadkeep." not in refused.err


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("runs", "show"), "no database stores"),
        (("runs", "list", "--session"), "no database stores"),
        (("sessions", "list", "--user"), "printable characters"),
        (("erase", "session", "--dry-run"), "no database stores"),
        (("keys", "revoke"), "no database stores"),
    ],
)
def test_bytes_that_are_no_text_are_a_wrong_use(any_cli: CommandLine, command: tuple[str, ...], sentence: str) -> None:
    """And no bug that is to be reported."""
    refused = any_cli(*command, "a\udcff", "--json")
    assert refused.exit_code == 2
    assert sentence in refused.problem["detail"]
