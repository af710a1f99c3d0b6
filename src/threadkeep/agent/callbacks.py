"""LangChain callback handlers for root runs, for the end of a graph, and for the model calls of an agent."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook
from langchain_core.utils.utils import LC_ID_PREFIX
from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command, Overwrite

from threadkeep.agent.conversion import text_of

type OnEnd = Callable[[object, BaseException | None], Awaitable[None] | None]
"""A function that is called at the end of a root run with the run's output and error.

After an interrupt, the output is the state so far. The function's result is awaited only after an error.
"""

_MOST_RUNS = 1_000

_TOOLS = "tools"
"""The name of the node that runs tools in LangChain's agents."""

_PUSHED = "__pregel_push"
"""The first part of a task's `langgraph_path` if the task was started with `Send`."""


@dataclass(frozen=True)
class NodeAttempt:
    """An attempt to execute a task of a graph.

    `run_id` is the id of the node's LangChain run, and `below` has the ids of the runs inside it. `task` is the task's
    step number and path, because LangGraph's task id changes if a checkpoint is resumed twice.
    """

    run_id: UUID
    task: str = ""
    below: set[UUID] = field(default_factory=set)


TASK_IDS: Final = re.compile(r":[^|]*")
"""The task ids in a checkpoint namespace. Graphs with `checkpointer=True` have none."""

_NAMESPACE: Final = "langgraph_checkpoint_ns"
"""The key, in the metadata of runs inside a graph's node, for the node's checkpoint namespace."""

_NO_ATTEMPTS: Final[Mapping[str, NodeAttempt]] = MappingProxyType({})


type Asked = dict[str, list[tuple[BaseMessage, ...]]]
"""Maps a session id to `[question, messages sent with it]`. The list is emptied when an attempt uses the question."""


@dataclass
class RootCall:
    """The input and the thread id of a root run (a run outside of graph nodes), and the functions to call at its end.

    `asked`: the unanswered question of this run, or of a failed run inside it. `first`: the unanswered question of the
    previous attempt, if this run or a run around it failed and is repeated (for example, by `with_retry()`).
    """

    input: object
    thread: object = None
    outer: RootCall | None = None
    first: Asked = field(default_factory=dict)
    asked: Asked = field(default_factory=dict)
    at_end: list[OnEnd] = field(default_factory=list)

    def first_of(self, inputs: object) -> Asked:
        """Return `first` for an inner run. If that run has the same input, it may be a retry, so include `asked`."""
        if self.input is inputs:
            self.first, self.asked = {**self.first, **self.asked}, {}
        return self.first

    @property
    def is_continued(self) -> bool:
        """True if the root run continues from a checkpoint, without an input or with only an empty list of messages."""
        sends_none = isinstance(self.input, Mapping) and dict(self.input) == {"messages": []}
        return sends_none or self.input is None or isinstance(self.input, Command)

    @cached_property
    def sent(self) -> list[Any]:
        """The messages in the input, as the caller passed them: objects, mappings, tuples or texts."""
        given: Any = self.input
        given = given.get("messages") if isinstance(given, Mapping) else getattr(given, "messages", None)
        if not isinstance(given, list):
            (given,) = overwriting(given) or (given,)
        if isinstance(given, list | tuple):
            is_pair = isinstance(given, tuple) and len(given) == 2 and [type(part) for part in given] == [str, str]
            return [given] if is_pair else list(given)
        return [] if given is None else [given]


def overwriting(value: object) -> tuple[Any] | None:
    """Return the value inside LangGraph's `Overwrite` (the object or one of its JSON forms) as a tuple, else None."""
    match value:
        case Overwrite(value=new) | {"__overwrite__": new} | {"type": "__overwrite__", "value": new}:
            return (new,)
    return None


