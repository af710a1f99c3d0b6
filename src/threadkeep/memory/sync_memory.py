"""A memory with blocking methods, which runs on an event loop in an OS thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Self

from threadkeep.boundary import OnFailure
from threadkeep.errors import InvalidInput, ThreadkeepError
from threadkeep.history import memory as history
from threadkeep.history.blocking import Blocking, Called, Iterated, Wrapper
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.session import Session
from threadkeep.memory.memory import Memory, open_memory, open_memory_at
from threadkeep.memory.sync_parts import (
    SyncCompressor,
    SyncEpisodes,
    SyncGraphiti,
    SyncKnowledge,
    SyncManifests,
    SyncPending,
    SyncPersons,
    SyncProcedures,
    SyncProposals,
    SyncRetention,
    SyncRunRetention,
    SyncSummaries,
)
from threadkeep.observe import Observer
from threadkeep.records.messages import session_html
from threadkeep.store.address import DatabaseAddress

_SHOWN = 10
"""The number of newest messages that a notebook shows for a session."""


class SyncSession(Wrapper[Session]):
    """A `Session` with blocking methods."""

    append = Blocking(Session.append)
    record = Blocking(Session.record)
    tail = Blocking(Session.tail)
    page = Blocking(Session.page)
    window = Blocking(Session.window)
    deliver = Blocking(Session.deliver)
    find = Blocking(Session.find)
    at = Blocking(Session.at)
    answers_to = Blocking(Session.answers_to)
    superseded = Blocking(Session.superseded)
    question = Blocking(Session.question)
    count = Blocking(Session.count)
    info = Blocking(Session.info)
    update = Blocking(Session.update)
    reset = Blocking(Session.reset)
    delete = Blocking(Session.delete)
    take_back = Blocking(Session.take_back)
    take_back_turn = Blocking(Session.take_back_turn)
    edit = Blocking(Session.edit)
    regenerate = Blocking(Session.regenerate)
    waiting = Called(Session.waiting)

    def branch(self, at: int | None = None, *, session_id: str | None = None) -> SyncSession:
        """Create a session with copies of this session's messages; see `threadkeep.Session.branch`."""
        return SyncSession(self.wait_for(self.asynchronous.branch(at, session_id=session_id)), self.loop)

    def __repr__(self) -> str:
        return f"SyncSession({self.session_id!r})"

    def _repr_html_(self) -> str:
        """Return the newest messages as HTML for notebooks."""
        try:
            return session_html(self.session_id, self.user_id, self.tail(_SHOWN))
        except ThreadkeepError as error:
            return session_html(self.session_id, self.user_id, note=str(error))

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.asynchronous.session_id

    @property
    def user_id(self) -> str | None:
        """The user whose sessions are accessible; None for all users."""
        return self.asynchronous.user_id


