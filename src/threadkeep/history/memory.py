"""All sessions of a database: the object that `open_memory` yields."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from threadkeep.context.manifest import ConversationPlace
from threadkeep.context.remembered import RememberedCounts
from threadkeep.errors import InvalidInput, StoreError, WrongUser
from threadkeep.history.graph_conversations import folder_of
from threadkeep.history.memory_parts import MemoryParts
from threadkeep.history.older_turns import OlderTurns
from threadkeep.history.pending import PendingOptions, PendingTurns
from threadkeep.history.searching import Searching
from threadkeep.history.session import Session
from threadkeep.records import SearchHit, SearchResult, SessionInfo
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.graph_transcripts.indexed import IndexedTranscripts
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.search import Search
from threadkeep.store.spool import spool_files
from threadkeep.store.transcripts import SessionQuery, Transcripts
from threadkeep.store.unkept import UnkeptContexts, UnkeptSearch, UnkeptTranscripts

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


class LastWords(Protocol):
    """Somebody who has something to store before the memory closes, or the session goes on."""

    async def settle_all(self) -> None:
        """Store it."""
        ...

    async def settle_run(self, run_id: str, *, elsewhere: bool) -> None:
        """Store what a run had said that is over; forget it where the run goes on elsewhere, and says it again."""
        ...


class Memory:
    """The sessions of one database. Made by `threadkeep.open_memory`, which also closes it."""

    def __init__(self, parts: MemoryParts) -> None:
        tables, transcripts, observers = parts.tables, parts.transcripts, parts.observers
        self._transcripts = transcripts
        self._searching = Searching(parts.index, observers)
        self._archive = parts.archive
        self._conversations = parts.conversations
        self.runs = parts.runs
        self.contexts = tables.contexts
        self.manifests = parts.manifests
        self.manifests.origin = self
        self.summaries = tables.summaries
        self.token_factors = tables.token_factors
        self.learned_factors = parts.learned_factors
        self.counter = parts.counter
        self.remembered_counts = RememberedCounts()
        self.embeddings = tables.embeddings
        self.older_turns = OlderTurns(transcripts, tables.embeddings, observers)
        self.pending = parts.pending
        self.retention = parts.retention
        self.run_retention = parts.run_retention
        self.compressor = parts.compressor
        self.observers = observers
        self.clock = parts.clock
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._speakers: WeakSet[LastWords] = WeakSet()
        self._nowhere: Memory | None = None
        self._others: dict[tuple[object, GraphLayout], Memory] = {}
        self._opening = asyncio.Lock()

    async def graph_store(self) -> BaseStore:
        """The LangGraph store of the options' database, opened at its first use; it closes with this memory.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        return await self._conversations.store()

    async def beside(self, layout: GraphLayout, store: BaseStore | None = None) -> Memory:
        """The memory of the conversations that agents keep in a store by themselves; by default in `graph_store()`.

        It is opened at its first use, and closes with this one. The tables know nothing of them: there are no anchors
        and no summaries. Turns that cannot be written wait in a folder of their own below that of this memory's.
        """
        told = store is not None
        store = await self.graph_store() if store is None else store
        if told and self._conversations.is_news(store, layout):
            _ = self._begin(self._conversations.note(layout))
        key = (self._conversations.name_of(store), layout)
        async with self._opening:
            if key not in self._others:
                transcripts, options = self._conversations.transcripts(store, layout), self.pending.options
                if options.folder is not None:
                    options = replace(options, folder=options.folder / folder_of(layout))
                pending = self.pending.beside(transcripts, options)
                await pending.start()
                other = self._elsewhere(transcripts, pending, self._conversations.search(transcripts))
                other._archive = self._conversations.archive(transcripts)  # noqa: SLF001 - it is a copy
                rows = self._conversations.retention(transcripts, self.runs.records.forget_runs_at_rest)
                other.retention = self.retention.beside(rows, pending)
                self._others[key] = other
            return self._others[key]

    async def besides(self) -> list[tuple[object, GraphLayout, Memory]]:
        """The memories of all conversations that agents are known to keep by themselves, with their stores and layouts.

        Raises:
            StoreUnavailable: the graph store's database does not answer, or this memory's.
        """
        for layout in await self._conversations.layouts.all():
            if not self.keeps(await self.graph_store(), layout):
                await self.beside(layout)
        return [(store, layout, memory) for (store, layout), memory in self._others.items()]

    async def start(self) -> None:
        """Take over what dead processes could not write, here and in conversations beside, and begin to deliver."""
        await self.pending.start()
        folder = self.pending.options.folder
        if folder is None or not folder.is_dir():
            return
        for layout in await self._conversations.layouts.all():
            if spool_files(folder / folder_of(layout)):
                with contextlib.suppress(StoreError):  # the next start tries it again, and so does the next turn
                    await self.beside(layout)

    def keeps(self, store: BaseStore, layout: GraphLayout) -> bool:
        """Whether this memory's own sessions are the conversations of a layout in a store."""
        in_store = isinstance(self._transcripts, IndexedTranscripts)
        return in_store and layout.lies_as(GraphLayout()) and self._conversations.is_own(store)

    async def holding(self, place: ConversationPlace) -> Memory:
        """The memory that has a conversation; one without it if none has.

        Raises:
            StoreUnavailable: the graph store's database does not answer.
        """
        wanted = GraphLayout(place.namespace, place.meta_key_suffix, value_field=place.value_field)
        opened = [memory for (_, layout), memory in self._others.items() if layout.lies_as(wanted)]
        for memory in opened:
            if await memory.session(place.key).count():
                return memory
        return await self.beside(wanted)

    def _elsewhere(self, transcripts: Transcripts, pending: PendingTurns, index: Search) -> Memory:
        other = copy.copy(self)
        other._transcripts, other._searching = transcripts, Searching(index, self.observers)  # noqa: SLF001 - a copy
        other.pending = pending
        other.contexts = UnkeptContexts()
        other.older_turns = OlderTurns(transcripts, self.embeddings, self.observers)
        return other

    def forgetting(self) -> Memory:
        """A memory that keeps nothing, for runs that belong to no session."""
        if self._nowhere is None:
            nothing = UnkeptTranscripts()
            pending = PendingTurns(nothing, PendingOptions(), observer=self.observers, clock=self.clock)
            self._nowhere = self._elsewhere(nothing, pending, UnkeptSearch())
        return self._nowhere

    async def finish[**P, T](self, work: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """Do work that must not stop half-way when its caller is cancelled; closing the memory waits for it."""
        return await asyncio.shield(self._begin(work(*arguments, **named)))

    def _begin[T](self, work: Awaitable[T]) -> asyncio.Task[T]:
        async def working() -> T:
            return await work

        task = asyncio.create_task(working())
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # a caller who was cancelled does not ask for it

    def before_closing(self, speaker: LastWords) -> None:
        """Let somebody store last words when the memory closes; whoever is not there any more then has none."""
        self._speakers.add(speaker)

    async def settle(self) -> None:
        """Do what was left for the end, and wait for what is unfinished; the first error is raised after all of it."""
        results = await asyncio.gather(*(one.settle_all() for one in list(self._speakers)), return_exceptions=True)
        while self._unfinished:
            await asyncio.gather(*self._unfinished, return_exceptions=True)
        nowhere = [] if self._nowhere is None else [self._nowhere]
        for other in (*nowhere, *self._others.values()):
            await other.pending.close()
        for error in filter(None, results):
            raise error

    async def settle_run(self, run_id: str, *, elsewhere: bool = False) -> None:
        """Have what a run that was cut off had said stored now, before its session goes on.

        Where it goes on `elsewhere` that is forgotten: it is said there again.
        """
        for speaker in list(self._speakers):
            await speaker.settle_run(run_id, elsewhere=elsewhere)
        if self._unfinished:
            # Whoever was cancelled did not wait for what he had begun to write.
            await asyncio.wait(self._unfinished)

    def session(self, session_id: str, *, user_id: str | None = None) -> Session:
        """The session with an id; nothing is read or written yet.

        Raises:
            InvalidKey: the id is not a valid key; `threadkeep.escape_key` makes one of any text.
        """
        return Session(
            session_id,
            self._transcripts,
            self.pending,
            contexts=self.contexts,
            user_id=user_id,
            observer=self.observers,
            forget=self.older_turns.forget,
        )

    async def sessions(
        self, user_id: str | None = None, query: str | None = None, *, active: bool | None = None, page_size: int = 100
    ) -> AsyncIterator[SessionInfo]:
        """All sessions, newest activity first; of one user, or with a text in title, last message or id."""
        wanted = SessionQuery(user_id, query, active, page_size)
        while True:
            found, cursor = await self.sessions_page(wanted)
            for info in found:
                yield info
            if cursor is None:
                return
            wanted = replace(wanted, cursor=cursor)

    async def sessions_page(self, query: SessionQuery) -> tuple[list[SessionInfo], tuple[datetime, str] | None]:
        """One page of sessions, and the cursor of the next (None at the end)."""
        if query.limit < 1:
            raise InvalidInput("A page of sessions has at least one.")
        found = await self._transcripts.sessions(replace(query, limit=query.limit + 1))
        if len(found) <= query.limit:
            return found, None
        last = found[query.limit - 1]
        return found[: query.limit], (last.updated_at, last.session_id)

    async def search(
        self, query: str, *, user_id: str | None = None, limit: int = 10, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Messages that have all words of a query, best first; of one user or of all, of one session after a `seq`.

        What was stored before the call is found, unless so much is new there (after an import or an upgrade) that
        indexing it takes longer than two seconds: then it goes on in the background. `search_result` tells.
        """
        result = await self.search_result(query, user_id=user_id, limit=limit, session_id=session_id, after=after)
        return result.hits

    async def search_result(
        self, query: str, *, user_id: str | None = None, limit: int = 10, session_id: str | None = None, after: int = 0
    ) -> SearchResult:
        """The same, with how many messages were not looked at, since they are not indexed yet."""
        return await self._searching.search(query, limit=limit, user_id=user_id, session_id=session_id, after=after)

    async def restore(self, parts: Sequence[ArchivedPart]) -> list[Restored | WrongUser]:
        """Store messages that were exported, with the ids, times and tokens they had, in one transaction.

        What is there already is not stored again. A part of a session that belongs to another user than it says is left
        out, and its answer is the error; the answers are in the order of the parts.

        Raises:
            InvalidKey, InvalidInput: a session id or a user id cannot be used; nothing was stored.
            StoreUnavailable: the database did not take it; trying again is safe for messages that have an id.
        """
        for part in parts:
            self.session(part.info.session_id, user_id=part.info.user_id)
        return await self._archive.restore(parts)

    async def keep_index(self) -> None:
        """Keep the search index up to date until cancelled; a failure is tried again at the next round."""
        await self._searching.keep_up()