class RootCallbacks(BaseCallbackHandler):
    """A handler that knows the root run of the current task. It stores at most a thousand root runs.

    A root run is a run outside of a graph's nodes: a graph, or a chain around graphs. The handler is needed because
    middleware hooks see neither the input nor the end of a root run. LangChain calls it for every run of the process,
    including runs without a memory, so its methods do little work.
    """

    run_inline = True

    def __init__(self) -> None:
        self._calls: dict[UUID, RootCall] = {}
        self._around: ContextVar[tuple[UUID, ...]] = ContextVar("threadkeep_root_runs", default=())
        """The root runs around the current code, outermost first. Some of them may have ended."""
        self.branch: ContextVar[int | None] = ContextVar("threadkeep_sent", default=None)
        """The index of the current task's branch, if the branch was started with `Send`."""
        self.attempts: ContextVar[Mapping[str, NodeAttempt]] = ContextVar("threadkeep_attempts", default=_NO_ATTEMPTS)
        """The attempts of the tasks around the current code, by checkpoint namespace, outermost first."""

    ignore_llm = ignore_chat_model = ignore_custom_event = ignore_retriever = ignore_retry = True

    @property
    def call(self) -> RootCall | None:
        """The root run that contains the current task; None if it is unknown."""
        config = var_child_runnable_config.get()
        return None if config is None else self._innermost() or self._only_call(config.get("metadata", {}))

    def _only_call(self, metadata: Mapping[str, Any]) -> RootCall | None:
        """Return the thread's root run if it has only one, because the context of a stream's `next()` may have none."""
        thread = metadata.get("thread_id")
        found = [] if thread is None else [call for call in list(self._calls.values()) if call.thread == thread]
        return found[0] if len(found) == 1 else None

    def _innermost(self) -> RootCall | None:
        """Return the innermost root run around the current code that has not ended.

        Runs that have ended may still be in the context variable: LangChain may report an end in a copy of the context.
        """
        running = [call for one in self._around.get() if (call := self._calls.get(one)) is not None]
        return running[-1] if running else None

    def on_chain_start(
        self,
        serialized: Any,
        inputs: object,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Store a root run. For a run inside a node, set its `Send` branch, and add it to the attempt of its task."""
        known = metadata or {}
        if parent_run_id is not None and _NAMESPACE in known:
            self._set_branch(known)
            self._add_to_attempt(known, run_id, parent_run_id)
        else:
            self.branch.set(None)
            self.attempts.set(_NO_ATTEMPTS)
            outer = None if parent_run_id is None else self._calls.get(parent_run_id)
            self._around.set((*[one for one in self._around.get() if one in self._calls], run_id))
            if len(self._calls) >= _MOST_RUNS:
                # Drop the oldest run that has no functions to call at its end (such as a chain), else the oldest run.
                calls = list(self._calls.items())
                self._calls.pop(next((one for one, call in calls if not call.at_end), calls[0][0]), None)
            first = {} if outer is None else outer.first_of(inputs)
            self._calls[run_id] = RootCall(inputs, known.get("thread_id"), outer, first)

    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Add the run of a tool to the attempt of its node, because agents may run inside the tool."""
        if parent_run_id is not None:
            self._add_to_attempt(metadata or {}, run_id, parent_run_id)

    def _set_branch(self, metadata: Mapping[str, Any]) -> None:
        """Set the index of the branch that `Send` started. Reset it in tools and in other LangGraph threads."""
        call = self._innermost()
        if metadata.get("langgraph_node") == _TOOLS or (call is not None and call.thread != metadata.get("thread_id")):
            self.branch.set(None)
        elif (path := tuple(metadata.get("langgraph_path", ())))[:1] == (_PUSHED,):
            self.branch.set(path[1] if len(path) > 1 and isinstance(path[1], int) else 0)

    def _add_to_attempt(self, metadata: Mapping[str, Any], run_id: UUID, parent_run_id: UUID) -> None:
        """Add a run to the current attempt of its node's task. If LangGraph repeats the task, begin a new attempt."""
        namespace = str(metadata.get(_NAMESPACE, ""))
        if not namespace:
            return
        known = self.attempts.get()
        attempt = known.get(namespace)
        if attempt is None or (parent_run_id != attempt.run_id and parent_run_id not in attempt.below):
            task = f"{metadata.get('langgraph_step')} {metadata.get('langgraph_path')}"
            attempt = NodeAttempt(parent_run_id, task)
            nodes = TASK_IDS.sub("", namespace)
            outer = {one: found for one, found in known.items() if nodes.startswith(f"{TASK_IDS.sub('', one)}|")}
            self.attempts.set({**outer, namespace: attempt})
        attempt.below.add(run_id)

    def on_chain_end(self, outputs: object, *, run_id: UUID, **_: Any) -> None:
        """Call the functions registered for the end of a run."""
        call = self._calls.pop(run_id, None)
        for on_end in call.at_end if call is not None else ():
            on_end(outputs, None)

    async def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Call the functions registered for the end of a run, before the caller of the run gets the error."""
        call = self._calls.pop(run_id, None)
        failure = None if isinstance(error, GraphBubbleUp) else error
        if call is not None and call.outer is not None:
            call.outer.asked |= call.asked
        for on_end in call.at_end if call is not None else ():
            waiting = on_end(None, failure)
            if waiting is not None:
                await waiting


root_callbacks: Final = RootCallbacks()
"""The handler of this process. Importing this module registers it with LangChain."""

register_configure_hook(ContextVar[Any]("threadkeep_root_callbacks", default=root_callbacks), inheritable=False)


class Ending(GraphCallbackHandler):
    """A handler that stores the `output` of one graph call; None until the graph ends without an interrupt."""

    run_inline = True

    def __init__(self) -> None:
        self.output: object = None
        self._interrupted = False
        self._run_id: UUID | None = None

    ignore_llm = ignore_agent = ignore_chat_model = ignore_custom_event = ignore_retriever = ignore_retry = True

    def on_chain_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Store the id of the first run, which is the run of the graph."""
        self._run_id = self._run_id or run_id

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """Remember that the graph was interrupted, so that its output is not stored."""
        self._interrupted = True

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Store the output of the graph."""
        if run_id == self._run_id and not self._interrupted:
            self.output = outputs


@dataclass(eq=False, repr=False)
class PartialAnswer(BaseCallbackHandler):
    """A handler that collects the text of a streaming model, so that a cancelled run can store it.

    `text` and `message_id` belong to the newest model call that streamed text, which may be a retry. `failed` is True
    if the model call that ended last failed. Calls that other middleware makes, for example to select tools, are
    ignored.
    """

    run_inline = True  # asynchronous runs call the handler without another OS thread
    text: str = ""
    message_id: str | None = None
    failed: bool = False
    asked: list[list[BaseMessage]] = field(default_factory=list)
    models: set[object] = field(default_factory=set)
    _run_id: UUID | None = None
    _foreign: set[UUID] = field(default_factory=set)

    @property
    def answer(self) -> AIMessage | str:
        """The text so far, as a message with the id under which it was streamed, if both are known."""
        return AIMessage(self.text, id=self.message_id) if self.text and self.message_id else self.text

    @contextmanager
    def listening(self, config: RunnableConfig) -> Iterator[None]:
        """Collect the texts and messages of the model calls that are made in the `with` block."""
        token = var_child_runnable_config.set(with_callback(config, self, inherit=True))
        try:
            yield
        finally:
            with suppress(ValueError):  # a generator may end in another context
                var_child_runnable_config.reset(token)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Store the messages and the model name of a call that the agent makes."""
        if metadata and metadata.get("lc_source"):
            self._foreign.add(run_id)
        else:
            self.asked += messages
            self.models.add((metadata or {}).get("ls_model_name"))

    def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append the text of one streamed chunk to `text`."""
        if run_id in self._foreign:
            return
        if run_id != self._run_id:
            self._run_id, self.text, self.message_id = run_id, "", None
        if isinstance(chunk, ChatGenerationChunk):
            self.text += text_of(chunk.message)
            self.message_id = self.message_id or chunk.message.id or f"{LC_ID_PREFIX}-{run_id}"
        elif isinstance(token, str):
            self.text += token

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Set `failed` to False, unless other middleware made the model call."""
        self.failed &= run_id in self._foreign

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Set `failed` to True, unless other middleware made the model call."""
        self.failed |= run_id not in self._foreign


def with_callback(config: RunnableConfig, handler: BaseCallbackHandler, *, inherit: bool) -> RunnableConfig:
    """Return a config with one more handler. Child runs get it if `inherit` is True or there is no callback manager."""
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(handler, inherit=inherit)
        return {**config, "callbacks": manager}
    return {**config, "callbacks": [*(callbacks or []), handler]}
