"""Databases of the version before: what they hold is found, read and deleted after the index has changed its form."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.databases import driver_of, execute, query
from threadkeep import MemoryOptions, Message, open_memory
from threadkeep.store import migrations
from threadkeep.store.address import parse_address

_BEFORE = 9
_TIME = "2026-01-01T00:00:00+00:00"


def old_statements(engine: str) -> Iterator[str]:
    """A session with two archived messages and two others, and one with a message that is not indexed yet."""
    for session_id, last, indexed, archived in (("room", 4, 4, 2), ("other", 1, 0, 0)):
        yield (
            "INSERT INTO chat_sessions (session_id, user_id, title, message_count, last_seq, last_user_seq,"
            " indexed_seq, archived_seq, created_at, updated_at) VALUES"
            f" ('{session_id}', 'u1', 'old', {last}, {last}, {last}, {indexed}, {archived}, '{_TIME}', '{_TIME}')"
        )
    texts = [("room", n, f"canary {n} says 退款") for n in range(1, 5)] + [("other", 1, "canary 5")]
    for session_id, seq, text in texts:
        yield (
            "INSERT INTO chat_messages (session_id, seq, id, role, content, tokens, metadata, created_at) VALUES"
            f" ('{session_id}', {seq}, 'm{seq}', 'user', '{text}', 7, '{{\"n\":{seq}}}', '{_TIME}')"
        )
    for seq, text in ((3, "canary 3 says 退款"), (4, "canary 4 says 退款")):
        if engine == "postgres":
            yield f"INSERT INTO chat_search VALUES ('room', {seq}, to_tsvector('simple', '{text}'))"
        else:
            yield f"INSERT INTO chat_search_documents VALUES ({seq}, 'room', {seq})"
            yield f"INSERT INTO chat_search (rowid, content) VALUES ({seq}, '{text}')"


@pytest.fixture(params=["sqlite", "postgres"])
async def old_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of each engine as it was before."""
    url = str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url"))
    known = migrations.known_migrations
    with monkeypatch.context() as before:
        before.setattr(migrations, "known_migrations", lambda backend: known(backend)[:_BEFORE])
        async with driver_of(url) as driver:
            await migrations.migrate(driver, datetime(2026, 1, 1, tzinfo=UTC))
    return url


async def test_what_an_older_version_kept_is_found_read_and_deleted(
    old_url: str, memory_options: MemoryOptions
) -> None:
    """Each message as it was, what is archived in no search, and the index without a trace of what is deleted."""
    for statement in old_statements(parse_address(old_url).backend):
        execute(old_url, statement)
    async with open_memory(old_url, options=memory_options) as memory:
        hits = await memory.search("canary", limit=10)
        assert sorted((hit.session_id, hit.message.seq) for hit in hits) == [("other", 1), ("room", 3), ("room", 4)]
        assert {hit.message.seq for hit in await memory.search("退款")} == {3, 4}
        room = memory.session("room")
        kept = [(m.seq, m.id, m.content, m.tokens, m.metadata) for m in await room.tail(10)]
        assert kept == [(n, f"m{n}", f"canary {n} says 退款", 7, {"n": n}) for n in range(1, 5)]
        receipt = await room.append(
            [Message(role="user", content="canary 6"), Message(role="user", content="", id="m4")]
        )
        assert (receipt.first_seq, receipt.duplicates) == (5, ("m4",))
        assert {hit.message.seq for hit in await memory.search("canary", session_id="room")} == {3, 4, 5}
        await room.delete()
        assert [hit.session_id for hit in await memory.search("canary")] == ["other"]
    of_index = "chat_search" if old_url.startswith("postgres") else "chat_search_docsize"
    assert len(query(old_url, f"SELECT 1 FROM {of_index}")) == 1
    if of_index == "chat_search_docsize":
        query(old_url, "INSERT INTO chat_search (chat_search, rank) VALUES ('integrity-check', 1)")


async def test_sessions_in_a_graph_store_stay_without_an_index(old_url: str) -> None:
    """Their rows hold no text: nothing of them waits to be indexed."""
    execute(
        old_url,
        "INSERT INTO chat_sessions (session_id, last_seq, indexed_seq, graph_version, created_at, updated_at)"
        f" VALUES ('graph', 2, 2, 1, '{_TIME}', '{_TIME}')",
    )
    async with driver_of(old_url) as driver:
        await migrations.migrate(driver, datetime(2026, 1, 2, tzinfo=UTC))
    assert query(old_url, "SELECT indexed_seq FROM chat_sessions") == [(2,)]
