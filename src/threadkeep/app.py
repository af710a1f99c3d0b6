"""Opens every room on one exit stack: who opens here also closes here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from threadkeep.errors import InvalidInput, StoreError
from threadkeep.history.compressor import Compressor
from threadkeep.history.learned_factors import LearnedFactors
from threadkeep.history.manifests import Manifests
from threadkeep.history.memory import Memory, MemoryOptions
from threadkeep.history.pending import PendingTurns, folder_of
from threadkeep.history.retention import Pruner
from threadkeep.history.retention_schedule import RetentionSchedule
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import Backend, FromChannel, Observer, Observers, Outcome
from threadkeep.store.address import DatabaseAddress, parse_address
from threadkeep.store.context_tables import ContextTables
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.duties import Duties
from threadkeep.store.graph_transcripts.items import ConversationChanged
from threadkeep.store.graph_transcripts.unretained import NOT_AVAILABLE
from threadkeep.store.graphs import open_checkpointer, open_graph_store
from threadkeep.store.keeping import Kept, Means, keep_in_graph_store, keep_in_tables
from threadkeep.store.migrations import migrate
from threadkeep.store.runs import Runs

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from threadkeep.history.compression import Compression
    from threadkeep.observe.prometheus import PrometheusObserver
    from threadkeep.settings import Settings
    from threadkeep.workflow.chat import Chat
    from threadkeep.workflow.chat_options import ChatOptions


@asynccontextmanager
async def open_database(address: DatabaseAddress, options: StoreOptions) -> AsyncIterator[Driver]:
    """Open a database as it is, without bringing its schema up to date: for those who look before they act.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    driver = await _open_driver(address, options)
    try:
        yield driver
    finally:
        await driver.close()


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
        await migrate(driver, options.clock())
        kept = await stack.enter_async_context(_keeping(address, driver, options, everyone))
        transcripts = kept.transcripts
        tables = ContextTables.over(driver, clock=options.clock)
        manifests = Manifests(
            tables.manifests, observer=everyone, clock=options.clock, retention_days=options.manifest_retention_days
        )
        stack.push_async_callback(manifests.close)
        waiting = options.pending
        if address.path is not None or address.dsn is not None:
            waiting = replace(waiting, folder=folder_of(address, waiting.folder))
        pending = PendingTurns(transcripts, waiting, observer=everyone, clock=options.clock)
        stack.push_async_callback(pending.close)
        compressor = Compressor(
            transcripts, tables.summaries, observer=everyone, clock=options.clock, counter=options.counter
        )
        stack.push_async_callback(compressor.close)
        learned_factors = LearnedFactors(tables.token_factors)
        stack.push_async_callback(learned_factors.close)
        pruner = Pruner(
            kept.retention,
            options.retention.rules,
            pending=pending,
            observer=everyone,
            clock=options.clock,
        )
        memory = Memory(
            transcripts,
            index=kept.search,
            archive=kept.archive,
            runs=Runs(driver, clock=options.clock),
            tables=tables,
            manifests=manifests,
            pending=pending,
            retention=pruner,
            compressor=compressor,
            learned_factors=learned_factors,
            counter=options.counter,
            observers=everyone,
            clock=options.clock,
        )
        if options.background:
            await pending.start()
            await stack.enter_async_context(_running(memory.keep_index(), "threadkeep-search-index"))
            await stack.enter_async_context(_running(manifests.keep_writing(), "threadkeep-manifests"))
            await stack.enter_async_context(_running(learned_factors.keep_saving(), "threadkeep-token-factors"))
            schedule = RetentionSchedule(
                pruner,
                Duties(driver, clock=options.clock),
                interval_seconds=options.retention.interval_seconds,
                observer=everyone,
            )
            await stack.enter_async_context(_running(schedule.keep_pruning(), "threadkeep-retention"))
        stack.push_async_callback(memory.older_turns.close)
        stack.push_async_callback(memory.settle)
        yield memory


