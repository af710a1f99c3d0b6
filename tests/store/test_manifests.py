"""Tests of the tables of manifests: numbering, reading by run and by session, and purging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import cast

import pytest

from tests.children import run_together
from tests.databases import execute, migrated_driver, query
from tests.store.running import asked
from tests.store.summarising import ROOM, note_call, say
from tests.store.test_compressed_json import FIRST_FORMAT
from threadkeep import InvalidMessage, Memory, MemoryOptions, Message, StoreUnavailable, open_memory
from threadkeep.records import Json
from threadkeep.store.manifests import ManifestRows, NotedManifest
from threadkeep.testing import SettableClock

_NOTHING: Mapping[str, str] = {}


@pytest.fixture
async def rows(shared_url: str, memory_options: MemoryOptions, clock: SettableClock) -> AsyncIterator[ManifestRows]:
    """Return the tables of a database with two sessions of four messages, of the users u1 and u2."""
    async with open_memory(shared_url, options=memory_options) as memory:
        await say(memory, 4, user_id="u1")
        await say(memory, 4, "other", user_id="u2")
    async with migrated_driver(shared_url) as driver:
        yield ManifestRows(driver, clock=clock)


def noted(
    clock: SettableClock,
    run_id: str = "run-1",
    *,
    session_id: str = ROOM,
    manifest: Mapping[str, Json] | None = None,
    texts: Mapping[str, str] = _NOTHING,
    again: bool = False,
) -> NotedManifest:
    """Return the manifest of a call at the time of the clock."""
    return NotedManifest(session_id, run_id, clock(), lambda: manifest or {"model": "test"}, texts, again)


async def test_the_database_numbers_the_calls_of_a_run(rows: ManifestRows, clock: SettableClock) -> None:
    group = [noted(clock, run, manifest={"n": n}) for n, run in enumerate(["a", "b", "a", "a"])]
    assert await rows.add(group) == 4
    assert await rows.add([noted(clock, "a", manifest={"n": 4})]) == 1
    assert [(each.call, each.manifest) for each in await rows.of_run("a")] == [
        (1, {"n": 0}),
        (2, {"n": 2}),
        (3, {"n": 3}),
        (4, {"n": 4}),
    ]
    assert [each.call for each in await rows.of_run("b")] == [1]
    assert await rows.of_run("c") == []


async def test_a_manifest_is_read_back_unchanged(rows: ManifestRows, clock: SettableClock) -> None:
    manifest: dict[str, Json] = {"z": 1, "a": [1.5, None, True], "名": "茶", "nested": {"b": [], "a": {}}}
    await rows.add([noted(clock, manifest=manifest)])
    [stored] = await rows.of_run("run-1")
    assert (stored.session_id, stored.run_id, stored.created_at) == (ROOM, "run-1", clock())
    assert stored.manifest == manifest
    assert list(stored.manifest) == list(manifest)


@pytest.mark.parametrize("session_id", [ROOM, "another"])
async def test_fields_that_are_columns_of_the_row_are_read_back_in_order(
    shared_url: str, rows: ManifestRows, clock: SettableClock, session_id: str
) -> None:
    manifest: dict[str, Json] = {"model": "test", "run_id": "run-1", "session_id": session_id}
    await rows.add([noted(clock, manifest=manifest)])
    [stored] = await rows.of_run("run-1")
    assert list(stored.manifest.items()) == list(manifest.items())
    assert await rows.add([noted(clock, manifest=manifest, again=True)]) == 1
    assert query(shared_url, "SELECT count(*) FROM chat_manifests") == [(1,)]


async def test_a_manifest_from_before_migration_25_is_read(
    rows: ManifestRows, clock: SettableClock, shared_url: str
) -> None:
    await rows.add([noted(clock)])
    written = FIRST_FORMAT.hex()
    value = f"'\\x{written}'" if shared_url.startswith("postgres") else f"x'{written}'"
    execute(shared_url, f"UPDATE chat_manifests SET manifest = {value}")
    [stored] = await rows.of_run("run-1")
    assert list(stored.manifest.items())[:2] == [("session_id", ROOM), ("run_id", "run-1")]
    entries = cast("list[Mapping[str, Json]]", stored.manifest["entries"])
    ids = query(shared_url, f"SELECT id FROM chat_messages WHERE session_id = '{ROOM}' ORDER BY seq LIMIT 3")
    assert [(entry["seq"], entry["tokens"]) for entry in entries[:3]] == [(1, 21), (2, 22), (3, 23)]
    assert [(entry["id"],) for entry in entries[:3]] == ids


async def test_a_manifest_that_is_not_json_is_refused(rows: ManifestRows, clock: SettableClock) -> None:
    """The whole batch is refused; its writer must find the invalid manifest."""
    with pytest.raises(InvalidMessage):
        await rows.add([noted(clock), noted(clock, manifest={"n": float("nan")})])
    assert await rows.of_run("run-1") == []


async def test_manifests_of_a_deleted_session_are_skipped(rows: ManifestRows, clock: SettableClock) -> None:
    texts = {"d1": "You are kind."}
    group = [noted(clock, session_id=session_id, texts=texts) for session_id in ("gone", ROOM, "gone", "other")]
    assert await rows.add(group) == 2
    assert [each.session_id for each in await rows.of_run("run-1")] == ["other", ROOM]
    assert await rows.texts("gone", ["d1"]) == {}
    assert await rows.texts(ROOM, ["d1"]) == texts


async def test_a_manifest_older_than_its_session_is_skipped(rows: ManifestRows, clock: SettableClock) -> None:
    """The earlier session with this id was deleted with all its manifests."""
    early = NotedManifest(ROOM, "run-1", clock() - timedelta(seconds=1), lambda: {"model": "test"}, {"d1": "erased"})
    assert await rows.add([early, noted(clock, "run-2")]) == 1
    assert await rows.of_run("run-1") == []
    assert await rows.texts(ROOM, ["d1"]) == {}


async def test_a_retried_manifest_is_stored_once(rows: ManifestRows, clock: SettableClock) -> None:
    """A retry after a lost commit stores nothing twice; an equal new call is stored."""
    first = noted(clock, manifest={"n": 1})
    await rows.add([first, noted(clock, manifest={"n": 2})])
    assert (
        await rows.add([noted(clock, manifest={"n": 1}, again=True), noted(clock, manifest={"n": 3}, again=True)]) == 2
    )
    assert [each.manifest for each in await rows.of_run("run-1")] == [{"n": 1}, {"n": 2}, {"n": 3}]
    await rows.add([first])
    assert len(await rows.of_run("run-1")) == 4


async def test_a_retried_manifest_of_a_future_session_is_stored_once(
    shared_url: str, rows: ManifestRows, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    """The manifest of a session that does not exist yet is stored with its run, and keeps the session's id."""
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.runs.order.add(asked("r1", session="later"))
    for session_id in (ROOM, "later"):
        manifest: dict[str, Json] = {"run_id": "r1", "session_id": session_id, "entries": [{"id": "a"}]}
        for again in (False, True):
            await rows.add([noted(clock, "r1", session_id=session_id, manifest=manifest, again=again)])
    stored = [(each.session_id, each.manifest["session_id"]) for each in await rows.of_run("r1")]
    assert stored == [(None, "later"), (ROOM, ROOM)]


