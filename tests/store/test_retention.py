"""Steps of retention: each whole, from where the border stood, and nothing else changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from tests.databases import migrated_driver
from threadkeep.records import Message, Retention, RetentionLimits, Role, SessionInfo, Turn
from threadkeep.store.driver import Driver, DuplicateRow
from threadkeep.store.retention import REDELIVERY, Action, Removal, Removed, RetentionRows
from threadkeep.store.search import SearchIndex
from threadkeep.store.tables import TableTranscripts
from threadkeep.testing import SettableClock

ROOM = "room:1"


@dataclass
class Database:
    """A database with what the tests do to it."""

    driver: Driver
    clock: SettableClock
    transcripts: TableTranscripts
    retention: RetentionRows
    index: SearchIndex

    async def say(self, count: int, *, first: int = 1, session: str = ROOM) -> None:
        """Store so many messages in turns of two, of user and assistant, a minute apart."""
        for number in range(first, first + count, 2):
            turn = [message(n) for n in range(number, min(number + 2, first + count))]
            await self.transcripts.append(Turn(session, tuple(turn)))
            self.clock.advance(60)

    async def take(self, action: Action, upto: int, session: str = ROOM) -> list[Removed]:
        """Carry a removal out, step by step."""
        steps: list[Removed] = []
        prunable = await self.retention.session(session)
        assert prunable is not None
        after = prunable.archived_seq if action == "archive" else prunable.deleted_seq
        while after < upto and (removed := await self.retention.step(Removal(session, action, after, upto))):
            steps.append(removed)
            after = removed.upto_seq
        return steps

    async def info(self, session: str = ROOM) -> SessionInfo:
        """What is known of a session."""
        info = await self.transcripts.session(session)
        assert info is not None
        return info

    async def places(self, session: str = ROOM) -> list[int | None]:
        """Where its messages stand."""
        return [message.seq for message in (await self.transcripts.newest(session, limit=1000)).messages]

    async def found(self, words: str) -> list[int | None]:
        """The places of the messages of the room that a search finds."""
        await self.index.catch_up()
        hits = await self.index.search(words, limit=1000)
        return [*sorted(hit.message.seq for hit in hits if hit.message.seq is not None)]

    async def everything(self) -> str:
        """All that stands in any table, as text; of the search index what it can tell of itself."""
        tables = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'chat_search%'"
            if self.driver.backend == "sqlite"
            else "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        async with self.driver.reading() as connection:
            names = [row[0] for row in await connection.fetch(tables, {})]
            rows = [await connection.fetch(f"SELECT * FROM {name}", {}) for name in names]
            if self.driver.backend == "sqlite":
                rows.append(await connection.fetch("SELECT * FROM chat_search_documents", {}))
                await connection.execute("INSERT INTO chat_search (chat_search) VALUES ('integrity-check')", {})
        return repr(rows)


def message(number: int) -> Message:
    """The message of a place: odd ones of the user, with an id of the platform, even ones of the assistant."""
    role: Role = "user" if number % 2 else "assistant"
    return Message(role=role, content=f"canary {number} says number{number}x", id=f"p:{number}", tokens=number)


@pytest.fixture
async def database(database_url: str, clock: SettableClock) -> AsyncIterator[Database]:
    """An empty database of each kind in turn."""
    async with migrated_driver(database_url) as driver:
        transcripts = TableTranscripts(driver, count=len, clock=clock)
        yield Database(driver, clock, transcripts, RetentionRows(driver, clock=clock), SearchIndex(driver))
        await transcripts.close()


async def test_what_is_deleted_is_gone_and_the_rest_keeps_its_place(database: Database) -> None:
    """Of ten messages four go: numbers 5 to 10 stay, the next one is 11, counters and pages are right."""
    await database.say(10)
    assert await database.take("delete", 4) == [Removed(4, 4, 1 + 2 + 3 + 4)]
    assert await database.places() == [5, 6, 7, 8, 9, 10]
    info = await database.info()
    assert (info.message_count, info.last_seq, info.deleted_seq, info.archived_seq) == (6, 10, 4, 4)
    page = await database.transcripts.newest(ROOM, limit=6)
    assert page.next_before is None
    page = await database.transcripts.newest(ROOM, limit=5)
    assert page.next_before == 6
    assert [m.seq for m in (await database.transcripts.newest(ROOM, limit=5, before=6)).messages] == [5]
    assert (await database.transcripts.append(Turn(ROOM, (message(11),)))).first_seq == 11
    assert (await database.info()).message_count == 7


async def test_what_is_archived_is_out_of_windows_and_search_but_can_be_read(database: Database) -> None:
    """The pages have it, its place and id find it; the raw material of windows and the index have not."""
    await database.say(10)
    assert await database.found("canary") == list(range(1, 11))
    assert await database.take("archive", 4) == [Removed(4, 4, 10)]
    assert await database.places() == list(range(1, 11))
    recent = await database.transcripts.recent(ROOM, limit=100)
    assert [m.seq for m in recent.messages] == [10, 9, 8, 7, 6, 5]
    assert (recent.archived_seq, recent.deleted_seq) == (4, 0)
    assert await database.found("canary") == [5, 6, 7, 8, 9, 10]
    assert await database.found("ca") == ([5, 6, 7, 8, 9, 10] if database.driver.backend == "sqlite" else [])
    found = await database.transcripts.find(ROOM, "p:2")
    assert found is not None
    assert (await database.info()).message_count == 10
    assert (await database.transcripts.append(Turn(ROOM, (message(2), message(11))))).duplicates == ("p:2",)


async def test_what_was_not_indexed_yet_is_not_indexed_later(database: Database) -> None:
    """Neither what was archived before the index came to it, nor what was deleted."""
    await database.say(10)
    await database.take("archive", 4)
    assert await database.found("canary") == [5, 6, 7, 8, 9, 10]
    await database.say(10, first=11)
    await database.take("delete", 14)
    assert await database.found("canary") == [15, 16, 17, 18, 19, 20]


async def test_nothing_of_what_is_deleted_is_left_in_any_table(database: Database) -> None:
    """Messages, title, last message, answers of requests, index: none of them says what was said."""
    await database.say(6)
    await database.found("canary")
    async with database.driver.writing() as connection:
        await connection.execute(
            "INSERT INTO chat_runs "
            "(run_id, session_id, message_id, workflow, status, owner, result, started_at, heartbeat_at) "
            "VALUES (:run, :session, :id, 'chat', 'done', 'me', :result, :now, :now)",
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


async def test_a_title_that_somebody_gave_stays(database: Database) -> None:
    """Only one that was made of the first message goes with it."""
    await database.say(4)
    async with database.driver.writing() as connection:
        await connection.execute("UPDATE chat_sessions SET title = 'Tea'", {})
    await database.take("delete", 2)
    assert (await database.info()).title == "Tea"
    assert (await database.info()).last_message == "canary 4 says number4x"


async def test_a_step_is_bounded_and_many_of_them_do_it_all(database: Database) -> None:
    """A thousand messages go in several steps, and long texts in smaller ones."""
    for start in range(1, 1001, 250):
        await database.transcripts.append(Turn(ROOM, tuple(message(n) for n in range(start, start + 250))))
    steps = await database.take("delete", 990)
    assert [step.messages for step in steps] == [200, 200, 200, 200, 190]
    assert await database.places() == list(range(991, 1001))
    few = await database.retention.step(Removal(ROOM, "archive", 990, 1000), messages=3)
    assert few == Removed(993, 3, 991 + 992 + 993)
    long = [replace(message(n), content="x" * 60_000) for n in range(1001, 1005)]
    await database.transcripts.append(Turn(ROOM, tuple(long)))
    assert [step.messages for step in await database.take("delete", 1004)] == [10 + 1, 1, 1, 1]


async def test_a_step_from_another_border_does_nothing(database: Database) -> None:
    """Somebody else has taken it: what was planned is not taken twice, and counters stay right."""
    await database.say(10)
    stale = Removal(ROOM, "delete", 0, 4)
    assert await database.retention.step(stale) is not None
    assert await database.retention.step(replace(stale, upto_seq=8)) is None
    assert await database.retention.step(Removal(ROOM, "archive", 0, 8)) is None
    assert (await database.info()).message_count == 6
    assert await database.retention.step(Removal("nobody", "delete", 0, 4)) is None


async def test_archived_messages_can_be_deleted_later(database: Database) -> None:
    """The border of what is archived is never behind that of what is deleted."""
    await database.say(10)
    await database.take("archive", 6)
    await database.take("delete", 4)
    info = await database.info()
    assert (info.deleted_seq, info.archived_seq) == (4, 6)
    await database.take("delete", 8)
    info = await database.info()
    assert (info.deleted_seq, info.archived_seq) == (8, 8)
    assert await database.found("canary") == [9, 10]


async def test_somebody_who_speaks_again_stops_the_removal_of_an_idle_session(database: Database) -> None:
    """Each step looks, and so does the end, which takes the session itself."""
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


async def test_a_deleted_message_that_is_sent_again_is_no_new_turn(database: Database) -> None:
    """For a week after it was stored; its place is told. Later nobody knows its id any more."""
    await database.say(4)
    await database.take("delete", 2)
    again = await database.transcripts.append(Turn(ROOM, (message(1),)))
    assert (again.duplicates, again.first_seq, again.last_seq, again.deleted) == (("p:1",), 1, 1, ("p:1",))
    half = await database.transcripts.append(Turn(ROOM, (message(2), message(5))))
    assert (half.duplicates, half.first_seq, half.deleted) == (("p:2",), 5, ("p:2",))
    there = await database.transcripts.append(Turn(ROOM, (message(3),)))
    assert (there.duplicates, there.deleted) == (("p:3",), ())
    assert await database.places() == [3, 4, 5]
    other = await database.transcripts.append(Turn("room:2", (message(1),)))
    assert other.duplicates == ()
    database.clock.advance(REDELIVERY.total_seconds())
    await database.retention.forget_ids()
    assert (await database.transcripts.append(Turn(ROOM, (message(1),)))).first_seq == 6


async def test_the_fast_way_of_storing_looks_for_deleted_ids_too(database: Database) -> None:
    """A group with such an id is refused as one with an id that is there: nothing of it is stored."""
    await database.say(4)
    await database.take("delete", 2)
    now = database.clock().isoformat()
    session = {"session_id": ROOM, "user_id": None, "title": None, "last_message": None}
    columns = {"role": "user", "content": "again", "tokens": 1, "status": "complete", "confidence": None}
    more = {"escalated": False, "run_id": None, "metadata": "{}", "original": None, "sent_at": None, "created_at": now}
    with pytest.raises(DuplicateRow):
        await database.driver.append(
            [{**session, "added": 1, "newest_user": 1, "now": now}],
            [{**columns, **more, "session_id": ROOM, "id": "p:1", "behind": 0}],
        )
    assert (await database.info()).last_seq == 4


async def test_old_ids_are_not_remembered_at_all(database: Database) -> None:
    """A message that is older than any redelivery leaves no id."""
    await database.say(4)
    database.clock.advance(REDELIVERY.total_seconds() + 3600)
    await database.take("delete", 4)
    async with database.driver.reading() as connection:
        assert await connection.fetch("SELECT * FROM chat_deleted_ids", {}) == []


async def test_sessions_are_seen_with_their_borders_and_times(database: Database) -> None:
    """The first message that is stored, and the first that is not archived, tell how old a session's beginning is."""
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


