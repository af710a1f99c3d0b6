"""Tests of agents during a database outage: they answer, and every turn is stored once after the outage."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from tests.agent.talking import ROOM, add, adding, ask, config_of, input_of, kept, kept_with_status, make_agent, seen
from tests.limits import HANG_SECONDS
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, SessionMemory, open_memory, open_memory_sync, recorded
from threadkeep.errors import TurnInMemoryOnly
from threadkeep.observe import ReadFailed, WriteDeferred, WriteRecovered
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import Gate, ScriptedModel

if TYPE_CHECKING:
    from tests.servers import Postgres

pytestmark = pytest.mark.xdist_group("unsteady_postgres")


@pytest.fixture
def hurried(memory_options: MemoryOptions) -> MemoryOptions:
    """Return options that detect an outage within a second and deliver only when the test asks for it."""
    return dataclasses.replace(
        memory_options,
        store=StoreOptions(lock_timeout_seconds=1.0, pool_timeout_seconds=1.0),
        pending=dataclasses.replace(
            memory_options.pending,
            write_timeout_seconds=1.0,
            first_pause_seconds=60.0,
            longest_pause_seconds=60.0,
        ),
    )


@pytest.fixture
def unsteady_url(unsteady_postgres: Postgres) -> Iterator[str]:
    """Create a database on a PostgreSQL server that the test may stop."""
    with unsteady_postgres.database() as url:
        yield url


@pytest.fixture
async def failing(unsteady_url: str, hurried: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """Open a memory on a PostgreSQL server that the test may stop."""
    async with open_memory(unsteady_url, observers=[events], options=hurried) as memory:
        yield memory


@asynccontextmanager
async def locked(url: str) -> AsyncIterator[None]:
    """Hold the exclusive lock of a SQLite file during the block, as another program would.

    Taking the lock waits until the memory has finished its current write.
    """
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        await asyncio.to_thread(connection.execute, "BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def rename(path: Path, table: str, name: str) -> None:
    """Rename a table.

    Call it in a thread: pending writes of the memory need the event loop.
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE {table} RENAME TO {name}")


async def recover(memory: Memory, *, refused: int = 0) -> None:
    """Deliver pending turns until only the given number of refused ones remains."""
    async with asyncio.timeout(HANG_SECONDS):
        while [entry.error for entry in memory.pending.entries] != ["WrongUser"] * refused:
            await memory.pending.deliver()


@pytest.mark.slow
async def test_an_agent_without_its_database_answers(
    failing: Memory, unsteady_postgres: Postgres, events: RecordedEvents
) -> None:
    model = ScriptedModel(["hello", "noted", adding(), "green and 3", "green"])
    agent = make_agent(model, [SessionMemory(failing)], [add])
    await ask(agent, "hi")
    unsteady_postgres.stop()
    async with asyncio.timeout(HANG_SECONDS):
        assert await ask(agent, "my colour is green") == "noted"
    async with asyncio.timeout(HANG_SECONDS):
        assert await ask(agent, "my colour, and 1 + 2?") == "green and 3"
    assert seen(model.calls[1]) == [("human", "my colour is green")]
    before = [("human", "my colour is green"), ("ai", "noted"), ("human", "my colour, and 1 + 2?")]
    assert seen(model.calls[2]) == before
    assert seen(model.calls[3])[:3] == before
    assert {event.outcome for event in events.of(ReadFailed)} == {"fallback"}
    assert len(events.of(WriteDeferred)) == len(failing.pending.entries) == 4
    unsteady_postgres.start()
    await recover(failing)
    assert len(events.of(WriteRecovered)) == 4
    await ask(agent, "and again?")
    said = [text for _, text in await kept(failing)]
    assert said == [
        "hi",
        "hello",
        "my colour is green",
        "noted",
        "my colour, and 1 + 2?",
        "green and 3",
        "and again?",
        "green",
    ]
    assert [text for _, text in seen(model.calls[4])] == said[:-1]


async def test_a_recorded_graph_receives_pending_turns_in_an_outage(
    failing: Memory, unsteady_postgres: Postgres
) -> None:
    model = ScriptedModel(["hello", "noted", "green"])
    graph = recorded(create_agent(model, []), failing)
    await graph.ainvoke(input_of("hi"), config_of())
    unsteady_postgres.stop()
    for words in ("my colour is green", "my colour?"):
        async with asyncio.timeout(HANG_SECONDS):
            await graph.ainvoke(input_of(words), config_of())
    assert [text for _, text in seen(model.calls[2])] == ["my colour is green", "noted", "my colour?"]
    unsteady_postgres.start()
    await recover(failing)
    said = ["hi", "hello", "my colour is green", "noted", "my colour?", "green"]
    assert [text for _, text in await kept(failing)] == said


