"""The backend that keeps transcripts in a LangGraph store: opening it, searching texts, and restoring exports."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING

from threadkeep.errors import SessionDamaged, StoreError, StoreUnavailable, WrongUser
from threadkeep.graph_store.index import SessionIndex
from threadkeep.graph_store.indexed import IndexedTranscripts, UnavailableRetention
from threadkeep.graph_store.items import Items, TableItems, Writing
from threadkeep.graph_store.shapes import Conversation, answer_note
from threadkeep.graph_store.superseding import ConversationSuperseding, HeldChunks
from threadkeep.graph_store.transcripts import GraphTranscripts, RecallIndexItems
from threadkeep.graph_store.writing import ConversationWriter
from threadkeep.observe import Backend
from threadkeep.records import Message, SearchHit, SessionInfo, dump_json
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.archive import ArchivedPart, Restored, SummaryArchive
from threadkeep.store.backend import TranscriptBackend, check_location
from threadkeep.store.codec import Counter, Prepared, clean_json, clean_text, identified, marks_of, prepare, time_text
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.null_stores import NullSearch
from threadkeep.store.search_terms import fold_fully
from threadkeep.store.superseding import ranges_of
from threadkeep.store.transcripts import END, SessionQuery

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


_SEARCH_SECONDS = 5.0
_ERASED = {"status": "erased", "metadata": "{}"}
_SEARCHES = 2


class TextSearch(NullSearch):
    """A text search in transcripts that a LangGraph store has. It has no index: each search reads all texts."""

    def __init__(self, transcripts: GraphTranscripts, *, page_sessions: int = 100) -> None:
        self._transcripts = transcripts
        self._reader = transcripts.reader
        self._page_sessions = page_sessions
        self._searches = asyncio.Semaphore(_SEARCHES)

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return up to `limit` messages that contain all words of a query, best first.

        Damaged sessions are skipped and listed in the reader's `damages`.

        Raises:
            StoreUnavailable: the search took longer than 5 seconds, including the wait for other searches.
            SessionDamaged: the given session cannot be read.
        """
        words = fold_fully(clean_text(query)).split()
        if not words or limit <= 0:
            return []
        best: list[tuple[float, float, int, SearchHit]] = []
        number = count()
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), self._searches:
                async for found_in, message in self._messages(user_id, session_id, after):
                    if score := _score(message, words):
                        time = message.created_at.timestamp() if message.created_at else 0.0
                        entry = (score, time, -next(number), SearchHit(found_in, message, score))
                        (heapq.heappush if len(best) < limit else heapq.heappushpop)(best, entry)
        except TimeoutError:
            raise StoreUnavailable(
                f"The search took longer than {_SEARCH_SECONDS:g} seconds: in a graph store every text is read. Search "
                "one session or one user, or keep transcripts in the tables (THREADKEEP_TRANSCRIPTS=tables)."
            ) from None
        return [hit for *_, hit in sorted(best, reverse=True)]

    async def _messages(
        self, user_id: str | None, session_id: str | None, after: int
    ) -> AsyncIterator[tuple[str, Message]]:
        if session_id is not None:
            async for message in self._down(session_id, user_id, after):
                yield session_id, message
            return
        async for found in self._sessions(user_id):
            with contextlib.suppress(SessionDamaged):
                async for message in self._down(found, user_id, after):
                    yield found, message

    async def _down(self, session_id: str, user_id: str | None, after: int) -> AsyncIterator[Message]:
        if conversation := await self._reader.conversation(session_id, user_id=user_id):
            low = max(after, conversation.deleted_seq) + 1
            async for message in self._reader.down(conversation, END, low, active=True):
                yield message

    async def _sessions(self, user_id: str | None) -> AsyncIterator[str]:
        query: SessionQuery | None = SessionQuery(user_id, limit=self._page_sessions)
        while query is not None:
            page = await self._transcripts.sessions(query)
            for info in page:
                yield info.session_id
            last = page[-1] if len(page) == query.limit else None
            query = None if last is None else replace(query, cursor=(last.updated_at, last.session_id))


class ConversationSearch(TextSearch):
    """A text search that also updates the rows in Threadkeep's tables from which sessions are listed."""

    def __init__(self, transcripts: IndexedTranscripts) -> None:
        super().__init__(transcripts)
        self._indexed = transcripts

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Update rows in Threadkeep's tables that are out of date; return False if this takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._indexed.catch_up()
        except TimeoutError:
            return False
        return True


