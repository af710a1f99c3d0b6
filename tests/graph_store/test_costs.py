"""Tests of the calls and statements that turns and reads in a graph store need."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.databases import execute, query
from tests.graph_store.damaging import rewrite
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.errors import SessionDamaged
from threadkeep.graph_store import known
from threadkeep.graph_store.items import Stored, Value
from threadkeep.graph_store.shapes import message_in
from threadkeep.store.postgres_connection import PostgresConnection
from threadkeep.store.sqlite_connection import SqliteConnection

ROOM = "room"
CHUNK = f"{ROOM}:chunk:000000"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Memory]:
    """Open a memory with transcripts in a graph store, and close it after the block."""
    async with open_memory(url, options=MemoryOptions(transcripts="graph_store", background=False)) as memory:
        yield memory


async def say(memory: Memory, name: str) -> None:
    """Append a question and an answer."""
    await memory.session(ROOM).append(
        [Message("user", f"question {name}", id=f"q{name}"), Message("assistant", f"answer {name}", id=f"a{name}")]
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the `seq` of each message that is created from its stored value."""
    seqs: list[int] = []
    make = message_in

    def noted(value: Value, value_field: str) -> Message:
        seqs.append(value["seq"])
        return make(value, value_field)

    monkeypatch.setattr(known, "message_in", noted)
    return seqs


@dataclass
class Visits:
    """Calls of a database connection: the statements of each, and the number of commits."""

    made: list[int] = field(default_factory=list)
    commits: int = 0

    def taken(self) -> tuple[list[int], int]:
        """Return the calls so far, and clear them."""
        found = self.made.copy(), self.commits
        self.made.clear()
        self.commits = 0
        return found


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Visits:
    """Record each call of a SQLite thread and each round trip to PostgreSQL."""
    found = Visits()

    def noting(owner: type, name: str, statements_of: Callable[[Any], Sequence[tuple[str, object]]]) -> None:
        plain = getattr(owner, name)

        async def noted(self: object, first: Any, *others: Any) -> object:
            statements = statements_of(first)
            ends = [sql for sql, _ in statements if sql in ("BEGIN", "COMMIT")]
            found.made.append(len(statements) - len(ends))
            found.commits += ends.count("COMMIT") + getattr(first, "commits", 0)
            return await plain(self, first, *others)

        monkeypatch.setattr(owner, name, noted)

    noting(SqliteConnection, "run", lambda batch: batch.statements)
    noting(PostgresConnection, "fetch_each", lambda statements: statements)
    for owner in (SqliteConnection, PostgresConnection):
        for name in ("fetch", "execute", "execute_many"):
            noting(owner, name, lambda sql: [(sql, {})])
    return found


async def test_a_turn_is_read_once_and_written_once(shared_url: str, visits: Visits) -> None:
    """A turn with its index rows takes two calls and one commit, in a new or an existing conversation."""
    async with opened(shared_url) as memory:
        await say(memory, "0")
        visits.taken()
        for number in range(1, 4):
            await say(memory, str(number))
            made, commits = visits.taken()
            assert (len(made), commits) == (2, 1)
        await memory.session("another").append([Message("user", "question")])
        made, commits = visits.taken()
        assert (len(made), commits) == (2, 1)
    rows = query(shared_url, "SELECT session_id, last_seq, graph_version FROM chat_sessions ORDER BY session_id")
    assert rows == [("another", 1, 1), (ROOM, 8, 4)]


async def test_the_newest_messages_are_read_by_one_statement(shared_url: str, visits: Visits) -> None:
    async with opened(shared_url) as memory:
        for number in range(3):
            await say(memory, str(number))
        visits.taken()
        assert len(await memory.session(ROOM).tail(4)) == 4
        assert visits.taken() == ([1], 0)


