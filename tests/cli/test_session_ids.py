"""Tests of unusual session ids on the command line: they are accepted, shown, exported and imported unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import CommandLine

IDS = ["me@example.com", "C024.1700000000.12", "+351912345678", "a/b", "🙂", "a b", "[red]x", ":smile:", "-x"]


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
@pytest.mark.slow
def test_commands_take_any_id_and_show_it(any_cli: CommandLine, transcripts: str, tmp_path: Path) -> None:
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


def test_a_chat_continues_in_a_session_with_an_unusual_id(cli: CommandLine) -> None:
    first = cli.process("chat", "--session", "-x a/b", "--json", given="Hello!\n")
    assert (first.exit_code, json.loads(first.out)["session_id"]) == (0, "-x a/b")
    second = cli.process("chat", "--session", "-x a/b", "--json", given="/stats\n")
    assert (json.loads(second.out)["session_id"], json.loads(second.out)["messages"]) == ("-x a/b", 2)


def test_a_chat_with_an_empty_id_is_refused(cli: CommandLine) -> None:
    """An unset variable of a script must not start a new session."""
    refused = cli.process("chat", "--session", "", given="Hello!\n")
    assert (refused.exit_code, refused.out) == (2, "")
    assert "at least one character" in refused.err


def test_a_hint_can_be_pasted_into_a_shell(cli: CommandLine) -> None:
    cli.store("-a b's", "one", "two")
    hint = cli("sessions", "show", "--limit", "1", "--", "-a b's").err
    assert """threadkeep sessions show --limit 1 --before 2 -- '-a b'"'"'s'""" in hint


def test_an_id_cannot_control_the_terminal(cli: CommandLine) -> None:
    """A bidirectional override is shown as a replacement character."""
    cli.store("a\u202eb", "one")
    assert "\u202e" not in cli("sessions", "list").out
    assert cli("sessions", "list", "--json").json["sessions"][0]["session_id"] == "a\u202eb"


@pytest.mark.parametrize("session_id", ["", "telegram:", "a\nb", "x" * 257])
def test_an_invalid_id_is_refused_with_the_cure(cli: CommandLine, session_id: str) -> None:
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
        (("sessions", "list", "--database"), "not UTF-8"),
    ],
)
def test_arguments_that_are_no_text_are_usage_errors(
    any_cli: CommandLine, command: tuple[str, ...], sentence: str
) -> None:
    refused = any_cli(*command, "a\udcff", "--json")
    assert refused.exit_code == 2
    assert sentence in refused.problem["detail"]
