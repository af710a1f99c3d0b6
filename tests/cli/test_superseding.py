"""Tests of `threadkeep sessions take-back`, `edit` and `branch`, and of superseded messages in other commands."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import CommandLine
from threadkeep.history.memory import Memory
from threadkeep.records import Message, Summary


async def _talk(memory: Memory) -> None:
    """Store four exchanges with an edit, a reset, a message taken back and a summary."""
    session = memory.session("a", user_id="ann")
    for number in range(1, 4):
        await session.append(
            [
                Message("user", f"question {number}", f"q{number}"),
                Message("assistant", f"answer {number}", f"a{number}"),
            ]
        )
    await session.edit("q2", "better question", new_id="q2b")
    await session.append([Message("assistant", "better answer", "a2b")])
    await session.reset()
    await session.append([Message("user", "question 4", "q4"), Message("assistant", "answer 4", "a4")])
    await session.take_back()
    assert await memory.summaries.add(Summary("a", 9, 9, "The fourth.", "m", "1", tokens=3))


def _use_other_database(cli: CommandLine, name: str = "other") -> None:
    cli.url = f"sqlite:///{cli.folder}/{name}.db"
    cli.set(THREADKEEP_DATABASE_URL=cli.url)


def test_the_newest_messages_can_be_taken_back(any_cli: CommandLine) -> None:
    any_cli.store("a", "one", "two", "three", user_id="ann")
    outcome = any_cli("sessions", "take-back", "a", "-n", "2")
    assert outcome.out.splitlines() == ["#2  assistant: two", "#3  user: three"]
    assert "Took back 2 messages." in outcome.err
    assert any_cli("sessions", "take-back", "a", "--user", "bob").exit_code == 1
    told = any_cli("sessions", "take-back", "a", "--json").json
    assert [message["content"] for message in told["messages"]] == ["one"]
    assert "no message to take back" in any_cli("sessions", "take-back", "a").err
    assert any_cli("sessions", "take-back", "a", "-n", "0").exit_code == 2


def test_a_message_is_edited_by_id_or_number(any_cli: CommandLine) -> None:
    """The messages after an edited message are superseded, too."""
    any_cli.store("a", "one", "two", "three")
    assert "message 4" in any_cli("sessions", "edit", "a", "2", "zwei").out
    told = any_cli("sessions", "edit", "a", "1", "eins", "--new-id", "e1", "--json").json
    assert (told["message"]["id"], told["message"]["seq"]) == ("e1", 5)
    assert any_cli("sessions", "edit", "a", "e1", "uno").exit_code == 0
    again = any_cli("sessions", "edit", "a", "e1", "due")
    assert again.exit_code == 1
    assert "superseded before" in again.err
    assert "no message '9'" in any_cli("sessions", "edit", "a", "9", "nine").err
    shown = any_cli("sessions", "show", "a", "--json").json
    assert [message["content"] for message in shown["messages"]] == ["uno"]
    assert (shown["message_count"], shown["revision"]) == (1, 3)
    whole = any_cli("sessions", "show", "a", "--view", "history")
    assert "superseded by e1" in whole.out
    assert "three" in whole.out
    assert any_cli("sessions", "show", "a", "--view", "all").exit_code == 2


def test_a_session_is_branched(any_cli: CommandLine) -> None:
    any_cli.store("a", "one", "two", "three")
    told = any_cli("sessions", "branch", "a", "--at", "2", "--json").json
    assert (told["message_count"], told["parent_session_id"], told["parent_seq"]) == (2, "a", 2)
    outcome = any_cli("sessions", "branch", "a", "--as", "b")
    assert "b begins with 3 messages of a." in outcome.out
    assert "threadkeep chat --session b" in outcome.err
    assert any_cli("sessions", "branch", "a", "--at", "9").exit_code == 2
    assert any_cli("sessions", "branch", "nowhere").exit_code == 1


@pytest.mark.slow
def test_a_reply_can_be_regenerated(any_cli: CommandLine) -> None:
    first = any_cli.process("chat", "--session", "a", "--json", given="My cat is called Miso.\n").json
    any_cli.process("chat", "--session", "a", given="What is my cat called?\n")
    outcome = any_cli("sessions", "regenerate", "a")
    assert outcome.exit_code == 0
    assert "Miso" in outcome.out
    assert any_cli.info("a").message_count == 4
    again = any_cli("sessions", "regenerate", "a", "--run", first["run_id"], "--json").json
    assert again["message_id"] == first["message_id"]
    assert again["run_id"] != first["run_id"]
    info = any_cli.info("a")
    assert (info.message_count, info.last_seq) == (2, 6)
    assert any_cli("sessions", "regenerate", "a", "--message", first["message_id"]).exit_code == 0
    assert any_cli("sessions", "regenerate", "a", "--message", "nothing").exit_code == 1
    missing = any_cli("sessions", "regenerate", "a", "--run", "nothing", "--json")
    assert missing.exit_code == 1
    assert "Session 'a' has no message or run 'nothing'" in missing.problem["detail"]
    assert any_cli("sessions", "regenerate", "nowhere").exit_code == 1
    assert any_cli("sessions", "regenerate", "a", "--message", "x", "--run", "y").exit_code == 2


def test_an_export_has_active_messages_numbered_without_gaps(any_cli: CommandLine) -> None:
    """An import gives a session without superseded messages. The reset and the summaries keep their positions."""
    any_cli.with_memory(_talk)
    exported = any_cli("sessions", "export", "a").out
    lines = [json.loads(line) for line in exported.splitlines()]
    assert lines[0]["reset_seq"] == 4
    said = [(line["seq"], line["content"], line["superseded_at"]) for line in lines if line["type"] == "message"]
    assert said == [
        (1, "question 1", None),
        (2, "answer 1", None),
        (3, "better question", None),
        (4, "better answer", None),
        (5, "question 4", None),
    ]
    [summary] = [line for line in lines if line["type"] == "summary"]
    assert (summary["first_seq"], summary["last_seq"], summary["messages"]) == (5, 5, 1)
    _use_other_database(any_cli)
    imported = any_cli("sessions", "import", "-", "--json", given=exported).json
    assert (imported["stored"], imported["moved"], imported["summaries"]) == (5, 0, 1)
    assert any_cli("sessions", "export", "a").out == exported
    info = any_cli.info("a")
    assert (info.message_count, info.last_seq, info.reset_seq, info.revision) == (5, 5, 4, 0)


def test_an_export_of_the_history_is_imported_unchanged(any_cli: CommandLine) -> None:
    any_cli.with_memory(_talk)
    exported = any_cli("sessions", "export", "a", "--view", "history").out
    _use_other_database(any_cli)
    imported = any_cli("sessions", "import", "-", "--json", given=exported).json
    assert (imported["stored"], imported["moved"], imported["summaries"]) == (10, 0, 1)
    assert any_cli("sessions", "export", "a", "--view", "history").out == exported
    info = any_cli.info("a")
    assert (info.message_count, info.last_seq, info.reset_seq, info.title) == (5, 10, 8, "question 1")
    assert info.last_message == "question 4"
    assert any_cli("sessions", "import", "-", "--json", given=exported).json["known"] == 10
    assert any_cli.info("a") == info
    assert any_cli("sessions", "edit", "a", "q2b", "best").exit_code == 0


def test_an_imported_branch_names_its_parent(cli: CommandLine) -> None:
    """A branch also names a parent that was not imported."""
    cli.store("a", "one", "two")
    cli("sessions", "branch", "a", "--as", "b", "--at", "1")
    exported = cli("sessions", "export", "b").out
    _use_other_database(cli)
    assert cli("sessions", "import", "-", given=exported).exit_code == 0
    info = cli.info("b")
    assert (info.parent_session_id, info.parent_seq) == ("a", 1)


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
def test_a_branch_names_the_exported_position_in_its_parent(any_cli: CommandLine, transcripts: str) -> None:
    """An export without superseded messages renumbers the messages of the parent.

    A missing parent is not renumbered.
    """
    any_cli.set(THREADKEEP_TRANSCRIPTS=transcripts)
    given = [{"type": "session", "session_id": "a"}]
    given += [{"type": "message", "session_id": "a", "role": "user", "content": word, "id": word} for word in "xyz"]
    assert any_cli("sessions", "import", "-", given="\n".join(map(json.dumps, given))).exit_code == 0
    assert any_cli("sessions", "edit", "a", "y", "why", "--new-id", "y2").exit_code == 0
    for name, at in (("b", "4"), ("c", "3")):
        assert any_cli("sessions", "branch", "a", "--at", at, "--as", name).exit_code == 0
    whole = any_cli("sessions", "export", "b", "--view", "history").out
    exported = any_cli("sessions", "export", "--all").out
    assert any_cli("sessions", "edit", "a", "x", "ex", "--new-id", "x2").exit_code == 0
    assert any_cli("sessions", "take-back", "a").exit_code == 0
    emptied = any_cli("sessions", "export", "--all").out
    assert any_cli("sessions", "delete", "a", "--yes").exit_code == 0
    orphaned = any_cli("sessions", "export", "b").out
    positions = [
        [line.get("parent_seq") for line in map(json.loads, text.splitlines()) if line.get("parent_session_id")]
        for text in (whole, exported, emptied, orphaned)
    ]
    assert positions == [[4], [1, 2], [None, None], [4]]
    for name, text in (("other", exported), ("emptied", emptied)):
        _use_other_database(any_cli, name)
        assert any_cli("sessions", "import", "-", given=text).exit_code == 0
        assert any_cli("sessions", "export", "--all").out == text
    _use_other_database(any_cli)
    assert any_cli("sessions", "branch", "a", "--at", "2", "--as", "b").exit_code == 0


def test_editing_and_exports_work_in_a_graph_store(cli: CommandLine) -> None:
    cli.set(THREADKEEP_TRANSCRIPTS="graph_store")
    given = [{"type": "session", "session_id": "a"}]
    given += [
        {"type": "message", "session_id": "a", "role": "user", "content": word, "id": word} for word in ("x", "y", "z")
    ]
    assert cli("sessions", "import", "-", given="\n".join(map(json.dumps, given))).exit_code == 0
    assert cli("sessions", "edit", "a", "y", "why", "--new-id", "y2").exit_code == 0
    assert cli("sessions", "take-back", "a").exit_code == 0
    assert cli("sessions", "branch", "a", "--at", "3", "--as", "b").exit_code == 0
    shown = cli("sessions", "show", "b", "--json").json
    assert [message["content"] for message in shown["messages"]] == ["x", "y", "z"]
    exported = cli("sessions", "export", "a", "--view", "history").out
    _use_other_database(cli)
    assert cli("sessions", "import", "-", given=exported).exit_code == 0
    assert cli("sessions", "export", "a", "--view", "history").out == exported
    listed = cli("sessions", "list", "--json").json["sessions"]
    assert [(one["session_id"], one["message_count"], one["last_message"]) for one in listed] == [("a", 1, "x")]