def _score(message: Message, words: list[str]) -> float:
    """Return the number of times that the words occur, reduced for long texts; 0 if one of the words is missing."""
    text = fold_fully(message.content)
    counts = [text.count(word) for word in words]
    return sum(counts) / math.log2(2 + len(text)) if all(counts) else 0.0


class ConversationArchive:
    """A service that restores exported sessions as conversations in a graph store.

    Each part is stored atomically, but the whole import is not; an interrupted `restore` can be repeated. A stored
    message becomes superseded if it is superseded in the export. Archived messages become active. Retention limits and
    summaries are omitted, and counted in the results.
    """

    def __init__(self, writer: ConversationWriter, *, count: Counter, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._superseding = ConversationSuperseding(writer)
        self._count = count
        self._clock = clock

    async def restore(self, parts: Sequence[ArchivedPart]) -> list[Restored | WrongUser]:
        """Store the parts in order. The result for a part is a `WrongUser` error if its session is another user's."""
        outcomes: list[Restored | WrongUser] = []
        for part in parts:
            try:
                outcomes.append(await self.restore_one(part))
            except WrongUser as error:
                outcomes.append(error)
        return outcomes

    async def restore_one(self, part: ArchivedPart) -> Restored:
        """Restore one part of an exported session atomically, in a new or an existing conversation.

        Raises:
            WrongUser: the conversation exists, and belongs to another user than the part.
        """
        session_id = part.info.session_id
        restored = await self._writer.hold(session_id, lambda writing, found: self._put(writing, found, part))
        return replace(restored, summaries_left_out=len(part.summaries))

    async def _put(self, writing: Writing, found: Conversation | None, part: ArchivedPart) -> Restored:
        info = part.info
        if found is not None and info.user_id not in (None, found.user_id):
            raise WrongUser(info.session_id)
        conversation = found or self._new(info)
        now = self._clock()
        messages = [identified(message) for message in part.messages]
        known = await self._writer.seqs_of(writing, conversation, [str(message.id) for message in messages])
        chunks = HeldChunks(self._writer, writing, conversation)
        chunks.conversation = await self._with_marks(chunks, messages, known)
        prepared = Prepared([], [])
        if messages:
            prepared = prepare(
                messages, count=self._count, stored_at=lambda message: time_text(message.created_at or now)
            )
            # In a graph store, the status of a message says that it was erased; in tables, its metadata do.
            rows = [
                {**row, **marks_of(message), **(_ERASED if message.status == "erased" else {})}
                for message, row in zip(prepared.messages, prepared.columns, strict=True)
            ]
            await self._supersede_second_answers(chunks, [row for row in rows if row["id"] not in known])
            prepared = replace(prepared, columns=rows)
        appended = await self._writer.appended(chunks, chunks.conversation, prepared, known, info.updated_at)
        seqs = dict(known)
        for key, value in appended.items.items():
            if "seq" in value:
                seqs[key.key.removeprefix("\t")] = int(value["seq"])  # `id_note` may have added the tab
        # Both the conversation and the export may have a reset: keep the later one.
        here = {message.seq: seqs[str(message.id)] for message in messages if message.seq}
        grown = appended.conversation
        grown = replace(grown, reset_seq=max(grown.reset_seq, here.get(info.reset_seq, 0)))
        if appended.items or found is None or grown != conversation:
            await self._writer.put(writing, conversation, grown, {**chunks.items, **appended.items})
        fresh = {str(message.id): message for message in messages if str(message.id) not in known}
        moved = sum(1 for message_id, message in fresh.items() if message.seq not in (None, seqs[message_id]))
        restored = Restored(len(fresh), len(messages) - len(fresh), moved, len(prepared.cleaned))
        unarchived = sum(1 for message in fresh.values() if 0 < (message.seq or 0) <= info.archived_seq)
        return replace(
            restored, unarchived=unarchived, limits_left_out=int(found is None and info.retention is not None)
        )

    async def _with_marks(
        self, chunks: HeldChunks, messages: Sequence[Message], known: Mapping[str, int]
    ) -> Conversation:
        """Mark active messages in `chunks` that are superseded in the export; return the changed conversation."""
        marks = {known[str(one.id)]: marks_of(one) for one in messages if one.superseded_at and str(one.id) in known}
        active = [seq for seq in marks if not chunks.conversation.superseded_between(seq, seq)]
        if not active:
            return chunks.conversation
        return (await self._superseding.mark(chunks, ranges_of(active), lambda value: marks[value["seq"]]))[0]

    async def _supersede_second_answers(self, chunks: HeldChunks, rows: Sequence[dict[str, object]]) -> None:
        """Mark answers in the export as superseded if another answer to their question is active."""
        notes = [(row, note) for row in rows if (note := answer_note(row)) is not None]
        found = await self._writer.noted(chunks, chunks.conversation, [note for _, note in notes], answer_note)
        answers: dict[str, Mapping[str, object]] = {**found}
        for row, note in notes:
            if (first := answers.setdefault(note, row))["id"] != row["id"]:
                row.update(superseded_at=first["created_at"], superseded_by=first["id"])

    def _new(self, info: SessionInfo) -> Conversation:
        return Conversation(
            info.session_id,
            created_at=info.created_at,
            updated_at=info.updated_at,
            user_id=info.user_id,
            last_seq=info.deleted_seq,
            chunk_size=self._writer.layout.chunk_size,
            title=None if info.title is None else clean_text(info.title),
            reset_seq=min(info.reset_seq, info.deleted_seq),
            deleted_seq=info.deleted_seq,
            active=info.active,
            tags=tuple(clean_text(tag) for tag in info.tags),
            metadata=dump_json(clean_json(dict(info.metadata))),
            parent_session_id=info.parent_session_id,
            parent_seq=info.parent_seq,
            agent=info.agent,
        )


class IndexedArchive(ConversationArchive):
    """A service that restores messages to a graph store, and summaries and index rows to Threadkeep's tables."""

    def __init__(
        self,
        driver: Driver,
        writer: ConversationWriter,
        index: SessionIndex,
        *,
        count: Counter,
        clock: Callable[[], datetime],
    ) -> None:
        super().__init__(writer, count=count, clock=clock)
        self._driver = driver
        self._index = index
        self._summaries = SummaryArchive(driver.backend, clock=clock)

    async def restore_one(self, part: ArchivedPart) -> Restored:
        """Restore one part of an exported session with its summaries."""
        restored = await super().restore_one(part)
        session_id = part.info.session_id
        await self._index.follow(session_id)
        async with self._driver.writing() as connection:
            stored, left_out = await self._summaries.restore(connection, session_id, part.summaries)
        return replace(restored, summaries=stored, summaries_left_out=left_out)


@asynccontextmanager
async def open_graph_backend(
    driver: Driver,
    store: BaseStore | DatabaseAddress,
    *,
    own: DatabaseAddress,
    options: StoreOptions,
    count: Counter,
    clock: Callable[[], datetime],
    troubled: Callable[[Backend, str, StoreError], object],
) -> AsyncIterator[TranscriptBackend]:
    """Open the backend that stores transcripts in a LangGraph store, not in Threadkeep's own tables.

    Args:
        driver: the driver of Threadkeep's own tables.
        store: the LangGraph store with the conversations, which stays open, or the database in which to open one.
        own: the database of the tables. If the store is in the same database, it shares the connections of `driver`.
        options: options for opening databases.
        count: counts the tokens of a text.
        clock: returns the current time.
        troubled: called for each attempt of a write that conflicted with another writer (`ConversationChanged`), and if
            rows in the tables could not be updated.

    Raises:
        InvalidSettings: the database has sessions whose messages are in its tables.
    """
    await check_location(driver, "graph_store")
    async with AsyncExitStack() as stack:
        items = await stack.enter_async_context(_open_items(driver, store, own, options))
        failed = partial(troubled, items.backend)
        transcripts = IndexedTranscripts(items, driver, count=count, clock=clock, failed=failed)
        yield TranscriptBackend(
            transcripts,
            ConversationSearch(transcripts),
            IndexedArchive(driver, transcripts.writer, transcripts.index, count=count, clock=clock),
            UnavailableRetention(driver, clock=clock),
            RecallIndexItems(transcripts.items, transcripts.writer),
            transcripts.reader.damages,
        )


def langgraph_stores() -> ModuleType:
    """Import `langgraph_stores` on demand: it loads LangGraph, which is not needed for transcripts in tables."""
    from threadkeep.graph_store import langgraph_stores

    return langgraph_stores


@asynccontextmanager
async def _open_items(
    driver: Driver, store: BaseStore | DatabaseAddress, own: DatabaseAddress, options: StoreOptions
) -> AsyncIterator[Items]:
    stores = langgraph_stores()
    if not isinstance(store, DatabaseAddress):
        yield stores.items_of(store)
        return
    async with stores.open_own_store(store, options) as opened:
        if store.in_memory or store.fingerprint != own.fingerprint:
            yield stores.items_of(opened)
            return
    # The store was opened only to create LangGraph's table in our database; now use our own driver.
    yield TableItems(driver)