async def test_the_memory_of_newest_chunks_is_bounded(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached chunk counts with all its messages, whether it was written or partly read."""
    monkeypatch.setattr(known, "_MOST_CHARACTERS", 100_000)
    rooms = [f"room {number}" for number in range(20)]
    async with opened(shared_url) as memory:
        for room in rooms:
            await memory.session(room).append([Message("user", "long " * 2_000) for _ in range(2)])
        assert chunks_in_memory() <= 3
    async with opened(shared_url) as memory:
        for room in rooms:
            assert len(await memory.session(room).tail(1)) == 1
        assert chunks_in_memory() <= 3


def chunks_in_memory() -> int:
    """Return the number of chunks of 20,000 characters that this process holds."""
    gc.collect()
    held = [each for each in gc.get_objects() if isinstance(each, Stored) and "messages" in each]
    return sum(len(str(each["messages"])) > 20_000 for each in held)


async def test_a_lone_surrogate_of_another_program_stops_no_turn(sqlite_url: str) -> None:
    """SQLite stores a lone surrogate; later turns write it back unchanged."""
    async with opened(sqlite_url) as memory:
        await say(memory, "0")

        def change(value: Any) -> Any:
            value["messages"][0]["content"] = "\ud800"
            return value

        rewrite(sqlite_url, CHUNK, change)
        await say(memory, "1")
        assert [message.content for message in await memory.session(ROOM).tail(9)] == [
            "\ud800", "answer 0", "question 1", "answer 1",
        ]  # fmt: skip


async def test_a_turn_is_stored_if_its_index_rows_fail(shared_url: str) -> None:
    async with opened(shared_url) as memory:
        await say(memory, "0")
        execute(shared_url, "UPDATE chat_messages SET seq = 3 WHERE seq = 1")
        await say(memory, "1")
        assert [message.seq for message in await memory.session(ROOM).tail(9)] == [1, 2, 3, 4]
        execute(shared_url, "UPDATE chat_messages SET seq = 1 WHERE seq = 3")
        await memory.search("anything")
    rows = query(shared_url, "SELECT seq FROM chat_messages ORDER BY seq")
    assert (rows, query(shared_url, "SELECT last_seq FROM chat_sessions")) == ([(1,), (2,), (3,), (4,)], [(4,)])


async def test_an_unchanged_message_is_created_once(shared_url: str, made: list[int]) -> None:
    async with opened(shared_url) as memory:
        for number in range(6):
            await say(memory, str(number))
        for _ in range(3):
            assert [message.seq for message in await memory.session(ROOM).tail(20)] == list(range(1, 13))
    assert sorted(made) == list(range(1, 13))


async def test_a_change_of_a_cached_message_is_detected(shared_url: str) -> None:
    async with opened(shared_url) as memory:
        session = memory.session(ROOM)
        await say(memory, "1")
        await session.tail(5)
        for role, content in (("user", "other"), ("robot", "question 1"), ("user", "question 1")):

            def change(chunk: dict[str, list[dict[str, object]]], role: str = role, content: str = content) -> object:
                first, *rest = chunk["messages"]
                return {**chunk, "messages": [{**first, "role": role, "content": content}, *rest]}

            rewrite(shared_url, CHUNK, change)
            if role == "robot":
                with pytest.raises(SessionDamaged):
                    await session.tail(5)
                with pytest.raises(SessionDamaged):
                    await say(memory, "2")
            else:
                assert (await session.tail(5))[0].content == content
        await say(memory, "2")
        assert len(await session.tail(5)) == 4


async def test_a_locked_row_delays_no_turn_for_long(postgres_url: str) -> None:
    async with opened(postgres_url) as memory, await psycopg.AsyncConnection.connect(postgres_url) as other:
        session = memory.session(ROOM)
        await session.append([Message("user", "0")])
        await other.execute("SELECT 1 FROM chat_sessions FOR UPDATE")
        waiting = [asyncio.create_task(session.append([Message("user", str(n))])) for n in (1, 2, 3)]
        async with asyncio.timeout(8):  # shorter than one lock timeout
            while len(said := await session.tail(9)) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert [message.content for message in said] == ["0", "1", "2", "3"]
        await other.rollback()
        await asyncio.gather(*waiting)
        assert [m.content for m in (await session.page(limit=9)).messages] == ["0", "1", "2", "3"]


async def test_a_locked_row_fails_no_turn_with_a_short_statement_timeout(postgres_url: str) -> None:
    """A short statement_timeout interrupts the wait for the row; the turn is stored, and its index row later."""
    [(name,)] = query(postgres_url, "SELECT current_database()")
    execute(postgres_url, f'ALTER DATABASE "{name}" SET statement_timeout = 300')
    async with opened(postgres_url) as memory, await psycopg.AsyncConnection.connect(postgres_url) as other:
        session = memory.session(ROOM)
        await session.append([Message("user", "0")])
        await other.execute("SELECT 1 FROM chat_sessions FOR UPDATE")
        await session.append([Message("user", "1")])
        await other.rollback()
        assert [message.content for message in await session.tail(9)] == ["0", "1"]


async def test_two_processes_extend_one_conversation(shared_url: str, made: list[int]) -> None:
    async with opened(shared_url) as first, opened(shared_url) as second:
        for number in range(3):
            await say(first, f"first {number}")
            await say(second, f"second {number}")
        for memory in (first, second):
            assert [message.seq for message in await memory.session(ROOM).tail(20)] == list(range(1, 13))
    assert sorted(made) == sorted([*range(1, 13)] * 2)


async def test_other_programs_read_a_chunk_that_has_grown(shared_url: str) -> None:
    """The JSON of a chunk is valid after each turn, with multibyte texts and with fields of other programs."""
    seen: dict[str, Any] = {}

    def noted(chunk: dict[str, Any]) -> object:
        seen.update(chunk)
        return chunk

    async with opened(shared_url) as memory:
        session = memory.session(ROOM)
        for number in range(40):
            await session.append([Message("user", f'{number} ] }} " \\ ' + "日本語 ü" * 40)])
            if number == 20:
                rewrite(shared_url, CHUNK, lambda chunk: {"theirs": {"messages": [1]}, **chunk, "last": ["]}"]})
            if number % 7 == 0:
                rewrite(shared_url, CHUNK, noted)
        rewrite(shared_url, CHUNK, noted)
        said = [message.content for message in await session.tail(40)]
    assert [message["content"] for message in seen["messages"]] == said
    assert (seen["end_seq"], seen["theirs"], seen["last"], len(said)) == (40, {"messages": [1]}, ["]}"], 40)


async def test_changes_of_callers_are_in_no_later_read(database_url: str) -> None:
    """A caller may change the metadata of a message that it read."""
    async with opened(database_url) as memory:
        await memory.session(ROOM).append([Message("user", "hello", metadata={"k": ["as stored"]})])
        for _ in range(2):
            [message] = await memory.session(ROOM).tail(1)
            assert message.metadata == {"k": ["as stored"]}
            message.metadata["k"].append("changed")  # type: ignore[union-attr]
