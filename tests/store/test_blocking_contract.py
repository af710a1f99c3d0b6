"""The contract of transcripts through the synchronous memory, with each method called in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.store.test_contract import moving_clock
from threadkeep import MemoryOptions, Message, Page, PendingOptions, Receipt, SessionInfo, SessionNotFound, SyncMemory
from threadkeep.records import Turn, View
from threadkeep.store.transcripts import END, SessionQuery, Transcripts
from threadkeep.testing import TranscriptContract
from threadkeep.testing.transcript_source import assistant, turn, user


class BlockingTranscripts:
    """A synchronous memory with the interface of transcripts.

    A method that sessions do not have runs on the transcripts below, on the memory's loop.
    """

    def __init__(self, memory: SyncMemory) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._memory.asynchronous._backend.transcripts, name)  # noqa: SLF001 - see above

        async def call(*arguments: Any, **named: Any) -> Any:
            return await asyncio.to_thread(self._memory.wait_for, verb(*arguments, **named))

        return call

    async def append(self, turn: Turn) -> Receipt:
        """Store a turn; one that was told before or has a parent goes to the transcripts directly."""
        if turn.told_at is not None or turn.parent is not None:
            transcripts = self._memory.asynchronous._backend.transcripts  # noqa: SLF001 - see above
            return await asyncio.to_thread(self._memory.wait_for, transcripts.append(turn))
        session = self._memory.session(turn.session_id, user_id=turn.user_id)
        if turn.answers is None:
            return await asyncio.to_thread(session.append, turn.messages)
        receipt = await asyncio.to_thread(session.record, turn.messages, answers=turn.answers, told=turn.told)
        assert receipt is not None
        return receipt

    async def newest(
        self, session_id: str, *, limit: int, before: int = END, user_id: str | None = None, view: View = "active"
    ) -> Page:
        """Return the newest messages before a `seq`."""
        session = self._memory.session(session_id, user_id=user_id)
        return await asyncio.to_thread(session.page, before, limit, view=view)

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """Return the message with an id."""
        return await asyncio.to_thread(self._memory.session(session_id).find, message_id)

    async def at(self, session_id: str, seqs: Collection[int]) -> list[Message]:
        """Return the messages with these `seq`."""
        return await asyncio.to_thread(self._memory.session(session_id).at, seqs)

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """Return the session, or None if it does not exist."""
        try:
            return await asyncio.to_thread(self._memory.session(session_id, user_id=user_id).info)
        except SessionNotFound:
            return None

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return a page of sessions."""
        found, _ = await asyncio.to_thread(self._memory.sessions_page, query)
        return found

    async def reset(self, session_id: str, *, user_id: str | None = None) -> int | None:
        """Reset the session, and return the seq after which windows start."""
        await asyncio.to_thread(self._memory.session(session_id, user_id=user_id).reset)
        info = await self.session(session_id, user_id=user_id)
        return None if info is None else info.reset_seq

    async def delete(self, session_id: str) -> bool:
        """Delete a session."""
        return await asyncio.to_thread(self._memory.session(session_id).delete)


class BlockingContract(TranscriptContract):
    """The contract on a synchronous memory; a subclass names the database."""

    url: str
    options: MemoryOptions

    @pytest.fixture(autouse=True)
    def memory_of_the_test(self, tmp_path: Path) -> None:
        """Set a pending folder and a clock for the test."""
        pending = PendingOptions(folder=tmp_path / "pending")
        self.options = MemoryOptions(pending=pending, clock=moving_clock(), background=False)

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Open transcripts in a new database, and close them after the block."""
        memory = await asyncio.to_thread(SyncMemory.open, self.url, options=self.options)
        try:
            yield cast("Transcripts", BlockingTranscripts(memory))
        finally:
            await asyncio.to_thread(memory.close)

    async def test_turns_appended_at_once_by_one_process_keep_their_order(self) -> None:
        """Concurrent threads have no order, but each turn is stored whole."""
        async with self.open_transcripts() as transcripts:
            turns = [turn(user(f"q{n}"), assistant(f"a{n}")) for n in range(40)]
            receipts = await asyncio.gather(*map(transcripts.append, turns))
            assert sorted((one.first_seq, one.last_seq) for one in receipts) == [(n, n + 1) for n in range(1, 81, 2)]


class TestSqliteFile(BlockingContract):
    """The contract on a SQLite file."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """Set the URL of a new file."""
        self.url = sqlite_url


class TestPostgres(BlockingContract):
    """The contract on PostgreSQL."""

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        """Set the URL of a new database."""
        self.url = postgres_url
