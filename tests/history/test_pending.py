"""Pending writes: what no database takes is kept, in order, and written exactly once."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.children import Child
from tests.limits import HANG_SECONDS
from tests.outages import Outage, locked
from tests.recorded_events import RecordedEvents
from tests.servers import Postgres
from threadkeep import InvalidMessage, Memory, MemoryOptions, Message, WrongUser, open_memory
from threadkeep.errors import TurnInMemoryOnly
from threadkeep.observe import PendingWrites, WriteDeferred, WriteDropped, WriteFailed, WriteRecovered
from threadkeep.records import Receipt, Turn
from threadkeep.store.driver import StoreOptions
from threadkeep.store.spool import PendingTurn, SpoolFile, read_entries, spool_files

_LOCK_SECONDS = 0.05


def says(words: str) -> list[Message]:
    """A turn of one message."""
    return [Message(role="user", content=words)]


async def stored(memory: Memory, session_id: str = "room") -> list[str]:
    """What a session has in the database."""
    return [message.content for message in await memory.session(session_id).tail(1000)]


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    """Ways to take the database of `memory` away."""
    return Outage(tmp_path / "threadkeep.db")


@pytest.fixture
def impatient(memory_options: MemoryOptions) -> MemoryOptions:
    """Options of a memory that finds a locked database locked very soon."""
    return replace(memory_options, store=StoreOptions(lock_timeout_seconds=_LOCK_SECONDS))


@pytest.fixture
async def memory(outage: Outage, impatient: MemoryOptions, events: RecordedEvents) -> AsyncIterator[Memory]:
    """A memory over a SQLite file, with its schema."""
    async with open_memory(outage.url, observers=[events], options=impatient) as opened:
        yield opened


async def delivered(memory: Memory, events: RecordedEvents) -> None:
    """Return when nothing waits any more."""
    await events.until(lambda: not memory.pending.entries)


async def test_a_turn_that_a_locked_database_does_not_take_waits_and_is_written(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """None instead of a receipt; visible while it waits; there when the lock is gone."""
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
    """Those of the outage first, then what came while they were still waiting, then the rest."""
    session = memory.session("room")
    await session.record(says("0"))
    async with outage():
        for number in range(1, 6):
            assert await session.record(says(str(number))) is None
    for number in range(6, 30):
        await session.record(says(str(number)))
    await delivered(memory, events)
    assert await stored(memory) == [str(number) for number in range(30)]


async def test_a_database_that_fails_is_not_asked_by_every_turn(memory: Memory, outage: Outage) -> None:
    """After the first failure turns go to disk at once, of all sessions: nobody who talks waits for the timeout."""
    async with outage():
        await memory.session("room:0").record(says("finds out"))
        async with asyncio.timeout(_LOCK_SECONDS * 150):
            await asyncio.gather(*(memory.session(f"room:{number}").record(says("hi")) for number in range(1, 201)))
        assert len(memory.pending.entries) == 201


async def test_how_many_wait_is_told(memory: Memory, outage: Outage, events: RecordedEvents) -> None:
    """Up with every turn, down to 0."""
    async with outage():
        for number in range(3):
            await memory.session(f"room:{number}").record(says("hi"))
        assert [event.count for event in events.of(PendingWrites)] == [1, 2, 3]
    await delivered(memory, events)
    assert [event.count for event in events.of(PendingWrites)] == [1, 2, 3, 2, 1, 0]
    assert events.of(PendingWrites)[-1].backend == "sqlite"


async def test_what_waits_is_tried_soon_while_people_speak(
    outage: Outage, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    """However long the outage was: the next turn that has to wait says that somebody is there."""
    slow = replace(impatient.pending, first_pause_seconds=4 * HANG_SECONDS, longest_pause_seconds=4 * HANG_SECONDS)
    options = replace(impatient, pending=slow)
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        async with outage():
            assert await memory.session("room").record(says("one")) is None
        assert await memory.session("other").record(says("two")) is None
        await delivered(memory, events)
        assert await memory.session("room").record(says("three")) is not None


async def test_a_call_has_one_answer_to_a_question_while_another_one_waits(
    outage: Outage, impatient: MemoryOptions
) -> None:
    """Another process has told its answer meanwhile: that one stands, and the one that waits gives way to it."""
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


async def test_two_answers_of_an_outage_are_one(outage: Outage, impatient: MemoryOptions) -> None:
    """The second one adopts the first: both callers are told that one, and a model call has it once."""
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


async def test_an_answer_that_is_told_while_it_waits_stands(outage: Outage, impatient: MemoryOptions) -> None:
    """Its run had no caller when it ended. One came before it was written, and was told it; the disk knows that too."""
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


async def test_an_answer_that_is_told_while_it_is_written_stands(
    outage: Outage, impatient: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave way to another one a moment before."""
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
        append = memory._backend.transcripts.append  # noqa: SLF001 - nothing else stands still in the middle of a delivery

        async def told_meanwhile(turn: Turn) -> Receipt:
            receipt = await append(turn)
            assert await session.tell("mine") == mine
            return receipt

        monkeypatch.setattr(memory._backend.transcripts, "append", told_meanwhile)  # noqa: SLF001 - see above
        assert await memory.pending.deliver()
        assert [message.content for message in await session.tail(5)] == ["hi", "mine"]


