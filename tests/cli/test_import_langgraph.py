"""Tests of `threadkeep import langgraph`, which imports checkpoints of LangGraph's savers into sessions."""

from __future__ import annotations

import asyncio
import operator
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import ormsgpack
import psycopg
import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from tests.agent.talking import add, adding, ask, config_of, input_of, kept, make_agent, seen
from tests.cli.running import CommandLine
from threadkeep import Memory, SessionMemory, create_checkpointer, load_settings
from threadkeep.errors import StoreUnavailable, WrongUser
from threadkeep.records import Message
from threadkeep.records.runs import NewRun
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import ScriptedModel

type Saving = Callable[[BaseCheckpointSaver[str]], Awaitable[object]]


@pytest.fixture(params=["sqlite-file", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a database of each kind for a checkpointer, in the form that the command takes."""
    if request.param == "postgres":
        return str(request.getfixturevalue("empty_postgres_url"))
    return str(tmp_path / "checkpoints.sqlite")


def save(source: str, saving: Saving) -> None:
    """Call a function with LangGraph's own saver of a database."""

    async def working() -> None:
        if "://" in source:
            async with AsyncPostgresSaver.from_conn_string(source) as postgres:
                await postgres.setup()
                await saving(postgres)
        else:
            async with AsyncSqliteSaver.from_conn_string(source) as sqlite:
                await saving(sqlite)

    asyncio.run(working())


def test_a_source_that_does_not_answer_is_named_without_its_password(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cure names the URL that the user gave, not the database into which the command imports."""
    monkeypatch.setattr("threadkeep.store.opening.FOREIGN_OPTIONS", StoreOptions(pool_timeout_seconds=0.2))
    refused = cli("import", "langgraph", "postgresql://ann:canary@127.0.0.1:9/app")
    assert refused.exit_code == 1
    assert "Check the URL postgresql://ann@127.0.0.1:9/app, and" in refused.err
    assert "canary" not in refused.err
    assert "THREADKEEP_DATABASE_URL" not in refused.err


async def talk(saver: BaseCheckpointSaver[str]) -> None:
    """Run two turns of one thread, the first with a tool call, and one turn of another thread."""
    model = ScriptedModel([adding(), "It is 3.", "Twice.", "Hello, Bo."])
    agent = make_agent(model, [], [add], checkpointer=saver, system_prompt="Be brief.")
    await ask(agent, "1 + 2?", message_id="q1", thread_id="telegram:1")
    await ask(agent, "How often?", message_id="q2", thread_id="telegram:1")
    await agent.ainvoke(input_of("I am Bo."), config_of("web:2", user_id="bo"))


def contents(cli: CommandLine, session_id: str) -> list[tuple[str, str]]:
    """Return the roles and texts of the messages of a session."""

    async def reading(memory: Memory) -> list[tuple[str, str]]:
        return await kept(memory, session_id)

    return cli.with_memory(reading)


def test_threads_become_sessions(any_cli: CommandLine, source: str) -> None:
    """Sessions have the messages in order, with their ids. Tool calls and tool results are skipped and counted."""
    save(source, talk)
    outcome = any_cli("import", "langgraph", source, "--json")
    assert outcome.exit_code == 0, outcome.err
    assert outcome.json == {
        "sessions": 2,
        "stored": 6,
        "known": 0,
        "cleaned": 0,
        "left_out": {"tool_call": 1, "tool_result": 1},
        "empty": 0,
        "refused": 0,
        "errors": [],
    }
    shown = any_cli("sessions", "show", "telegram:1", "--json").json
    assert [(m["role"], m["content"]) for m in shown["messages"]] == [
        ("user", "1 + 2?"),
        ("assistant", "It is 3."),
        ("user", "How often?"),
        ("assistant", "Twice."),
    ]
    assert [m["id"] for m in shown["messages"]][::2] == ["q1", "q2"]
    assert any_cli.info("web:2").user_id == "bo"
    assert any_cli.info("telegram:1").title == "1 + 2?"


def test_a_second_import_stores_only_new_messages(cli: CommandLine, source: str) -> None:
    save(source, talk)
    assert cli("import", "langgraph", source, "--json").json["stored"] == 6

    async def continue_thread(saver: BaseCheckpointSaver[str]) -> None:
        agent = make_agent(ScriptedModel(["Yes."]), [], [add], checkpointer=saver)
        await ask(agent, "Sure?", thread_id="telegram:1")

    save(source, continue_thread)
    again = cli("import", "langgraph", source, "--json").json
    assert (again["stored"], again["known"]) == (2, 6)
    assert contents(cli, "telegram:1")[-3:] == [("assistant", "Twice."), ("user", "Sure?"), ("assistant", "Yes.")]


def test_a_checkpointer_beside_session_memory_repeats_no_turn(any_cli: CommandLine, source: str) -> None:
    """An imported turn is sent to the model once and stored once."""
    save(source, talk)
    assert any_cli("import", "langgraph", source).exit_code == 0
    model = ScriptedModel(["You asked 1 + 2."])

    def with_memory(saver: BaseCheckpointSaver[str]) -> Awaitable[object]:
        async def asking(memory: Memory) -> None:
            agent = make_agent(model, [SessionMemory(memory)], [add], checkpointer=saver)
            await ask(agent, "What did I ask?", message_id="q3", thread_id="telegram:1")

        return any_cli.with_open_memory(asking)

    save(source, with_memory)
    assert seen(model.calls[0]) == [
        ("human", "1 + 2?"),
        ("ai", ""),
        ("tool", "3"),
        ("ai", "It is 3."),
        ("human", "How often?"),
        ("ai", "Twice."),
        ("human", "What did I ask?"),
    ]
    whole = [
        ("user", "1 + 2?"),
        ("assistant", "It is 3."),
        ("user", "How often?"),
        ("assistant", "Twice."),
        ("user", "What did I ask?"),
        ("assistant", "You asked 1 + 2."),
    ]
    assert contents(any_cli, "telegram:1") == whole
    again = any_cli("import", "langgraph", source, "--json").json
    assert (again["stored"], again["known"]) == (0, 8)
    assert contents(any_cli, "telegram:1") == whole


def test_an_interrupted_import_can_be_repeated(cli: CommandLine, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(source, talk)
    real_restore, batches = Memory.restore, iter([True])

    async def fail_later(memory: Memory, parts: list[ArchivedPart]) -> list[Restored | WrongUser]:
        if next(batches, False):
            return await real_restore(memory, parts)
        raise StoreUnavailable("The disk is full; make room.")

    def lose_connection(message: BaseMessage) -> Message:
        raise StoreUnavailable("The database to import does not answer; start it.")

    monkeypatch.setattr("threadkeep.history.importing.BATCH_MESSAGES", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "restore", fail_later)
        outcome = cli("import", "langgraph", source)
    assert outcome.exit_code == 1
    assert "Interrupted: 2 messages stored" in outcome.err
    with monkeypatch.context() as patch:
        patch.setattr("threadkeep.cli.from_databases.from_langchain", lose_connection)
        outcome = cli("import", "langgraph", source)
    assert outcome.exit_code == 1
    assert "Interrupted: 0 messages stored, 0 already known. Repeat the import to continue" in outcome.err
    again = cli("import", "langgraph", source, "--json").json
    assert (again["known"], again["stored"]) == (2, 4)
    assert len(contents(cli, "telegram:1")) == 4


def test_an_import_does_not_change_the_checkpoints(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without write permission can be imported; a file that could be written is opened for reading only."""
    file = tmp_path / "checkpoints.sqlite"
    save(str(file), talk)
    before, connect, opened = file.read_bytes(), sqlite3.connect, list[str]()

    def noted(database: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(str(database))
        return connect(database, *arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", noted)
    assert cli("import", "langgraph", str(file)).exit_code == 0
    of_file = [name for name in opened if file.name in name]
    assert of_file
    assert all("mode=ro" in name for name in of_file)
    file.chmod(0o400)
    assert cli("import", "langgraph", str(file)).exit_code == 0
    assert file.read_bytes() == before


def test_messages_of_tools_and_systems_are_skipped(cli: CommandLine, tmp_path: Path) -> None:
    messages: list[AnyMessage] = [
        SystemMessage("Be brief."),
        HumanMessage("Here is a summary.", additional_kwargs={"lc_source": "summarization"}),
        HumanMessage([{"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}]),
        AIMessage(""),
        AIMessage("A cat."),
        ToolMessage("3", tool_call_id="c1"),
    ]
    file = str(tmp_path / "checkpoints.sqlite")
    save(file, lambda saver: _state_graph(saver, MessagesState).ainvoke({"messages": messages}, config_of("t")))
    outcome = cli("import", "langgraph", file)
    assert "Stored 2 messages of 1 session; already known: 0." in outcome.out
    left_out = "1 system message, 1 summary, 1 empty message, 1 tool result."
    assert f"Skipped, because they are not messages of a person or an assistant: {left_out}" in outcome.out
    assert contents(cli, "t") == [("user", "[image]"), ("assistant", "A cat.")]


class Plain(TypedDict):
    """A state without LangGraph's reducer, whose messages get no ids."""

    messages: Annotated[list[Any], operator.add]


class Deltas(TypedDict):
    """A state whose checkpoints hold only new messages."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def _state_graph(saver: BaseCheckpointSaver[str], state: type[Any]) -> Any:
    graph = StateGraph(state)
    graph.add_node("nothing", lambda _: {"messages": []})
    graph.add_edge(START, "nothing")
    return graph.compile(checkpointer=saver)


def test_tuples_and_dicts_are_recognized_at_the_next_import(cli: CommandLine, source: str) -> None:
    """Messages of a state with another reducer have no ids. A second import still recognizes them."""

    async def saying(saver: BaseCheckpointSaver[str]) -> None:
        graph = _state_graph(saver, Plain)
        await graph.ainvoke({"messages": [("user", "ok"), {"role": "assistant", "content": "ok"}]}, config_of("t"))
        await graph.ainvoke({"messages": [("user", "ok"), "who says this?", 5]}, config_of("t"))

    save(source, saying)
    first = cli("import", "langgraph", source, "--json").json
    assert (first["stored"], first["left_out"]) == (3, {"other": 2})
    assert contents(cli, "t") == [("user", "ok"), ("assistant", "ok"), ("user", "ok")]
    assert cli("import", "langgraph", source, "--json").json["known"] == 3


def test_a_delta_channel_is_assembled_from_its_checkpoints(cli: CommandLine, source: str) -> None:
    async def saying(saver: BaseCheckpointSaver[str]) -> None:
        graph = _state_graph(saver, Deltas)
        for number in range(3):
            await graph.ainvoke({"messages": [HumanMessage(f"number {number}", id=f"m{number}")]}, config_of("t"))

    save(source, saying)
    assert cli("import", "langgraph", source).exit_code == 0
    assert [text for _, text in contents(cli, "t")] == ["number 0", "number 1", "number 2"]


def test_another_channel_can_be_named(cli: CommandLine, tmp_path: Path) -> None:
    class Other(TypedDict):
        history: list[AnyMessage]

    def saying(saver: BaseCheckpointSaver[str]) -> Awaitable[object]:
        graph = StateGraph(Other)
        graph.add_node("nothing", lambda _: {})
        graph.add_edge(START, "nothing")
        compiled: Any = graph.compile(checkpointer=saver)
        result: Awaitable[object] = compiled.ainvoke({"history": [HumanMessage("hi", id="h")]}, config_of("t"))
        return result

    file = str(tmp_path / "checkpoints.sqlite")
    save(file, saying)
    outcome = cli("import", "langgraph", file)
    assert "name another with --channel" in outcome.err
    assert "Conversations without messages of a person or an assistant: 1." in outcome.out
    assert cli("import", "langgraph", file, "--channel", "history", "--json").json["stored"] == 1


def test_no_code_named_in_a_checkpoint_is_executed(cli: CommandLine, tmp_path: Path) -> None:
    """The messages of the checkpoint are imported, whatever LANGGRAPH_STRICT_MSGPACK is."""
    file, witness = tmp_path / "checkpoints.sqlite", tmp_path / "witness"
    call = ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {witness}")))

    async def saying(saver: BaseCheckpointSaver[str]) -> None:
        await _state_graph(saver, MessagesState).ainvoke({"messages": [HumanMessage("hi", id="h")]}, config_of("t"))

    save(str(file), saying)
    with closing(sqlite3.connect(file)) as database, database:
        for row, blob in database.execute("SELECT rowid, checkpoint FROM checkpoints").fetchall():
            checkpoint = JsonPlusSerializer().loads_typed(("msgpack", blob))
            words = ormsgpack.unpackb(JsonPlusSerializer().dumps_typed(checkpoint)[1], ext_hook=ormsgpack.Ext)
            words["channel_values"]["trap"] = call
            database.execute("UPDATE checkpoints SET checkpoint = ? WHERE rowid = ?", (ormsgpack.packb(words), row))
    cli.set(LANGGRAPH_STRICT_MSGPACK="false")
    assert cli("import", "langgraph", str(file), "--json").json["stored"] == 1
    assert not witness.exists()


def test_an_unreadable_thread_is_named_and_the_others_stored(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.sqlite"

    async def saying(saver: BaseCheckpointSaver[str]) -> None:
        graph = _state_graph(saver, MessagesState)
        for thread in ("damaged", "encrypted", "good", "metadata", "x" * 300):
            await graph.ainvoke({"messages": [HumanMessage("hi", id="h")]}, config_of(thread))

    save(str(file), saying)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'damaged'")
        database.execute("UPDATE checkpoints SET type = 'msgpack+aes' WHERE thread_id = 'encrypted'")
        database.execute("UPDATE checkpoints SET metadata = '{' WHERE thread_id = 'metadata'")
    outcome = cli("import", "langgraph", str(file), "--json")
    assert outcome.exit_code == 1
    assert (outcome.json["stored"], outcome.json["refused"]) == (1, 4)
    assert [error["conversation"] for error in outcome.json["errors"]] == [
        "damaged",
        "encrypted",
        "metadata",
        "x" * 300,
    ]
    assert contents(cli, "good") == [("user", "hi")]
    told = cli("import", "langgraph", str(file))
    assert "damaged: Its newest checkpoint cannot be read" in told.err
    assert "Conversations that could not be read or stored: 4." in told.out


def test_checkpoints_without_their_writes_are_refused_with_the_cure(cli: CommandLine, source: str) -> None:
    """The error suggests calling `setup()`, because some states also need the table of writes."""
    save(source, talk)
    if "://" in source:
        with psycopg.connect(source) as connection:
            connection.execute("DROP TABLE checkpoint_writes")
    else:
        with closing(sqlite3.connect(source)) as database:
            database.execute("DROP TABLE writes")
    outcome = cli("import", "langgraph", source)
    assert outcome.exit_code == 1
    assert "call `setup()` of" in outcome.err


def test_a_checkpointer_in_the_database_of_threadkeep_is_read(any_cli: CommandLine) -> None:
    """The command can import from the database that it stores in. Checkpoints of runs are not conversations."""

    async def saying() -> None:
        async with create_checkpointer(load_settings()) as saver:
            for thread in ("t", "run-1"):
                graph = _state_graph(saver, MessagesState)
                await graph.ainvoke({"messages": [HumanMessage("hi", id="h")]}, config_of(thread))

    async def running(memory: Memory) -> None:
        await memory.runs.order.add(NewRun(run_id="run-1", workflow="w", input={}))

    any_cli.with_memory(running)
    asyncio.run(saying())
    assert any_cli("import", "langgraph", any_cli.url, "--json").json["sessions"] == 1
    assert contents(any_cli, "t") == [("user", "hi")]


def test_progress_is_shown_on_stderr(cli: CommandLine, tmp_path: Path) -> None:
    file = str(tmp_path / "checkpoints.sqlite")
    save(file, talk)
    assert "Importing: 100 %" in cli("import", "langgraph", file).err
    assert cli("import", "langgraph", file, "--json").err == ""
