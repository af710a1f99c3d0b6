"""Finds the session, user, run and author for a call of an agent or a node, and holds the state of the run."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime, get_runtime

from threadkeep.agent.callbacks import TASK_IDS, root_callbacks
from threadkeep.agent.turn_options import CallSite, IdOf, TurnOptions, call_id_function
from threadkeep.errors import InvalidInput, InvalidKey
from threadkeep.history.memory import Memory
from threadkeep.history.session import BegunTurn, Session
from threadkeep.observe import ContextBuilt
from threadkeep.records import Json, Message, Receipt
from threadkeep.store.driver import Statement
from threadkeep.store.manifests import NotedManifest

type CallKey = tuple[int, str, int]
"""The identity of an agent's call: the root run, the checkpoint namespace and the stream writer."""


def session_for(
    memory: Memory, options: TurnOptions, config: RunnableConfig, runtime: Runtime[Any] | None = None
) -> Session:
    """Return the session whose id comes from the options' functions, the run's config or the run's context.

    By default, `runtime` is the runtime of the current graph.

    Raises:
        InvalidKey: the run names no session, or the session's name is not a valid id.
        InvalidInput: the user's name is not a valid id.
    """
    configurable, runtime = config.get("configurable", {}), runtime or _runtime()
    if options.session_id:
        session_id: object = call_id_function(options.session_id, config, runtime)
    elif (session_id := configurable.get("thread_id")) is None:
        session_id = _in_context(runtime, "session_id", "thread_id")
    if session_id is None or session_id == "":
        raise InvalidKey(
            'The run names no session: call the agent with {"configurable": {"thread_id": "telegram:123"}}, '
            "with a context that has a session_id, or give SessionMemory a session_id function.",
            reason="empty",
        )
    if not _is_id(session_id):
        raise InvalidKey("A run names its session by a text, a whole number or a UUID.", reason="invalid_chars")
    server_user = configurable.get("langgraph_auth_user_id")  # LangGraph Server sets both to "" if it has no user
    if options.user_id:
        user_id: object = call_id_function(options.user_id, config, runtime)
    elif (user_id := configurable.get("user_id")) is None or "" == user_id == server_user:
        user_id = _in_context(runtime, "user_id")
    if user_id is not None and not _is_id(user_id):
        raise InvalidInput("A run names its user by a text, a whole number or a UUID: user_id is none of them.")
    named = workspace_in(config, runtime=runtime)
    workspace = named if isinstance(named, str) else None  # an unusable workspace does not fail the run
    return memory.session(str(session_id), user_id=None if user_id is None else str(user_id), workspace=workspace)


def workspace_in(
    config: RunnableConfig, given: str | IdOf | None = None, runtime: Runtime[Any] | None = None
) -> object:
    """Return the workspace that a run names in its config or context, or else `given`.

    If `given` is a function, its result is used instead. An invalid workspace (not a string, an integer or a UUID) is
    returned unchanged.
    """
    runtime = runtime or _runtime()
    if given is not None and not isinstance(given, str):
        named: object = call_id_function(given, config, runtime)
    elif (named := config.get("configurable", {}).get("workspace")) is None:
        named = _in_context(runtime, "workspace") or given
    return str(named) if _is_id(named) else named


def _is_id(value: object) -> bool:
    return isinstance(value, str | int | UUID) and not isinstance(value, bool)


def _in_context(runtime: Runtime[Any], *names: str) -> object:
    """Return the first of the fields `names` that is set in the run's context."""
    context = runtime.context
    for name in names if context is not None else ():
        value = context.get(name) if isinstance(context, Mapping) else getattr(context, name, None)
        if value is not None:
            return value
    return None


def _runtime() -> Runtime[Any]:
    """Return the runtime of the current graph; outside of graphs, an empty runtime."""
    try:
        runtime: Runtime[Any] | None = get_runtime()
    except (RuntimeError, KeyError):
        runtime = None
    return Runtime() if runtime is None else runtime


def metadata_of(config: RunnableConfig) -> Mapping[str, Json] | None:
    """Return the caller's metadata for the question (`configurable["message_metadata"]`)."""
    metadata = config.get("configurable", {}).get("message_metadata")
    return metadata if isinstance(metadata, Mapping) else None


def run_id_of(config: RunnableConfig, runtime: Runtime[Any] | None = None) -> str | None:
    """Return the first run id that exists: in the config, in the run's context, or LangGraph's own, else None.

    Workflows pass the id in the run's context, because an agent in a node also has its own run id.
    """
    if run_id := config.get("run_id"):
        return str(run_id)
    runtime = runtime or _runtime()
    if isinstance(named := getattr(runtime.context, "run_id", None), str):
        return named
    return runtime.execution_info.run_id if runtime.execution_info else None


_READER = "__pregel_read"
"""LangGraph's key in a node's config for the function that reads the graph's channels."""

_CHECKPOINTER = "__pregel_checkpointer"
"""LangGraph's key in the config of a subgraph's nodes for the outer graph's checkpointer."""

_REDACTING = re.compile(r"PIIMiddleware\[(.+)\]\.after_model$")


def task_of(config: RunnableConfig) -> str | None:
    """Return a name for the call of a nested agent, if it can be resumed from a checkpoint.

    The name stays the same if a resumed run repeats the task, and if another run is resumed from the same checkpoint.
    If a node calls several graphs, the names for the second and later graphs end with a number: `digest|1`.
    """
    configurable = config.get("configurable", {})
    parts = str(configurable.get("checkpoint_ns", "")).split("|")[:-1]
    if not parts or configurable.get(_CHECKPOINTER) is None:
        return None
    number = parts.pop() if len(parts) > 1 and parts[-1].isdigit() else ""
    tasks = {TASK_IDS.sub("", one): attempt.task for one, attempt in root_callbacks.attempts.get().items()}
    outer = [TASK_IDS.sub("", "|".join(parts[:end])) for end in range(1, len(parts) + 1)]
    digest = sha256("|".join(tasks.get(one, one) for one in outer).encode()).hexdigest()[:16]
    return f"{digest}|{number}" if number else digest