async def test_a_first_try_that_succeeds_after_all_is_one_turn(
    outage: Outage, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    """The caller's patience ends before the lock does: the try goes on behind it, and the retry finds its ids."""
    options = replace(memory_options, pending=replace(memory_options.pending, write_timeout_seconds=_LOCK_SECONDS))
    async with open_memory(outage.url, observers=[events], options=options) as memory:
        async with outage():
            assert await memory.session("room").record([*says("hi"), *says("hi")]) is None
        await delivered(memory, events)
        await memory.session("room").record(says("later"))
        assert await stored(memory) == ["hi", "hi", "later"]
        assert [message.seq for message in await memory.session("room").tail(5)] == [1, 2, 3]


async def test_what_waits_is_delivered_after_a_restart(
    outage: Outage, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    """The memory closes with turns that wait; the next one that opens delivers them, in front of its own."""
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
    """The folder of the one database that is used here."""
    assert options.pending.folder is not None
    return next(iter(options.pending.folder.glob("*")), options.pending.folder)


def kept(options: MemoryOptions) -> list[str]:
    """The turns that wait on disk."""
    return [entry.entry_id for path in spool_files(pending_folder(options)) for entry in read_entries(path)]


def test_what_waits_survives_a_kill(outage: Outage, impatient: MemoryOptions) -> None:
    """A real process keeps turns and is killed; who starts next delivers each of them once, in order."""
    asyncio.run(opened_once(outage.url, impatient))
    with locked(outage.path):
        child = Child(record_and_wait, outage.url, impatient)
        while len(kept(impatient)) < 5:
            assert child.process.is_alive()
        child.kill()
    assert asyncio.run(opened_once(outage.url, impatient)) == [f"turn {number}" for number in range(5)]
    assert spool_files(pending_folder(impatient)) == []


def record_and_wait(url: str, options: MemoryOptions) -> None:
    """What the process does until it is killed."""

    async def record() -> None:
        async with open_memory(url, options=options) as memory:
            for number in range(5):
                await memory.session("room").record(says(f"turn {number}"))
            await asyncio.Event().wait()

    asyncio.run(record())


async def opened_once(url: str, options: MemoryOptions) -> list[str]:
    """Open a database, let it deliver what waits, and say what it has."""
    events = RecordedEvents()
    async with open_memory(url, observers=[events], options=options) as memory:
        await delivered(memory, events)
        return await stored(memory)


async def test_a_postgres_that_stops_and_starts_misses_nothing(
    unsteady_postgres: Postgres, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    """Turns before, while and after it is away are there once each, in order."""
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


async def test_a_turn_that_is_refused_holds_only_its_own_writer_up(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """A stranger wrote to the session in the outage: the owner's turns and other sessions go on."""
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


async def test_a_dropped_turn_is_gone_and_told(
    memory: Memory, outage: Outage, events: RecordedEvents, impatient: MemoryOptions
) -> None:
    """From memory and disk; the turn behind it goes on."""
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


async def test_what_is_being_written_is_not_dropped_meanwhile(memory: Memory, outage: Outage) -> None:
    """Who drops a turn waits for the try that is under way: dropped is what was not written, and stays so."""
    async with outage():
        await memory.session("room").record(says("unwanted"))
        [entry] = memory.pending.entries
        delivering = asyncio.ensure_future(memory.pending.deliver("room"))
        while not entry.tries:  # until it asks the database
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
    """The delivery waits for the lock with a turn that a person gives up: later outages are still survived."""
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


async def test_deleting_a_session_drops_what_waits_for_it(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """It does not come back by itself."""
    await memory.session("room").record(says("old"))
    async with outage():
        await memory.session("room").record(says("waits"))
        await memory.session("other").record(says("waits too"))
    await memory.session("room").delete()
    await delivered(memory, events)
    assert await stored(memory) == []
    assert await stored(memory, "other") == ["waits too"]


async def test_what_can_never_be_stored_is_refused_and_not_kept(memory: Memory, outage: Outage) -> None:
    """Also in an outage: it would wait for ever."""
    async with outage():
        await memory.session("room").record(says("finds out"))
        with pytest.raises(InvalidMessage):
            await memory.session("other").record([])
        assert len(memory.pending.entries) == 1


async def test_characters_that_no_database_keeps_wait_like_others(
    memory: Memory, outage: Outage, events: RecordedEvents
) -> None:
    """They are cleaned when they are written."""
    async with outage():
        assert await memory.session("room").record(says("a\x00b\ud800c\u2028d")) is None
    await delivered(memory, events)
    assert await stored(memory) == ["a\ufffdb\ufffdc\u2028d"]


async def test_many_turns_at_once_are_all_delivered_and_the_file_is_empty(
    memory: Memory, outage: Outage, events: RecordedEvents, impatient: MemoryOptions
) -> None:
    """Also those that are being put on disk at the very moment when the database comes back."""
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


async def test_a_turn_written_on_its_way_to_the_disk_does_not_stay_there(
    memory: Memory, outage: Outage, events: RecordedEvents, impatient: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow and the database comes back: what is stored is forgotten on disk too."""
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
    async with memory.pending._files.writing:  # noqa: SLF001 - whoever still writes has written then
        assert await asyncio.to_thread(kept, impatient) == []


async def test_without_a_disk_turns_wait_in_memory_and_it_is_told(
    outage: Outage, tmp_path: Path, impatient: MemoryOptions, events: RecordedEvents
) -> None:
    """The folder went away after the start: the caller knows, and the turn is written when the database is back."""
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
    """What waits for it would not outlive it."""
    async with open_memory("sqlite://", observers=[events], options=memory_options) as memory:
        await memory.session("room").record(says("hi"))
    assert not await asyncio.to_thread((tmp_path / "pending").exists)
