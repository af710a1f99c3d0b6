"""Tests of `threadkeep workflows` and `threadkeep explain-key`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.running import CommandLine
from tests.limits import HANG_SECONDS

FLOW = """\
schema: 1
name: bot
description: Remembers each chat.
nodes:
  answer: {kind: agent, use_graph_chat_history: true, next: end}
"""


@pytest.fixture
def flow(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a workflow and name it in the settings."""
    path = tmp_path / "bot.yaml"
    path.write_text(FLOW)
    monkeypatch.setenv("THREADKEEP_WORKFLOWS", str(path))
    return path


def test_workflows_are_listed_and_shown(cli: CommandLine, flow: Path) -> None:
    assert [one["name"] for one in cli("workflows", "list", "--json").json["workflows"]] == ["chat", "bot"]
    assert "Remembers each chat." in cli("workflows", "list").out
    shown = cli("workflows", "show", "bot").out
    assert "agent" in shown
    assert "double_texting: enqueue" in shown
    assert cli("workflows", "show", str(flow), "--json").json["definition"]["name"] == "bot"
    unknown = cli("workflows", "show", "bto", "--json")
    assert (unknown.exit_code, unknown.problem["type"]) == (1, "urn:threadkeep:workflow-not-found")


def test_files_are_validated(cli: CommandLine, flow: Path, tmp_path: Path) -> None:
    assert cli("workflows", "validate").out == "Valid: chat, bot.\n"
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        FLOW.replace("next: end", "next: nowhere").replace("kind: agent", "tools: [no_such.module:tool], kind: agent")
    )
    wrong = cli("workflows", "validate", str(flow), str(bad), "--json")
    assert wrong.exit_code == 1
    assert [(Path(one["file"]).name, one["line"]) for one in wrong.json["problems"]] == [("bad.yaml", 5)] * 2
    assert "no module 'no_such'" in cli("workflows", "validate", str(bad)).err
    assert f"{bad}:5:" in cli("workflows", "validate", "--no-imports", str(bad)).err
    assert "no_such" not in cli("workflows", "validate", "--no-imports", str(bad)).err


def test_a_missing_child_is_noted(cli: CommandLine, tmp_path: Path) -> None:
    """The file is valid, because the child may be in another file. The note is the same in text and in JSON."""
    path = tmp_path / "caller.yaml"
    path.write_text(FLOW.replace("kind: agent, use_graph_chat_history: true", "kind: subworkflow, workflow: nowhere"))
    outcome = cli("workflows", "validate", str(path), "--json")
    [note] = outcome.json["notes"]
    assert (outcome.exit_code, outcome.json["valid"], outcome.json["problems"]) == (0, True, [])
    assert (note["file"], note["line"]) == (str(path), 5)
    assert note["sentence"] in cli("workflows", "validate", str(path)).err


def test_modules_are_imported_from_the_current_folder(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool in the current folder can be named by its import string."""
    (tmp_path / "corner_shop.py").write_text(
        "from langchain_core.tools import tool\n"
        "@tool\ndef open_until() -> str:\n    'Say when it closes.'\n    return 'ten'\n"
    )
    (tmp_path / "bot.yaml").write_text(FLOW.replace("kind: agent", 'tools: ["corner_shop:open_until"], kind: agent'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    assert cli("workflows", "validate", "bot.yaml").out == "Valid: bot.\n"


@pytest.mark.slow
def test_workflows_are_drawn(cli: CommandLine, flow: Path, tmp_path: Path) -> None:
    assert "class answer agent" in cli("workflows", "graph", "bot").out
    for name, begins in (("bot.svg", b"<svg"), ("bot.png", b"\x89PNG"), ("bot.mmd", b"---")):
        assert cli("workflows", "graph", "bot", "--output", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert cli("workflows", "graph", "bot", "--format", "gif").exit_code == 2
    shown = cli("workflows", "graph", "bot", "--output", str(tmp_path / "again.svg"), "--json").json
    assert (tmp_path / "again.svg").read_text() == shown["drawing"]
    wrong = cli("workflows", "graph", "bot", "--output", str(tmp_path / "bot.gif"))
    assert (wrong.exit_code, (tmp_path / "bot.gif").exists()) == (2, False)


@pytest.mark.slow
@pytest.mark.process
def test_a_picture_is_drawn_without_output_on_stderr(cli: CommandLine, flow: Path) -> None:
    """The drawing library would report uncollected objects at the end of the process."""
    with cli.start("workflows", "graph", str(flow), "--format", "svg") as process:
        picture, complaints = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, picture[:4], complaints) == (0, "<svg", "")


def test_a_png_goes_through_a_pipe(cli: CommandLine, flow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PNG is not written to a terminal."""
    monkeypatch.setattr("threadkeep.workflows.describing.draw_png", lambda workflow: b"a picture")
    assert cli("workflows", "graph", "bot", "--format", "png").out == "a picture"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli("workflows", "graph", "bot", "--format", "png").exit_code == 2


def test_a_missing_workflow_file_is_reported(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADKEEP_WORKFLOWS", str(tmp_path / "nothing.yaml"))
    outcome = cli("workflows", "list", "--json")
    assert (outcome.exit_code, outcome.problem["type"]) == (2, "urn:threadkeep:invalid-workflow")
    assert "no such file" in outcome.problem["detail"]


def test_keys_are_explained(cli: CommandLine, flow: Path, tmp_path: Path) -> None:
    payload = tmp_path / "payload.json"
    payload.write_text(json.dumps({"results": {"telegram_events_parser": {"bot_id": "b", "chat_id": -5}}}))
    outcome = cli("explain-key", "--workflow", "bot", "--payload", str(payload), "--json")
    [agent] = outcome.json["agents"]
    assert (agent["node"], agent["key"]) == ("answer", "telegram:b:-5")
    assert {one["reason"] for one in agent["refused"]} == {"unresolved_template"}
    shown = cli("explain-key", "--workflow", str(flow), "--payload", str(payload)).out
    assert shown.startswith("answer: telegram:b:-5\n  by telegram:{{")
    payload.write_text('{"results": {}}')
    assert "its history is in memory only" in cli("explain-key", "--workflow", "bot", "--payload", str(payload)).out
    for text in ("[1]", "5", '{"inputs": 5}', '{"node_outputs": [1]}', "nonsense", "\xff"):
        payload.write_bytes(text.encode("latin-1"))
        refused = cli("explain-key", "--workflow", "bot", "--payload", str(payload))
        assert (refused.exit_code, "JSON" in refused.err) == (2, True)
    assert cli("explain-key", "--workflow", "bot", "--payload", str(tmp_path / "none")).exit_code == 1


@pytest.mark.parametrize("output", [(), ("--output", "bot.png")])
def test_a_png_is_not_json(cli: CommandLine, flow: Path, output: tuple[str, ...], tmp_path: Path) -> None:
    refused = cli("workflows", "graph", "bot", "--format", "png", *output, "--json")
    assert (refused.exit_code, refused.out, refused.problem["type"]) == (2, "", "urn:threadkeep:wrong-use")
    assert not (tmp_path / "bot.png").exists()
