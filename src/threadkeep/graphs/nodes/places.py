"""Where the turn of a speaking node belongs: to the run's session, the graph's store, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore

from threadkeep.graphs.nodes.base import Step
from threadkeep.graphs.resources import RunContext
from threadkeep.history.keys import channel_of, escape_key
from threadkeep.history.memory import Memory
from threadkeep.history.session_events import SessionEvents
from threadkeep.observe import ReadFailed
from threadkeep.store.graph_transcripts.items import ConversationChanged
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.graph_transcripts.opening import items_of
from threadkeep.store.graph_transcripts.transcripts import GraphTranscripts

type PlaceKind = Literal["session", "store", "run"]


@dataclass(frozen=True)
class Place:
    """A memory and a session in it. In a place of kind `run` nothing is kept when the node is done."""

    kind: PlaceKind
    memory: Memory
    session_id: str
    user_id: str | None


@dataclass(frozen=True, kw_only=True)
class StepContext(RunContext):
    """The runtime context of an agent inside a node: that of the run, and what only this step has."""

    place: Place
    passages: tuple[tuple[str | None, str], ...] = ()


def step_context() -> StepContext | None:
    """The context of the agent that is asked from inside of it."""
    context = get_runtime().context
    return context if isinstance(context, StepContext) else None


def place_of_run(step: Step) -> Place:
    """The run itself: no earlier turns are seen, and none is stored."""
    context = step.context
    return Place("run", context.resources.memory.forgetting(), f"run:{escape_key(context.run_id)}", context.user_id)


def place_of_session(step: Step) -> Place:
    """The run's session; the run itself if it belongs to none."""
    context = step.context
    if context.session_id is None:
        return place_of_run(step)
    return Place("session", context.resources.memory, context.session_id, context.user_id)


async def place_in_store(step: Step, layout: GraphLayout, key: str) -> Place:
    """A conversation in the store that the graph was compiled with; the run itself if there is no store."""
    context = step.context
    store = step.store
    if store is None:
        context.resources.observer.notify(
            ReadFailed(backend="other", channel=channel_of(key), outcome="fallback", error="NoGraphStore")
        )
        return place_of_run(step)
    memory = context.resources.memory
    other = await memory.beside((store, layout), lambda: _conversations(memory, store, layout), _folder(layout))
    return Place("store", other, key, context.user_id)


def _conversations(memory: Memory, store: BaseStore, layout: GraphLayout) -> GraphTranscripts:
    items = items_of(store)

    def conflicted(session_id: str) -> None:
        SessionEvents(memory.observers, items.backend, session_id).write_failed(ConversationChanged(), "conflict")

    return GraphTranscripts(items, layout, count=memory.counter, clock=memory.clock, conflicted=conflicted)


def _folder(layout: GraphLayout) -> str:
    """Where turns wait that a store does not take: each layout has a folder of its own."""
    name = "\0".join([*layout.namespace, layout.meta_key_suffix, layout.value_field])
    return f"store-{sha256(name.encode()).hexdigest()[:16]}"
