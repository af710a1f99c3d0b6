"""Tests of pending writes: turns that the database does not accept are kept in order and written exactly once."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.children import Child
from tests.limits import HANG_SECONDS
from tests.outages import Outage, locked
from tests.recorded_events import RecordedEvents
from tests.servers import Postgres
from threadkeep import InvalidMessage, Memory, MemoryOptions, Message, StoreUnavailable, WrongUser, open_memory
from threadkeep.errors import TurnInMemoryOnly
from threadkeep.observe import PendingWrites, WriteDeferred, WriteDropped, WriteFailed, WriteRecovered
from threadkeep.records import Receipt, Turn
from threadkeep.store.driver import StoreOptions
from threadkeep.store.spool import PendingTurn, SpoolFile, read_entries, spool_files
from threadkeep.store.tables import TableTranscripts

_LOCK_SECONDS = 0.05


def says(words: str) -> list[Message]:
    """Return a turn of one message."""
    return [Message(role="user", content=words)]


async def stored(memory: Memory, session_id: str = "room") -> list[str]:
    """Return the texts that a session has in the database."""
    return [message.content for message in await memory.session(session_id).tail(1000)]


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    """Return outages of the database of `memory`."""
    return Outage(tmp_path / "threadkeep.db")


@pytest.fixture
def impatient(memory_options: MemoryOptions) -> MemoryOptions:
    """Return options with a very short lock timeout."""
    return replace(memory_options, store=StoreOptions(lock_timeout_seconds=_LOCK_SECONDS))


@pytest.fixture
async def memory(outage: Outage, impatient: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """Open a memory on a SQLite file, and close it after the test."""
    async with open_memory(outage.url, observers=[events], options=impatient) as opened:
        yield opened


async def delivered(memory: Memory, events: RecordedEvents) -> None:
    """Wait until there are no pending turns."""
    await events.until(lambda: not memory.pending.entries)


async def test_a_turn_during_a_lock_is_pending_and_is_written_later(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """`record` returns None; the turn is listed as pending, and is written when the lock is released."""
    session = memory.session("telegram:1")
    async with outage():
        assert await session.record(says("hi")) is None
        [entry] = memory.pending.entries
        assert (entry.turn.session_id, len(entry.turn.messages)) == ("telegram:1", 1)
        assert [message.content for message in session.waiting()] == ["hi"]
        assert await stored(memory, "telegram:1") == []
    await delivered(memory, events)
    assert await stored(memory, "telegram:1") == ["hi"]
    assert session.waiting() == ()
    [deferred] = events.of(WriteDeferred)
    assert (deferred.channel, deferred.messages) == ("telegram", 1)
    [recovered] = events.of(WriteRecovered)
    assert recovered.tries >= 1
    assert {(event.outcome, event.error) for event in events.of(WriteFailed)} == {("fallback", "StoreUnavailable")}


async def test_the_turns_of_a_session_keep_their_order(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    """Turns of the outage are written first, then turns recorded while those were pending, then the rest."""
    session = memory.session("room")
    await session.record(says("0"))
    async with outage():
        for number in range(1, 6):
            assert await session.record(says(str(number))) is None
    for number in range(6, 30):
        await session.record(says(str(number)))
    await delivered(memory, events)
    assert await stored(memory) == [str(number) for number in range(30)]


async def test_a_failing_database_is_not_tried_by_every_turn(memory: Memory, outage: Outage) -> None:
    """After the first failure, turns of all sessions go to disk at once, without waiting for the lock timeout."""
    async with outage():
        await memory.session("room:0").record(says("finds out"))
        async with asyncio.timeout(_LOCK_SECONDS * 150):
            await asyncio.gather(*(memory.session(f"room:{number}").record(says("hi")) for number in range(1, 201)))
        assert len(memory.pending.entries) == 201


async def test_the_count_of_pending_turns_is_reported(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    async with outage():
        for number in range(3):
            await memory.session(f"room:{number}").record(says("hi"))
        assert [event.count for event in events.of(PendingWrites)] == [1, 2, 3]
    await delivered(memory, events)
    assert [event.count for event in events.of(PendingWrites)] == [1, 2, 3, 2, 1, 0]
    assert events.of(PendingWrites)[-1].backend == "sqlite"


async def test_a_new_turn_triggers_the_delivery_of_pending_turns(
    outage: Outage, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    slow = replace(impatient.pending, first_pause_seconds=4 * HANG_SECONDS, longest_pause_seconds=4 * HANG_SECONDS)
    options = replace(impatient, pending=slow)
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        async with outage():
            assert await memory.session("room").record(says("one")) is None
        assert await memory.session("other").record(says("two")) is None
        await delivered(memory, events)
        assert await memory.session("room").record(says("three")) is not None


async def test_a_pending_answer_gives_way_to_a_delivered_one(outage: Outage, impatient: MemoryOptions) -> None:
    slow = replace(impatient.pending, first_pause_seconds=HANG_SECONDS, longest_pause_seconds=HANG_SECONDS)
    async with (
        open_memory(outage.url, options=replace(impatient, pending=slow)) as memory,
        open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere,
    ):
        session, question = memory.session("room"), Message("user", "hi", id="1")
        await session.append([question])
        mine, theirs = (Message("assistant", text, id=text, answers="1", author="bot") for text in ("mine", "theirs"))
        async with outage():
            assert await session.record([mine], answers="1", told=True) is None
        await elsewhere.session("room").record([theirs], answers="1", told=True)
        assert [message.content for message in (await session.recall()).messages] == ["hi", "theirs"]
        assert await memory.pending.deliver()
        assert [message.content for message in (await session.recall()).messages] == ["hi", "theirs"]


async def test_two_answers_during_an_outage_become_one(outage: Outage, impatient: MemoryOptions) -> None:
    """The second answer to a question adopts the first: both callers get the first, and a window has it once."""
    slow = replace(impatient.pending, first_pause_seconds=HANG_SECONDS, longest_pause_seconds=HANG_SECONDS)
    async with open_memory(outage.url, options=replace(impatient, pending=slow)) as memory:
        session = memory.session("room")
        await session.append([Message("user", "hi", id="1")])
        first, second = (Message("assistant", text, id=text, answers="1", author="bot") for text in ("one", "two"))
        async with outage():
            assert await session.record([first], answers="1") is None
            receipt = await session.record([second], answers="1", told=True)
            assert receipt is not None
            assert receipt.adopted == "one"
            assert await session.tell("one") == first
            assert await session.record([first], answers="1", told=True) is None
        assert [message.content for message in (await session.recall()).messages] == ["hi", "one"]
        assert await memory.pending.deliver()
        assert [message.content for message in await session.tail(5)] == ["hi", "one"]


async def test_an_answer_delivered_while_it_is_pending_stays(outage: Outage, impatient: MemoryOptions) -> None:
    """A pending answer that is delivered to a caller is marked in the pending file, and supersedes another one."""
    slow = replace(impatient.pending, first_pause_seconds=HANG_SECONDS, longest_pause_seconds=HANG_SECONDS)
    async with (
        open_memory(outage.url, options=replace(impatient, pending=slow)) as memory,
        open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere,
    ):
        session = memory.session("room")
        await session.append([Message("user", "hi", id="1")])
        mine, theirs = (Message("assistant", text, id=text, answers="1", author="bot") for text in ("mine", "theirs"))
        async with outage():
            assert await session.record([mine], answers="1") is None
        await elsewhere.session("room").record([theirs], answers="1")
        assert await session.tell("mine") == mine
        [entry] = memory.pending.entries
        assert entry.file is not None
        assert [kept.turn.told_at is not None for kept in read_entries(entry.file.path)] == [True]
        assert await memory.pending.deliver()
        assert [message.content for message in await session.tail(5)] == ["hi", "mine"]
        assert read_entries(entry.file.path) == []


async def test_an_answer_delivered_while_it_is_written_stays(
    outage: Outage, impatient: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is delivered to a caller during its write stays, although the write let another answer win."""
    slow = replace(impatient.pending, first_pause_seconds=HANG_SECONDS, longest_pause_seconds=HANG_SECONDS)
    async with (
        open_memory(outage.url, options=replace(impatient, pending=slow)) as memory,
        open_memory(outage.url, options=MemoryOptions(background=False)) as elsewhere,
    ):
        session = memory.session("room")
        await session.append([Message("user", "hi", id="1")])
        mine, theirs = (Message("assistant", text, id=text, answers="1", author="bot") for text in ("mine", "theirs"))
        async with outage():
            assert await session.record([mine], answers="1") is None
        await elsewhere.session("room").record([theirs], answers="1")
        append = memory._backend.transcripts.append  # noqa: SLF001 - the only way to act in the middle of a delivery

        async def told_meanwhile(turn: Turn) -> Receipt:
            receipt = await append(turn)
            assert await session.tell("mine") == mine
            return receipt

        monkeypatch.setattr(memory._backend.transcripts, "append", told_meanwhile)  # noqa: SLF001 - see above
        assert await memory.pending.deliver()
        assert [message.content for message in await session.tail(5)] == ["hi", "mine"]