async def test_where_older_messages_end_is_told(database: Database) -> None:
    """The beginning whose messages were all stored before a time: what is newer keeps what follows it."""
    start = database.clock()
    await database.say(6)
    session = await database.retention.session(ROOM)
    assert session is not None
    for minutes, end in ((0, 0), (1, 2), (1.5, 4), (2, 4), (60, 6)):
        moment = start + timedelta(minutes=minutes)
        assert await database.retention.end_of_older(session, after=0, moment=moment) == end
    assert await database.retention.extent(Removal(ROOM, "delete", 2, 5)) == Removed(5, 3, 3 + 4 + 5)


async def test_a_session_may_have_limits_of_its_own(database: Database) -> None:
    """They come back as they were; None takes them away; another user's session is not there."""
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


async def test_room_is_given_back(sqlite_url: str, clock: SettableClock) -> None:
    """The file of SQLite shrinks; PostgreSQL does it by itself."""
    async with migrated_driver(sqlite_url) as driver:
        transcripts = TableTranscripts(driver, count=len, clock=clock)
        database = Database(driver, clock, transcripts, RetentionRows(driver, clock=clock), SearchIndex(driver))
        words = [replace(message(n), content=f"{n} words " * 500) for n in range(1, 401)]
        await transcripts.append(Turn(ROOM, tuple(words)))
        assert await database.found("399 words")
        await database.take("delete", 398)
        async with driver.reading() as connection:
            [(before,)] = await connection.fetch("PRAGMA page_count", {})
            assert await database.retention.give_back_room()
            [(after,)] = await connection.fetch("PRAGMA page_count", {})
        assert after * 5 < before
        assert await database.found("399 words") == [399]
        await transcripts.close()
