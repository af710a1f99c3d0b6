"""Tests of manifests: they are written in the background, once each, and never fail a model call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.databases import migrated_driver, query
from tests.limits import HANG_SECONDS
from tests.outages import Outage
from tests.recorded_events import RecordedEvents
from tests.store.summarising import ROOM, note_call, say
from threadkeep import InvalidInput, Memory, MemoryOptions, open_memory
from threadkeep.observe import ManifestsDropped, ManifestWriteFailed
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import SettableClock

_DAY_SECONDS = 24 * 3600


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    """Return outages of a SQLite database."""
    return Outage(tmp_path / "threadkeep.db")


@pytest.fixture
def in_front(memory_options: MemoryOptions) -> MemoryOptions:
    """Return options without background work and with a very short lock timeout."""
    return replace(memory_options, background=False, store=StoreOptions(lock_timeout_seconds=0.05))


def note(memory: Memory, *numbers: int, session_id: str = ROOM) -> None:
    """Record manifests of model calls of one run."""
    for number in numbers:
        note_call(memory, session_id, "run-1", {"n": number}, {})


async def noted(memory: Memory) -> list[object]:
    """Return the numbers of the recorded calls of the run, in order."""
    return [each.manifest["n"] for each in await memory.manifests.of_run("run-1")]


def losses(events: RecordedEvents) -> list[tuple[str, int]]:
    """Return the reason and the count of each dropped batch."""
    return [(event.reason, event.count) for event in events.of(ManifestsDropped)]


async def test_recorded_manifests_can_be_read_at_once(memory: Memory) -> None:
    await say(memory, 1, user_id="u1")
    note(memory, 1, 2)
    assert await noted(memory) == [1, 2]
    note(memory, 3)
    page = await memory.manifests.of_session(ROOM, user_id="u1", limit=2)
    assert [each.manifest["n"] for each in page] == [3, 2]
    assert [each.call for each in await memory.manifests.of_session(ROOM, before=page[-1].cursor)] == [1]
    assert await memory.manifests.of_session(ROOM, user_id="u2") == []
    with pytest.raises(InvalidInput):
        await memory.manifests.of_session(ROOM, limit=0)


async def test_manifests_are_written_in_the_background(shared_url: str, memory_options: MemoryOptions) -> None:
    """Another process can read a manifest without a read in the first one."""
    async with (
        open_memory(shared_url, options=memory_options) as memory,
        open_memory(shared_url, options=memory_options) as other,
        asyncio.timeout(HANG_SECONDS),
    ):
        await say(memory, 1)
        for number in (1, 2):
            note(memory, number)
            while len(await noted(other)) < number:
                pass


async def test_pending_manifests_are_written_on_close(shared_url: str, in_front: MemoryOptions) -> None:
    async with open_memory(shared_url, options=in_front) as memory:
        await say(memory, 1)
        note(memory, 1, 2)
    async with open_memory(shared_url, options=in_front) as memory:
        assert await noted(memory) == [1, 2]


async def test_an_outage_loses_no_manifest(outage: Outage, in_front: MemoryOptions, events: RecordedEvents) -> None:
    """Manifests of an outage are reported, and written once and in order after it."""
    async with open_memory(outage.url, observers=[events], options=in_front) as memory:
        await say(memory, 1)
        note(memory, 1)
        async with outage():
            note(memory, 2)
            assert not await memory.manifests.flush()
            note(memory, 3)
            assert not await memory.manifests.flush()
        note(memory, 4)
        assert await memory.manifests.flush()
        assert await noted(memory) == [1, 2, 3, 4]
    failures = events.of(ManifestWriteFailed)
    assert [(event.error, event.waiting) for event in failures] == [("StoreUnavailable", 0), ("StoreUnavailable", 0)]
    assert losses(events) == []


async def test_the_background_task_survives_an_outage(
    outage: Outage, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    options = replace(memory_options, store=StoreOptions(lock_timeout_seconds=0.05))
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        await say(memory, 1)
        async with outage():
            note(memory, 1)
            await events.until(lambda: bool(events.of(ManifestWriteFailed)))
        async with asyncio.timeout(HANG_SECONDS), migrated_driver(outage.url) as driver, driver.reading() as rows:
            while not await rows.fetch("SELECT 1 FROM chat_manifests", {}):
                pass


async def test_a_full_queue_drops_the_oldest_manifests(sqlite_memory: Memory, events: RecordedEvents) -> None:
    await say(sqlite_memory, 1)
    note(sqlite_memory, *range(1_003))
    assert sum(count for _, count in losses(events)) == 3
    assert {reason for reason, _ in losses(events)} == {"crowded"}
    assert await noted(sqlite_memory) == list(range(3, 1_003))


async def test_pending_texts_are_bounded_in_bytes(sqlite_memory: Memory, events: RecordedEvents) -> None:
    """The bytes of pending texts are bounded; the newest manifest is kept whatever its size."""
    await say(sqlite_memory, 1)
    large = "x" * 20_000_000
    for number in range(4):
        note_call(sqlite_memory, ROOM, "run-1", {"n": number}, {f"d{number}": large})
    assert losses(events) == [("crowded", 1), ("crowded", 1)]
    assert await noted(sqlite_memory) == [2, 3]


async def test_an_invalid_manifest_does_not_stop_others(sqlite_memory: Memory, events: RecordedEvents) -> None:
    await say(sqlite_memory, 1)
    note(sqlite_memory, 1)
    note_call(sqlite_memory, ROOM, "run-1", {"n": float("nan")}, {})
    note(sqlite_memory, 2)
    assert await sqlite_memory.manifests.flush()
    assert await noted(sqlite_memory) == [1, 2]
    assert losses(events) == [("refused", 1)]
    assert [event.error for event in events.of(ManifestWriteFailed)] == ["InvalidMessage"]


async def test_a_locked_session_delays_only_its_own_manifests(
    postgres_url: str, in_front: MemoryOptions, events: RecordedEvents
) -> None:
    """Manifests of the locked session are written in order after the lock is released."""
    async with open_memory(postgres_url, observers=[events], options=in_front) as memory:
        await say(memory, 1)
        await say(memory, 1, "other")
        async with migrated_driver(postgres_url) as holder, holder.writing() as connection:
            await connection.fetch("SELECT 1 FROM chat_sessions WHERE session_id = 'room' FOR UPDATE", {})
            note(memory, 1)
            note(memory, 2, 3, session_id="other")
            note(memory, 4)
            assert not await memory.manifests.flush()
            assert [each.manifest["n"] for each in await memory.manifests.of_session("other")] == [3, 2]
        assert await memory.manifests.flush()
        assert [each.manifest["n"] for each in await memory.manifests.of_session(ROOM)] == [4, 1]
    assert {event.error for event in events.of(ManifestWriteFailed)} == {"RowLocked"}
    assert losses(events) == []


async def test_pending_manifests_of_a_deleted_session_are_dropped(
    shared_url: str, in_front: MemoryOptions, events: RecordedEvents, clock: SettableClock
) -> None:
    async with open_memory(shared_url, observers=[events], options=in_front) as memory:
        await say(memory, 1)
        note_call(memory, ROOM, "run-1", {"n": 1}, {"d1": "secret"})
        await memory.session(ROOM).delete()
        assert await memory.manifests.flush()
        await say(memory, 1)
        note_call(memory, ROOM, "run-1", {"n": 2}, {"d1": "secret"})
        await memory.session(ROOM).delete()
        clock.advance(0.001)
        await say(memory, 1)
        assert await memory.manifests.flush()
        assert losses(events) == [("session_gone", 1), ("session_gone", 1)]
    for table in ("chat_manifests", "chat_context_texts"):
        assert query(shared_url, f"SELECT * FROM {table}") == []


async def test_a_cancelled_flush_neither_loses_nor_repeats_manifests(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    """A flush can be cancelled at any step; the next flush completes it."""
    async with open_memory(shared_url, options=replace(memory_options, background=False)) as memory:
        await say(memory, 1)
        for number in range(30):
            note(memory, number)
            flushing = asyncio.create_task(memory.manifests.flush())
            for _ in range(number):
                await asyncio.sleep(0)
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
        assert await noted(memory) == list(range(30))


async def test_manifests_that_cannot_be_written_on_close_are_reported(
    outage: Outage, in_front: MemoryOptions, events: RecordedEvents
) -> None:
    async with open_memory(outage.url, observers=[events], options=in_front) as memory:
        await say(memory, 1)
        lock = outage()
        await lock.__aenter__()
        note(memory, 1, 2)
    await lock.__aexit__(None, None, None)
    assert losses(events) == [("closing", 2)]


async def test_manifests_are_kept_for_30_days_by_default(sqlite_memory: Memory, clock: SettableClock) -> None:
    """Manifests are kept for 30 days by default, and texts for at most one hour more."""
    await say(sqlite_memory, 1)
    note_call(sqlite_memory, ROOM, "run-1", {"n": 1}, {"d1": "text"})
    assert await noted(sqlite_memory) == [1]
    clock.advance(30 * _DAY_SECONDS)
    assert await sqlite_memory.manifests.purge() == 0
    clock.advance(1)
    assert await sqlite_memory.manifests.purge() == 1
    clock.advance(3600)
    assert await sqlite_memory.manifests.purge() == 1
    assert await noted(sqlite_memory) == []
    assert await sqlite_memory.manifests.texts(ROOM, ["d1"]) == {}


@pytest.mark.parametrize(("days", "kept"), [(0, []), (0.5, []), (None, [1]), (2, [1])])
async def test_the_retention_can_be_chosen(
    in_front: MemoryOptions, clock: SettableClock, days: float | None, kept: list[int]
) -> None:
    """None keeps manifests forever; 0 writes none."""
    async with open_memory("sqlite://", options=replace(in_front, manifest_retention_days=days)) as memory:
        await say(memory, 1)
        note(memory, 1)
        assert await noted(memory) == ([] if days == 0 else [1])
        clock.advance(_DAY_SECONDS)
        await memory.manifests.purge()
        assert await noted(memory) == kept


async def test_many_old_manifests_are_all_deleted(sqlite_memory: Memory, clock: SettableClock) -> None:
    await say(sqlite_memory, 1)
    for _ in range(2):
        note(sqlite_memory, *range(600))
        await sqlite_memory.manifests.flush()
    clock.advance(31 * _DAY_SECONDS)
    assert await sqlite_memory.manifests.purge() == 1_200


async def test_a_negative_retention_is_refused(in_front: MemoryOptions) -> None:
    with pytest.raises(InvalidInput, match="days"):
        async with open_memory("sqlite://", options=replace(in_front, manifest_retention_days=-1)):
            pass
