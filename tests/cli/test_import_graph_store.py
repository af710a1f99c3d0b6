"""Tests of `threadkeep import graph-store`, which imports histories of one item each from a LangGraph store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from tests.cli.running import CommandLine
from tests.databases import execute
from threadkeep import Memory

HISTORY = {
    "version": 2,
    "messages": [
        {"role": "user", "content": "My cat is called Miso."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "ok"},
        {"role": "user", "content": "ok"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " "},
        "who said this?",
    ],
}
NAMESPACE = ("agent_chat_history",)


@pytest.fixture(params=["sqlite-file", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a database of each kind for a store, in the form that the command takes."""
    if request.param == "postgres":
        return str(request.getfixturevalue("empty_postgres_url"))
    return str(tmp_path / "store.sqlite")


def fill(source: str, items: dict[str, dict[str, object]], namespace: tuple[str, ...] = NAMESPACE) -> None:
    """Put items into LangGraph's own store of a database."""

    async def putting(store: BaseStore) -> None:
        for key, value in items.items():
            await store.aput(namespace, key, value)

    async def working() -> None:
        if "://" in source:
            async with AsyncPostgresStore.from_conn_string(source) as postgres:
                await postgres.setup()
                await putting(postgres)
        else:
            async with AsyncSqliteStore.from_conn_string(source) as sqlite:
                await sqlite.setup()
                await putting(sqlite)

    asyncio.run(working())


def test_histories_become_conversations_of_the_graph_store(any_cli: CommandLine, source: str) -> None:
    """Conversations keep their namespace, where agents with their own history read them.

    A second import adds nothing.
    """
    fill(source, {"telegram:1": dict(HISTORY), "other": {"color": "blue"}})
    outcome = any_cli("import", "graph-store", source, "--json")
    assert outcome.exit_code == 0, outcome.err
    assert (outcome.json["sessions"], outcome.json["stored"]) == (1, 4)
    assert outcome.json["left_out"] == {"empty": 1, "other": 1, "system": 1}
    [listed] = any_cli("sessions", "list", "--json").json["sessions"]
    assert (listed["session_id"], listed["namespace"]) == ("telegram:1", ["agent_chat_history"])

    async def in_store(memory: Memory) -> object:
        store = await memory.graph_store()
        found = await store.aget(NAMESPACE, "telegram:1:chunk:000000")
        assert found is not None
        return [(one["seq"], one["role"], one["content"]) for one in found.value["messages"]]

    assert any_cli.with_memory(in_store) == [
        (1, "user", "My cat is called Miso."),
        (2, "assistant", "Noted."),
        (3, "user", "ok"),
        (4, "user", "ok"),
    ]
    again = any_cli("import", "graph-store", source, "--json").json
    assert (again["stored"], again["known"]) == (0, 4)


def test_histories_become_sessions_with_an_option(cli: CommandLine, source: str) -> None:
    message = {"role": "user", "body": "hi", "content": "hi"}
    fill(source, {"room-1": {"version": 1, "messages": [message]}}, ("bots", "history"))
    arguments = ("--namespace", "bots.history", "--value-field", "body", "--sessions", "--json")
    assert cli("import", "graph-store", source, *arguments).json["stored"] == 1
    [listed] = cli("sessions", "list", "--json").json["sessions"]
    assert (listed["session_id"], listed["title"]) == ("room-1", "hi")
    assert "namespace" not in listed


def test_histories_in_chunks_are_skipped(cli: CommandLine, tmp_path: Path) -> None:
    """Histories in chunks are in Threadkeep's own form, and need no import."""
    file = str(tmp_path / "store.sqlite")
    chunk = {"conversation_key": "a", "chunk_key": "chunk:000000", "start_seq": 1, "end_seq": 1, "messages": []}
    fill(file, {"a:chunk:000000": chunk, "a__meta__": {"conversation_key": "a", "last_seq": 1, "version": 1}})
    assert cli("import", "graph-store", file, "--json").json["sessions"] == 0


@pytest.mark.parametrize("damaged", ["{", "[" * 100_000], ids=["incomplete", "deep"])
def test_a_damaged_item_is_named_and_the_others_stored(cli: CommandLine, tmp_path: Path, damaged: str) -> None:
    file = str(tmp_path / "store.sqlite")
    history = {"version": 1, "messages": [{"role": "user", "content": "hi"}]}
    fill(file, {"a": history, "b": history})
    execute(f"sqlite:///{file}", f"UPDATE store SET value = '{damaged}' WHERE key = 'a'")
    outcome = cli("import", "graph-store", file, "--json")
    assert (outcome.exit_code, outcome.json["stored"]) == (1, 1)
    assert [error["conversation"] for error in outcome.json["errors"]] == ["a"]


def test_bytes_that_are_not_utf8_are_replaced_and_counted(cli: CommandLine, tmp_path: Path) -> None:
    source = str(tmp_path / "store.sqlite")
    fill(source, {name: {"messages": [{"role": "user", "content": "Noted."}]} for name in ("a", "b", "c")})
    damaged = "replace(CAST(value AS BLOB), 'Noted', x'ff4e6f746564')"
    execute(f"sqlite:///{source}", f"UPDATE store SET value = CAST({damaged} AS TEXT) WHERE key = 'b'")
    outcome = cli("import", "graph-store", source, "--sessions", "--json")
    assert (outcome.exit_code, outcome.json["stored"], outcome.json["cleaned"]) == (0, 3, 1)
    [message] = cli("sessions", "show", "b", "--json").json["messages"]
    assert message["content"] == "\ufffdNoted."
    execute(f"sqlite:///{source}", "UPDATE store SET key = CAST(x'61ff' AS TEXT) WHERE key = 'a'")
    outcome = cli("import", "graph-store", source, "--sessions", "--json")
    assert (outcome.exit_code, outcome.json["known"], outcome.json["refused"]) == (1, 2, 1)
