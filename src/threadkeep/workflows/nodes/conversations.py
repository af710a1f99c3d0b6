"""The conversation that a node continues: the run's session, one in the graph's store, or one that is not stored."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore
from pydantic import AfterValidator, BaseModel, Field, StrictFloat, StrictInt

from threadkeep.agent.invocation import run_hold
from threadkeep.agent.turn_options import CallSite
from threadkeep.errors import StoreError
from threadkeep.graph_store.layout import CHUNK_SIZE, GraphLayout
from threadkeep.history.graph_conversations import location_in, order_name
from threadkeep.history.keys import KEY_CANDIDATES, KEY_TEMPLATE, KeyResolution, channel_of, escape_key, resolve_key
from threadkeep.history.memory import Memory
from threadkeep.observe import Channel, KeyResolutionFailed, ReadFailed
from threadkeep.store.driver import waiting_until
from threadkeep.workflows.nodes.base import Step
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState, check_template, nodes_named, scope_of


def _key_template(template: str) -> str:
    check_template(template, for_key=True)
    return template


def _checked_as(name: str) -> AfterValidator:
    """Return a validator for an option that becomes the field `name` of a `GraphLayout`, with that field's checks."""
    return AfterValidator(lambda value: getattr(GraphLayout(**{name: value}), name))


def _command(text: str) -> str:
    if not text.strip():
        raise ValueError("A reset command must not be blank; write one, such as /new.")
    return text


type KeyTemplate = Annotated[str, Field(min_length=1), AfterValidator(_key_template)]
type Candidates = Annotated[tuple[KeyTemplate | StrictInt | StrictFloat, ...], Field(max_length=32)]
type Namespace = Annotated[tuple[str, ...], Field(min_length=1, max_length=8), _checked_as("namespace")]


class ConversationFields(BaseModel):
    """The options for a conversation in the graph's store, which a node can use instead of the run's session."""

    use_graph_chat_history: bool = Field(False, description="True to read and store turns in the graph's store.")
    history_namespace: Namespace = Field(("agent_chat_history",), description="The namespace of conversations.")
    history_key_template: KeyTemplate = Field(
        KEY_TEMPLATE, description="The template of the key, into which the first valid candidate is inserted."
    )
    history_key_candidates: Candidates = Field(
        KEY_CANDIDATES,
        description="Candidates for the key: texts or templates, tried in order; other values are skipped.",
    )
    history_meta_key_suffix: Annotated[str, _checked_as("meta_key_suffix")] = Field(
        "__meta__", description="The suffix of the keys of items with metadata of conversations."
    )
    history_chunk_size: int = Field(CHUNK_SIZE, ge=1, le=10_000, description="The most messages in an item.")
    history_value_field: Annotated[str, _checked_as("value_field")] = Field(
        "content", description="The field of an item with the text of a message."
    )

    @property
    def layout(self) -> GraphLayout:
        """The layout of the items in the graph's store, made from these options."""
        return GraphLayout(
            self.history_namespace, self.history_meta_key_suffix, self.history_chunk_size, self.history_value_field
        )

    def channel_in(self, state: WorkflowState) -> Channel:
        """Return the channel of the first key candidate that has a channel and values in this run, or else `other`."""
        results = state.get("results") or {}
        for candidate in self.history_key_candidates:
            if not isinstance(candidate, str):
                continue
            if any(results.get(name) for name in nodes_named(candidate)) and channel_of(candidate) != "other":
                return channel_of(candidate)
        return "other"

    def resolve(self, scope: Mapping[str, object], *, by_hand: bool) -> KeyResolution:
        """Return the key of a conversation, or why it has none. `by_hand`: a person started the run."""
        return resolve_key(self.history_key_candidates, scope, template=self.history_key_template, manual=by_hand)

    def resolve_in(self, state: WorkflowState, step: Step) -> KeyResolution:
        """Return the key of the conversation for this run, or why it has none; report a missing key as an event."""
        context = step.context
        resolution = self.resolve(key_scope(state, context.session_id, step.config), by_hand=context.by_hand)
        if resolution.key is None:
            context.resources.observer.notify(
                KeyResolutionFailed(
                    channel=self.channel_in(state),
                    reason=resolution.reason or "empty",
                    candidates=len(self.history_key_candidates),
                    run_id=context.run_id,
                )
            )
        return resolution


class HistoryFields(ConversationFields):
    """The options for an agent's conversation in the graph's store, and the message that resets the conversation."""

    reset_command: Annotated[str, Field(min_length=1), AfterValidator(_command)] | None = Field(
        None, description="The message that resets the conversation; it is not stored."
    )