def _keeping(
    address: DatabaseAddress, driver: Driver, options: MemoryOptions, observer: Observer
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
    store = address if options.graph_store is None else options.graph_store
    return keep_in_graph_store(means, store, own=address, options=options.store)


@dataclass(frozen=True)
class App:
    """Everything that a face needs: the service's settings, the memory, the chat on top, and what is measured."""

    settings: Settings
    memory: Memory
    chat: Chat
    metrics: PrometheusObserver | None


@asynccontextmanager
async def open_app(settings: Settings, *, observers: Sequence[Observer] = ()) -> AsyncIterator[App]:
    """Open the memory that the settings name, with a chat over the model that they name.

    At the end running turns get `shutdown_timeout` seconds to finish; what later ones had said is stored.

    Raises:
        InvalidSettings: a model cannot be made, or its context window has no room for a question.
        StoreUnavailable: the database does not answer.
    """
    from threadkeep.workflow.answering import ChatAgent
    from threadkeep.workflow.chat import Chat
    from threadkeep.workflow.models import make_model

    model = make_model(settings.model)
    options = chat_options(settings)
    options.check_room(model)
    options = replace(options, compression=_with_summarizer(options, model, settings.summary_model))
    metrics = _metrics(settings)
    told = Observers(*([metrics] if metrics is not None else []), *observers)
    url = settings.database_url.get_secret_value()
    async with open_memory(url, observers=[FromChannel("http", told)], options=settings.memory_options()) as memory:
        chat = Chat(memory, ChatAgent(memory, model, options))
        try:
            yield App(settings, memory, chat, metrics)
        finally:
            await chat.close(settings.shutdown_timeout)


def chat_options(settings: Settings) -> ChatOptions:
    """How the chat answers that the settings describe."""
    from threadkeep.workflow.chat_options import ChatOptions

    return ChatOptions(
        system_prompt=settings.system_prompt,
        max_messages=settings.history_max_messages if settings.history_enabled else 0,
        max_tokens=settings.history_max_tokens,
        model_timeout_seconds=settings.model_timeout_seconds,
        window=settings.history_window,
        context_window=settings.context_window,
        max_output_tokens=settings.max_output_tokens,
        compression=settings.compression,
        recall=settings.recall,
    )


def _with_summarizer(options: ChatOptions, model: BaseChatModel, name: str) -> Compression | None:
    """The compression of the options with who writes its summaries: the named model, or the chat's own."""
    if options.compression is None:
        return None
    from threadkeep.workflow.models import make_model
    from threadkeep.workflow.summarizer import ModelSummarizer

    other = make_model(name, variable="THREADKEEP_SUMMARY_MODEL") if name else None
    window = options.context_window if other is None else None
    summarizer = ModelSummarizer(other or model, context_window=window, timeout_seconds=options.model_timeout_seconds)
    return replace(options.compression, summarizer=summarizer)


def _metrics(settings: Settings) -> PrometheusObserver | None:
    """What counts and times the events, where the extra `metrics` is installed."""
    if find_spec("prometheus_client") is None:
        return None
    from threadkeep.observe.prometheus import PrometheusObserver

    return PrometheusObserver(backend=settings.database.backend)


def create_graph_store(settings: Settings) -> AbstractAsyncContextManager[BaseStore]:
    """A LangGraph store where the settings say, for `graph.compile(store=…)`; open it once, at the top.

    ::

        async with create_checkpointer(settings) as checkpointer, create_graph_store(settings) as store:
            graph = builder.compile(checkpointer=checkpointer, store=store)

    Raises:
        StoreUnavailable: when it is entered and the database does not answer.
    """
    return open_graph_store(settings.graph_store, settings.store_options())


def create_checkpointer(settings: Settings) -> AbstractAsyncContextManager[BaseCheckpointSaver[str]]:
    """A LangGraph checkpointer in the settings' database, for `graph.compile(checkpointer=…)`; opened like the store.

    Raises:
        StoreUnavailable: when it is entered and the database does not answer.
    """
    return open_checkpointer(settings.database, settings.store_options())


async def _open_driver(address: DatabaseAddress, options: StoreOptions) -> Driver:
    """The driver of an address; each engine's library is imported only when it is used."""
    if address.dsn is not None:
        from threadkeep.store.postgres import PostgresDriver

        return await PostgresDriver.open(address.dsn, options)
    from threadkeep.store.sqlite import SqliteDriver

    if address.path is not None:
        with contextlib.suppress(OSError):  # opening the file tells what is wrong, with the cure
            address.path.parent.mkdir(parents=True, exist_ok=True)
    return SqliteDriver(address.path, options)


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