class SyncMemory(Wrapper[Memory]):
    """A `Memory` with blocking methods; any OS thread may use it, including one with an event loop.

    ::

        with open_memory_sync("sqlite:////var/lib/threadkeep/threadkeep.db") as memory:
            memory.session("telegram:123").tail(20)

    A memory belongs to the process that opened it, so a forked child must open its own. `asynchronous` is the wrapped
    `Memory`.
    """

    sessions = Iterated(Memory.sessions)
    sessions_page = Blocking(Memory.sessions_page)
    search = Blocking(Memory.search)
    search_result = Blocking(Memory.search_result)
    restore = Blocking(Memory.restore)
    export = Iterated(Memory.export)
    export_archive = Iterated(Memory.export_archive)
    erase = Blocking(Memory.erase)
    verify_erased = Blocking(Memory.verify_erased)
    graph_store = Blocking(Memory.graph_store)
    overwrite_graph_store = Blocking(Memory.overwrite_graph_store)
    check_database = Blocking(Memory.check_database)
    damaged = Called(Memory.damaged)

    def __init__(self, memory: Memory, close: Callable[[], None]) -> None:
        super().__init__(memory, memory.loop)
        self._close = close
        self.observers = memory.observers
        self.pending = SyncPending(memory.pending, memory.loop)
        self.retention = SyncRetention(memory.retention, memory.loop)
        self.run_retention = SyncRunRetention(memory.run_retention, memory.loop)
        self.manifests = SyncManifests(memory.manifests, memory.loop)
        self.summaries = SyncSummaries(memory.summaries, memory.loop)
        self.compressor = SyncCompressor(memory.compressor, memory.loop)
        self.knowledge = SyncKnowledge(memory.knowledge, memory.loop)
        self.procedures = SyncProcedures(memory.procedures, memory.loop)
        self.persons = SyncPersons(memory.persons, memory.loop)
        self.episodes = SyncEpisodes(memory.episodes, memory.loop)
        self.proposals = SyncProposals(memory.proposals, memory.loop)
        self.graphiti = SyncGraphiti(memory.graphiti, memory.loop)

    @classmethod
    def open(cls, url: str, *, observers: Sequence[Observer] = (), options: MemoryOptions | None = None) -> Self:
        """Open a database until `close()` is called; see `threadkeep.open_memory`."""
        thread = _MemoryThread(open_memory(url, observers=observers, options=options))
        return cls(thread.start(), thread.close)

    @classmethod
    def companion_of(cls, memory: history.Memory) -> Self:
        """Open the database of a memory again, in an OS thread, until the given memory is closed.

        From then on, the returned memory does the search indexing and the retention instead of the given memory.

        Raises:
            InvalidInput: the database cannot be opened twice, for example because its LangGraph store is in memory.
        """
        address, options = memory.opened_with or (None, MemoryOptions())
        store = options.graph_store or address
        in_store = options.transcripts != "tables" and (not isinstance(store, DatabaseAddress) or store.in_memory)
        if address is None or in_store:
            raise InvalidInput(
                "A blocking call on the event loop of this memory would wait for itself; call the agent with ainvoke "
                "or astream, or open the memory with open_memory_sync."
            )
        thread = _MemoryThread(open_memory_at(address, [memory.observers], options))
        opened = cls(thread.start(), thread.close)
        memory.lifetime.push_async_callback(asyncio.to_thread, opened.close)
        memory.loop.post(memory.leave_work_for_all)
        return opened

    def __repr__(self) -> str:
        return "SyncMemory()"

    def close(self) -> None:
        """Store remaining data, close the database and end the thread. Later calls do nothing.

        In a forked child, this does nothing, because a fork does not copy the thread.
        """
        if self.loop.of_this_process:
            self._close()

    def session(self, session_id: str, *, user_id: str | None = None, workspace: str | None = None) -> SyncSession:
        """Return the session with the given id; nothing is read or written yet.

        With a workspace, messages of the session belong to that workspace.

        Raises:
            InvalidKey: the id is not valid; see `check_session_id`.
            InvalidInput: the `user_id` is not text of 1 to 512 printable characters.
        """
        return SyncSession(self.asynchronous.session(session_id, user_id=user_id, workspace=workspace), self.loop)


@contextmanager
def open_memory_sync(
    url: str, *, observers: Sequence[Observer] = (), options: MemoryOptions | None = None
) -> Iterator[SyncMemory]:
    """Open a database for blocking calls, and close it after the block; see `threadkeep.open_memory`."""
    memory = SyncMemory.open(url, observers=observers, options=options)
    try:
        yield memory
    finally:
        memory.close()


class _MemoryThread:
    """A thread with an event loop, on which a memory is open until `close` is called."""

    def __init__(self, opening: AbstractAsyncContextManager[Memory]) -> None:
        self._opening = opening
        self._opened: Future[Memory] = Future()
        self._closed: Future[None] = Future()
        # Use a daemon thread, so that a program can exit without closing its memory.
        self._thread = threading.Thread(target=self._serve, name="threadkeep-memory", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._reported = False

    def start(self) -> Memory:
        """Open the memory and wait until it is open."""
        self._thread.start()
        with OnFailure(self._stop_loop):
            return self._opened.result()

    def close(self) -> None:
        """Close the memory and wait until it is closed.

        Raises:
            InvalidInput: the caller is in the memory's own thread.
            ThreadkeepError: remaining data could not be stored; only the first call raises this.
        """
        if threading.current_thread() is self._thread:
            raise InvalidInput("The memory's own thread cannot close it; close it where it was opened.")
        reported, self._reported = self._reported, True
        self._stop_loop()
        self._thread.join()
        if not reported:
            self._closed.result()

    def _stop_loop(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has been closed already
                self._loop.call_soon_threadsafe(self._stop.set)

    def _serve(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - the error is raised in the waiting caller
            (self._closed if self._opened.done() else self._opened).set_exception(error)
        else:
            self._closed.set_result(None)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._opening as memory:
            memory.loop.dedicated = True
            self._opened.set_result(memory)
            await self._stop.wait()