def key_scope(state: WorkflowState, session_id: str | None, config: RunnableConfig) -> dict[str, object]:
    """Return the values that the templates in `history_key_candidates` may use.

    `thread_id` is the id of the run's session; the LangGraph thread is new for each run.
    """
    given = {name: value for name, value in config.get("configurable", {}).items() if not name.startswith("__")}
    configurable = {**given, "thread_id": session_id}
    return {**scope_of(state), "configurable": configurable, "thread_id": session_id}


def is_reset(command: str | None, texts: Iterable[str]) -> bool:
    """Return True if the message, apart from white space around it, is the reset command."""
    return command is not None and "\n".join(texts).strip() == command.strip()


type ConversationKind = Literal["session", "store", "run"]

_FIRST_LOOK_SECONDS: Final = 0.05
_LONGEST_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Conversation:
    """The conversation that a node continues. `call` names the run and the node, for the records of its model calls.

    A conversation of kind `run` is never stored, and ends with the node.
    """

    kind: ConversationKind
    memory: Memory
    session_id: str
    user_id: str | None
    call: CallSite


@dataclass(frozen=True, kw_only=True)
class StepContext(RunContext):
    """The runtime context of an agent inside a node, with the node's conversation."""

    conversation: Conversation
    passages: tuple[tuple[str | None, str], ...] = ()


def step_context() -> StepContext | None:
    """Return the runtime context of the agent that is being called, or None if the agent is not in a node."""
    context = get_runtime().context
    return context if isinstance(context, StepContext) else None


def run_conversation(step: Step) -> Conversation:
    """Return a conversation for this run only, which has no earlier turns and is not stored."""
    context = step.context
    call = CallSite(context.run_id, step.name, context.session_id, transcript=False)
    memory = context.resources.memory.null_memory()
    return Conversation("run", memory, f"run:{escape_key(context.run_id)}", context.user_id, call)


def session_conversation(step: Step) -> Conversation:
    """Return the run's session as the conversation; if the run has no session, return one that is not stored."""
    context = step.context
    if context.session_id is None:
        return run_conversation(step)
    call = CallSite(context.run_id, step.name, context.session_id)
    return Conversation("session", context.resources.memory, context.session_id, context.user_id, call)


def order_of(memory: Memory, store: BaseStore, layout: GraphLayout, key: str) -> str:
    """Return the name of a conversation's queue, in which its turns wait for each other.

    If the memory stores its sessions in this `store` and `layout`, the conversation is the session with the id `key`,
    and `key` is the name. Otherwise the name differs from `key`, because a session may have this id, too.
    """
    return key if memory.has_namespace(store, layout) else order_name(layout, key)


async def wait_for_turn(step: Step, name: str) -> None:
    """Wait for the earlier turns in the queue `name` of a conversation (see `order_of`).

    If the run would wait for itself (a deadlock), it leaves the queue and continues. It also continues if the database
    cannot be read.
    """
    memory, run_id, seconds = step.context.resources.memory, step.context.run_id, _FIRST_LOOK_SECONDS
    with contextlib.suppress(StoreError):
        while not await _is_turn(memory, run_id, name):
            if seconds >= _LONGEST_LOOK_SECONDS and await memory.runs.positions.waits_for_itself(run_id):
                await memory.runs.positions.leave(run_id, name)
                return
            await memory.runs.positions.freed(seconds)
            seconds = min(2 * seconds, _LONGEST_LOOK_SECONDS)


async def _is_turn(memory: Memory, run_id: str, name: str) -> bool:
    positions = memory.runs.positions
    with waiting_until(time.monotonic() + memory.pending.wait_seconds):
        if not await positions.has(run_id, name):
            await positions.take(run_id, name)
        return await positions.is_first(run_id, name)


async def store_conversation(step: Step, layout: GraphLayout, key: str) -> Conversation:
    """Return a conversation in the graph's store, after waiting for its earlier turns.

    If the graph has no store, report that as an event, and return a conversation for this run only.
    """
    context = step.context
    store = step.store
    if store is None:
        context.resources.observer.notify(
            ReadFailed(backend="other", channel=channel_of(key), outcome="fallback", error="NoGraphStore")
        )
        return run_conversation(step)
    memory = context.resources.memory
    await wait_for_turn(step, order_of(memory, store, layout, key))
    keeps = memory.has_namespace(store, layout)
    other = memory if keeps else await memory.namespace(layout, store)
    if (hold := run_hold.get()) is not None:
        hold.sessions.append(other.session(key, user_id=context.user_id))
    if keeps:
        call = CallSite(context.run_id, step.name, key)
        return Conversation("session", memory, key, context.user_id, call)
    call = CallSite(context.run_id, step.name, context.session_id, location_in(layout, key))
    return Conversation("store", other, key, context.user_id, call)
