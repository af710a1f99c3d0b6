"""Tests of `threadkeep import` with files of the wrong kind."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path

import pytest
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.sqlite.aio import AsyncSqliteStore

from tests.cli.running import CommandLine
from tests.cli.test_import_chatgpt import SHORT
from threadkeep import create_checkpointer, load_settings

NAMES = {
    "langgraph": "This is a LangGraph checkpoint database; use `threadkeep import langgraph {}`.",
    "openai-agents": "This is a session database of the OpenAI Agents SDK; use `threadkeep import openai-agents {}`.",
    "graph-store": "This is a database of a LangGraph store; use `threadkeep import graph-store {}`.",
    "chatgpt": "This is an export of ChatGPT; use `threadkeep import chatgpt {}`.",
    "jsonl": "This is an export of Threadkeep; use `threadkeep import jsonl {}`.",
    "threadkeep": "This is a database of Threadkeep; use `threadkeep sessions export --all --database {}`.",
}


@pytest.fixture
def files(tmp_path: Path, cli: CommandLine) -> dict[str, Path]:
    """Write a file of each kind."""
    from agents import SQLiteSession

    async def databases() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "langgraph")) as saver:
            await saver.setup()
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "graph-store")) as store:
            await store.setup()

    asyncio.run(databases())
    SQLiteSession("s", tmp_path / "openai-agents").close()
    with zipfile.ZipFile(tmp_path / "chatgpt", "w") as archive:
        archive.writestr("conversations.json", json.dumps([SHORT]))
    (tmp_path / "jsonl").write_text('{"type": "message", "session_id": "a", "role": "user", "content": "hi"}\n')
    cli.store("a", "hi")
    return {kind: tmp_path / kind for kind in NAMES if kind != "threadkeep"} | {
        "threadkeep": tmp_path / "threadkeep.db"
    }


@pytest.mark.parametrize("command", [kind for kind in NAMES if kind != "threadkeep"])
def test_a_file_of_another_kind_is_named(command: str, files: dict[str, Path], cli: CommandLine) -> None:
    for kind, file in files.items():
        outcome = cli("import", command, str(file))
        if kind == command:
            assert outcome.exit_code == 0, outcome.err
        else:
            assert (outcome.exit_code, outcome.err) == (2, NAMES[kind].format(file) + "\n")


def test_a_database_of_threadkeep_with_checkpoints_is_recognized(cli: CommandLine) -> None:
    async def checkpoints() -> None:
        async with create_checkpointer(load_settings()):
            pass

    cli.store("a", "hi")
    asyncio.run(checkpoints())
    file = cli.url.removeprefix("sqlite:///")
    outcome = cli("import", "chatgpt", file)
    assert (outcome.exit_code, outcome.err) == (2, NAMES["threadkeep"].format(file) + "\n")


def test_sessions_import_recognizes_other_files(files: dict[str, Path], cli: CommandLine) -> None:
    """`sessions import` is the same as `import jsonl`."""
    outcome = cli("sessions", "import", str(files["langgraph"]))
    assert (outcome.exit_code, outcome.err) == (2, NAMES["langgraph"].format(files["langgraph"]) + "\n")


def test_a_recognized_database_is_named_without_its_password(cli: CommandLine, empty_postgres_url: str) -> None:
    async def working() -> None:
        async with AsyncPostgresSaver.from_conn_string(empty_postgres_url) as saver:
            await saver.setup()

    asyncio.run(working())
    account, _, rest = empty_postgres_url.removeprefix("postgresql://").partition("@")
    url = f"postgresql://{account.partition(':')[0]}:secret@{rest}"
    outcome = cli("import", "openai-agents", url)
    assert outcome.exit_code == 2
    assert "This is a LangGraph checkpoint database" in outcome.err
    assert "secret" not in outcome.err


@pytest.mark.parametrize("command", [kind for kind in NAMES if kind not in ("threadkeep", "jsonl")])
def test_an_unknown_file_is_refused(command: str, cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("dear diary")
    (tmp_path / "empty").write_text("")
    for name in ("text", "empty"):
        outcome = cli("import", command, str(tmp_path / name))
        assert outcome.exit_code != 0
        assert "bug" not in outcome.err
    for name in ("nowhere", "."):
        outcome = cli("import", command, str(tmp_path / name))
        assert outcome.exit_code == 1
        assert "Check the path" in outcome.err
    assert cli("sessions", "list", "--json").json["sessions"] == []
