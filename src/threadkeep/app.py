"""Functions that open and close the parts of the application, as configured by the settings."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from langchain_core.language_models import BaseChatModel

from threadkeep.agent.extras import ExtraSource
from threadkeep.agent.fact_learning import FactLearning
from threadkeep.agent.known_facts import KnownFacts
from threadkeep.agent.models import make_model, trace_without_threads
from threadkeep.agent.recalled_turns import RecalledTurns
from threadkeep.agent.summarizer import ModelSummarizer
from threadkeep.agent.turn_options import ChatOptions, facts_of
from threadkeep.errors import InvalidInput, InvalidSettings, StoreUnavailable, WorkflowNotFound
from threadkeep.history.compression import Compression
from threadkeep.memory import Memory, open_memory
from threadkeep.observe import Channel, FromChannel, Observer, Observers
from threadkeep.runs.chat import Chat, OfflineRuns, RunsOnDemand
from threadkeep.runs.service import RunService, open_runs
from threadkeep.runs.streams import InFlightMessages
from threadkeep.settings import Settings
from threadkeep.store.checkpointers import open_checkpointer
from threadkeep.store.private_files import is_read_only
from threadkeep.workflows.built_in import chat_workflow
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import Resources

# The libraries of these modules are optional extras.
if TYPE_CHECKING:
    from threadkeep.channels.opening import ChannelService
    from threadkeep.observe.prometheus import PrometheusObserver


@dataclass(frozen=True)
class App:
    """The open memory, chat, workflows and runs for the HTTP service and commands, with bots (`channels`) if any."""

    settings: Settings
    memory: Memory
    chat: Chat
    workflows: Workflows
    runs: RunsOnDemand
    metrics: PrometheusObserver | None
    channels: ChannelService | None = None

    async def end_turns(self, seconds: float) -> None:
        """Stop accepting messages and runs, and give active turns and runs `seconds` to finish."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        await self.chat.close(seconds)
        await self.runs.close(max(until - loop.time(), 0.0))


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    observers: Sequence[Observer] = (),
    works: bool = True,
    bots: bool = False,
    channel: Channel = "http",
) -> AsyncIterator[App]:
    """Open the application that the settings describe: its memory, chat, workflows, runs and bots.

    Without `works`, this process executes no queued runs. With `bots`, it runs the configured bots. If an event for
    observers has the channel `other`, `channel` replaces it. On exit, running turns may finish within
    `shutdown_timeout` seconds; other processes continue runs that need longer, if the database contains them.

    Raises:
        InvalidSettings: a model cannot be created, its context window is too small for a question, a bot is invalid, or
            an extra that the settings need is not installed.
        InvalidWorkflow: a workflow that the settings name is unusable.
        StoreUnavailable: the database does not respond, or `works` is true and its file is read-only.
    """
    if works and (path := settings.database.path) is not None and is_read_only(path):
        raise StoreUnavailable(
            f"{path} or its folder is read-only for this user; make both writable, or set THREADKEEP_DATABASE_URL."
        )
    trace_without_threads()
    model = make_model(settings.model)
    options = chat_options(settings)
    options.check_room(model)
    workflows = load_workflows(settings)
    facts = facts_of(model, options.context_window)
    workflows.check_room(facts.name, facts.window)
    options = replace(options, compression=_with_summarizer(options, model, settings.summary_model))
    metrics = _metrics(settings, workflows)
    sinks = Observers(*([metrics] if metrics is not None else []), *_spans(settings), *observers)
    url = settings.database_url.get_secret_value()
    open_bots = bots_of(settings, workflows) if bots else None
    async with open_memory(url, observers=[FromChannel(channel, sinks)], options=settings.memory_options()) as memory:
        resources = resources_of(memory, model, options)
        runs = runs_of(settings, memory, workflows, resources, works=works)
        chat = chat_of(settings, memory, workflows, resources, runs)
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(open_bots(memory, runs)) if open_bots else None
            app = App(settings, memory, chat, workflows, runs, metrics, service)
            try:
                yield app
            finally:
                await app.end_turns(settings.shutdown_timeout)


def bots_of(
    settings: Settings, workflows: Workflows
) -> Callable[[Memory, RunsOnDemand], AbstractAsyncContextManager[ChannelService]] | None:
    """Read the file of bots that the settings name, if any, and return a function that opens the bots.

    Raises:
        InvalidSettings: the file is invalid, or a bot's workflow does not exist; the error says where.
    """
    if settings.channels is None:
        return None
    variable = "THREADKEEP_CHANNELS"
    try:
        from threadkeep.channels import configuration, opening

        file = configuration.read_channels(settings.channels, os.environ)
        for bot in file.channels:
            workflows.get(bot.workflow)
    except (InvalidInput, WorkflowNotFound) as error:
        raise InvalidSettings(f"{variable} cannot be used: {error}", variable=variable) from None
    except ModuleNotFoundError as error:
        sentence = f"{variable} needs the package {error.name}; install it with: pip install 'threadkeep[channels]'"
        raise InvalidSettings(sentence, variable=variable) from None
    return partial(opening.open_channels, file=file)


