"""All sessions of a database: the object that `open_memory` yields."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, get_args
from weakref import WeakSet

from threadkeep.context.remembered import RememberedCounts
from threadkeep.context.tokens import TokenCounter, estimate
from threadkeep.errors import InvalidInput, StoreError, WrongUser
from threadkeep.history.compressor import Compressor
from threadkeep.history.learned_factors import LearnedFactors
from threadkeep.history.manifests import Manifests
from threadkeep.history.older_turns import OlderTurns
from threadkeep.history.pending import PendingOptions, PendingTurns
from threadkeep.history.retention import Pruner, RetentionOptions
from threadkeep.history.run_retention import RunPruner, RunRetention
from threadkeep.history.session import Session
from threadkeep.observe import Observers
from threadkeep.records import SearchHit, SessionInfo
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.archive import ArchivedPart, Restored, Restoring
from threadkeep.store.context_tables import ContextTables
from threadkeep.store.driver import StoreOptions
from threadkeep.store.keeping import Keeping
from threadkeep.store.runs import Runs
from threadkeep.store.runs.runs import STALE_SECONDS
from threadkeep.store.runs.trace import TraceLimits
from threadkeep.store.search import Search
from threadkeep.store.transcripts import SessionQuery, Transcripts
from threadkeep.store.unkept import UnkeptContexts, UnkeptTranscripts

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

_SEARCH_PATIENCE_SECONDS = 2.0
_INDEX_PAUSE_SECONDS = 5.0


def utc_now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class MemoryOptions:
    """How a memory is opened, beyond its database.

    `counter` counts the tokens of a message when it is stored. `manifest_retention_days` says how long the records of
    model calls are kept: None is for good, 0 is not at all. `retention` says how long messages are, `run_retention` how
    long runs that are over; what happens in a run is kept within `run_trace_limits`, and a process that has runs and is
    not heard of for `run_stale_seconds` is taken for dead. `background` keeps the search index up to date, delivers
    pending writes, writes manifests and carries out retention while the memory is open; short-lived commands turn it
    off. `transcripts` says where messages are kept: with `graph_store` it is the LangGraph store of a database, of this
    one if none is named, or one that is handed in and stays open.
    """

    store: StoreOptions = StoreOptions()
    pending: PendingOptions = PendingOptions()
    counter: TokenCounter = estimate
    clock: Callable[[], datetime] = utc_now
    manifest_retention_days: float | None = 30.0
    retention: RetentionOptions = RetentionOptions()
    run_retention: RunRetention = RunRetention()
    run_stale_seconds: float = STALE_SECONDS
    run_trace_limits: TraceLimits = TraceLimits()
    background: bool = True
    transcripts: Keeping = "tables"
    graph_store: DatabaseAddress | BaseStore | None = None

    def __post_init__(self) -> None:
        """Refuse what would fail at the first message.

        Raises:
            InvalidInput: names the option.
        """
        for name, function in (("counter", self.counter), ("clock", self.clock)):
            if not callable(function):
                raise InvalidInput(f"The {name} of MemoryOptions is a function.")
        if not self.run_stale_seconds > 0:
            raise InvalidInput("run_stale_seconds of MemoryOptions is a number above 0.")
        if self.transcripts not in get_args(Keeping.__value__):
            raise InvalidInput(f"transcripts is one of {', '.join(get_args(Keeping.__value__))}.")


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

    def __init__(
        self,
        transcripts: Transcripts,
        *,
        index: Search,
        archive: Restoring,
        runs: Runs,
        tables: ContextTables,
        manifests: Manifests,
        pending: PendingTurns,
        retention: Pruner,
        run_retention: RunPruner,
        compressor: Compressor,
        learned_factors: LearnedFactors,
        counter: TokenCounter,
        observers: Observers,
        clock: Callable[[], datetime],
    ) -> None:
        self._transcripts = transcripts
        self._index = index
        self._archive = archive
        self.runs = runs
        self.contexts = tables.contexts
        self.manifests = manifests
        manifests.origin = self
        self.summaries = tables.summaries
        self.token_factors = tables.token_factors
        self.learned_factors = learned_factors
        self.counter = counter
        self.remembered_counts = RememberedCounts()
        self.embeddings = tables.embeddings
        self.older_turns = OlderTurns(transcripts, tables.embeddings, observers)
        self.pending = pending
        self.retention = retention
        self.run_retention = run_retention
        self.compressor = compressor
        self.observers = observers
        self.clock = clock
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._speakers: WeakSet[LastWords] = WeakSet()
        self._others: dict[Hashable, Memory] = {}
        self._opening = asyncio.Lock()

    async def beside(self, name: Hashable, make: Callable[[], Transcripts], folder: str) -> Memory:
        """The memory of other transcripts under a name, opened at its first use; it closes with this one.

        The tables know nothing of them: there are no anchors, summaries or records of calls. Turns that cannot be
        written wait in a folder of their own below that of this memory's.
        """
        async with self._opening:
            if name not in self._others:
                transcripts, options = make(), self.pending.options
                if options.folder is not None:
                    options = replace(options, folder=options.folder / folder)
                pending = PendingTurns(transcripts, options, observer=self.observers, clock=self.clock)
                await pending.start()
                self._others[name] = self._elsewhere(transcripts, pending)
            return self._others[name]

    def _elsewhere(self, transcripts: Transcripts, pending: PendingTurns) -> Memory:
        other = copy.copy(self)
        other._transcripts = transcripts  # noqa: SLF001 - it is a copy
        other.pending = pending
        other.contexts = UnkeptContexts()
        other.manifests = self.manifests.unkept()
        other.older_turns = OlderTurns(transcripts, self.embeddings, self.observers)
        return other

    def forgetting(self) -> Memory:
        """A memory that keeps nothing, for runs that belong to no session."""
        if None not in self._others:
            nothing = UnkeptTranscripts()
            pending = PendingTurns(nothing, PendingOptions(), observer=self.observers, clock=self.clock)
            self._others[None] = self._elsewhere(nothing, pending)
        return self._others[None]

    async def finish[**P, T](self, work: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """Do work that must not stop half-way when its caller is cancelled; closing the memory waits for it."""

        async def working() -> T:
            return await work(*arguments, **named)

        task = asyncio.create_task(working())
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

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
        for other in self._others.values():
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

        What was stored before the call is found, unless so much is new (after an import) that indexing it takes longer
        than two seconds: then it goes on in the background.
        """
        await self._index.catch_up(seconds=_SEARCH_PATIENCE_SECONDS)
        return await self._index.search(query, limit=limit, user_id=user_id, session_id=session_id, after=after)

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
        while True:
            with contextlib.suppress(StoreError):
                await self._index.catch_up()
            await asyncio.sleep(_INDEX_PAUSE_SECONDS)
