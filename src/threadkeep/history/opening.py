"""The opening of a memory: its database, its transcripts and its background tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from uuid import uuid4

from threadkeep.boundary import running
from threadkeep.context.tokens import RememberedCounts
from threadkeep.errors import InvalidInput, StoreError
from threadkeep.graph_store.indexed import NOT_AVAILABLE
from threadkeep.graph_store.items import ConversationChanged
from threadkeep.graph_store.layout import ConversationLayouts
from threadkeep.graph_store.opening import open_graph_backend
from threadkeep.history.all_sessions import AllRetention
from threadkeep.history.graph_conversations import GraphConversations, Opening
from threadkeep.history.memory import Memory
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.memory_parts import Backend, MemoryParts, MessageSearch
from threadkeep.history.older_turns import OlderTurns
from threadkeep.history.pending import PendingTurns, folder_of
from threadkeep.history.retention import Pruner
from threadkeep.history.retention_rounds import RetentionSchedule, RunPruner
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Backend as BackendLabel
from threadkeep.observe import Observer, Observers, Outcome
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.backend import TranscriptBackend, open_table_backend
from threadkeep.store.codec import GraphTurns
from threadkeep.store.contexts import ContextTables
from threadkeep.store.driver import Driver
from threadkeep.store.duties import Duties
from threadkeep.store.migrations import migrate
from threadkeep.store.opening import open_database


@asynccontextmanager
async def open_sessions[M: Memory](
    address: DatabaseAddress,
    make: Callable[[MemoryParts], M],
    *,
    observers: Sequence[Observer],
    options: MemoryOptions,
) -> AsyncIterator[M]:
    """Open a database, migrate its schema, and create the memory with `make`; see `threadkeep.open_memory`.

    Raises:
        StoreUnavailable: the database does not answer, or the folder of pending turns is not usable.
        InvalidInput, InvalidSettings: the options do not fit this database.
        SchemaTooNew: the schema was written by a newer version of Threadkeep.
    """
    if address.in_memory and address.memory_name is None:
        address = replace(address, memory_name=f"threadkeep-{uuid4().hex}")
    # Wait for a database server that is still starting, but not in a short-lived command.
    waits = options.store.waits_for_server or options.background
    options = replace(options, store=replace(options.store, waits_for_server=waits))
    everyone, counts = Observers(*observers), RememberedCounts()
    async with AsyncExitStack() as stack:
        driver = await stack.enter_async_context(open_database(address, options.store))
        # This stack closes last: its resources must stay open while the memory stores its remaining data.
        late = await stack.enter_async_context(AsyncExitStack())
        await migrate(driver, options.clock(), partitions=options.store.partitions)
        conversations = GraphConversations(
            address if options.graph_store is None else options.graph_store,
            ConversationLayouts(driver, clock=options.clock),
            Opening(late, options.store.for_rare_use()),
            count=options.counter,
            clock=options.clock,
            observer=everyone,
        )
        backend = await stack.enter_async_context(
            await _backend(address, driver, options, everyone, conversations, counts)
        )
        tables = ContextTables.over(driver, clock=options.clock)
        parts = MemoryParts(
            address=address,
            options=options,
            driver=driver,
            backend=_session_backend(address, backend, tables, options, everyone),
            tables=tables,
            conversations=conversations,
            remembered_counts=counts,
            observers=everyone,
        )
        memory = make(parts)
        for part in (memory.manifests, memory.pending, memory.compressor, memory.learned_factors):
            stack.push_async_callback(part.close)
        if options.background:
            await _begin_background(stack, memory, driver, options)
        stack.push_async_callback(memory.older_turns.close)
        stack.push_async_callback(memory.settle)
        yield memory


def _session_backend(
    address: DatabaseAddress,
    backend: TranscriptBackend,
    tables: ContextTables,
    options: MemoryOptions,
    observers: Observers,
) -> Backend:
    """Return the stores and services for the memory's own sessions. They use the transcripts of `backend`."""
    transcripts, clock = backend.transcripts, options.clock
    # Do not write pending turns to disk if the database itself is in memory.
    folder = None if address.in_memory else folder_of(address, options.pending.folder)
    pending = PendingTurns(transcripts, replace(options.pending, folder=folder), observer=observers, clock=clock)
    return Backend(
        transcripts=transcripts,
        index=MessageSearch(backend.search, observers),
        archive=backend.archive,
        damages=backend.damages,
        contexts=tables.contexts,
        older_turns=OlderTurns(transcripts, tables.embeddings, observers, tables.summaries, backend.recall_indexes),
        pending=pending,
        retention=Pruner(backend.retention, options.retention.rules, pending=pending, observer=observers, clock=clock),
    )


async def _begin_background(stack: AsyncExitStack, memory: Memory, driver: Driver, options: MemoryOptions) -> None:
    """Start the background tasks of an open memory; `stack` cancels them when the memory closes."""
    duties = Duties(driver, clock=options.clock)
    pruners: dict[str, AllRetention | RunPruner] = {
        "retention": AllRetention(memory),
        "run_retention": memory.run_retention,
    }
    interval = options.retention.interval_seconds
    schedules = [
        RetentionSchedule(pruner, duties, duty=duty, interval_seconds=interval, observer=memory.observers)
        for duty, pruner in pruners.items()
    ]
    await memory.start()
    own = ((memory.manifests.keep_writing(), "manifests"), (memory.learned_factors.keep_saving(), "token-factors"))
    of_all = ((memory.keep_index(), "search-index"), *((each.keep_pruning(), each.duty) for each in schedules))
    for work, name in own:
        _ = await stack.enter_async_context(running(work, f"threadkeep-{name}"))
    for work, name in of_all:
        task = await stack.enter_async_context(running(work, f"threadkeep-{name}"))
        memory.work_for_all.append(task)


async def _backend(
    address: DatabaseAddress,
    driver: Driver,
    options: MemoryOptions,
    observer: Observer,
    conversations: GraphConversations,
    counts: RememberedCounts,
) -> AbstractAsyncContextManager[TranscriptBackend]:
    """Return a context manager that opens the selected store of messages: tables or a LangGraph store.

    Raises:
        InvalidInput: the options need a feature that this backend does not have.
    """

    def troubled(backend: BackendLabel, session_id: str, error: StoreError) -> None:
        outcome: Outcome = "conflict" if isinstance(error, ConversationChanged) else "fallback"
        SessionEvents(observer, backend, session_id).write_failed(error, outcome)

    graphiti = options.graphiti if options.graphiti and options.graphiti.enabled else None
    graph_turns = GraphTurns(graphiti.endpoint, graphiti.workspace) if graphiti else None
    count, clock = counts.remembering(options.counter), options.clock
    if options.transcripts == "tables":
        return open_table_backend(driver, count=count, clock=clock, graph_turns=graph_turns)
    if graph_turns is not None:
        raise InvalidInput("Graphiti needs turns in tables: set THREADKEEP_TRANSCRIPTS=tables, or turn Graphiti off.")
    if not options.retention.rules.nothing:
        raise InvalidInput(f"{NOT_AVAILABLE} Remove the rules, such as THREADKEEP_RETENTION_DELETE_MAX_AGE_DAYS.")
    store = conversations.given
    if isinstance(store, DatabaseAddress) and store.in_memory:
        store = await conversations.store()
    return open_graph_backend(
        driver, store, own=address, options=options.store, count=count, clock=clock, troubled=troubled
    )
