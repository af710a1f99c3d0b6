"""Tests of `threadkeep import chatgpt`, which imports the shown branch of each conversation tree."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cli.running import CommandLine

BEGAN = 1_750_000_000.25


def node(key: str, parent: str | None, role: str, text: str | None, **fields: Any) -> dict[str, Any]:
    """Return a node of a tree: a message of a role, with other fields if given."""
    content = {"content_type": "text", "parts": [] if text is None else [text]}
    message = {
        "id": key,
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": BEGAN + len(key),
        "content": content,
        "status": "finished_successfully",
        "metadata": {},
        "recipient": "all",
        **fields,
    }
    return {"id": key, "message": message, "parent": parent, "children": []}


def conversation(key: str, nodes: list[dict[str, Any]], current: str | None, **fields: Any) -> dict[str, Any]:
    """Return a conversation in the form of an export, with a root node that has no message."""
    root: dict[str, Any] = {"id": "root", "message": None, "parent": None, "children": []}
    mapping = {one["id"]: one for one in [root, *nodes]}
    for one in nodes:
        mapping[one["parent"]]["children"].append(one["id"])
    return {
        "title": "A cat",
        "create_time": BEGAN,
        "update_time": BEGAN + 60,
        "mapping": mapping,
        "current_node": current,
        "conversation_id": key,
        "id": key,
        **fields,
    }


CAT = conversation(
    "11111111-1111-4111-8111-111111111111",
    [
        node("s", "root", "system", ""),
        node("q", "s", "user", "My cat is called Miso."),
        node("old", "q", "assistant", "An answer that was replaced."),
        node("new", "q", "assistant", "Noted."),
        node("call", "new", "assistant", "search()", recipient="browser"),
        node("result", "call", "tool", "Found."),
        node(
            "thinks",
            "result",
            "assistant",
            None,
            content={"content_type": "thoughts", "thoughts": [{"content": "Hm."}]},
        ),
        node("hidden", "thinks", "user", "Profile", metadata={"is_visually_hidden_from_conversation": True}),
        node(
            "picture",
            "hidden",
            "user",
            None,
            content={
                "content_type": "multimodal_text",
                "parts": [{"content_type": "image_asset_pointer", "asset_pointer": "file-service://a"}, "Who is this?"],
            },
        ),
        node("last", "picture", "assistant", "That is Mi", status="in_progress"),
    ],
    "last",
)
SHORT = conversation("22222222-2222-4222-8222-222222222222", [node("q", "root", "user", "ok")], None, title="")


def contents(cli: CommandLine, session_id: str) -> list[tuple[str, str]]:
    """Return the roles and texts of the messages of a session."""
    shown = cli("sessions", "show", session_id, "--json").json
    return [(message["role"], message["content"]) for message in shown["messages"]]


def test_the_shown_branch_becomes_a_session(any_cli: CommandLine, tmp_path: Path) -> None:
    """A session has the title, ids and times of its conversation.

    System and tool messages are skipped and counted.
    """
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([CAT, SHORT], indent=1))
    outcome = any_cli("import", "chatgpt", str(file), "--user", "me", "--json")
    assert outcome.exit_code == 0, outcome.err
    assert outcome.json == {
        "sessions": 2,
        "stored": 5,
        "known": 0,
        "cleaned": 0,
        "left_out": {"hidden": 1, "reasoning": 1, "system": 1, "tool_call": 1, "tool_result": 1},
        "empty": 0,
        "refused": 0,
        "errors": [],
    }
    cat = f"chatgpt:{CAT['id']}"
    assert contents(any_cli, cat) == [
        ("user", "My cat is called Miso."),
        ("assistant", "Noted."),
        ("user", "[image]\nWho is this?"),
        ("assistant", "That is Mi"),
    ]
    info = any_cli.info(cat)
    assert (info.title, info.user_id) == ("A cat", "me")
    assert info.created_at == datetime.fromtimestamp(BEGAN, UTC)
    last = any_cli("sessions", "show", cat, "--json").json["messages"][-1]
    assert (last["id"], last["status"]) == ("last", "interrupted")
    assert any_cli.info(f"chatgpt:{SHORT['id']}").title == "ok"
    assert any_cli("import", "chatgpt", str(file), "--user", "me", "--json").json["known"] == 5


def test_references_are_stored_as_shown(cli: CommandLine, tmp_path: Path) -> None:
    """References become their text, or nothing. A message without a time gets the time of the message before it."""
    marks: list[Any] = [
        {"matched_text": "\ue200entity\ue202city\ue202Lisbon\ue201", "alt": "Lisbon"},
        {"matched_text": "\ue200cite\ue202turn0search1\ue201", "alt": None},
        {"matched_text": " ", "alt": "not a mark"},
        "of another kind",
    ]
    answer = f"Go to {marks[0]['matched_text']}. {marks[1]['matched_text']} Now \ue200cite\ue202turn0search2\ue201."
    nodes = [
        node("asked", "root", "user", "Where to?", create_time=None),
        node("b", "asked", "assistant", answer, metadata={"content_references": marks}),
        node("nobody", "b", "user", "From nobody.", author=None),
        node("no-content", "nobody", "user", None, content=None, metadata=None),
        node("thanks", "no-content", "user", "Thanks.", create_time=None),
    ]
    # Without a current node, the branch with the newer end was shown: the one with Lisbon.
    older = node("a", "asked", "assistant", "Go home.", create_time=BEGAN)
    newer = node("z", "thanks", "assistant", "Gladly.", create_time=BEGAN + 90)
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([conversation("c", [*nodes, older, newer], None), SHORT]))
    outcome = cli("import", "chatgpt", str(file))
    assert outcome.exit_code == 0, outcome.err
    assert outcome.err.count("Importing:") == 1
    assert "2 other items" in outcome.out
    assert contents(cli, "chatgpt:c") == [
        ("user", "Where to?"),
        ("assistant", "Go to Lisbon. Now."),
        ("user", "Thanks."),
        ("assistant", "Gladly."),
    ]
    shown = cli("sessions", "show", "chatgpt:c", "--json").json["messages"]
    assert [datetime.fromisoformat(message["created_at"]).timestamp() - BEGAN for message in shown] == [0, 1, 1, 90]


def test_a_zip_is_read_without_unpacking(cli: CommandLine, tmp_path: Path) -> None:
    """The archive may have several files of conversations."""
    file = tmp_path / "export.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("user.json", "{}")
        archive.writestr("conversations-000.json", json.dumps([CAT]))
        archive.writestr("conversations-001.json", json.dumps([SHORT]))
    assert cli("import", "chatgpt", str(file), "--json").json["sessions"] == 2


def test_a_damaged_zip_is_imported_up_to_the_damage(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "export.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("conversations-000.json", json.dumps([CAT]))
        archive.writestr("conversations-001.json", json.dumps([SHORT]))
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"ok"', b'"no"'))
    outcome = cli("import", "chatgpt", str(file), "--json")
    assert (outcome.exit_code, outcome.json["sessions"]) == (1, 1)
    assert [error["conversation"] for error in outcome.json["errors"]] == ["After conversation 1"]
    file.write_bytes(whole.replace(b'"mapping"', b'"wrong"  '))
    refused = cli("import", "chatgpt", str(file))
    assert (refused.exit_code, "is damaged" in refused.err) == (2, True)


def test_invalid_conversations_are_named(cli: CommandLine, tmp_path: Path) -> None:
    gap = conversation("3", [node("q", "root", "user", "hi")], "nowhere")
    circle = conversation("4", [node("a", "root", "user", "hi"), node("b", "a", "assistant", "ho")], "b")
    circle["mapping"]["a"]["parent"] = "b"
    no_id = {**SHORT, "id": None, "conversation_id": None}
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([CAT, gap, circle, no_id, 5, SHORT])[:-20])
    outcome = cli("import", "chatgpt", str(file), "--json")
    assert outcome.exit_code == 1
    assert outcome.json["sessions"] == 2
    assert contents(cli, "chatgpt:4") == [("user", "hi"), ("assistant", "ho")]
    assert [error["conversation"] for error in outcome.json["errors"]] == [
        "Conversation 2",
        "Conversation 4",
        "Conversation 5",
        "After conversation 5",
    ]


def test_a_conversation_that_is_nested_too_deeply_ends_the_import(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(f"[{json.dumps(CAT)}, {'[' * 100_000}")
    outcome = cli("import", "chatgpt", str(file), "--json")
    assert (outcome.exit_code, outcome.json["sessions"]) == (1, 1)
    assert [error["conversation"] for error in outcome.json["errors"]] == ["After conversation 1"]


def test_a_long_export_is_read_in_chunks(cli: CommandLine, tmp_path: Path) -> None:
    """A conversation may be longer than a chunk, and a chunk may end within a multibyte character."""
    long = [conversation(f"long-{number}", [node("q", "root", "user", "ñ€😀" * 200_000)], "q") for number in range(3)]
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([*long, SHORT], ensure_ascii=False), encoding="utf-8")
    outcome = cli("import", "chatgpt", str(file), "--json")
    assert (outcome.json["stored"], outcome.json["refused"]) == (4, 0)
    assert contents(cli, "chatgpt:long-2")[0][1] == "ñ€😀" * 200_000


def test_a_role_of_a_wrong_type_is_skipped(cli: CommandLine, tmp_path: Path) -> None:
    odd = conversation("odd", [node("q", "root", "user", "hi"), node("a", "q", "assistant", "ho")], "a")
    odd["mapping"]["a"]["message"]["author"]["role"] = ["assistant"]
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([odd, SHORT]))
    outcome = cli("import", "chatgpt", str(file), "--json")
    assert (outcome.exit_code, outcome.json["stored"], outcome.json["left_out"]) == (0, 2, {"other": 1})


def test_a_tree_with_a_wrong_link_or_message_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    """Its earlier messages would be lost otherwise."""
    damaged = []
    for key, value in (("current_node", 5), ("parent", 5), ("message", "text")):
        one = conversation(f"bad-{key}", [node("q", "root", "user", "hi"), node("a", "q", "assistant", "ho")], "a")
        (one if key in one else one["mapping"]["a"])[key] = value
        damaged.append(one)
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([*damaged, SHORT]))
    outcome = cli("import", "chatgpt", str(file), "--json")
    assert (outcome.exit_code, outcome.json["sessions"]) == (1, 1)
    assert [one["conversation"] for one in outcome.json["errors"]] == [f"Conversation {n}" for n in (1, 2, 3)]


def test_an_incomplete_zip_is_reported_as_damaged(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "export.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("conversations.json", json.dumps([SHORT]))
    file.write_bytes(file.read_bytes()[:-30])
    refused = cli("import", "chatgpt", str(file))
    assert (refused.exit_code, "is damaged or encrypted; download the export again" in refused.err) == (2, True)


def test_an_id_that_cannot_be_written_is_shown_with_marks(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{**SHORT, "conversation_id": "a\ud800"}, CAT]))
    outcome = cli("import", "chatgpt", str(file), "--json")
    assert (outcome.exit_code, outcome.json["sessions"]) == (1, 1)
    assert [one["conversation"] for one in outcome.json["errors"]] == ["chatgpt:a\ufffd"]


def test_a_time_that_an_export_cannot_have_is_left_out(cli: CommandLine, tmp_path: Path) -> None:
    """An export of the year 9999 could not be imported again."""
    late = conversation("late", [node("q", "root", "user", "hi", create_time=253_402_300_799)], "q")
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{**late, "create_time": 253_402_300_799, "update_time": 253_402_300_799}]))
    assert cli("import", "chatgpt", str(file)).exit_code == 0
    exported = cli("sessions", "export", "--all").out
    assert cli("sessions", "import", "-", "--json", given=exported).json["known"] == 1
