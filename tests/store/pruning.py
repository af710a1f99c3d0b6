"""A database of each engine for tests of retention, with the operations of those tests."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep.records import Message, Role, SessionInfo, Turn
from threadkeep.store.driver import Driver
from threadkeep.store.retention import Action, Removal, Removed, RetentionRows
from threadkeep.store.search import SearchIndex
from threadkeep.store.tables import TableTranscripts
from threadkeep.testing import SettableClock

ROOM = "room:1"


@dataclass
class Database:
    """A database with the operations that the tests call."""

    driver: Driver
    clock: SettableClock
    transcripts: TableTranscripts
    retention: RetentionRows
    index: SearchIndex

    async def say(self, count: int, *, first: int = 1, session: str = ROOM) -> None:
        """Store `count` messages in turns of two, of user and assistant, a minute apart."""
        for number in range(first, first + count, 2):
            turn = [message(n) for n in range(number, min(number + 2, first + count))]
            await self.transcripts.append(Turn(session, tuple(turn)))
            self.clock.advance(60)

    async def take(self, action: Action, upto: int, session: str = ROOM) -> list[Removed]:
        """Execute a removal step by step."""
        steps: list[Removed] = []
        prunable = await self.retention.session(session)
        assert prunable is not None
        after = prunable.archived_seq if action == "archive" else prunable.deleted_seq
        while after < upto and (removed := await self.retention.step(Removal(session, action, after, upto))):
            steps.append(removed)
            after = removed.upto_seq
        return steps

    async def info(self, session: str = ROOM) -> SessionInfo:
        """Return the session."""
        info = await self.transcripts.session(session)
        assert info is not None
        return info

    async def seqs(self, session: str = ROOM) -> list[int | None]:
        """Return the seq of each message of the session."""
        return [message.seq for message in (await self.transcripts.newest(session, limit=1000)).messages]

    async def found(self, words: str) -> list[int | None]:
        """Return the seq of each message of the room that a search finds."""
        await self.index.catch_up()
        hits = await self.index.search(words, limit=1000)
        return [*sorted(hit.message.seq for hit in hits if hit.message.seq is not None)]

    async def everything(self) -> str:
        """Return the rows of all tables as text; of the SQLite search index only the sizes."""
        tables = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'chat_search%'"
            if self.driver.backend == "sqlite"
            else "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        async with self.driver.reading() as connection:
            names = [row[0] for row in await connection.fetch(tables, {})]
            rows = [await connection.fetch(f"SELECT * FROM {name}", {}) for name in names]
            if self.driver.backend == "sqlite":
                rows.append(await connection.fetch("SELECT * FROM chat_search_docsize", {}))
                await connection.execute("INSERT INTO chat_search (chat_search) VALUES ('integrity-check')", {})
        return repr(rows)


def message(number: int) -> Message:
    """Return message `number`: odd numbers are the user's, even ones the assistant's."""
    role: Role = "user" if number % 2 else "assistant"
    return Message(role=role, content=f"canary {number} says number{number}x", id=f"p:{number}", tokens=number)


def database_over(driver: Driver, clock: SettableClock) -> Database:
    """Return the operations on a database, given its driver."""
    transcripts = TableTranscripts(driver, count=len, clock=clock)
    return Database(driver, clock, transcripts, RetentionRows(driver, clock=clock), SearchIndex(driver))
