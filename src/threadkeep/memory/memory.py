"""`Memory`, the class that applications open: the sessions and knowledge of one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from threadkeep.errors import GraphitiError, KnowledgeNotFound, StoreUnavailable
from threadkeep.history import memory as history
from threadkeep.history.erase import Eraser, Verification
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.memory_parts import MemoryParts
from threadkeep.history.opening import open_sessions
from threadkeep.knowledge.episodes import Episodes
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.graphiti.service import Graphiti
from threadkeep.knowledge.learning import Learning
from threadkeep.knowledge.persons import Persons
from threadkeep.knowledge.procedures import Procedures
from threadkeep.knowledge.proposals import Proposals
from threadkeep.memory.person_archive import archive
from threadkeep.memory.person_export import PersonExport
from threadkeep.observe import Observer
from threadkeep.records.erasure import ErasedStore, EraseReceipt
from threadkeep.records.knowledge import Scope
from threadkeep.store.address import DatabaseAddress, parse_address
from threadkeep.store.api_keys import ApiKeys
from threadkeep.store.erasing import Erasable, TableErasing

_GROUPS = "groups in Graphiti"


class Memory(history.Memory):
    """The sessions, facts, procedures and persons of one database.

    `open_memory` opens a memory for an `async with` block. Without a block, as in notebooks, use `open` and `close`.
    """

    def __init__(self, parts: MemoryParts) -> None:
        super().__init__(parts)
        clock = parts.options.clock
        # Threadkeep's tables have no texts of sessions in a LangGraph store, so read these texts from the transcripts.
        messages_at = self._backend.transcripts.at if self.in_graph_store else None
        self.knowledge = Knowledge(parts.driver, observer=parts.observers, clock=clock)
        self.procedures = Procedures(parts.driver, clock=clock)
        self.persons = Persons(parts.driver, clock=clock)
        self.eraser = Eraser(self, TableErasing(parts.driver, clock=clock))
        self.episodes = Episodes(parts.driver, clock=clock, messages_at=messages_at)
        self.graphiti = Graphiti(
            parts.driver, parts.options.graphiti, self.knowledge, observer=parts.observers, clock=clock
        )
        self.proposals = Proposals(parts.driver, self.knowledge, self.graphiti, clock=clock)
        self._person_export = PersonExport(
            self,
            self.eraser,
            knowledge=self.knowledge,
            procedures=self.procedures,
            persons=self.persons,
            proposals=self.proposals,
        )
        self.api_keys = ApiKeys(parts.driver, clock=clock)
        self.learning = Learning(parts.driver, self.proposals, observer=parts.observers, messages_at=messages_at)

    async def erase(
        self, *, session_id: str | None = None, user_id: str | None = None, dry_run: bool = False, vacuum: bool = False
    ) -> EraseReceipt:
        """Erase a session, or a person under all their ids, from every store; return a signed receipt.

        The person's sessions are deleted completely; their messages in other users' sessions become empty rows. An
        interrupted call can be repeated. If `dry_run` is true, nothing is erased. If `vacuum` is true, the SQLite file
        or the PostgreSQL tables are rewritten; this also removes remains of earlier deletions, and blocks writes
        meanwhile.

        Raises:
            InvalidInput: both or neither of `session_id` and `user_id` are given.
            StoreUnavailable: a database does not answer; repeat the call.
        """
        wanted = await self.eraser.continued(await self.eraser.wanted(session_id, user_id), dry_run=dry_run)
        if dry_run:
            nothing = ErasedStore(_GROUPS, 0, 0)
            return await self.eraser.erase(wanted, dry_run=True, vacuum=vacuum, groups=nothing, remains=())
        await self.eraser.begin(wanted)
        try:
            groups, remains = await self._purge_graphs(wanted)
            return await self.eraser.erase(wanted, dry_run=False, vacuum=vacuum, groups=groups, remains=remains)
        except StoreUnavailable as error:
            error.add_note("Some data may be erased already; erase again to continue.")
            raise

    def export(self, *, user_id: str, after: str | None = None) -> AsyncIterator[str]:
        """Yield a person's data, under all their ids, as lines of JSON: the data that `erase` would delete.

        To continue an interrupted export, pass as `after` the value `after` of its last line of type `position`. The
        first line names the data that are left out, and the last line has the type `end`. Nothing is locked, so data
        that are written meanwhile may be missing.

        Raises:
            InvalidInput: the user id or the position is not valid.
            StoreUnavailable: a database does not answer; continue after the last position.
        """
        return self._person_export.lines(user_id, after)

    def export_archive(self, *, user_id: str) -> AsyncIterator[bytes]:
        """Yield a ZIP archive, in parts, with the lines of `export` and a page for people to read."""
        return archive(self.export(user_id=user_id), self.clock())

    async def verify_erased(self, receipt: EraseReceipt) -> Verification:
        """Return `gone`, `there` (data or an unfinished erasure exist), or `unsigned` (this database did not sign)."""
        return await self.eraser.verify(receipt)

    async def _purge_graphs(self, wanted: Erasable) -> tuple[ErasedStore, list[str]]:
        """Delete the Graphiti groups of the person or session; return counts, and descriptions of data that remain.

        For a person, the groups of all sessions that no longer exist are deleted too, because their owners are unknown.
        """
        remains: list[str] = []
        purged = 0
        deleted = set(await self.eraser.rows.groups_without_session()) if wanted.ids else set()
        if not self.graphiti.is_on and (groups := await self.eraser.groups(wanted) + len(deleted)):
            remains.append(f"Graphiti: {groups} groups; erase again in a process with Graphiti enabled")
        sessions = [*await self.eraser.rows.sessions(wanted), *sorted(deleted)]
        scopes = [Scope("user", id_) for id_ in wanted.ids] + [Scope("session", id_) for id_ in sessions]
        for scope in dict.fromkeys(scopes) if self.graphiti.is_on else ():
            try:
                found = await self.graphiti.purge(scope, all_ids=False)
            except GraphitiError as error:
                remains.append(f"Graphiti: a group of a {scope.kind} ({error.kind})")
            except KnowledgeNotFound:
                continue
            else:
                purged += not found.remains
                if found.remains:
                    remains.append(f"Graphiti: {found.remains} in a group of a {scope.kind}")
                elif scope.kind == "session" and scope.owner in deleted:
                    await self.eraser.rows.forget_group(scope.owner)
        return ErasedStore(_GROUPS, purged + len(remains), len(remains)), remains

    @classmethod
    async def open(cls, url: str, *, observers: Sequence[Observer] = (), options: MemoryOptions | None = None) -> Self:
        """Open a database until `close()` is awaited; see `threadkeep.open_memory`."""
        return await cls.open_at(parse_address(url), observers, options)

    @classmethod
    async def open_at(
        cls, address: DatabaseAddress, observers: Sequence[Observer], options: MemoryOptions | None
    ) -> Self:
        """Open the database at an address until `close()` is awaited."""
        lifetime = Lifetime(cls._opened(address, observers, options or MemoryOptions()))
        async with AsyncExitStack() as stack:
            memory = await stack.enter_async_context(lifetime)
            memory.lifetime = stack.pop_all()
        return memory

    @classmethod
    @asynccontextmanager
    async def _opened(
        cls, address: DatabaseAddress, observers: Sequence[Observer], options: MemoryOptions
    ) -> AsyncIterator[Self]:
        """Open the sessions of a database and, if the options enable it, start sending messages to Graphiti."""
        async with AsyncExitStack() as stack:
            opening = open_sessions(address, cls, observers=observers, options=options)
            memory = await stack.enter_async_context(opening)
            stack.push_async_callback(memory.graphiti.close)
            stack.push_async_callback(memory.learning.close)
            if memory.graphiti.is_on and options.background:
                await stack.enter_async_context(memory.graphiti.delivering())
            yield memory


@asynccontextmanager
async def open_memory(
    url: str, *, observers: Sequence[Observer] = (), options: MemoryOptions | None = None
) -> AsyncIterator[Memory]:
    """Open a database and bring its schema up to date.

    Args:
        url: `sqlite:////absolute/path.db`, `sqlite://` (in memory), or `postgresql://user@host/database`.
        observers: receive every event; see `threadkeep.observe`.
        options: see `MemoryOptions`.

    Raises:
        InvalidSettings: the URL does not name a SQLite or PostgreSQL database.
        StoreUnavailable: the database does not answer, or the folder of pending turns is not usable.
        InvalidInput: the options do not fit this database.
        SchemaTooNew: a newer Threadkeep has upgraded the schema.
    """
    async with open_memory_at(parse_address(url), observers, options) as memory:
        yield memory


@asynccontextmanager
async def open_memory_at(
    address: DatabaseAddress, observers: Sequence[Observer], options: MemoryOptions | None
) -> AsyncIterator[Memory]:
    """Open the database at an address for one block; see `open_memory`."""
    memory = await Memory.open_at(address, observers, options)
    try:
        yield memory
    finally:
        await memory.close()


class Lifetime[T](AbstractAsyncContextManager[T]):
    """A context manager that runs another one in a separate task, so that any task may open and close it.

    When an event loop ends, asyncio first cancels all tasks and waits for them: the separate task then closes its
    context managers in order. After that, asyncio closes all remaining async generators at once. This would close
    nested context managers that are generators twice, and fail ("asynchronous generator is already running").
    """

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> T:
        """Enter the context in a new task, and wait for it. If this fails, the error is raised in the caller."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(entered), name="threadkeep-memory")
        try:
            both: list[asyncio.Future[Any]] = [self._task, entered]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        if not entered.done():
            await self._task
        return entered.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the context. If this fails, the error is raised in the caller."""
        self._leave.set()
        if self._task is not None and not (self._task.done() and self._task.cancelled()):
            await self._task

    async def _live(self, entered: asyncio.Future[T]) -> None:
        async with self._context as opened:
            entered.set_result(opened)
            await self._leave.wait()
