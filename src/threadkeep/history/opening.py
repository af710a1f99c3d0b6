"""Opens a memory: its database, the transcripts, and whatever goes on beside them, on one exit stack."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace

from threadkeep.errors import InvalidInput, StoreError
from threadkeep.history.all_retention import AllRetention
from threadkeep.history.compressor import Compressor
from threadkeep.history.graph_conversations import GraphConversations, Opening
from threadkeep.history.learned_factors import LearnedFactors
from threadkeep.history.manifests import Manifests
from threadkeep.history.memory import Memory
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.memory_parts import MemoryParts
from threadkeep.history.pending import PendingOptions, PendingTurns, folder_of
from threadkeep.history.retention import Pruner
from threadkeep.history.retention_schedule import Prunes, RetentionSchedule
from threadkeep.history.run_retention import RunPruner
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Backend, Observer, Observers, Outcome
from threadkeep.store.address import DatabaseAddress, parse_address
from threadkeep.store.context_tables import ContextTables
from threadkeep.store.conversation_layouts import ConversationLayouts
from threadkeep.store.driver import Driver
from threadkeep.store.duties import Duties
from threadkeep.store.graph_transcripts.items import ConversationChanged
from threadkeep.store.graph_transcripts.unretained import NOT_AVAILABLE
from threadkeep.store.keeping import Kept, Means, keep_in_graph_store, keep_in_tables
from threadkeep.store.migrations import migrate
from threadkeep.store.opening import open_database
from threadkeep.store.runs import Runs


@asynccontextmanager
async def open_memory(
    url: str, *, observers: Sequence[Observer] = (), options: MemoryOptions | None = None
) -> AsyncIterator[Memory]:
    """Open a database and bring its schema up to date.

    Args:
        url: `sqlite:////absolute/path.db`, `sqlite://` (in memory), or `postgresql://user@host/database`.
        observers: told of every event; see `threadkeep.observe`.
        options: pool sizes, durability, token counter, clock.

    Raises:
        InvalidSettings: the URL names no database.
        StoreUnavailable: the database does not answer.
        SchemaTooNew: a newer Threadkeep has been here.
    """
    options = options or MemoryOptions()
    address = parse_address(url)
    everyone = Observers(*observers)
    async with AsyncExitStack() as stack:
        driver = await stack.enter_async_context(open_database(address, options.store))
        # Beside the stack: what is opened late closes when nobody has anything to store any more.
        late = await stack.enter_async_context(AsyncExitStack())
        await migrate(driver, options.clock())
        conversations = GraphConversations(
            address if options.graph_store is None else options.graph_store,
            ConversationLayouts(driver, clock=options.clock),
            Opening(late, options.store),
            count=options.counter,
            clock=options.clock,
            observer=everyone,
        )
        kept = await stack.enter_async_context(await _keeping(address, driver, options, everyone, conversations))
        memory = _assembled(stack, address, driver, kept, options, everyone, conversations=conversations)
        if options.background:
            await _begin_background(stack, memory, driver, options)
        stack.push_async_callback(memory.older_turns.close)
        stack.push_async_callback(memory.settle)
        yield memory


def _assembled(
    stack: AsyncExitStack,
    address: DatabaseAddress,
    driver: Driver,
    kept: Kept,
    options: MemoryOptions,
    observers: Observers,
    *,
    conversations: GraphConversations,
) -> Memory:
    """The memory over an open database; what it is made of closes with the stack."""
    transcripts, clock = kept.transcripts, options.clock
    tables = ContextTables.over(driver, clock=clock)
    manifests = Manifests(
        tables.manifests, observer=observers, clock=clock, retention_days=options.manifest_retention_days
    )
    pending = PendingTurns(transcripts, _waiting(address, options.pending), observer=observers, clock=clock)
    compressor = Compressor(transcripts, tables.summaries, observer=observers, clock=clock, counter=options.counter)
    learned_factors = LearnedFactors(tables.token_factors)
    for part in (manifests, pending, compressor, learned_factors):
        stack.push_async_callback(part.close)
    runs = Runs(driver, clock=clock, stale_seconds=options.run_stale_seconds, trace_limits=options.run_trace_limits)
    parts = MemoryParts(
        transcripts=transcripts,
        index=kept.search,
        archive=kept.archive,
        runs=runs,
        tables=tables,
        manifests=manifests,
        pending=pending,
        retention=Pruner(kept.retention, options.retention.rules, pending=pending, observer=observers, clock=clock),
        run_retention=RunPruner(runs, options.run_retention, observer=observers, clock=clock),
        compressor=compressor,
        learned_factors=learned_factors,
        counter=options.counter,
        observers=observers,
        clock=clock,
        conversations=conversations,
    )
    return Memory(parts)


async def _begin_background(stack: AsyncExitStack, memory: Memory, driver: Driver, options: MemoryOptions) -> None:
    """What goes on by itself while the memory is open."""
    duties = Duties(driver, clock=options.clock)
    pruners: dict[str, Prunes] = {"retention": AllRetention(memory), "run_retention": memory.run_retention}
    schedules = [
        RetentionSchedule(
            pruner,
            duties,
            duty=duty,
            interval_seconds=options.retention.interval_seconds,
            observer=memory.observers,
        )
        for duty, pruner in pruners.items()
    ]
    await memory.start()
    for work, name in (
        (memory.keep_index(), "search-index"),
        (memory.manifests.keep_writing(), "manifests"),
        (memory.learned_factors.keep_saving(), "token-factors"),
        *((schedule.keep_pruning(), schedule.duty) for schedule in schedules),
    ):
        await stack.enter_async_context(_running(work, f"threadkeep-{name}"))


def _waiting(address: DatabaseAddress, options: PendingOptions) -> PendingOptions:
    """Where turns wait that cannot be written: in a folder of this database's own."""
    if address.path is None and address.dsn is None:
        return options
    return replace(options, folder=folder_of(address, options.folder))


async def _keeping(
    address: DatabaseAddress,
    driver: Driver,
    options: MemoryOptions,
    observer: Observer,
    conversations: GraphConversations,
) -> AbstractAsyncContextManager[Kept]:
    """The place where the options want transcripts kept.

    Raises:
        InvalidInput: there is something in the options that this place has not.
    """

    def troubled(backend: Backend, session_id: str, error: StoreError) -> None:
        outcome: Outcome = "conflict" if isinstance(error, ConversationChanged) else "fallback"
        SessionEvents(observer, backend, session_id).write_failed(error, outcome)

    means = Means(driver, options.counter, options.clock, troubled)
    if options.transcripts == "tables":
        return keep_in_tables(means)
    if not options.retention.rules.nothing:
        raise InvalidInput(f"{NOT_AVAILABLE} Take the rules away, such as THREADKEEP_RETENTION_DELETE_MAX_AGE_DAYS.")
    store = conversations.given
    if isinstance(store, DatabaseAddress) and store.path is None and store.dsn is None:
        store = await conversations.store()
    return keep_in_graph_store(means, store, own=address, options=options.store)


@asynccontextmanager
async def _running[T](work: Awaitable[T], name: str) -> AsyncIterator[None]:
    """A task that lives as long as the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
