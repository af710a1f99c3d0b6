"""Tests of `threadkeep import openai-agents`, which imports databases of the SDK's own sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.cli.running import CommandLine
from tests.databases import execute

if TYPE_CHECKING:
    from agents.items import TResponseInputItem
    from agents.memory import SQLiteSession

# A run with a tool, as the SDK stores it. Replies of models without ids all have the same id.
ITEMS: list[dict[str, object]] = [
    {"role": "user", "content": "What is the weather in Lisbon?"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Lisbon"}', "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
    {
        "type": "message",
        "id": "__fake_id__",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}],
    },
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "And what is this?"},
            {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
        ],
    },
    {
        "type": "message",
        "id": "__fake_id__",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "refusal", "refusal": "I cannot say."}],
    },
    {"role": "developer", "content": "Be brief."},
]


def write(session: SQLiteSession, items: list[dict[str, object]]) -> None:
    """Store items as the SDK does."""
    asyncio.run(session.add_items(cast("list[TResponseInputItem]", items)))
    session.close()


def contents(cli: CommandLine, session_id: str) -> list[tuple[str, str]]:
    """Return the roles and texts of the messages of a session."""
    shown = cli("sessions", "show", session_id, "--json").json
    return [(message["role"], message["content"]) for message in shown["messages"]]


def test_sessions_of_the_sdk_are_imported(any_cli: CommandLine, tmp_path: Path) -> None:
    from agents import SQLiteSession

    file = tmp_path / "agents.db"
    write(SQLiteSession("user-1", file), [*ITEMS])
    write(SQLiteSession("user-2", file), [{"role": "user", "content": "ok"}, {"role": "user", "content": "ok"}])
    outcome = any_cli("import", "openai-agents", str(file), "--user", "u1", "--json")
    assert outcome.exit_code == 0, outcome.err
    assert (outcome.json["sessions"], outcome.json["stored"]) == (2, 6)
    assert outcome.json["left_out"] == {"reasoning": 1, "system": 1, "tool_call": 1, "tool_result": 1}
    assert contents(any_cli, "user-1") == [
        ("user", "What is the weather in Lisbon?"),
        ("assistant", "Sunny."),
        ("user", "And what is this?\n[image]"),
        ("assistant", "I cannot say."),
    ]
    assert contents(any_cli, "user-2") == [("user", "ok"), ("user", "ok")]
    info = any_cli.info("user-1")
    assert info.user_id == "u1"
    assert abs((info.created_at - any_cli.info("user-2").created_at).total_seconds()) < 60
    again = any_cli("import", "openai-agents", str(file), "--user", "u1", "--json").json
    assert (again["stored"], again["known"]) == (0, 6)


def test_a_file_whose_name_is_not_utf8_is_imported(cli: CommandLine, tmp_path: Path) -> None:
    from agents.memory import SQLiteSession

    source = tmp_path / "old\udce9.db"
    write(SQLiteSession("a", source), ITEMS[:1])
    outcome = cli("import", "openai-agents", str(source))
    assert (outcome.exit_code, len(contents(cli, "a"))) == (0, 1)


def test_a_branch_of_an_advanced_session_is_imported(cli: CommandLine, tmp_path: Path) -> None:
    """The default is the main branch; another branch also has the messages that both share."""
    from agents.extensions.memory import AdvancedSQLiteSession

    file = tmp_path / "agents.db"
    session = AdvancedSQLiteSession(session_id="s", db_path=file, create_tables=True)

    async def branching() -> None:
        await session.add_items([{"role": "user", "content": "First?"}, {"role": "assistant", "content": "One."}])
        await session.add_items([{"role": "user", "content": "Second?"}, {"role": "assistant", "content": "Two."}])
        await session.create_branch_from_turn(2, "other")
        await session.add_items([{"role": "user", "content": "Third?"}, {"role": "assistant", "content": "Three."}])

    asyncio.run(branching())
    session.close()
    assert cli("import", "openai-agents", str(file)).exit_code == 0
    assert [text for _, text in contents(cli, "s")] == ["First?", "One.", "Second?", "Two."]
    cli("sessions", "delete", "s", "--yes")
    assert cli("import", "openai-agents", str(file), "--branch", "other").exit_code == 0
    assert [text for _, text in contents(cli, "s")] == ["First?", "One.", "Third?", "Three."]


def test_bytes_that_are_not_utf8_are_replaced_and_counted(cli: CommandLine, tmp_path: Path) -> None:
    """One such row stops no import, and is stored like other characters that databases reject."""
    from agents import SQLiteSession

    file = tmp_path / "agents.db"
    for name in ("a", "b", "c"):
        write(SQLiteSession(name, file), [{"role": "user", "content": "The disk is full and locked."}])
    damaged = "replace(CAST(message_data AS BLOB), 'full', x'ff66756c6c')"
    execute(f"sqlite:///{file}", f"UPDATE agent_messages SET message_data = CAST({damaged} AS TEXT) WHERE id = 2")
    outcome = cli("import", "openai-agents", str(file), "--json")
    assert (outcome.exit_code, outcome.json["stored"], outcome.json["cleaned"]) == (0, 3, 1)
    assert contents(cli, "b") == [("user", "The disk is \ufffdfull and locked.")]
    assert cli("import", "openai-agents", str(file), "--json").json["known"] == 3
    # An id is not changed; its session is reported, and stops no other one.
    execute(f"sqlite:///{file}", "UPDATE agent_messages SET session_id = CAST(x'61ff' AS TEXT) WHERE id = 1")
    outcome = cli("import", "openai-agents", str(file), "--json")
    assert (outcome.exit_code, outcome.json["known"]) == (1, 2)
    assert [error["conversation"] for error in outcome.json["errors"]] == ["a\ufffd"]


@pytest.mark.parametrize("damaged", ["{", "[" * 100_000], ids=["incomplete", "deep"])
def test_a_damaged_item_is_skipped(cli: CommandLine, tmp_path: Path, damaged: str) -> None:
    """The SDK skips damaged items, too. The other items are stored."""
    from agents import SQLiteSession

    file = tmp_path / "agents.db"
    write(SQLiteSession("s", file), [{"role": "user", "content": "hi"}, {"role": "user", "content": "there"}])
    execute(f"sqlite:///{file}", f"UPDATE agent_messages SET message_data = '{damaged}' WHERE id = 1")
    outcome = cli("import", "openai-agents", str(file), "--json").json
    assert (outcome["stored"], outcome["left_out"], outcome["refused"]) == (1, {"other": 1}, 0)


@pytest.mark.parametrize("role", ["[]", "{}", '["user"]'])
def test_a_role_of_a_wrong_type_is_skipped(cli: CommandLine, tmp_path: Path, role: str) -> None:
    from agents import SQLiteSession

    file = tmp_path / "agents.db"
    write(SQLiteSession("s", file), [{"role": "user", "content": "hi"}, {"role": "user", "content": "there"}])
    item = f'{{"role": {role}, "content": "x"}}'
    execute(f"sqlite:///{file}", f"UPDATE agent_messages SET message_data = '{item}' WHERE id = 1")
    outcome = cli("import", "openai-agents", str(file), "--json")
    assert (outcome.exit_code, outcome.json["stored"], outcome.json["left_out"]) == (0, 1, {"other": 1})


def test_items_without_the_row_of_their_session_are_imported(any_cli: CommandLine, tmp_path: Path) -> None:
    """The SDK reads them too."""
    from agents import SQLiteSession

    file = tmp_path / "agents.db"
    write(SQLiteSession("s", file), [{"role": "user", "content": "hi"}])
    execute(f"sqlite:///{file}", "DELETE FROM agent_sessions")
    assert any_cli("import", "openai-agents", str(file), "--json").json["stored"] == 1


def test_sessions_in_postgres_are_imported(cli: CommandLine, postgres_url: str) -> None:
    """The SDK's `SQLAlchemySession` creates such tables. Session `t` has no row of its own."""
    times = "created_at TIMESTAMP DEFAULT now(), updated_at TIMESTAMP DEFAULT now()"
    execute(postgres_url, f"CREATE TABLE agent_sessions (session_id VARCHAR PRIMARY KEY, {times})")
    columns = "id SERIAL PRIMARY KEY, session_id VARCHAR, message_data TEXT, created_at TIMESTAMP DEFAULT now()"
    execute(postgres_url, f"CREATE TABLE agent_messages ({columns})")
    execute(postgres_url, "INSERT INTO agent_sessions (session_id) VALUES ('s')")
    for session_id in ("s", "t"):
        row = f"""('{session_id}', '{{"role": "user", "content": "hi"}}')"""
        execute(postgres_url, f"INSERT INTO agent_messages (session_id, message_data) VALUES {row}")
    counts = cli("import", "openai-agents", postgres_url, "--json").json
    assert (counts["sessions"], counts["stored"]) == (2, 2)


