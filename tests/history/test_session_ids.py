"""Tests of session ids: nearly any text is valid, and an invalid one is refused at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.conftest import url_of
from threadkeep import InvalidKey, Memory, MemoryOptions, Message, open_memory
from threadkeep.history.keys import PLACEHOLDER, channel_of, check_session_id


@pytest.mark.parametrize(
    ("session_id", "reason"),
    [
        ("", "empty"),
        (" \t", "empty"),
        ("telegram:", "empty_part"),
        ("wecom_cs::ext-1", "empty_part"),
        ("telegram:{{chat_id}}", "unresolved_template"),
        ("x" * 257, "too_long"),
        ("a\n", "invalid_chars"),
        ("a\x00b", "invalid_chars"),
        ("a\x9fb", "invalid_chars"),
        ("\ud800", "invalid_chars"),
        (None, "invalid_chars"),
    ],
)
async def test_an_invalid_session_id_is_refused(sqlite_memory: Memory, session_id: str, reason: str) -> None:
    """The error has the reason, and does not repeat the id, which may be a person's words."""
    with pytest.raises(InvalidKey) as caught:
        sqlite_memory.session(session_id)
    assert caught.value.reason == reason
    assert "ext-1" not in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=256))
def test_any_other_text_is_a_session_id(session_id: str) -> None:
    """Only blank text, a template and a channel without an id are refused."""
    channel = channel_of(session_id) != "other"
    assume(session_id.strip() and not PLACEHOLDER.search(session_id) and not (channel and "" in session_id.split(":")))
    check_session_id(session_id)


@pytest.mark.parametrize("transcripts", ["tables", "graph_store"])
@pytest.mark.parametrize("kind", ["sqlite-file", "postgres"])
async def test_any_text_is_a_session_id_everywhere(
    request: pytest.FixtureRequest,
    memory_options: MemoryOptions,
    kind: str,
    transcripts: Literal["tables", "graph_store"],
) -> None:
    ids = [
        "me@example.com",
        "C024.1700000000.12",
        "+351912345678",
        "a/b",
        "👩‍👩‍👧",
        "a b",
        " a",
        "::1",
        "{",
        "🙂" * 256,
    ]
    options = replace(memory_options, transcripts=transcripts)
    async with open_memory(url_of(request, kind), options=options) as memory:
        for session_id in ids:
            session = memory.session(session_id, user_id="u1")
            await session.append([Message(role="user", content="a parasol", id="m:1")])
            assert (await session.append([Message(role="user", content="a parasol", id="m:1")])).duplicates == ("m:1",)
        assert {info.session_id async for info in memory.sessions(user_id="u1", page_size=3)} == set(ids)
        assert {hit.session_id for hit in await memory.search("parasol", limit=100)} == set(ids)
        for session_id in ids:
            session = memory.session(session_id)
            assert [message.content for message in await session.tail(5)] == ["a parasol"]
            assert (await session.info()).session_id == session_id
            [hit] = await memory.search("parasol", session_id=session_id)
            assert hit.session_id == session_id
            await session.reset()
            assert (await session.window()).messages == ()
            assert await session.delete()
        assert [info async for info in memory.sessions()] == []