async def test_a_first_attempt_that_succeeds_late_stores_one_turn(
    outage: Outage, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """A write that succeeds after the caller's timeout and its retry store one turn, by the ids of the messages."""
    options = replace(memory_options, pending=replace(memory_options.pending, write_timeout_seconds=_LOCK_SECONDS))
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        async with outage():
            assert await memory.session("room").record([*says("hi"), *says("hi")]) is None
        await delivered(memory, events)
        await memory.session("room").record(says("later"))
        assert await stored(memory) == ["hi", "hi", "later"]
        assert [message.seq for message in await memory.session("room").tail(5)] == [1, 2, 3]


async def test_pending_turns_are_delivered_after_a_restart(
    outage: Outage, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    async with AsyncExitStack() as away:
        async with open_memory(outage.url, options=impatient) as memory:
            await away.enter_async_context(outage())
            await memory.session("room").record(says("one"))
            await memory.session("room").record(says("two"))
        assert len(kept(impatient)) == 2
    async with open_memory(outage.url, observers=[events], options=impatient) as memory:
        assert events.of(PendingWrites)[0].count == 2
        await memory.session("room").record(says("three"))
        await delivered(memory, events)
        assert await stored(memory) == ["one", "two", "three"]
    assert spool_files(pending_folder(impatient)) == []


def pending_folder(options: MemoryOptions) -> Path:
    """Return the pending folder of the only database in this module."""
    assert options.pending.folder is not None
    return next(iter(options.pending.folder.glob("*")), options.pending.folder)


def kept(options: MemoryOptions) -> list[str]:
    """Return the ids of the turns in the pending files."""
    return [entry.entry_id for path in spool_files(pending_folder(options)) for entry in read_entries(path)]


def test_pending_turns_survive_a_kill(outage: Outage, impatient: MemoryOptions) -> None:
    asyncio.run(deliver_and_read(outage.url, impatient))
    with locked(outage.path):
        child = Child(record_and_wait, outage.url, impatient)
        while len(kept(impatient)) < 5:
            assert child.process.is_alive()
        child.kill()
    assert asyncio.run(deliver_and_read(outage.url, impatient)) == [f"turn {number}" for number in range(5)]
    assert spool_files(pending_folder(impatient)) == []


def record_and_wait(url: str, options: MemoryOptions) -> None:
    """Record five turns, and wait until the process is killed."""

    async def record() -> None:
        async with open_memory(url, options=options) as memory:
            for number in range(5):
                await memory.session("room").record(says(f"turn {number}"))
            await asyncio.Event().wait()

    asyncio.run(record())


async def deliver_and_read(url: str, options: MemoryOptions) -> list[str]:
    """Open a database, wait until pending turns are delivered, and return its messages."""
    events = RecordedEvents()
    async with open_memory(url, observers=[events], options=options) as memory:
        await delivered(memory, events)
        return await stored(memory)


async def test_a_postgres_that_stops_and_starts_misses_nothing(
    unsteady_postgres: Postgres, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    options = replace(impatient, store=StoreOptions(pool_timeout_seconds=0.2))
    with unsteady_postgres.database() as url:
        async with open_memory(url, observers=[events], options=options) as memory:
            session = memory.session("room")
            await session.record(says("before"))
            await asyncio.to_thread(unsteady_postgres.stop, "immediate")
            for number in range(3):
                assert await session.record(says(f"while {number}")) is None
            await asyncio.to_thread(unsteady_postgres.start)
            await session.record(says("after"))
            await delivered(memory, events)
            assert await stored(memory) == ["before", "while 0", "while 1", "while 2", "after"]


async def test_a_refused_turn_blocks_only_its_own_writer(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    owner, stranger = memory.session("room", user_id="u1"), memory.session("room", user_id="u2")
    await owner.record(says("mine"))
    async with outage():
        assert await stranger.record(says("not mine")) is None
        assert await owner.record(says("mine too")) is None
        assert await memory.session("other").record(says("hi")) is None
    await events.until(lambda: [entry.error for entry in memory.pending.entries] == ["WrongUser"])
    assert memory.pending.entries[0].turn.user_id == "u2"
    assert await owner.record(says("mine again")) is not None
    with pytest.raises(WrongUser):
        await stranger.record(says("still not mine"))
    assert await stored(memory) == ["mine", "mine too", "mine again"]
    assert await stored(memory, "other") == ["hi"]


async def test_a_dropped_turn_is_deleted_and_reported(
    memory: Memory, outage: Outage, events: RecordedEvents, impatient: MemoryOptions
) -> None:
    async with outage():
        await memory.session("room").record(says("unwanted"))
        await memory.session("room").record(says("wanted"))
        entry = memory.pending.entries[0]
        assert await memory.pending.drop(entry.entry_id)
        assert not await memory.pending.drop(entry.entry_id)
        [path] = spool_files(pending_folder(impatient))
        assert len(read_entries(path)) == 1
        assert [event.session_id for event in events.of(WriteDropped)] == ["room"]
    await delivered(memory, events)
    assert await stored(memory) == ["wanted"]


async def test_a_turn_is_not_dropped_while_it_is_written(memory: Memory, outage: Outage) -> None:
    """`drop` waits for the running attempt, and returns True only if the turn was not written."""
    async with outage():
        await memory.session("room").record(says("unwanted"))
        [entry] = memory.pending.entries
        delivering = asyncio.ensure_future(memory.pending.deliver("room"))
        while not entry.tries:  # until the first attempt
            await stored(memory)
        dropping = asyncio.ensure_future(memory.pending.drop(entry.entry_id))
        await asyncio.sleep(0)
    dropped = await dropping
    await delivering
    assert await stored(memory) == ([] if dropped else ["unwanted"])
    assert memory.pending.entries == ()


async def test_a_turn_dropped_while_it_is_delivered_does_not_stop_the_delivery(
    outage: Outage, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """After a drop during an attempt that waits for the lock, turns of later outages are still delivered."""
    options = replace(memory_options, pending=replace(memory_options.pending, write_timeout_seconds=_LOCK_SECONDS))
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        async with outage():
            await memory.session("room").record(says("unwanted"))
            [entry] = memory.pending.entries
            while not entry.tries:
                await stored(memory)
            assert await memory.pending.drop(entry.entry_id)
        await memory.session("room").append(says("after"))
        async with outage():
            await memory.session("room").record(says("wanted"))
        await delivered(memory, events)
        assert (await stored(memory))[-2:] == ["after", "wanted"]


async def test_deleting_a_session_drops_its_pending_turns(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    await memory.session("room").record(says("old"))
    async with outage():
        await memory.session("room").record(says("waits"))
        await memory.session("other").record(says("waits too"))
    await memory.session("room").delete()
    await delivered(memory, events)
    assert await stored(memory) == []
    assert await stored(memory, "other") == ["waits too"]


@pytest.fixture
async def undelivered(outage: Outage, impatient: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory that delivers pending turns only if the test does so."""
    pending = replace(impatient.pending, first_pause_seconds=600.0)
    async with open_memory(outage.url, options=replace(impatient, pending=pending)) as opened:
        yield opened


async def test_a_failed_deletion_does_not_release_a_turn_that_another_one_deletes(
    undelivered: Memory, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, calls = TableTranscripts.delete, count(1)
    begun, fails, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def fails_first(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 1:
            await fails.wait()
            raise StoreUnavailable("down")
        begun.set()
        await goes_on.wait()
        return await delete(*arguments, **options)

    monkeypatch.setattr(TableTranscripts, "delete", fails_first)
    session = undelivered.session("room")
    await session.append(says("stored"))
    async with outage():
        await session.record(says("waits"))
    deletions = [asyncio.create_task(session.delete()) for _ in range(2)]
    await begun.wait()
    fails.set()
    with pytest.raises(StoreUnavailable):
        await deletions[0]
    is_delivered, meanwhile = await undelivered.pending.deliver(), await stored(undelivered)
    goes_on.set()
    await deletions[1]
    assert (is_delivered, meanwhile) == (False, ["stored"])
    assert await undelivered.pending.deliver()
    assert await stored(undelivered) == []


async def test_turns_keep_their_order_if_a_deletion_fails_during_their_delivery(
    undelivered: Memory, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, begun, fails = TableTranscripts.append, asyncio.Event(), asyncio.Event()

    async def failing(*_: Any, **__: Any) -> None:
        begun.set()
        await fails.wait()
        raise StoreUnavailable("down")

    async def end_the_deletion_first(self: TableTranscripts, turn: Turn) -> Receipt:
        if turn.session_id == "other":
            fails.set()
            await asyncio.wait([deletion])
        return await append(self, turn)

    monkeypatch.setattr(TableTranscripts, "delete", failing)
    async with outage():
        for session_id, words in (("room", "first"), ("other", "hi"), ("room", "second")):
            await undelivered.session(session_id).record(says(words))
    deletion = asyncio.create_task(undelivered.session("room").delete())
    await begun.wait()
    monkeypatch.setattr(TableTranscripts, "append", end_the_deletion_first)
    while not await undelivered.pending.deliver():
        pass
    assert await stored(undelivered) == ["first", "second"]


async def test_an_invalid_turn_is_refused_and_not_kept(memory: Memory, outage: Outage) -> None:
    async with outage():
        await memory.session("room").record(says("finds out"))
        with pytest.raises(InvalidMessage):
            await memory.session("other").record([])
        assert len(memory.pending.entries) == 1


async def test_invalid_characters_of_a_pending_turn_are_replaced(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    async with outage():
        assert await memory.session("room").record(says("a\x00b\ud800c\u2028d")) is None
    await delivered(memory, events)
    assert await stored(memory) == ["a\ufffdb\ufffdc\u2028d"]


async def test_many_turns_at_once_are_all_delivered_and_the_file_is_empty(
    memory: Memory, outage: Outage, events: RecordedEvents, impatient: MemoryOptions
) -> None:
    async with outage():
        await memory.session("room:0").record(says("finds out"))
        recording = [asyncio.ensure_future(memory.session(f"room:{n}").record(says("hi"))) for n in range(200)]
        await asyncio.sleep(0)
    await asyncio.gather(*recording)
    await delivered(memory, events)
    for number in range(1, 200):
        assert await stored(memory, f"room:{number}") == ["hi"]
    [path] = await asyncio.to_thread(spool_files, pending_folder(impatient))
    assert await asyncio.to_thread(path.read_bytes) == b""


async def test_a_turn_stored_during_the_write_to_disk_leaves_the_pending_file(
    memory: Memory, outage: Outage, events: RecordedEvents, impatient: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_disk, disk_is_ready = threading.Event(), threading.Event()
    keep = SpoolFile.keep

    def keep_slowly(file: SpoolFile, entry: PendingTurn) -> None:
        at_the_disk.set()
        assert disk_is_ready.wait(HANG_SECONDS)
        keep(file, entry)

    async with outage():
        monkeypatch.setattr(SpoolFile, "keep", keep_slowly)
        recording = asyncio.ensure_future(memory.session("room").record(says("hi")))
        assert await asyncio.to_thread(at_the_disk.wait, 60)
    delivering = asyncio.ensure_future(memory.pending.deliver("room"))
    async with asyncio.timeout(HANG_SECONDS):
        while await stored(memory) != ["hi"]:
            pass
    disk_is_ready.set()
    assert await recording is None
    assert await delivering
    await delivered(memory, events)
    async with memory.pending._files.writing:  # noqa: SLF001 - waits for a running write
        assert await asyncio.to_thread(kept, impatient) == []


async def test_without_a_disk_turns_are_pending_in_memory_and_the_caller_gets_an_error(
    outage: Outage, tmp_path: Path, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    """If the folder was deleted after the start, `record` raises, and the turn is written after the outage."""
    folder = tmp_path / "waiting"
    options = replace(impatient, pending=replace(impatient.pending, folder=folder))
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        await asyncio.to_thread(shutil.rmtree, folder)
        await asyncio.to_thread(folder.touch)
        async with outage():
            with pytest.raises(TurnInMemoryOnly):
                await memory.session("room").record(says("hi"))
            assert "NotADirectoryError" in [event.error for event in events.of(WriteFailed)]
            assert memory.pending.count == 1
        await delivered(memory, events)
        assert await stored(memory) == ["hi"]


async def test_a_database_in_memory_writes_no_files(
    tmp_path: Path, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """Pending turns of a database in memory would not outlive it."""
    async with open_memory("sqlite://", observers=[events], options=memory_options) as memory:
        await memory.session("room").record(says("hi"))
    assert not await asyncio.to_thread((tmp_path / "pending").exists)
