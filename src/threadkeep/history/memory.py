"""The sessions of a database, and the base class of the memory object that `open_memory` yields."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakSet, WeakValueDictionary

from threadkeep.boundary import Tasks, retrieve_exception
from threadkeep.context.manifest import ConversationLocation
from threadkeep.errors import SessionDamaged, StoreError, WrongUser
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.graph_store.opening import ConversationArchive, TextSearch
from threadkeep.graph_store.retention import ConversationRetention
from threadkeep.graph_store.transcripts import ConversationContexts, GraphTranscripts, RecallIndexItems
from threadkeep.history.blocking import MemoryLoop
from threadkeep.history.compressor import Compressor
from threadkeep.history.graph_conversations import folder_of
from threadkeep.history.manifests import Manifests
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.memory_parts import Backend, LearnedFactors, MemoryParts, MessageSearch, TextDigests
from threadkeep.history.older_turns import OlderTurns
from threadkeep.history.pending import PendingOptions, PendingTurns
from threadkeep.history.recollection import SessionCache
from threadkeep.history.retention_rounds import RunPruner
from threadkeep.history.session import Session
from threadkeep.records import SearchHit, SearchResult, SessionInfo
from threadkeep.records.sessions import check_argument, check_each, check_user_id
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.archive import ArchivedPart, Restored
from threadkeep.store.backend import DamageRegister
from threadkeep.store.duties import ChannelTables
from threadkeep.store.null_stores import NullContexts, NullSearch, NullTranscripts
from threadkeep.store.runs import Runs
from threadkeep.store.spool import spool_files
from threadkeep.store.transcripts import SessionQuery, sessions_page

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

_ALL_AT_ONCE = 1_000_000  # all sessions on one page, because the read of any page reads the metadata of all


class Identity:
    """An object that identifies a database in this process; all memories of the database share it."""


_identities: WeakValueDictionary[tuple[int, str, str | None], Identity] = WeakValueDictionary()
_identifying = threading.Lock()


class LastWords(Protocol):
    """An object that must store data, such as a partial answer, before the memory closes or a session continues."""

    async def settle_all(self) -> None:
        """Store all data that this object has not stored yet."""

    async def settle_run(self, run_id: str, *, elsewhere: bool) -> None:
        """Store the partial answer of an ended run, or discard it if the run continues `elsewhere`."""


class Memory:
    """The sessions of one database; its subclass `threadkeep.Memory` also has facts, procedures and persons."""

    def __init__(self, parts: MemoryParts) -> None:
        driver, tables, options, observers = parts.driver, parts.tables, parts.options, parts.observers
        clock = options.clock
        self.opened_with: tuple[DatabaseAddress, MemoryOptions] | None = (parts.address, options)
        self._use(parts.backend)
        address = self._address = parts.address
        self._driver = driver
        self._conversations = parts.conversations
        self.runs = Runs(driver, clock=clock, trace_limits=options.run_trace_limits)
        self.channels = ChannelTables.over(driver, clock=clock)
        self.text_digests = TextDigests(self.channels.state)
        days = options.manifest_retention_days
        self.manifests = Manifests(tables.manifests, observer=observers, clock=clock, retention_days=days)
        self.manifests.origin = self
        self.summaries = tables.summaries
        self.token_factors = tables.token_factors
        self.learned_factors = LearnedFactors(tables.token_factors)
        self.counter = options.counter
        self.remembered_counts = parts.remembered_counts
        self.embeddings = tables.embeddings
        self.session_cache = SessionCache(options.context_cache_bytes)
        self.run_retention = RunPruner(self.runs, options.run_retention, observer=observers, clock=clock)
        self.compressor = Compressor(
            parts.backend.transcripts, tables.summaries, observer=observers, clock=clock, counter=options.counter
        )
        self.observers = observers
        self.clock = clock
        with _identifying:  # the identity differs in a forked process
            self.identity = _identities.setdefault((os.getpid(), address.fingerprint, address.memory_name), Identity())
        self.work_for_all: list[asyncio.Task[None]] = []
        self._unfinished = Tasks()
        self._running: set[asyncio.Future[None]] = set()
        self._speakers: WeakSet[LastWords] = WeakSet()
        self._null: Self | None = None
        self._namespaces: dict[tuple[object, GraphLayout], Self] = {}
        self._opening = asyncio.Lock()
        self.loop = MemoryLoop()
        self.lifetime = AsyncExitStack()

    def _use(self, backend: Backend) -> None:
        self._backend = backend
        self.contexts = backend.contexts
        self.older_turns = backend.older_turns
        self.pending = backend.pending
        self.retention = backend.retention

    async def check_database(self) -> None:
        """Check that the database answers, and that a SQLite file is still the file that was opened.

        Raises:
            StoreUnavailable: the database does not answer, or its file was replaced; the error says what to do.
        """
        await self._driver.check_file()
        await self.runs.run("readyz")  # a lookup by primary key; no run has this id

    async def graph_store(self) -> BaseStore:
        """Return the LangGraph store that the options name; a store that is opened here closes with this memory.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        return await self._conversations.store()

    async def has_graph_store(self) -> bool:
        """Return True if this memory's LangGraph store is open, or if the store's table exists in its database."""
        return await self._conversations.exists()

    async def overwrite_graph_store(self, *, vacuum: bool) -> str | None:
        """Overwrite deleted items in a LangGraph store's own file, and rewrite the file if `vacuum` is true.

        Return a description of the data that remain, or None if none remain.
        """
        return await self._conversations.overwrite(self._address, vacuum=vacuum)

    async def namespace(self, layout: GraphLayout, store: BaseStore | None = None) -> Self:
        """Return the memory of the conversations that agents store in a LangGraph store, by default `graph_store()`.

        The memory is opened on first use and closes with this memory. The tables have no rows for these conversations,
        so they have no summaries and no stored start of the window. Turns that cannot be written wait in a separate
        folder below this memory's folder. If this memory's own store is passed, the layout is registered for other
        processes in the background.
        """
        check_argument("layout", layout, GraphLayout, required=True)
        given = store is not None
        store = await self.graph_store() if store is None else store
        if given and self._conversations.is_unregistered(store, layout):
            _ = self._begin(self._conversations.register(layout))
        key = (self._conversations.name_of(store), layout)
        async with self._opening:
            if key not in self._namespaces:
                transcripts, options = self._conversations.transcripts(store, layout), self.pending.options
                if options.folder is not None:
                    options = replace(options, folder=options.folder / folder_of(layout))
                pending = self.pending.of_namespace(transcripts, options, namespace=layout.namespace)
                await pending.start()
                forget = partial(self.runs.records.forget_runs, only_idle=True)
                rows = ConversationRetention(transcripts, forget_runs=forget)
                self._namespaces[key] = self._at(
                    Backend(
                        transcripts=transcripts,
                        index=MessageSearch(TextSearch(transcripts, page_sessions=_ALL_AT_ONCE), self.observers),
                        archive=ConversationArchive(transcripts.writer, count=self.counter, clock=self.clock),
                        damages=transcripts.reader.damages,
                        contexts=ConversationContexts(transcripts.items, transcripts.writer),
                        older_turns=OlderTurns(
                            transcripts,
                            self.embeddings,
                            self.observers,
                            stored=RecallIndexItems(transcripts.items, transcripts.writer),
                        ),
                        pending=pending,
                        retention=self.retention.of_namespace(rows, pending),
                    )
                )
            return self._namespaces[key]

    async def namespaces(self) -> list[tuple[object, GraphLayout, Self]]:
        """Return all opened or registered layouts of agents' conversations, each with its store's name and its memory.

        Raises:
            StoreUnavailable: the database of the LangGraph store or of this memory does not answer.
        """
        for layout in await self._conversations.layouts.all():
            if not self.has_namespace(await self.graph_store(), layout):
                await self.namespace(layout)
        return [(store, layout, memory) for (store, layout), memory in self._namespaces.items()]

    async def start(self) -> None:
        """Take over the turns that dead processes left on disk, and write them."""
        await self.pending.start()
        folder = self.pending.options.folder
        if folder is None or not folder.is_dir():
            return
        for layout in await self._conversations.layouts.all():
            if spool_files(folder / folder_of(layout)):
                with contextlib.suppress(StoreError):  # the next start or turn tries again
                    await self.namespace(layout)

    @property
    def in_graph_store(self) -> bool:
        """True if the messages of this memory's sessions are in a LangGraph store."""
        return isinstance(self._backend.transcripts, GraphTranscripts)

    def has_namespace(self, store: BaseStore, layout: GraphLayout) -> bool:
        """Return True if this memory's own sessions are in this store, in this layout."""
        return self.in_graph_store and layout.finds_same_as(GraphLayout()) and self._conversations.is_own(store)

    async def empty_messages(self, session_id: str, seqs: Sequence[int]) -> None:
        """Remove the texts of messages in a LangGraph store for an erasure; `TableErasing` does this for tables."""
        transcripts = self._backend.transcripts
        if isinstance(transcripts, GraphTranscripts):
            await transcripts.empty(session_id, seqs)
            self.older_turns.forget(session_id)
            self.session_cache.forget(session_id)

    async def memory_of(self, conversation: ConversationLocation) -> Self:
        """Return the memory that has a conversation's messages, if it is open, or else a memory of its layout.

        Raises:
            StoreUnavailable: the database of the LangGraph store does not answer.
        """
        wanted = GraphLayout(conversation.namespace, conversation.meta_key_suffix, value_field=conversation.value_field)
        opened = [memory for (_, layout), memory in self._namespaces.items() if layout.finds_same_as(wanted)]
        for memory in opened:
            if await memory.session(conversation.key).count():
                return memory
        return await self.namespace(wanted)

    def damaged(self, user_id: str | None = None) -> list[SessionDamaged]:
        """Return the damaged items that this process has found, of one user or of all users.

        Only sessions in a LangGraph store can be damaged in this way.
        """
        return self._backend.damages.of(user_id)

    def _at(self, backend: Backend) -> Self:
        """Return a copy of this memory that reads and writes messages in the stores of `backend`."""
        other = copy.copy(self)
        other._use(backend)  # noqa: SLF001 - it is a copy of this object
        other.opened_with, other.identity, other.lifetime = None, Identity(), AsyncExitStack()
        other.session_cache = SessionCache(0)
        return other

    def null_memory(self) -> Self:
        """Return a memory with this database that stores no messages, for runs that belong to no session."""
        if self._null is None:
            nothing = NullTranscripts()
            self._null = self._at(
                replace(
                    self._backend,
                    transcripts=nothing,
                    index=MessageSearch(NullSearch(), self.observers),
                    damages=DamageRegister(),
                    contexts=NullContexts(),
                    older_turns=OlderTurns(nothing, self.embeddings, self.observers),
                    pending=PendingTurns(nothing, PendingOptions(), observer=self.observers, clock=self.clock),
                )
            )
        return self._null

    async def finish[**P, T](
        self, work: Callable[P, Coroutine[Any, Any, T]], *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Run work that is safe to repeat. If the caller is cancelled, run it again in the background.

        Closing the memory waits for the work.
        """
        running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running.add(running)
        try:
            return await work(*arguments, **named)
        except asyncio.CancelledError:
            _ = self._begin(work(*arguments, **named))
            raise
        finally:
            self._running.discard(running)
            running.set_result(None)

    def _begin[T](self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._unfinished.start(work)
        task.add_done_callback(retrieve_exception)
        return task

    def leave_work_for_all(self) -> None:
        """Stop search indexing and retention here; another memory of the same database must run them.

        Call this if code blocks the event loop. Such code could wait for a row that a task of this memory has locked,
        and the task could never end its transaction.
        """
        for task in self.work_for_all:
            task.cancel()

    def before_closing(self, speaker: LastWords) -> None:
        """Register an object that must store its data before the memory closes; only a weak reference is kept."""
        self._speakers.add(speaker)

    async def settle(self) -> None:
        """Store all data that is not stored yet, wait for unfinished work, and raise the first error."""
        results = await asyncio.gather(*(one.settle_all() for one in list(self._speakers)), return_exceptions=True)
        running = set(self._running)
        while working := self._unfinished | running:
            await asyncio.wait(working)
            running.clear()
        null = [] if self._null is None else [self._null]
        for other in (*null, *self._namespaces.values()):
            await other.pending.close()
        for error in filter(None, results):
            raise error

    async def close(self) -> None:
        """Store data that is not written yet, and close the database; further calls do nothing."""
        await self.lifetime.aclose()

    async def settle_run(self, run_id: str, *, elsewhere: bool = False) -> None:
        """Store the partial answer of an interrupted run before its session continues.

        If `elsewhere` is true, discard the answer: another process executes the run again, or its messages are removed.
        """
        for speaker in list(self._speakers):
            await speaker.settle_run(run_id, elsewhere=elsewhere)
        if self._unfinished:
            # Wait, because the write of a caller that was cancelled may still be running.
            await asyncio.wait(self._unfinished)

    def session(self, session_id: str, *, user_id: str | None = None, workspace: str | None = None) -> Session:
        """Return the session with this id; nothing is read or written yet.

        With a workspace, messages of the session belong to that workspace.

        Raises:
            InvalidKey: the id is not valid; see `check_session_id`.
            InvalidInput: the `user_id` is not text of 1 to 512 printable characters.
        """
        return Session(
            session_id,
            self._backend,
            user_id=user_id,
            observer=self.observers,
            cache=self.session_cache,
            workspace=workspace,
        )

    async def sessions(
        self, user_id: str | None = None, query: str | None = None, *, active: bool | None = None, page_size: int = 100
    ) -> AsyncIterator[SessionInfo]:
        """Yield sessions, newest activity first; see `SessionQuery` for the filters."""
        wanted = SessionQuery(user_id, query, active, page_size)
        while True:
            found, cursor = await self.sessions_page(wanted)
            for info in found:
                yield info
            if cursor is None:
                return
            wanted = replace(wanted, cursor=cursor)

    async def sessions_page(self, query: SessionQuery) -> tuple[list[SessionInfo], tuple[datetime, str] | None]:
        """Return one page of sessions, newest activity first, and the cursor of the next page."""
        check_argument("query", query, SessionQuery, required=True)
        return await sessions_page(self._backend.transcripts, query)

    async def search(
        self, query: str, *, user_id: str | None = None, limit: int = 10, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return up to `limit` messages that contain all words of a query, best first.

        In the session `session_id`, only messages with a `seq` above `after` are searched. All messages that were
        stored before the call can be found. If indexing them takes longer than two seconds (after an import or an
        upgrade), it continues in the background; `search_result` reports this.
        """
        result = await self.search_result(query, user_id=user_id, limit=limit, session_id=session_id, after=after)
        return result.hits

    async def search_result(
        self, query: str, *, user_id: str | None = None, limit: int = 10, session_id: str | None = None, after: int = 0
    ) -> SearchResult:
        """Search as `search` does; also return the number of unindexed messages, and sessions with unreadable items."""
        check_user_id(user_id)
        for name, value, kind in (("query", query, str), ("limit", limit, int), ("after", after, int)):
            check_argument(name, value, kind, required=True)
        check_argument("session_id", session_id, str)
        found = await self._backend.index.search(
            query, limit=limit, user_id=user_id, session_id=session_id, after=after
        )
        return replace(found, damaged=damaged_sessions(self.damaged(user_id)))

    async def restore(self, parts: Sequence[ArchivedPart]) -> list[Restored | WrongUser]:
        """Store exported messages with their ids, times and tokens, in one transaction.

        In a LangGraph store, each part has its own transaction. Existing messages are not stored again. Return
        one result for each part, in order: a `WrongUser` if the session of the part belongs to another user.

        Raises:
            InvalidKey, InvalidInput: a session id or a user id is not valid; nothing was stored.
            StoreUnavailable: the database is not available; on a retry, messages that have an id are not stored twice.
        """
        check_each("parts", parts, ArchivedPart)
        for part in parts:
            self.session(part.info.session_id, user_id=part.info.user_id)
        return await self._backend.archive.restore(parts)

    async def keep_index(self) -> None:
        """Keep the search index up to date until cancelled; after a failure, the next pass tries again."""
        await self._backend.index.keep_up()


def damaged_sessions(items: Sequence[SessionDamaged]) -> tuple[str, ...]:
    """Return the ids of the sessions to which these unreadable items belong, each once."""
    return tuple(sorted({item.session_id for item in items}))
