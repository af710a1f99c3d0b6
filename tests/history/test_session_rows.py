"""Tests of cached session rows: a call sees the same with and without the cache."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest

from tests.agent.talking import ROOM, ask, make_agent, seen
from tests.history.retaining import deleting
from threadkeep import Memory, MemoryOptions, Message, SessionMemory, open_memory
from threadkeep.context.window import Limits
from threadkeep.errors import InvalidInput, MessageNotFound
from threadkeep.history.recollection import Past, Recollection, SessionCache
from threadkeep.records import Retention, RetentionLimits, Role
from threadkeep.store.archive import ArchivedPart
from threadkeep.store.tables import TableTranscripts
from threadkeep.testing import ScriptedModel

ANN = "ann"
_LIMITS = (Limits(4, None), Limits(20, 4_000), Limits(None, 60), Limits(None, None))


@pytest.fixture
async def three(shared_url: str, memory_options: MemoryOptions) -> AsyncIterator[tuple[Memory, Memory, Memory]]:
    """Open a memory with a cache, one for another process, and one without a cache."""
    options = replace(memory_options, background=False)
    bare = replace(options, context_cache_bytes=0)
    async with (
        open_memory(shared_url, options=options) as here,
        open_memory(shared_url, options=options) as there,
        open_memory(shared_url, options=bare) as forgetful,
    ):
        yield here, there, forgetful


async def recalled(memory: Memory, limits: Limits, profile: str, known: frozenset[str]) -> Recollection:
    """Return the recollection for a model call whose question is not written yet."""
    past = Past(limits, "question", known_ids=known, profile=profile)
    return await memory.session(ROOM).recall(past)


async def check_same(here: Memory, forgetful: Memory) -> None:
    """Check that calls with each kind of limits recall the same with and without the cache."""
    known = frozenset(f"id-{number}" for number in range(0, 40, 3))
    for limits in _LIMITS:
        profile = "" if limits.max_messages == 4 else "chat"
        assert await recalled(here, limits, profile, known) == await recalled(forgetful, limits, profile, known)


class OtherProcess:
    """Changes to the session by another process."""

    def __init__(self, memory: Memory, random: Random) -> None:
        self._memory = memory
        self._random = random
        self._number = 0

    async def say(self, count: int = 2) -> None:
        """Append messages, with system messages among them."""
        roles: tuple[Role, ...] = ("user", "assistant", "user", "assistant", "system")
        said = []
        for _ in range(count):
            self._number += 1
            text = f"message {self._number} " + "and more " * self._random.choice((0, 0, 1, 9))
            role = roles[self._number % 5]
            author = ANN if role == "user" and self._random.random() < 0.2 else None
            said.append(Message(role, text, id=f"id-{self._number}", author=author))
        await self._memory.session(ROOM).append(said)

    async def say_much(self) -> None:
        """Append more than one page of messages."""
        await self.say(230)

    async def reset(self) -> None:
        """Reset the session."""
        await self._memory.session(ROOM).reset()

    async def take_back(self) -> None:
        """Take the newest messages back."""
        await self._memory.session(ROOM).take_back(self._random.choice((1, 3)))

    async def edit(self) -> None:
        """Edit an earlier message, which supersedes all later ones."""
        users = [one for one in await self._memory.session(ROOM).tail(9) if one.role == "user" and one.id]
        if users:
            self._number += 1
            await self._memory.session(ROOM).edit(str(users[0].id), "better", new_id=f"id-{self._number}")

    async def erase(self) -> None:
        """Erase the words of one person in the shared session."""
        await self._memory.erase(user_id=ANN)

    async def archive(self) -> None:
        """Archive all but the newest messages."""
        await self._memory.retention.prune(Retention(archive=RetentionLimits(max_messages=self._random.choice((3, 9)))))

    async def forget_old(self) -> None:
        """Delete the oldest messages."""
        await self._memory.retention.prune(deleting(max_messages=self._random.choice((3, 9))))

    async def delete(self) -> None:
        """Delete the session, and create another one with its id."""
        await self._memory.session(ROOM).delete()
        self._number = 0
        await self.say(3)

    async def move_anchor(self) -> None:
        """Move the start of the window to a later message."""
        newest = await self._memory.session(ROOM).tail(1)
        if newest:
            await self._memory.contexts.move_anchor(ROOM, "chat", max((newest[0].seq or 1) - 2, 1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
async def test_cached_rows_are_never_stale(three: tuple[Memory, Memory, Memory], seed: int) -> None:
    here, there, forgetful = three
    random = Random(seed)
    other = OtherProcess(there, random)
    rare = (other.reset, other.edit, other.erase, other.archive, other.forget_old, other.delete, other.take_back)
    acts: list[Callable[[], Awaitable[None]]] = [other.say, other.say, other.say, *rare, other.move_anchor]
    await other.say()
    for number in range(24):
        act = other.say_much if number == 12 else random.choice(acts)
        try:
            await act()
        except MessageNotFound:
            continue  # it was archived or deleted
        await check_same(here, forgetful)


async def test_a_restored_session_is_read_again(three: tuple[Memory, Memory, Memory]) -> None:
    """A restored session may have the same times, ids and seqs with other words."""
    here, there, forgetful = three
    session = there.session(ROOM)
    await session.append([Message("user", "my name is Ann", id="1"), Message("assistant", "Hello.", id="2")])
    assert "Ann" in (await recalled(here, Limits(), "chat", frozenset())).messages[0].content
    info, (first, second) = await session.info(), await session.tail(2)
    await session.delete()
    await there.restore([ArchivedPart(info, (first.with_fields(content="my name is X"), second))])
    found = await recalled(here, Limits(), "chat", frozenset())
    assert [message.content for message in found.messages] == ["my name is X", "Hello."]
    await check_same(here, forgetful)


async def test_an_agent_sees_the_changes_of_other_processes(three: tuple[Memory, Memory, Memory]) -> None:
    here, there, _ = three
    model = ScriptedModel([f"answer {number}" for number in range(6)])
    agent = make_agent(model, [SessionMemory(here)])
    for number in range(2):
        await ask(agent, f"question {number}", message_id=f"q{number}")
    await there.session(ROOM).edit("q1", "other question")
    await ask(agent, "question 2", message_id="q2")
    said = [text for _, text in seen(model.calls[-1])]
    assert (said[:3], said[-1]) == (["question 0", "answer 0", "other question"], "question 2")
    await there.session(ROOM).append([Message("user", "by another way"), Message("assistant", "Yes.")])
    await ask(agent, "question 3")
    assert [text for _, text in seen(model.calls[-1])][-4:] == ["answer 2", "by another way", "Yes.", "question 3"]
    await there.session(ROOM).reset()
    await ask(agent, "question 4")
    assert [text for _, text in seen(model.calls[-1])] == ["question 4"]
    await there.session(ROOM).delete()
    await ask(agent, "question 5")
    assert [text for _, text in seen(model.calls[-1])] == ["question 5"]


async def test_cached_rows_are_not_read_again(
    three: tuple[Memory, Memory, Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call reads only the newest cached row and the rows after it."""
    here, there, _ = three
    await there.session(ROOM).append([Message("user", f"message {number}") for number in range(50)])
    await recalled(here, Limits(None, None), "chat", frozenset())
    await there.session(ROOM).append([Message("user", "one more")])
    counts: list[int] = []
    read = TableTranscripts.read

    async def counted(self: TableTranscripts, statements: object) -> object:
        rows = await read(self, statements)  # type: ignore[arg-type]
        counts.append(len(rows[1]))
        return rows

    monkeypatch.setattr(TableTranscripts, "read", counted)
    found = await recalled(here, Limits(None, None), "chat", frozenset())
    assert (len(found.messages), counts) == (51, [2])


async def test_cached_rows_are_bounded_in_bytes(shared_url: str, memory_options: MemoryOptions) -> None:
    options = replace(memory_options, context_cache_bytes=40_000)
    async with open_memory(shared_url, options=options) as memory:
        for number in range(12):
            session = memory.session(f"room:{number}")
            await session.append([Message("user", "a word " * 100)])
            await session.recall(Past(before_id="question"))
            assert memory.session_cache.bytes <= 40_000
        assert memory.session_cache.get("room:11") is not None
        assert memory.session_cache.get("room:0") is None
        await memory.session("room:11").delete()
        assert memory.session_cache.get("room:11") is None


def test_a_negative_cache_size_is_refused() -> None:
    assert SessionCache(0).bytes == 0
    with pytest.raises(InvalidInput, match="whole number from 0"):
        MemoryOptions(context_cache_bytes=-1)
