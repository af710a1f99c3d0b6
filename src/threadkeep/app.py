"""Opens what a face needs, as the settings say: who opens here also closes here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from threadkeep.history.opening import open_memory
from threadkeep.observe import Channel, FromChannel, Observer, Observers
from threadkeep.store.graphs import open_checkpointer, open_graph_store

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from threadkeep.graphs.registry import Workflows
    from threadkeep.graphs.resources import Resources
    from threadkeep.history.compression import Compression
    from threadkeep.history.memory import Memory
    from threadkeep.observe.prometheus import PrometheusObserver
    from threadkeep.runs.chat.chat import Chat
    from threadkeep.runs.on_demand import RunsOnDemand
    from threadkeep.settings import Settings
    from threadkeep.workflow.chat_options import ChatOptions


@dataclass(frozen=True)
class App:
    """Everything that a face needs: the settings, the memory, the chat on top, workflows and runs, what is measured."""

    settings: Settings
    memory: Memory
    chat: Chat
    workflows: Workflows
    runs: RunsOnDemand
    metrics: PrometheusObserver | None

    async def end_turns(self, seconds: float) -> None:
        """Take no more turns, and let those that run finish within a limit; others go on with what is left of them."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        await self.chat.close(seconds)
        await self.runs.close(max(until - loop.time(), 0.0))


@asynccontextmanager
async def open_app(
    settings: Settings, *, observers: Sequence[Observer] = (), works: bool = True, channel: Channel = "http"
) -> AsyncIterator[App]:
    """Open the memory that the settings name, with a chat over the model that they name.

    Without `works` it takes no runs out of the queue. What its face does came by `channel`, where no session names one.
    At the end running turns get `shutdown_timeout` seconds to finish; what later ones had said is stored.

    Raises:
        InvalidSettings: a model cannot be made, or its context window has no room for a question.
        InvalidWorkflow: a workflow that the settings name cannot be used.
        StoreUnavailable: the database does not answer.
    """
    from threadkeep.workflow.model_facts import facts_of
    from threadkeep.workflow.models import make_model

    model = make_model(settings.model)
    options = chat_options(settings)
    options.check_room(model)
    workflows = load_workflows(settings)
    facts = facts_of(model, options.context_window)
    workflows.check_room(facts.name, facts.window)
    options = replace(options, compression=_with_summarizer(options, model, settings.summary_model))
    metrics = _metrics(settings, workflows)
    told = Observers(*([metrics] if metrics is not None else []), *observers)
    url = settings.database_url.get_secret_value()
    async with open_memory(url, observers=[FromChannel(channel, told)], options=settings.memory_options()) as memory:
        resources = resources_of(memory, model, options)
        runs = runs_of(settings, memory, workflows, resources, works=works)
        chat = chat_of(settings, memory, workflows, resources, runs)
        app = App(settings, memory, chat, workflows, runs, metrics)
        try:
            yield app
        finally:
            await app.end_turns(settings.shutdown_timeout)


def resources_of(memory: Memory, model: BaseChatModel, options: ChatOptions) -> Resources:
    """What the nodes of workflows may use; `model` is what those call that name none."""
    from threadkeep.graphs.resources import Resources
    from threadkeep.workflow.models import make_model
    from threadkeep.workflow.recalled_turns import RecalledTurns

    named = cache(partial(make_model, variable="model"))
    sources = () if options.recall == "off" else (RecalledTurns(memory, scope=options.recall),)
    return Resources(
        memory=memory,
        model=lambda name: model if name is None else named(name),
        observer=memory.observers,
        turn_options=options.turn_options(sources),
    )


def chat_of(settings: Settings, memory: Memory, workflows: Workflows, resources: Resources, runs: RunsOnDemand) -> Chat:
    """The chat over runs, which answers also where none can be recorded."""
    from threadkeep.runs.chat.chat import Chat
    from threadkeep.runs.chat.unstored import UnstoredRuns

    options = settings.run_options(works=False, close_seconds=settings.shutdown_timeout)
    return Chat(memory, workflows, runs, UnstoredRuns(memory, workflows, resources, options))


def runs_of(
    settings: Settings, memory: Memory, workflows: Workflows, resources: Resources, *, works: bool = True
) -> RunsOnDemand:
    """The runs of a memory's database, as the settings say."""
    from threadkeep.runs.on_demand import RunsOnDemand
    from threadkeep.runs.service import RunService, open_runs
    from threadkeep.runs.unrecorded import UnrecordedTurns

    @asynccontextmanager
    async def opening(unrecorded: UnrecordedTurns) -> AsyncIterator[RunService]:
        async with (
            create_checkpointer(settings) as checkpointer,
            open_runs(
                memory,
                settings.database,
                workflows,
                resources,
                checkpointer=checkpointer,
                store=await memory.graph_store(),
                options=settings.run_options(works=works, close_seconds=settings.shutdown_timeout),
                unrecorded=unrecorded,
            ) as service,
        ):
            yield service

    return RunsOnDemand(opening)


def load_workflows(settings: Settings, names: Sequence[str] | None = None, *, imports: bool = True) -> Workflows:
    """The built-in chat with the settings' options, and the workflows that the settings name (or that are named here).

    Raises:
        InvalidWorkflow: with everything that is wrong with any of them.
    """
    from threadkeep.graphs.built_in import chat_workflow
    from threadkeep.graphs.registry import Workflows

    chat = chat_workflow(chat_options(settings))
    named = settings.workflows if names is None else names
    return Workflows.load(named, chat=chat, imports=imports, complete=names is None)


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


def _metrics(settings: Settings, workflows: Workflows) -> PrometheusObserver | None:
    """What counts and times the events, where the extra `metrics` is installed."""
    if find_spec("prometheus_client") is None:
        return None
    from threadkeep.observe.prometheus import PrometheusObserver

    return PrometheusObserver(settings.database.backend, [workflow.name for workflow in workflows.all()])


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
