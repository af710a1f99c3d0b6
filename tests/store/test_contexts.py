"""Tests of stored context state: anchors, summaries, token factors and vectors."""

from __future__ import annotations

from tests.databases import migrated_driver, query
from tests.store.summarising import ROOM, say, summary
from threadkeep import Memory, MemoryOptions, open_memory
from threadkeep.store.address import parse_address
from threadkeep.store.contexts import ContextState, TokenFactors
from threadkeep.testing import SettableClock

_FILLED = ("chat_anchors", "chat_claims", "chat_embeddings", "chat_messages", "chat_sessions", "chat_summaries")


async def test_anchors_move_forward_only(memory: Memory) -> None:
    """Each agent profile has an anchor of its own."""
    assert await memory.contexts.state(ROOM, "chat") == ContextState()
    await say(memory, 10)
    assert await memory.contexts.state(ROOM, "chat") == ContextState()
    for seq, expected in ((4, 4), (3, 4), (7, 7), (7, 7), (11, 11)):
        await memory.contexts.move_anchor(ROOM, "chat", seq)
        assert (await memory.contexts.state(ROOM, "chat")).anchor_seq == expected
    assert (await memory.contexts.state(ROOM, "other")).anchor_seq == 0


async def test_an_anchor_past_the_end_belongs_to_a_former_session(memory: Memory) -> None:
    """An anchor past the end is ignored, since it would hide new messages."""
    await memory.contexts.move_anchor(ROOM, "chat", 5)
    await say(memory, 2)
    assert (await memory.contexts.state(ROOM, "chat")).anchor_seq == 0
    await memory.contexts.move_anchor(ROOM, "chat", 5)
    assert (await memory.contexts.state(ROOM, "chat")).anchor_seq == 0


async def test_the_state_has_the_active_summaries(memory: Memory) -> None:
    await say(memory, 9)
    parts = [summary(1, 2), summary(3, 4), summary(5, 6)]
    for part in parts:
        await memory.summaries.add(part)
    await memory.summaries.add(summary(1, 4, level=2), replaces=[parts[0].id, parts[1].id])
    await memory.contexts.move_anchor(ROOM, "chat", 7)
    state = await memory.contexts.state(ROOM, "chat")
    assert state == ContextState(7, tuple(await memory.summaries.active(ROOM)))
    assert [(each.first_seq, each.last_seq) for each in state.summaries] == [(1, 4), (5, 6)]
    await memory.session(ROOM).reset()
    assert (await memory.contexts.state(ROOM, "chat")).summaries == ()


async def test_the_state_of_another_user_is_empty(memory: Memory) -> None:
    await say(memory, 2, user_id="u1")
    await memory.summaries.add(summary(1, 1))
    assert len((await memory.contexts.state(ROOM, "chat", user_id="u1")).summaries) == 1
    assert await memory.contexts.state(ROOM, "chat", user_id="u2") == ContextState()


async def test_token_factors_are_kept(shared_url: str, clock: SettableClock) -> None:
    async with migrated_driver(shared_url) as driver:
        factors = TokenFactors(driver, clock=clock)
        assert await factors.all() == {}
        await factors.save("openai:gpt-5-mini", 1.25, 3)
        await factors.save("ollama:qwen3", 0.9, 1)
        await factors.save("openai:gpt-5-mini", 1.5, 4)
        await factors.save("mistral-large", 1.1, 2, 3.5)
        assert await factors.all() == {
            "openai:gpt-5-mini": (1.5, 4, None),
            "ollama:qwen3": (0.9, 1, None),
            "mistral-large": (1.1, 2, 3.5),
        }


async def test_vectors_are_stored_by_model_and_seq(memory: Memory) -> None:
    """A vector is stored unchanged, and replaces an older one of the same model and seq."""
    await say(memory, 4)
    await memory.embeddings.add(ROOM, "small", [(3, b"\x00\xff"), (1, b"one")])
    await memory.embeddings.add(ROOM, "large", [(1, b"other")])
    await memory.embeddings.add(ROOM, "small", [(1, b"again"), (9, b"nobody said this")])
    await memory.embeddings.add(ROOM, "small", [])
    assert await memory.embeddings.of_session(ROOM, "small") == [(1, b"again"), (3, b"\x00\xff")]
    assert await memory.embeddings.of_session(ROOM, "small", 1) == [(3, b"\x00\xff")]
    assert await memory.embeddings.of_session(ROOM, "large") == [(1, b"other")]


async def test_vectors_of_a_deleted_session_are_not_stored(memory: Memory) -> None:
    """The vectors were computed from deleted words."""
    await say(memory, 2)
    [*_, last] = await memory.session(ROOM).tail(2)
    await memory.session(ROOM).delete()
    await memory.embeddings.add(ROOM, "small", [(1, b"one"), (2, b"two")], last_id=last.id)
    await say(memory, 2)
    await memory.embeddings.add(ROOM, "small", [(1, b"one"), (2, b"two")], last_id=last.id)
    assert await memory.embeddings.of_session(ROOM, "small") == []


async def test_a_deleted_session_leaves_no_row(shared_url: str) -> None:
    async with open_memory(shared_url, options=MemoryOptions(background=False)) as memory:
        for session_id in (ROOM, "other"):
            await say(memory, 4, session_id)
            await memory.summaries.add(summary(1, 2, session_id=session_id))
            await memory.contexts.move_anchor(session_id, "chat", 3)
            await memory.embeddings.add(session_id, "small", [(1, b"one")])
            await memory.summaries.claim(session_id, "summary", "a", 60)
        await memory.session(ROOM).delete()
    for table in tables_with_sessions(shared_url):
        assert query(shared_url, f"SELECT 1 FROM {table} WHERE session_id = '{ROOM}'") == [], table
    for table in _FILLED:
        assert query(shared_url, f"SELECT 1 FROM {table} WHERE session_id = 'other'") != [], table


def tables_with_sessions(url: str) -> list[str]:
    """Return all tables with a `session_id` column."""
    in_sqlite = (
        "SELECT DISTINCT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND c.name = 'session_id'"
    )
    in_postgres = (
        "SELECT DISTINCT table_name FROM information_schema.columns "
        "WHERE table_schema = 'public' AND column_name = 'session_id'"
    )
    rows = query(url, in_postgres if parse_address(url).dsn else in_sqlite)
    assert {name for (name,) in rows} > set(_FILLED)
    return [str(name) for (name,) in rows]
