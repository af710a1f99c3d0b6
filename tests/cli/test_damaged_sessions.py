"""Tests of damaged items of a graph store on the command line: one affects no other session."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import CommandLine
from tests.databases import execute
from tests.graph_store.damaging import DAMAGES, SESSIONS, rewrite
from threadkeep import Memory, Message

WELL = "well"


@pytest.fixture
def damaged(any_cli: CommandLine) -> CommandLine:
    """Return the command line over a graph store with a damaged session of each kind, and an intact one."""
    any_cli.set(THREADKEEP_TRANSCRIPTS="graph_store")

    async def say(memory: Memory) -> None:
        for session_id in (*SESSIONS, WELL):
            turn = [Message(role="user", content=f"remember {session_id}"), Message(role="assistant", content="yes")]
            await memory.session(session_id, user_id="ann").append(turn)

    any_cli.with_memory(say, transcripts="graph_store")
    for session_id, kind in SESSIONS.items():
        DAMAGES[kind].do(any_cli.url, session_id)
    return any_cli


def test_damaged_sessions_are_named(damaged: CommandLine) -> None:
    """Lists, searches, exports and the doctor name the damaged sessions; the intact session is in all of them."""
    listed = damaged("sessions", "list", "--limit", "200", "--json")
    assert listed.exit_code == 0
    assert WELL in [each["session_id"] for each in listed.json["sessions"]]
    of_metadata = {session_id for session_id, kind in SESSIONS.items() if DAMAGES[kind].reported == "metadata"}
    assert set(listed.json["damaged"]) == of_metadata
    assert "room:0, room:1" in damaged("sessions", "list").err
    found = damaged("sessions", "search", "remember", "--json").json
    assert WELL in [hit["session_id"] for hit in found["hits"]]
    assert set(found["damaged"]) == set(SESSIONS)

    exported = damaged("sessions", "export", "--all")
    assert exported.exit_code == 1
    assert f"remember {WELL}" in exported.out
    # One of the damaged sessions has all its messages.
    assert exported.err.count("Left out: Session") == len(SESSIONS) - 1
    for session_id in SESSIONS:
        shown = damaged("sessions", "show", session_id)
        assert (shown.exit_code, f"Session '{session_id}' is damaged" in shown.err) == (1, True)

    doctor = damaged("doctor", "--json")
    [finding] = [each for each in doctor.json["findings"] if each["check"] == "graph store"]
    assert (doctor.exit_code, finding["level"]) == (1, "fail")
    assert finding["detail"].startswith(f"{len(SESSIONS)} conversations cannot be read: room:")
    assert "threadkeep sessions delete room:" in finding["cure"]


def test_damaged_sessions_are_deleted(damaged: CommandLine) -> None:
    assert damaged("sessions", "delete", *SESSIONS, "--user", "bob", "--yes").exit_code == 1
    deleted = damaged("sessions", "delete", *SESSIONS, "--yes", "--json")
    assert (deleted.exit_code, set(deleted.json["deleted"])) == (0, set(SESSIONS))
    assert [each["session_id"] for each in damaged("sessions", "list", "--json").json["sessions"]] == [WELL]
    doctor = damaged("doctor", "--json")
    [finding] = [each for each in doctor.json["findings"] if each["check"] == "graph store"]
    assert (doctor.exit_code, finding["detail"]) == (0, "1 conversation can be read.")


def test_missing_messages_are_a_warning_of_the_doctor(cli: CommandLine) -> None:
    cli.set(THREADKEEP_TRANSCRIPTS="graph_store")
    cli.with_memory(_two_turns, transcripts="graph_store")
    rewrite(cli.url, "room:chunk:000000", lambda chunk: {**chunk, "messages": chunk["messages"][1:]})
    doctor = cli("doctor", "--json")
    [finding] = [each for each in doctor.json["findings"] if each["check"] == "graph store"]
    assert (doctor.exit_code, finding["level"]) == (0, "warn")
    assert "room (1 message)" in finding["detail"]
    lines = cli("sessions", "export", "room").out.splitlines()
    assert [json.loads(line).get("content") for line in lines[1:]] == ["two"]


@pytest.mark.parametrize("column", ["tags", "metadata", "retention"])
def test_a_damaged_row_is_not_exported(cli: CommandLine, column: str) -> None:
    """An export has no invented values: the damaged session is left out with an error, and its branch is exported."""
    cli.store("room", "one")
    cli.store(WELL, "two")

    async def prepare(memory: Memory) -> None:
        await memory.session("room").branch(session_id="branch")
        await memory.session(WELL).update(metadata={"threadkeep:error": "RecordUnreadable"}, tags=["a"])

    cli.with_memory(prepare)
    execute(cli.url, f"UPDATE chat_sessions SET {column} = '3' WHERE session_id = 'room'")
    exported = cli("sessions", "export", "--all")
    lines = [json.loads(line) for line in exported.out.splitlines()]
    sessions = {line["session_id"]: line["tags"] for line in lines if line["type"] == "session"}
    assert (exported.exit_code, sessions) == (1, {WELL: ["a"], "branch": []})
    assert {line["session_id"] for line in lines} == {WELL, "branch"}
    assert "Left out: The session room cannot be read." in exported.err
    one = cli("sessions", "export", "room")
    assert (one.exit_code, one.out) == (1, "")
    assert "The session room cannot be read." in one.err


async def _two_turns(memory: Memory) -> None:
    for text in ("one", "two"):
        await memory.session("room").append([Message(role="user", content=text)])


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
def test_a_text_that_is_not_utf8_is_in_no_error(
    cli: CommandLine, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the column, not the text, and no other cause."""
    cli.store("room", "The disk is full.", "Noted.")
    execute(
        cli.url, "UPDATE chat_messages SET content = CAST(CAST(content AS BLOB) || x'ff' AS TEXT) WHERE role = 'user'"
    )
    monkeypatch.setattr("threadkeep.store.sqlite.is_read_only", lambda _: read_only)
    for command in ("show", "export"):
        shown = cli("sessions", command, "room")
        assert (shown.exit_code, "content is not UTF-8" in shown.err) == (1, True)
        assert "full" not in shown.out + shown.err
