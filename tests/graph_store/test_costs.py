"""What a turn and a read of a conversation in a graph store cost, in calls and statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.graph_store.damaging import rewrite
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.errors import SessionDamaged
from threadkeep.graph_store import known
from threadkeep.graph_store.items import Value
from threadkeep.graph_store.shapes import message_in

ROOM = "room"
CHUNK = f"{ROOM}:chunk:000000"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Memory]:
    """A memory that keeps transcripts in a graph store."""
    async with open_memory(url, options=MemoryOptions(transcripts="graph_store", background=False)) as memory:
        yield memory


async def say(memory: Memory, name: str) -> None:
    """One turn of a question and an answer."""
    await memory.session(ROOM).append(
        [Message("user", f"question {name}", id=f"q{name}"), Message("assistant", f"answer {name}", id=f"a{name}")]
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The `seq` of each message that is made of its value."""
    seqs: list[int] = []
    make = message_in

    def noted(value: Value, value_field: str) -> Message:
        seqs.append(value["seq"])
        return make(value, value_field)

    monkeypatch.setattr(known, "message_in", noted)
    return seqs


async def test_an_unchanged_message_is_made_once(shared_url: str, made: list[int]) -> None:
    """Each turn checks the messages of its chunk, and a read returns them: each one is made of its value once."""
    async with opened(shared_url) as memory:
        for number in range(6):
            await say(memory, str(number))
        for _ in range(3):
            assert [message.seq for message in await memory.session(ROOM).tail(20)] == list(range(1, 13))
    assert sorted(made) == list(range(1, 13))


async def test_a_known_message_that_is_changed_or_damaged_is_noticed(shared_url: str) -> None:
    """By a read and by a turn; after a repair both go on."""
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
