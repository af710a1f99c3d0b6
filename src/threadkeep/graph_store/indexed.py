"""Transcripts in a LangGraph store, with rows in Threadkeep's tables that list sessions and messages without texts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from weakref import WeakValueDictionary

from threadkeep.errors import InvalidInput, SessionDamaged, StoreError
from threadkeep.graph_store.appending import Written
from threadkeep.graph_store.index import SessionIndex
from threadkeep.graph_store.items import ConversationChanged, Items, Locks, TableItems
from threadkeep.graph_store.transcripts import GraphTranscripts
from threadkeep.records import Message, Receipt, Retention, SessionInfo, Turn
from threadkeep.store.codec import Counter
from threadkeep.store.driver import Driver
from threadkeep.store.retention import Prunable, RetentionRows
from threadkeep.store.superseding import ranges_of
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import END, Branching, SessionChanges, SessionQuery, Superseded, Superseding


class IndexedTranscripts(GraphTranscripts):
    """Transcripts with messages in a graph store; sessions are listed from rows in Threadkeep's tables (index rows).

    A turn counts as stored when the graph store has it. If its index rows cannot be updated, `failed` is called with
    the session id and the error, and `catch_up` tries again. The rows of a deleted conversation are deleted with all
    data derived from it.
    """

    def __init__(
        self,
        items: Items,
        driver: Driver,
        *,
        count: Counter,
        clock: Callable[[], datetime],
        failed: Callable[[str, StoreError], object],
    ) -> None:
        super().__init__(
            items, count=count, clock=clock, conflicted=lambda session_id: failed(session_id, ConversationChanged())
        )
        self.index = SessionIndex(driver, self.reader, count=count)
        self._listed = TableTranscripts(driver, count=count, clock=clock)
        self._failed = failed
        self._behind: set[str] = set()
        self._following: Locks[str] = WeakValueDictionary()
        self._compared = False
        self.reader.owner_of = self._owner
        if isinstance(items, TableItems) and items.driver is driver:
            self.writer.beside = self.index.additions

    async def append(self, turn: Turn) -> Receipt:
        """Store the messages of a turn, and update the rows of its session and messages in Threadkeep's tables."""
        written = await self.write(turn)
        if not written.is_indexed:
            await self._follow(turn.session_id, written)
        return written.receipt

    async def supersede(self, superseding: Superseding) -> Superseded:
        """Supersede messages in one write, and update the index rows of their session."""
        session_id = superseding.session_id
        first_seq = await self._first_seq(superseding)
        if first_seq is not None:
            # Forget derived data first: if the process dies, no summary of the messages may stay active.
            await self.index.follow(session_id)
            await self.index.forget_derived(session_id, (first_seq, END))
        superseded = await super().supersede(superseding)
        await self._follow(session_id)
        return superseded

    async def append_instead(self, turn: Turn, seq: int, seen: tuple[int, int]) -> None:
        """Store a turn in place of messages after `seq` if the session's `last_seq` and `revision` are still `seen`."""
        if seq < seen[0]:
            await self.index.follow(turn.session_id)  # forget derived data first, as in `supersede`
            await self.index.forget_derived(turn.session_id, (seq + 1, END))
        await super().append_instead(turn, seq, seen)
        await self._follow(turn.session_id)

    async def _first_seq(self, superseding: Superseding) -> int | None:
        """Return the `seq` of the first message that the request `superseding` is going to supersede, if any."""
        session_id, user_id = superseding.session_id, superseding.user_id
        if superseding.message_id is None:
            page = await self.newest(session_id, limit=superseding.newest, user_id=user_id)
            return page.messages[0].seq if page.messages else None
        exists = await self.session(session_id, user_id=user_id) is not None
        message = await self.find(session_id, superseding.message_id) if exists else None
        by_id = None if superseding.by is None else superseding.by.id
        is_refused = by_id is not None and await self.find(session_id, by_id) is not None
        if message is None or message.superseded_at is not None or is_refused:
            return None
        return (message.seq or 0) + (superseding.scope == "after")

    async def empty(self, session_id: str, seqs: Collection[int]) -> None:
        """Remove the content of messages and the data derived from them, for an erasure."""
        await super().empty(session_id, seqs)
        await self.index.forget_derived(session_id, *ranges_of(seqs))
        await self._follow(session_id)

    async def branch(self, branching: Branching) -> None:
        """Create a session with copies of another session's messages, and of the summaries of these messages."""
        is_new = await self.session(branching.branch_id) is None
        await super().branch(branching)
        await self._follow(branching.branch_id)
        if not is_new:
            return  # this branch may have other messages than the summaries cover
        try:
            await self.index.copy_summaries(branching)
        except StoreError as error:
            self._failed(branching.branch_id, error)

    async def tell(self, session_id: str, message_id: str) -> Message | None:
        """Mark an answer, or its newest replacement, as delivered to a caller; return it, or None if it is missing."""
        told = await super().tell(session_id, message_id)
        if told is not None:
            await self._follow(session_id)
        return told

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return one page of sessions from index rows, newest activity first; skip sessions with damaged metadata."""
        found: list[SessionInfo] = []
        while True:
            page = await self._listed.sessions(query)
            damaged = await self.reader.unreadable([info.session_id for info in page])
            found += [info for info in page if info.session_id not in damaged]
            if len(page) < query.limit or not damaged:
                return found[: query.limit]
            query = replace(query, cursor=(page[-1].updated_at, page[-1].session_id))

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change fields of a session; do nothing if it does not exist."""
        await super().change(session_id, changes)
        await self._follow(session_id)

    async def reset(self, session_id: str, *, user_id: str | None = None, run_id: str | None = None) -> int | None:
        """Let later model calls omit all stored messages. Return the last `seq`, or None if nothing was reset."""
        # Read the conversation before the run is checked, so that the reset hides no message stored after the check.
        known = await self.reader.conversation(session_id, user_id=user_id)
        if known is None:
            return None
        await self.index.follow(session_id)
        if not await self.index.hide_summaries(session_id, run_id=run_id):
            return None
        last_seq = await self.writer.reset(session_id, user_id=user_id, known=None if run_id is None else known)
        await self._follow(session_id)
        return last_seq

    async def delete(self, session_id: str, *, run_id: str | None = None) -> bool | None:
        """Delete a session with all its data. Return False if it did not exist, None if `run_id` may not delete it."""
        # Read the creation time before the run is checked: a conversation that is created after the check must stay.
        created_at = None if run_id is None else await self._created_at(session_id)
        if run_id is not None and not await self.index.may_change(session_id, run_id):
            return None
        # Delete the rows last. They include the row of the run that deletes the session, so if this process dies
        # before, the run is executed again.
        for own_session_id in await self.writer.own_sessions(session_id):
            await self.delete(own_session_id)
        existed = await self.writer.delete(session_id, created_at=created_at)
        # If deleting the rows fails, `catch_up` deletes them later.
        self._behind.add(session_id)
        rows = await self.index.delete(session_id, run_id=run_id)
        # Another process may have written to the session and created its rows again.
        await self.index.follow(session_id)
        self._behind.discard(session_id)
        return existed or rows

    async def catch_up(self) -> None:
        """Update index rows that are out of date. The first call compares all sessions with the graph store.

        Raises:
            StoreError: the rows of a session could not be updated; the rows of all other sessions were updated.
        """
        if not self._compared:
            self._behind |= await self._differing()
            self._compared = True
        failure: StoreError | None = None
        for session_id in list(self._behind):
            try:
                if await self.reader.conversation(session_id) is None:
                    # The metadata are gone. Delete the other items first: only the rows still name the conversation.
                    await self.writer.remove_rest(session_id)
                await self.index.follow(session_id)
            except SessionDamaged:
                continue  # a damaged session must not block others; its rows are updated after its repair
            except StoreError as error:
                failure = error
            else:
                self._behind.discard(session_id)
        if failure is not None:
            raise failure

    async def _differing(self) -> set[str]:
        """Return the ids of sessions whose index rows do not describe the current version of the conversation."""
        versions = {session_id: version async for session_id, version in self.index.versions()}
        differing = set(versions)
        async for conversation in self.reader.all():
            if versions.get(conversation.session_id) == conversation.version:
                differing.discard(conversation.session_id)
            else:
                differing.add(conversation.session_id)
        return differing

    async def _created_at(self, session_id: str) -> datetime:
        """Return the time at which a conversation was created, or `datetime.min` if it is unknown."""
        with contextlib.suppress(SessionDamaged):
            if (conversation := await self.reader.conversation(session_id)) is not None:
                return conversation.created_at
        return datetime.min.replace(tzinfo=UTC)

    async def _owner(self, session_id: str) -> str | None:
        info = await self._listed.session(session_id)
        return None if info is None else info.user_id

    async def _follow(self, session_id: str, written: Written | None = None) -> None:
        """Update a session's rows in the tables. After a failure, the next `catch_up` tries again."""
        self._behind.add(session_id)
        try:
            async with self._following.setdefault(session_id, asyncio.Lock()):
                if written is None or not await self.index.add(written):
                    await self.index.follow(session_id)
        except StoreError as error:
            self._failed(session_id, error)
        else:
            self._behind.discard(session_id)


NOT_AVAILABLE = (
    "Retention is not available while transcripts are in a graph store: delete whole sessions, or keep transcripts in "
    "the tables (THREADKEEP_TRANSCRIPTS=tables)."
)


class UnavailableRetention(RetentionRows):
    """A replacement for `RetentionRows` if sessions are in a graph store. It rejects the deletion of old messages."""

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """Return an empty list, because no session in a graph store has retention limits of its own.

        Raises:
            InvalidInput: all sessions are requested (`with_own` is false), not only those with their own limits.
        """
        if with_own:
            return []
        raise InvalidInput(NOT_AVAILABLE)

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """Raise `InvalidInput`, because retention is not available."""
        raise InvalidInput(NOT_AVAILABLE)

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Raise `InvalidInput`, because retention is not available."""
        raise InvalidInput(NOT_AVAILABLE)
