"""Tests of the data that remains of deleted messages: none, except their ids for a week."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.databases import migrated_driver
from tests.store.pruning import ROOM, Database, database_over, message
from threadkeep.records import Turn
from threadkeep.store.contexts import EmbeddingRows
from threadkeep.store.driver import DuplicateRow, NewTurns
from threadkeep.store.manifests import ManifestRows, NotedManifest
from threadkeep.store.retention import REDELIVERY
from threadkeep.testing import SettableClock


@pytest.fixture
async def database(database_url: str, clock: SettableClock) -> AsyncIterator[Database]:
    """Return an empty database of each engine."""
    async with migrated_driver(database_url) as driver:
        opened = database_over(driver, clock)
        yield opened
        await opened.transcripts.close()


async def test_removed_messages_are_not_indexed_later(database: Database) -> None:
    await database.say(10)
    await database.take("archive", 4)
    assert await database.found("canary") == [5, 6, 7, 8, 9, 10]
    await database.say(10, first=11)
    await database.take("delete", 14)
    assert await database.found("canary") == [15, 16, 17, 18, 19, 20]


async def test_no_table_has_words_of_deleted_messages(database: Database) -> None:
    await database.say(6)
    await database.found("canary")
    async with database.driver.writing() as connection:
        await connection.execute(
            "INSERT INTO chat_runs "
            "(run_id, session_id, message_id, workflow, status, owner, result, root_run_id, trigger, created_at) "
            "VALUES (:run, :session, :id, 'chat', 'done', 'me', :result, :run, 'http', :now)",
            {"run": "r1", "session": ROOM, "id": "p:1", "result": '"canary 2"', "now": "2026-01-01T00:00:00+00:00"},
        )
    assert "canary 2" in await database.everything()
    database.clock.advance(REDELIVERY.total_seconds() + 3600)
    await database.take("delete", 4)
    everything = await database.everything()
    for number in range(1, 5):
        assert f"canary {number}" not in everything
        assert f"p:{number}'" not in everything
    assert (await database.info()).title == "canary 5 says number5x"
    await database.take("delete", 6)
    assert "canary" not in await database.everything()
    info = await database.info()
    assert (info.title, info.last_message, info.message_count) == (None, None, 0)


async def test_a_title_that_was_set_stays(database: Database) -> None:
    """Only a title made from the first message is deleted with it."""
    await database.say(4)
    async with database.driver.writing() as connection:
        await connection.execute("UPDATE chat_sessions SET title = 'Tea'", {})
    await database.take("delete", 2)
    assert (await database.info()).title == "Tea"
    assert (await database.info()).last_message == "canary 4 says number4x"


async def test_a_deleted_message_that_is_sent_again_is_a_duplicate(database: Database) -> None:
    """For a week the id of a deleted message is a duplicate; after that it is unknown."""
    await database.say(4)
    await database.take("delete", 2)
    again = await database.transcripts.append(Turn(ROOM, (message(1),)))
    assert (again.duplicates, again.first_seq, again.last_seq, again.deleted) == (("p:1",), 1, 1, ("p:1",))
    half = await database.transcripts.append(Turn(ROOM, (message(2), message(5))))
    assert (half.duplicates, half.first_seq, half.deleted) == (("p:2",), 5, ("p:2",))
    there = await database.transcripts.append(Turn(ROOM, (message(3),)))
    assert (there.duplicates, there.deleted) == (("p:3",), ())
    assert await database.seqs() == [3, 4, 5]
    other = await database.transcripts.append(Turn("room:2", (message(1),)))
    assert other.duplicates == ()
    database.clock.advance(REDELIVERY.total_seconds())
    await database.retention.forget_ids()
    assert (await database.transcripts.append(Turn(ROOM, (message(1),)))).first_seq == 6


async def test_a_batch_of_turns_checks_deleted_ids_too(database: Database) -> None:
    await database.say(4)
    await database.take("delete", 2)
    now = database.clock().isoformat()
    session = {"session_id": ROOM, "user_id": None, "title": None, "last_message": None}
    session |= dict.fromkeys(("parent_session_id", "agent"))
    columns = {"role": "user", "content": "again", "tokens": 1, "status": "complete", "confidence": None}
    more = {"escalated": False, "run_id": None, "metadata": "{}", "original": None, "sent_at": None, "created_at": now}
    more |= dict.fromkeys(("author", "answers", "ordinal", "told_at", "question"))
    with pytest.raises(DuplicateRow):
        await database.driver.append(
            NewTurns(
                [{**session, "added": 1, "newest_user": 1, "now": now}],
                [{**columns, **more, "session_id": ROOM, "id": "p:1", "behind": 0}],
            )
        )
    assert (await database.info()).last_seq == 4


async def test_the_ids_of_old_messages_are_not_stored(database: Database) -> None:
    await database.say(4)
    database.clock.advance(REDELIVERY.total_seconds() + 3600)
    await database.take("delete", 4)
    async with database.driver.reading() as connection:
        assert await connection.fetch("SELECT * FROM chat_deleted_ids", {}) == []


async def test_disk_space_is_released(sqlite_url: str, clock: SettableClock) -> None:
    """The SQLite file shrinks; PostgreSQL reuses the space without a call."""
    async with migrated_driver(sqlite_url) as driver:
        database = database_over(driver, clock)
        words = [replace(message(n), content=f"{n} words " * 500) for n in range(1, 801)]
        await database.transcripts.append(Turn(ROOM, tuple(words)))
        assert await database.found("799 words")
        await database.take("delete", 798)
        async with driver.reading() as connection:
            [(before,)] = await connection.fetch("PRAGMA page_count", {})
            assert await database.retention.reclaim_space()
            [(after,)] = await connection.fetch("PRAGMA page_count", {})
        assert after * 5 < before
        assert await database.found("799 words") == [799]
        await database.transcripts.close()


async def test_vectors_of_removed_messages_are_deleted(database: Database) -> None:
    await database.say(6)
    vectors = EmbeddingRows(database.driver)
    for model in ("one", "other"):
        await vectors.add(ROOM, model, [(seq, b"\x00\x01") for seq in range(1, 7)])
    await database.take("archive", 2)
    await database.take("delete", 1)
    await database.take("delete", 3)
    for model in ("one", "other"):
        assert [seq for seq, _ in await vectors.of_session(ROOM, model)] == [4, 5, 6]


async def test_manifests_are_deleted_with_their_messages(database: Database) -> None:
    """Manifests recorded after the last deleted message stay, and so do texts in use."""
    rows = ManifestRows(database.driver, clock=database.clock)

    async def record(run_id: str, digest: str) -> None:
        noted = NotedManifest(ROOM, run_id, database.clock(), lambda: {"entries": []}, {digest: f"text of {digest}"})
        assert await rows.add([noted]) == 1

    await database.say(2)
    await record("first", "old")
    database.clock.advance(3 * 86_400)
    await database.say(2, first=3)
    await record("second", "new")
    await database.take("delete", 4)
    assert await rows.of_run("first") == []
    assert len(await rows.of_run("second")) == 1
    assert await rows.texts(ROOM, ["old", "new"]) == {"new": "text of new"}