def resources_of(memory: Memory, model: BaseChatModel, options: ChatOptions) -> Resources:
    """Return the resources of workflow nodes: the memory, the models (by default `model`) and the options of turns."""

    @cache
    def model_named(name: str | None) -> BaseChatModel:
        return model if name is None else make_model(name, variable="model")

    sources: list[ExtraSource] = []
    if options.facts or options.directives or memory.graphiti.recalls:
        facts = KnownFacts(memory, workspace=options.workspace, own=options.facts, directives=options.directives)
        sources.append(facts)
    if options.recall != "off":
        sources.append(RecalledTurns(memory, scope=options.recall))
    return Resources(
        memory=memory,
        model=model_named,
        observer=memory.observers,
        turn_options=replace(options.turn_options(sources), learning=learning_of(memory, model, options)),
        workspace=options.workspace,
    )


def learning_of(memory: Memory, model: BaseChatModel, options: ChatOptions) -> FactLearning | None:
    """Return a `FactLearning` with the summary model if set, else `model`; None if learning and directives are off."""
    if not options.learning and not options.directives:
        return None
    name = options.summary_model
    return FactLearning(
        memory,
        model=make_model(name, variable="THREADKEEP_SUMMARY_MODEL") if name else model,
        proposes=options.learning,
        accept_from=options.learning_accept_from,
        directives=options.directives,
        workspace=options.workspace,
    )


def chat_of(settings: Settings, memory: Memory, workflows: Workflows, resources: Resources, runs: RunsOnDemand) -> Chat:
    """Return the `Chat`, which answers messages. While the database is unavailable, it answers, but stores no runs."""
    options = settings.run_options(works=False, close_seconds=settings.shutdown_timeout)
    return Chat(memory, workflows, runs, OfflineRuns(memory, workflows, resources, options))


def runs_of(
    settings: Settings, memory: Memory, workflows: Workflows, resources: Resources, *, works: bool = True
) -> RunsOnDemand:
    """Return the service that starts and executes runs of workflows; the service is opened at its first use."""
    options = replace(settings.store_options().for_rare_use(), waits_for_server=True)

    @asynccontextmanager
    async def opening(in_flight: InFlightMessages) -> AsyncIterator[RunService]:
        async with (
            open_checkpointer(settings.database, options) as checkpointer,
            open_runs(
                memory,
                settings.database,
                workflows,
                resources,
                checkpointer=checkpointer,
                store=await memory.graph_store(),
                options=settings.run_options(works=works, close_seconds=settings.shutdown_timeout),
                in_flight=in_flight,
            ) as service,
        ):
            yield service

    return RunsOnDemand(opening)


def load_workflows(settings: Settings, names: Sequence[str] | None = None, *, imports: bool = True) -> Workflows:
    """Load the built-in chat and the workflows in `names`, by default the workflows in the settings.

    Raises:
        InvalidWorkflow: workflows have problems; the error lists all of them.
    """
    chat = chat_workflow(chat_options(settings))
    named = settings.workflows if names is None else names
    return Workflows.load(named, chat=chat, imports=imports, complete=names is None)


def chat_options(settings: Settings) -> ChatOptions:
    """Return the options of the built-in chat from the settings."""
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
        facts=settings.facts,
        directives=settings.directives,
        learning=settings.learning,
        learning_accept_from=settings.learning_accept_from,
        summary_model=settings.summary_model,
        workspace=settings.workspace or None,
        double_texting=settings.double_texting,
    )


def _with_summarizer(options: ChatOptions, model: BaseChatModel, name: str) -> Compression | None:
    """Return the compression options with a summarizer, or None if compression is off."""
    if options.compression is None:
        return None
    other = make_model(name, variable="THREADKEEP_SUMMARY_MODEL") if name else None
    window = options.context_window if other is None else None
    summarizer = ModelSummarizer(other or model, context_window=window, timeout_seconds=options.model_timeout_seconds)
    return replace(options.compression, summarizer=summarizer)


def _metrics(settings: Settings, workflows: Workflows) -> PrometheusObserver | None:
    """Return the metrics observer, or None if the extra `metrics` is not installed."""
    if find_spec("prometheus_client") is None:
        return None
    from threadkeep.observe.prometheus import PrometheusObserver

    return PrometheusObserver(settings.database.backend, [workflow.name for workflow in workflows.all()])


def _spans(settings: Settings) -> list[Observer]:
    """Return a list with the observer that makes OpenTelemetry spans; an empty list if `otel` is off.

    Raises:
        InvalidSettings: the extra `otel` is not installed.
    """
    if not settings.otel:
        return []
    if find_spec("opentelemetry") is None:
        sentence = "THREADKEEP_OTEL needs the extra otel; install it with: pip install 'threadkeep[otel]'"
        raise InvalidSettings(sentence, variable="THREADKEEP_OTEL")
    from threadkeep.observe.otel import OtelObserver

    return [OtelObserver()]


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a server: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]