def test_a_synchronous_agent_answers_in_an_outage(
    unsteady_url: str, hurried: MemoryOptions, unsteady_postgres: Postgres
) -> None:
    with open_memory_sync(unsteady_url, options=hurried) as memory:
        model = ScriptedModel(["noted", "green"])
        agent = make_agent(model, [SessionMemory(memory)])
        unsteady_postgres.stop()
        for words in ("my colour is green", "my colour?"):
            agent.invoke(input_of(words), config_of())
        assert [text for _, text in seen(model.calls[1])] == ["my colour is green", "noted", "my colour?"]
        assert len(memory.pending.entries) == 4
        unsteady_postgres.start()
        while not memory.pending.deliver():
            time.sleep(0.1)
        said = ["my colour is green", "noted", "my colour?", "green"]
        assert [message.content for message in memory.session(ROOM).tail(9)] == said


async def test_a_database_that_stops_in_mid_turn(failing: Memory, unsteady_postgres: Postgres) -> None:
    """An answer after the database has stopped is stored once after the outage, with its question's run id."""
    gate = Gate()
    agent = make_agent(ScriptedModel([["hell", gate, "o"]]), [SessionMemory(failing)])
    task = asyncio.create_task(ask(agent, "hi", message_id="telegram:1"))
    await gate.reached()
    unsteady_postgres.stop("immediate")
    gate.open()
    assert await task == "hello"
    assert len(failing.pending.entries) == 1
    unsteady_postgres.start()
    await recover(failing)
    assert await kept(failing) == [("user", "hi"), ("assistant", "hello")]
    question, answer = await failing.session(ROOM).tail(2)
    assert question.run_id == answer.run_id
    assert await ask(agent, "hi", message_id="telegram:1") == "hello"


async def test_a_run_cancelled_in_an_outage_stores_its_partial_answer(
    failing: Memory, unsteady_postgres: Postgres
) -> None:
    unsteady_postgres.stop()
    gate = Gate()
    agent = make_agent(ScriptedModel([["hell", gate, "o"]]), [SessionMemory(failing)])

    async def read() -> None:
        async for _ in agent.astream(input_of("hi"), config_of(), stream_mode="messages"):
            pass

    task = asyncio.create_task(read())
    await gate.reached()
    task.cancel()
    await asyncio.wait([task])
    unsteady_postgres.start()
    await recover(failing)
    assert await kept_with_status(failing) == [("user", "hi", "complete"), ("assistant", "hell", "interrupted")]


async def test_pending_turns_of_another_user_are_not_sent(failing: Memory, unsteady_postgres: Postgres) -> None:
    model = ScriptedModel(["noted", "I do not know", "canary"])
    agent = make_agent(model, [SessionMemory(failing)])
    unsteady_postgres.stop()
    await agent.ainvoke(input_of("my word is canary"), config_of(user_id="ann"))
    await agent.ainvoke(input_of("what is the word?"), config_of(user_id="bob"))
    assert seen(model.calls[1]) == [("human", "what is the word?")]
    unsteady_postgres.start()
    await recover(failing, refused=2)
    await agent.ainvoke(input_of("my word?"), config_of(user_id="ann"))
    assert [text for _, text in await kept(failing)] == ["my word is canary", "noted", "my word?", "canary"]


async def test_a_repeated_message_id_in_an_outage_is_one_turn(failing: Memory, unsteady_postgres: Postgres) -> None:
    model = ScriptedModel(["hello"])
    agent = make_agent(model, [SessionMemory(failing)])
    unsteady_postgres.stop()
    for _ in range(2):
        assert await ask(agent, "hi", message_id="telegram:1") == "hello"
    assert len(failing.pending.entries) == 2
    unsteady_postgres.start()
    await recover(failing)
    assert await kept(failing) == [("user", "hi"), ("assistant", "hello")]


async def test_turns_of_an_outage_survive_the_process(
    unsteady_postgres: Postgres, unsteady_url: str, hurried: MemoryOptions
) -> None:
    async with open_memory(unsteady_url, options=hurried) as memory:
        unsteady_postgres.stop()
        await ask(make_agent(ScriptedModel(["hello"]), [SessionMemory(memory)]), "hi")
    unsteady_postgres.start()
    async with open_memory(unsteady_url, options=hurried) as memory:
        await recover(memory)
        assert await kept(memory) == [("user", "hi"), ("assistant", "hello")]


