"""Tests of storing the turns of other frameworks, each of which belongs to a revision."""

from __future__ import annotations

import asyncio
import importlib
import sys
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.limits import HANG_SECONDS
from tests.outages import Outage
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.adapters.items import append_once
from threadkeep.errors import StoreUnavailable, WrongUser
from threadkeep.store.driver import Joined


async def test_one_of_several_writers_of_a_revision_stores_its_turn(memory: Memory) -> None:
    """The winner's statements are executed; the others store nothing, and a repeat of the winner changes nothing."""
    session, state = memory.session("s", user_id="ann"), memory.channels.state

    async def write(writer: str) -> bool:
        claim = Message("system", "[revision]", id="revision:1", original={"writer": writer})
        joined = Joined(after=[state.keep_statement("test", "writer", writer)])
        return await append_once(session, [claim, Message("user", f"I am {writer}.")], joined)

    stored = await asyncio.gather(*(write(name) for name in "abcd"))
    assert sum(stored) == 1
    winner = "abcd"[stored.index(True)]
    assert await write(winner)
    assert [one.content for one in await session.tail(10)] == ["[revision]", f"I am {winner}."]
    assert await state.value("test", "writer") == winner


async def test_a_turn_without_statements_is_stored_whole_or_not_at_all(memory: Memory) -> None:
    """A duplicate message refuses the whole turn; another user gets WrongUser."""
    session = memory.session("s", user_id="ann")
    await session.append([Message("user", "Hello.", id="known")])
    turn = [Message("system", "[revision]", id="revision:1"), Message("user", "Hello.", id="known")]
    with pytest.raises(StoreUnavailable):
        await append_once(session, turn, Joined())
    assert await session.count() == 1
    with pytest.raises(WrongUser):
        await append_once(memory.session("s", user_id="bob"), turn[:1], Joined())


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_a_turn_waits_for_a_locked_session(memory: Memory, database_url: str) -> None:
    """A session that another transaction locks for two seconds delays the turn."""
    session = memory.session("s", user_id="ann")
    await session.append([Message("user", "Hello.")])
    async with await psycopg.AsyncConnection.connect(database_url) as other:
        await other.execute("SELECT 1 FROM chat_sessions FOR UPDATE")
        turn = [Message("system", "[revision]", id="revision:1"), Message("user", "Are you there?")]
        stored = asyncio.ensure_future(append_once(session, turn, Joined()))
        assert not (await asyncio.wait([stored], timeout=2))[0]
        await other.rollback()
    assert await stored
    assert [one.content for one in await session.tail(3)] == ["Hello.", "[revision]", "Are you there?"]


async def test_a_turn_is_stored_after_an_outage(tmp_path: Path, memory_options: MemoryOptions) -> None:
    """The writer that failed tries again. Nothing else in its process learns that the database is back."""
    outage = Outage(tmp_path / "threadkeep.db")
    pending = replace(memory_options.pending, write_timeout_seconds=0.2)
    async with open_memory(outage.url, options=replace(memory_options, pending=pending)) as memory:
        turn = [Message("user", "Hello.", id="revision:1")]
        async with outage():
            with pytest.raises(StoreUnavailable):
                await append_once(memory.session("s"), turn, Joined())
        # From now on, a busy machine must not look like another outage.
        memory.pending.options = replace(pending, write_timeout_seconds=HANG_SECONDS)
        assert await append_once(memory.session("s"), turn, Joined())
        assert [one.content for one in await memory.session("s").tail(2)] == ["Hello."]
        assert not memory.pending.database_fails


async def test_a_turn_supersedes_later_messages_or_changes_nothing(memory: Memory) -> None:
    """The turn supersedes later messages in its transaction, which is rolled back for a known revision."""
    session, state = memory.session("s", user_id="ann"), memory.channels.state
    await session.append([Message("user", text, id=text) for text in ("one", "two", "three")])

    async def write(writer: str, after: int) -> bool:
        claim = Message("system", "[revision]", id="revision:1", original={"writer": writer})
        joined = Joined(after=[state.keep_statement("test", "writer", writer)], supersedes_after=after)
        return await append_once(session, [claim, Message("user", f"I am {writer}.")], joined)

    assert await write("a", 2)
    said = ["one", "two", "[revision]", "I am a."]
    for writer, is_stored in (("b", False), ("a", True)):
        assert await write(writer, 1) is is_stored
        assert [one.content for one in await session.tail(10)] == said
    info = await session.info()
    assert (info.message_count, info.last_message) == (4, "I am a.")
    assert await state.value("test", "writer") == "a"
    with pytest.raises(WrongUser):
        await append_once(memory.session("s", user_id="bob"), [Message("user", "Mine.")], Joined(supersedes_after=0))
    assert [one.content for one in await session.tail(10)] == said


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("openai_agents", "agents", "openai-agents"),
        ("google_adk", "google", "google-adk"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("llama_index", "llama_index", "llama-index"),
        ("chatkit", "chatkit", "chatkit"),
        ("mcp", "mcp", "mcp"),
    ],
)
def test_an_adapter_without_its_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"threadkeep.adapters.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'threadkeep\[{extra}\]'"):
        importlib.import_module(f"threadkeep.adapters.{module}")