@pytest.mark.parametrize(
    "time",
    ["0001-01-01T00:00:00+14:00", "0002-01-01T00:00:00+14:00", "9998-12-31T23:59:59-14:00", "9999-01-01 00:00:00"],
)
def test_times_out_of_range_are_left_out(cli: CommandLine, tmp_path: Path, time: str) -> None:
    from agents import SQLiteSession

    file = tmp_path / "agents.db"
    write(SQLiteSession("s", file), [{"role": "user", "content": "hi"}])
    execute(f"sqlite:///{file}", f"UPDATE agent_sessions SET created_at = '{time}', updated_at = '{time}'")
    execute(f"sqlite:///{file}", f"UPDATE agent_messages SET created_at = '{time}'")
    assert cli("import", "openai-agents", str(file)).exit_code == 0
    exported = cli("sessions", "export", "--all").out
    assert cli("sessions", "import", "-", "--json", given=exported).json["known"] == 1


def test_the_damaged_database_is_named(cli: CommandLine, tmp_path: Path) -> None:
    """Otherwise a person could take Threadkeep's own database for damaged."""
    from agents import SQLiteSession

    file = tmp_path / "agents.db"
    write(SQLiteSession("s", file), [{"role": "user", "content": "hi"}])
    execute(f"sqlite:///{file}", "PRAGMA wal_checkpoint(TRUNCATE)")
    file.write_bytes(file.read_bytes()[:5000])
    outcome = cli("import", "openai-agents", str(file))
    assert (outcome.exit_code, f"database to import, sqlite:///{file}" in outcome.err) == (1, True)