def has_saver(graph: object, config: RunnableConfig) -> bool:
    """Return True if a call of a graph continues from the state of its last call in the thread.

    A graph inside a node uses the outer graph's checkpointer, and keeps its state only with `checkpointer=True`.
    """
    saver = getattr(graph, "checkpointer", None)
    configurable = config.get("configurable", {})
    return saver is True and bool(configurable[_CHECKPOINTER]) if _CHECKPOINTER in configurable else bool(saver)


def redacted_kinds(config: RunnableConfig) -> frozenset[str]:
    """Return the kinds of data, such as `email`, that the agent's `PIIMiddleware` detects.

    A middleware cannot see other middleware. But each hook has a channel named after it, and nodes can read channels.
    """
    reader = config.get("configurable", {}).get(_READER)
    parts = [part for part in getattr(reader, "args", ()) if isinstance(part, Mapping)]
    return kinds_among(tuple([name for part in parts for name in part]))


@lru_cache(maxsize=64)
def kinds_among(names: tuple[object, ...]) -> frozenset[str]:
    """Return the kinds of data, such as `email`, that occur in the names of nodes or channels of `PIIMiddleware`."""
    return frozenset({found[1] for name in names if (found := _REDACTING.search(str(name)))})


def author_of(config: RunnableConfig, site: CallSite | None) -> str | None:
    """Return the name to store as the author of an answer: the workflow's node, the agent or the graph's node."""
    if site is not None and site.node:
        return site.node
    if name := config.get("metadata", {}).get("lc_agent_name"):
        return str(name)
    *outer, _ = str(config.get("configurable", {}).get("checkpoint_ns", "")).split("|")
    # LangGraph numbers the graphs that a node calls, from the second on: `node:task|1|…`.
    nodes = [part.partition(":")[0] for part in outer if ":" in part]
    return nodes[-1] if nodes else None


def node_of(config: RunnableConfig, site: CallSite | None) -> str | None:
    """Return the name of the node in which a function runs: the workflow's node, else the graph's node."""
    if site is not None and site.node:
        return site.node
    return str(config.get("configurable", {}).get("checkpoint_ns", "")).rpartition("|")[2].partition(":")[0] or None


def control_of() -> object:
    """Return the object that all nodes of one root run share; None outside of a graph."""
    return _runtime().control


@dataclass(frozen=True)
class HeldAnswer:
    """An answer that waits to be stored in the transaction that ends its run.

    - `told`: True if a caller in this process waits for the answer.
    - `anchor`: returns the SQL statement for this transaction that stores which message later turns send first, or
      None if that message stays the same.
    - `store`: stores the answer alone, without ending the run.
    - `settle`: ends the turn (`TurnContext.settle`); it must be called when the answer is stored.
    """

    session: Session
    message: Message
    question_id: str | None
    told: bool
    anchor: Callable[[], Statement | None]
    store: Callable[[], Awaitable[AIMessage | None]]
    settle: Callable[..., Awaitable[None]]


@dataclass(eq=False)
class RunHold:
    """The state of a run that this process executes.

    - `lost`: True if another process has taken over the run.
    - `told`: True if a caller in this process waits for the answer.
    - `told_id`: the id of the stored answer that this caller gets.
    - `replaced`: True if another process stored an answer first, so the run uses that answer.
    - `was_pending`: True if the database did not accept the answer at once, so another answer may be stored first.
    - `sessions`: the conversations that agents of the run store under their own keys.
    - `joins`: the id of the session whose answer is stored in the transaction that ends the run; None if each answer
      is stored at once.
    - `answer`, `manifests`: the answer and the records of model calls that this transaction stores.
    - `begun`: the question that was stored when the run began.
    """

    lost: bool = False
    told: bool = False
    told_id: str | None = None
    replaced: bool = False
    was_pending: bool = False
    sessions: list[Session] = field(default_factory=list)
    joins: str | None = None
    answer: HeldAnswer | None = None
    manifests: list[NotedManifest] = field(default_factory=list)
    begun: BegunTurn | None = None

    def stored(self, question: Sequence[Message]) -> Receipt | None:
        """Return the result of storing `question` if it was stored when the run began, otherwise None."""
        if self.begun is None or [(one.id, one.content) for one in question] != [
            (one.id, one.content) for one in self.begun.question
        ]:
            return None
        return self.begun.receipt

    def takes(self, session: Session) -> bool:
        """Return True if an answer in `session` may wait to be stored in the transaction that ends the run."""
        return session.session_id == self.joins and not session.waiting()

    async def store(self) -> AIMessage | None:
        """Store the waiting answer if this process still owns the run. If another was stored first, return that one."""
        answer, self.answer = self.answer, None
        if answer is None or self.lost:
            return None
        first_stored = await answer.store()
        await answer.settle()
        return first_stored


run_hold: ContextVar[RunHold | None] = ContextVar("threadkeep_run_hold", default=None)
"""The state of the current task's run; None outside of runs."""

built_contexts: ContextVar[list[ContextBuilt] | None] = ContextVar("threadkeep_built_contexts", default=None)
"""The events that report the contexts of model calls in the current task's run; None outside of runs."""
