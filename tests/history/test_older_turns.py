"""Older turns are found while sessions change, and whatever a model of embeddings says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from threadkeep import Memory, Message
from threadkeep.history.older_turns import Search

ROOM = "telegram:1"


class Vectors:
    """A model of embeddings that says the same of every text."""

    def __init__(self, vector: list[float]) -> None:
        self._vector = vector
        self.name = "vectors"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One for each."""
        return [self._vector for _ in texts]

    async def embed_query(self, text: str) -> Sequence[float]:
        """The same."""
        return self._vector


async def say(memory: Memory, count: int, session_id: str = ROOM, *, user_id: str | None = None) -> None:
    """Turns that have nothing in common with the vault."""
    turns = [
        Message(role="user" if number % 2 else "assistant", content=f"word{number} word{number % 37} about cake")
        for number in range(count)
    ]
    await memory.session(session_id, user_id=user_id).append(turns)


async def found(memory: Memory, query: str = "the code of the vault", session_id: str = ROOM) -> list[str]:
    """What is found in a session."""
    turns = await memory.older_turns.find(Search(session_id, None, query), 1_000)
    return [turn.message.content for turn in turns]


async def test_a_reset_stops_nobody_who_looks(memory: Memory) -> None:
    """One turn waits for the index while another finds that a reset has outdated it: both get an answer."""
    await say(memory, 4_000)
    looking = asyncio.create_task(found(memory, "cake word5"))
    while memory.older_turns.talk("session", ROOM) is None:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)
    await memory.session(ROOM).reset()
    await memory.session(ROOM).append([Message(role="user", content="the code of the vault is 4711")])
    assert await found(memory) == ["the code of the vault is 4711"]
    assert isinstance(await looking, list)


async def test_the_index_of_a_user_with_many_sessions_is_kept(sqlite_memory: Memory) -> None:
    """Each turn in another session pushes one out of those that are looked at; the others are not indexed anew."""
    for number in range(103):
        await say(sqlite_memory, 2, f"room:{number}", user_id="u1")
    first = None
    for number in range(3):
        await say(sqlite_memory, 2, f"room:{number}", user_id="u1")
        search = Search(f"room:{number}", "u1", "cake", scope="user")
        assert await sqlite_memory.older_turns.find(search, 1_000)
        first = first or sqlite_memory.older_turns.talk("user", "u1")
    assert sqlite_memory.older_turns.talk("user", "u1") is first


async def test_the_index_of_a_user_forgets_a_deleted_session(sqlite_memory: Memory) -> None:
    """As soon as anything is looked for."""
    for name in ("room:1", "room:2"):
        await say(sqlite_memory, 2, name, user_id="u1")
    search = Search("room:2", "u1", "cake", scope="user")
    assert {turn.session_id for turn in await sqlite_memory.older_turns.find(search, 1_000)} == {"room:1", "room:2"}
    await sqlite_memory.session("room:1").delete()
    assert {turn.session_id for turn in await sqlite_memory.older_turns.find(search, 1_000)} == {"room:2"}


async def test_what_was_not_asked_for_longest_goes_when_there_is_too_much(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes of a process are bounded by their messages; the one that is asked for is there in any case."""
    monkeypatch.setattr("threadkeep.history.older_turns._MOST_INDEXED", 25)
    for name in ("room:1", "room:2", "room:3", "room:4"):
        await say(sqlite_memory, 20, name)
        assert await found(sqlite_memory, "cake", name)
    talks = [sqlite_memory.older_turns.talk("session", f"room:{number}") for number in range(1, 5)]
    assert [talk is not None for talk in talks] == [False, False, True, True]


@pytest.mark.parametrize("vector", [[math.nan] * 3, [math.inf, 0.0], [0.0, 0.0], [1e308] * 4, []])
async def test_vectors_without_a_direction_are_like_nothing(memory: Memory, vector: list[float]) -> None:
    """What words find is found all the same, and each message is embedded once."""
    await memory.session(ROOM).append([Message(role="user", content="the code of the vault is 4711")])
    search = Search(ROOM, None, "the code of the vault")
    for _ in range(3):
        turns = await memory.older_turns.find(search, 1_000, Vectors(vector))
        assert [turn.message.seq for turn in turns] == [1]
        talk = memory.older_turns.talk("session", ROOM)
        assert talk is not None
        assert talk.embedding is not None
        await talk.embedding
    assert len(await memory.embeddings.of_session(ROOM, "vectors")) == 1
