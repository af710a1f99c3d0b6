"""Tests of retention steps: each is atomic, begins at the current border, and changes nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.databases import migrated_driver
from tests.store.pruning import ROOM, Database, database_over, message
from threadkeep.records import Retention, RetentionLimits, Turn
from threadkeep.store.retention import Removal, Removed
from threadkeep.testing import SettableClock


@pytest.fixture
async def database(database_url: str, clock: SettableClock) -> AsyncIterator[Database]:
    """Return an empty database of each engine."""
    async with migrated_driver(database_url) as driver:
        opened = database_over(driver, clock)
        yield opened
        await opened.transcripts.close()


async def test_the_remaining_messages_keep_their_seq(database: Database) -> None:
    await database.say(10)
    assert await database.take("delete", 4) == [Removed(4, 4, 1 + 2 + 3 + 4)]
    assert await database.seqs() == [5, 6, 7, 8, 9, 10]
    info = await database.info()
    assert (info.message_count, info.last_seq, info.deleted_seq, info.archived_seq) == (6, 10, 4, 4)
    page = await database.transcripts.newest(ROOM, limit=6)
    assert page.next_before is None
    page = await database.transcripts.newest(ROOM, limit=5)
    assert page.next_before == 6
    assert [m.seq for m in (await database.transcripts.newest(ROOM, limit=5, before=6)).messages] == [5]
    assert (await database.transcripts.append(Turn(ROOM, (message(11),)))).first_seq == 11
    assert (await database.info()).message_count == 7


async def test_archived_messages_leave_windows_and_search_but_can_be_read(database: Database) -> None:
    await database.say(10)
    assert await database.found("canary") == list(range(1, 11))
    assert await database.take("archive", 4) == [Removed(4, 4, 10)]
    assert await database.seqs() == list(range(1, 11))
    recent = await database.transcripts.recent(ROOM, limit=100)
    assert [m.seq for m in recent.messages] == [10, 9, 8, 7, 6, 5]
    assert (recent.archived_seq, recent.deleted_seq) == (4, 0)
    assert await database.found("canary") == [5, 6, 7, 8, 9, 10]
    assert await database.found("ca") == ([5, 6, 7, 8, 9, 10] if database.driver.backend == "sqlite" else [])
    found = await database.transcripts.find(ROOM, "p:2")
    assert found is not None
    assert (await database.info()).message_count == 10
    assert (await database.transcripts.append(Turn(ROOM, (message(2), message(11))))).duplicates == ("p:2",)


async def test_a_step_is_bounded(database: Database) -> None:
    """A step is limited by the number of messages and by the length of their texts."""
    for start in range(1, 1001, 250):
        await database.transcripts.append(Turn(ROOM, tuple(message(n) for n in range(start, start + 250))))
    steps = await database.take("delete", 990)
    assert [step.messages for step in steps] == [200, 200, 200, 200, 190]
    assert await database.seqs() == list(range(991, 1001))
    few = await database.retention.step(Removal(ROOM, "archive", 990, 1000), messages=3)
    assert few == Removed(993, 3, 991 + 992 + 993)
    long = [replace(message(n), content="x" * 60_000) for n in range(1001, 1005)]
    await database.transcripts.append(Turn(ROOM, tuple(long)))
    assert [step.messages for step in await database.take("delete", 1004)] == [10 + 1, 1, 1, 1]


async def test_a_step_from_another_border_does_nothing(database: Database) -> None:
    """If another process has taken the step, it is not taken twice, and counters stay correct."""
    await database.say(10)
    stale = Removal(ROOM, "delete", 0, 4)
    assert await database.retention.step(stale) is not None
    assert await database.retention.step(replace(stale, upto_seq=8)) is None
    assert await database.retention.step(Removal(ROOM, "archive", 0, 8)) is None
    assert (await database.info()).message_count == 6
    assert await database.retention.step(Removal("nobody", "delete", 0, 4)) is None


async def test_archived_messages_can_be_deleted_later(database: Database) -> None:
    """The archive border is never before the deletion border."""
    await database.say(10)
    await database.take("archive", 6)
    await database.take("delete", 4)
    info = await database.info()
    assert (info.deleted_seq, info.archived_seq) == (4, 6)
    await database.take("delete", 8)
    info = await database.info()
    assert (info.deleted_seq, info.archived_seq) == (8, 8)
    assert await database.found("canary") == [9, 10]


async def test_a_new_message_stops_the_removal_of_an_idle_session(database: Database) -> None:
    """Each step checks the idle time, and so does the deletion of the session."""
    await database.say(10)
    idle = database.clock()
    database.clock.advance(60)
    removal = Removal(ROOM, "delete", 0, 10, idle_before=idle)
    assert not await database.retention.delete_session(ROOM, idle_before=idle)
    await database.say(1, first=11)
    assert await database.retention.step(removal) is None
    later = database.clock() + timedelta(seconds=1)
    assert await database.retention.step(replace(removal, upto_seq=11, idle_before=later)) is not None
    assert not await database.retention.delete_session(ROOM, idle_before=idle)
    assert await database.retention.delete_session(ROOM, idle_before=later)
    assert await database.transcripts.session(ROOM) is None


async def test_sessions_are_listed_with_their_borders_and_times(database: Database) -> None:
    """The first stored message and the first message that is not archived give the age of the session."""
    start = database.clock()
    await database.say(6)
    await database.say(2, first=1, session="room:2")
    await database.take("archive", 4)
    await database.take("delete", 2)
    first, second = await database.retention.sessions(after="", limit=10)
    assert (first.session_id, first.last_seq, first.last_user_seq) == (ROOM, 6, 5)
    assert (first.archived_seq, first.deleted_seq) == (4, 2)
    assert first.first_stored_at == start + timedelta(seconds=60)
    assert first.first_live_at == start + timedelta(seconds=120)
    assert (second.session_id, second.archived_seq) == ("room:2", 0)
    assert await database.retention.sessions(after=ROOM, limit=10) == [second]
    assert await database.retention.session("room:2") == second
    await database.take("delete", 6)
    emptied = await database.retention.session(ROOM)
    assert emptied is not None
    assert (emptied.first_stored_at, emptied.first_live_at) == (None, None)


async def test_the_end_of_older_messages(database: Database) -> None:
    """The end is before the first message that is newer than the given time."""
    start = database.clock()
    await database.say(6)
    session = await database.retention.session(ROOM)
    assert session is not None
    for minutes, end in ((0, 0), (1, 2), (1.5, 4), (2, 4), (60, 6)):
        moment = start + timedelta(minutes=minutes)
        assert await database.retention.end_of_older(session, after=0, moment=moment) == end
    assert await database.retention.extent(Removal(ROOM, "delete", 2, 5)) == Removed(5, 3, 3 + 4 + 5)


async def test_a_session_may_have_limits_of_its_own(database: Database) -> None:
    """Limits are stored unchanged, None removes them, and another user cannot access them."""
    await database.transcripts.append(Turn(ROOM, (message(1),), "u1"))
    own = Retention(delete=RetentionLimits(max_age_days=0.5, max_messages=10))
    assert await database.retention.set_retention(ROOM, own)
    assert await database.retention.retention(ROOM) == (True, own)
    assert [one.retention for one in await database.retention.sessions(after="", limit=1)] == [own]
    assert not await database.retention.set_retention(ROOM, None, user_id="u2")
    assert await database.retention.retention(ROOM, user_id="u2") == (False, None)
    assert await database.retention.set_retention(ROOM, Retention(), user_id="u1")
    assert await database.retention.retention(ROOM) == (True, Retention())
    assert await database.retention.set_retention(ROOM, None)
    assert await database.retention.retention(ROOM) == (True, None)