async def test_a_retry_after_the_session_was_created_stores_nothing(
    shared_url: str, rows: ManifestRows, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    """The session was created between a lost commit and its retry."""
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.runs.order.add(asked("r1", session="later"))
        manifest: dict[str, Json] = {"run_id": "r1", "session_id": "later", "entries": [{"id": "a"}]}
        await rows.add([noted(clock, "r1", session_id="later", manifest=manifest)])
        await say(memory, 2, "later")
    assert await rows.add([noted(clock, "r1", session_id="later", manifest=manifest, again=True)]) == 1
    assert [(each.session_id, each.manifest) for each in await rows.of_run("r1")] == [(None, manifest)]


async def test_a_retry_after_a_new_message_stores_nothing(
    shared_url: str, rows: ManifestRows, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    """A retry is recognized although a message of the manifest was stored in between."""
    entry: Json = {"source": "transcript", "seq": 5, "id": "m5"}
    manifest: dict[str, Json] = {"entries": [entry, entry]}
    await rows.add([noted(clock, manifest=manifest)])
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.session(ROOM).append([Message(role="user", content="late", id="m5")])
    await rows.add([noted(clock, manifest=manifest, again=True)])
    await rows.add([noted(clock, "run-2", manifest=manifest)])
    assert [each.manifest for each in await rows.of_run("run-1")] == [manifest]
    assert [each.manifest for each in await rows.of_run("run-2")] == [manifest]
    assert [each.manifest for each in await rows.of_session(ROOM)] == [manifest, manifest]


async def test_the_calls_of_a_session_come_newest_first_in_pages(rows: ManifestRows, clock: SettableClock) -> None:
    """A page continues after the cursor, also among calls of the same time."""
    for run in ("a", "b", "c"):
        await rows.add([noted(clock, run), noted(clock, run), noted(clock, run, session_id="other")])
        clock.advance(1)
    whole = await rows.of_session(ROOM, limit=50)
    assert [(each.run_id, each.call) for each in whole] == [("c", 2), ("c", 1), ("b", 2), ("b", 1), ("a", 2), ("a", 1)]
    first = await rows.of_session(ROOM, limit=3)
    second = await rows.of_session(ROOM, limit=3, before=first[-1].cursor)
    assert first + second == whole
    assert await rows.of_session(ROOM, limit=3, before=second[-1].cursor) == []


async def test_calls_of_another_user_are_not_returned(rows: ManifestRows, clock: SettableClock) -> None:
    await rows.add([noted(clock), noted(clock, session_id="other")])
    assert [each.session_id for each in await rows.of_run("run-1", user_id="u1")] == [ROOM]
    assert [each.session_id for each in await rows.of_run("run-1", user_id="u2")] == ["other"]
    assert len(await rows.of_session(ROOM, user_id="u1")) == 1
    assert await rows.of_session(ROOM, user_id="u2") == []


async def test_texts_are_stored_exactly(rows: ManifestRows, clock: SettableClock) -> None:
    """Texts may have NUL and lone surrogates, which no text column can store."""
    texts = {"d1": "a\x00b\ud800c", "d2": "茶 🍵\r\n", "d3": "", "d4": "x" * 100_000}
    await rows.add([noted(clock, texts=texts)])
    assert await rows.texts(ROOM, [*texts, "unknown"]) == texts
    assert await rows.texts("other", texts) == {}
    assert await rows.texts(ROOM, []) == {}


async def test_old_manifests_are_purged_in_steps(rows: ManifestRows, clock: SettableClock) -> None:
    for run in ("a", "b", "c"):
        await rows.add([noted(clock, run, texts={run: f"text of {run}"}), noted(clock, run)])
        clock.advance(24 * 3600)
    before = clock() - timedelta(days=1)
    assert await rows.purge(before, 3) == 3 + 2
    assert [len(await rows.of_run(run)) for run in ("a", "b", "c")] == [0, 1, 2]
    assert await rows.purge(before, 3) == 1
    assert await rows.purge(before, 3) == 0
    assert [len(await rows.of_run(run)) for run in ("a", "b", "c")] == [0, 0, 2]
    assert await rows.texts(ROOM, ["a", "b", "c"]) == {"c": "text of c"}


async def test_a_text_is_kept_as_long_as_calls_use_it(rows: ManifestRows, clock: SettableClock) -> None:
    """The age of a text is that of the newest call with it."""
    started = clock()
    for _ in range(30):
        await rows.add([noted(clock, texts={"d1": "You are kind."})])
        clock.advance(7 * 60)
    for minutes in (0, 61, 100, 7 * 29):
        await rows.purge(started + timedelta(minutes=minutes), 1000)
        assert await rows.of_run("run-1")
        assert await rows.texts(ROOM, ["d1"]) == {"d1": "You are kind."}
    await rows.purge(started + timedelta(days=1), 1000)
    assert await rows.texts(ROOM, ["d1"]) == {}


async def test_deleting_a_session_deletes_its_manifests(
    shared_url: str, rows: ManifestRows, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    await rows.add([noted(clock, texts={"d1": "secret"}), noted(clock, session_id="other", texts={"d1": "secret"})])
    async with open_memory(shared_url, options=memory_options) as memory:
        await memory.session(ROOM).delete()
    for table in ("chat_manifests", "chat_context_texts"):
        assert query(shared_url, f"SELECT session_id FROM {table}") == [("other",)]


@pytest.mark.process
def test_many_processes_number_the_calls_of_one_run(shared_url: str) -> None:
    asyncio.run(prepare(shared_url))
    run_together(note_calls, [(shared_url, number) for number in range(4)])
    numbers = query(shared_url, "SELECT call FROM chat_manifests WHERE run_id = 'run-1' ORDER BY call")
    assert numbers == [(number,) for number in range(1, 4 * 10 + 1)]


async def prepare(url: str) -> None:
    """Create a session."""
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        await say(memory, 2)


def note_calls(url: str, number: int) -> None:
    """Record ten manifests, as each of the processes does."""

    async def note() -> None:
        async with open_memory(url, options=MemoryOptions(background=False)) as memory:
            for call in range(10):
                note_call(memory, ROOM, "run-1", {"process": number, "call": call}, {f"d{call}": "text"})
                while not await memory.manifests.flush():
                    pass

    asyncio.run(note())


async def test_a_locked_session_raises_quickly(postgres_url: str, clock: SettableClock) -> None:
    """A locked session raises quickly, so that manifests of other sessions need not wait."""
    async with open_memory(postgres_url, options=MemoryOptions(background=False, clock=clock)) as memory:
        await say(memory, 1)
    async with migrated_driver(postgres_url) as holder, migrated_driver(postgres_url) as driver:
        async with holder.writing() as connection:
            await connection.fetch("SELECT 1 FROM chat_sessions FOR UPDATE", {})
            with pytest.raises(StoreUnavailable, match="held a lock"):
                await ManifestRows(driver, clock=clock).add([noted(clock)])
        assert await ManifestRows(driver, clock=clock).add([noted(clock)]) == 1


async def test_appends_and_calls_do_not_wait_for_each_other(postgres_url: str, clock: SettableClock) -> None:
    """A lock that only prevents the deletion of the session blocks neither appends nor manifests."""
    async with open_memory(postgres_url, options=MemoryOptions(background=False, clock=clock)) as memory:
        await say(memory, 1)
        async with migrated_driver(postgres_url) as holder, holder.writing() as connection:
            await connection.fetch("SELECT 1 FROM chat_sessions FOR KEY SHARE", {})
            await say(memory, 1)
            note_call(memory, ROOM, "run-1", {}, {})
            assert await memory.manifests.flush()


async def test_a_memory_reads_the_manifests_that_it_records(sqlite_memory: Memory) -> None:
    await say(sqlite_memory, 1)
    note_call(sqlite_memory, ROOM, "run-1", {"n": 1}, {"d1": "text"})
    assert [each.manifest for each in await sqlite_memory.manifests.of_run("run-1")] == [{"n": 1}]
    assert await sqlite_memory.manifests.texts(ROOM, ["d1"]) == {"d1": "text"}