async def test_a_locked_file_is_read_and_written_later(
    sqlite_url: str, hurried: MemoryOptions, events: RecordedEvents
) -> None:
    async with open_memory(sqlite_url, observers=[events], options=hurried) as memory:
        model = ScriptedModel(["hello", "fine", "yes"])
        agent = make_agent(model, [SessionMemory(memory)])
        await ask(agent, "hi")
        async with locked(sqlite_url):
            async with asyncio.timeout(HANG_SECONDS):
                await ask(agent, "and now?")
            await ask(agent, "still?")
            assert len(memory.pending.entries) == 4
        assert [text for _, text in seen(model.calls[2])] == ["hi", "hello", "and now?", "fine", "still?"]
        assert events.of(ReadFailed) == []
        await recover(memory)
        said = ["hi", "hello", "and now?", "fine", "still?", "yes"]
        assert [text for _, text in await kept(memory)] == said
        assert [message.seq for message in await memory.session(ROOM).tail(10)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("answered", [True, False])
async def test_a_message_that_is_sent_with_a_pending_one_is_stored(
    sqlite_url: str, hurried: MemoryOptions, events: RecordedEvents, *, answered: bool
) -> None:
    async with open_memory(sqlite_url, observers=[events], options=hurried) as memory:
        agent = make_agent(ScriptedModel(["fine" if answered else ConnectionError(), "fine"]), [SessionMemory(memory)])
        both = {"messages": [HumanMessage("one", id="1"), HumanMessage("two", id="2")]}
        async with locked(sqlite_url):
            with contextlib.nullcontext() if answered else pytest.raises(ConnectionError):
                await ask(agent, "two", message_id="2")
            state = await agent.ainvoke(both, config_of())
            assert state["messages"][-1].text == "fine"
        await recover(memory)
        assert sorted(await kept(memory)) == [("assistant", "fine"), ("user", "one"), ("user", "two")]


async def test_a_memory_that_cannot_be_read_does_not_stop_the_agent(
    sqlite_url: str, hurried: MemoryOptions, events: RecordedEvents, tmp_path: Path
) -> None:
    async with open_memory(sqlite_url, observers=[events], options=hurried) as memory:
        agent = make_agent(ScriptedModel(["hello", "fine"]), [SessionMemory(memory)])
        await ask(agent, "hi")
        await asyncio.to_thread(rename, tmp_path / "threadkeep.db", "chat_messages", "elsewhere")
        assert await ask(agent, "and now?") == "fine"
        assert {event.outcome for event in events.of(ReadFailed)} == {"fallback"}
        await asyncio.to_thread(rename, tmp_path / "threadkeep.db", "elsewhere", "chat_messages")
        await recover(memory)
        assert [text for _, text in await kept(memory)] == ["hi", "hello", "and now?", "fine"]


@asynccontextmanager
async def no_disk(folder: Path) -> AsyncIterator[None]:
    """Replace a folder by a file during the block, so that no file can be created in it."""
    await asyncio.to_thread(shutil.rmtree, folder)
    await asyncio.to_thread(folder.touch)
    yield
    await asyncio.to_thread(folder.unlink)


@pytest.mark.parametrize("again", ["here", "when the disk is back", "when the database is back"])
async def test_an_answer_that_cannot_be_stored_anywhere_is_not_returned(
    sqlite_url: str, hurried: MemoryOptions, tmp_path: Path, again: str
) -> None:
    options = dataclasses.replace(hurried, pending=dataclasses.replace(hurried.pending, folder=tmp_path / "waiting"))
    model = ScriptedModel(["hello", "only one"])
    async with open_memory(sqlite_url, options=options) as memory, contextlib.AsyncExitStack() as outage:
        agent = make_agent(model, [SessionMemory(memory)])
        await ask(agent, "hi")
        await outage.enter_async_context(locked(sqlite_url))
        async with no_disk(tmp_path / "waiting"):
            with pytest.raises(TurnInMemoryOnly):
                await ask(agent, "and now?", message_id="m2")
            if again == "here":
                with pytest.raises(TurnInMemoryOnly):
                    await ask(agent, "and now?", message_id="m2")
        if again == "when the database is back":
            await outage.aclose()
            await recover(memory)
        assert await ask(agent, "and now?", message_id="m2") == "only one"
        await outage.aclose()
        await recover(memory)
        assert [text for _, text in await kept(memory)] == ["hi", "hello", "and now?", "only one"]
    assert len(model.calls) == 2


async def test_a_record_is_made_once_if_it_cannot_join_the_answer(
    tmp_path: Path, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If messages are in a LangGraph store, the record of a model call is only made for the queue, not before."""
    options = dataclasses.replace(memory_options, transcripts="graph_store")
    async with open_memory(f"sqlite:///{tmp_path / 'chat.db'}", options=options) as memory:
        made: list[object] = []
        monkeypatch.setattr(memory.manifests, "joined", made.append)
        agent = create_agent(ScriptedModel(["Hello."]), middleware=[SessionMemory(memory)])
        await agent.ainvoke({"messages": [HumanMessage("Hi.")]}, config_of("one"))
        assert [message.content for message in await memory.session("one").tail(5)] == ["Hi.", "Hello."]
        assert made == []
