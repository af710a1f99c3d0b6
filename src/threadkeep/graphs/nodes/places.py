"""Where the turn of a speaking node belongs: to the run's session, the graph's store, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from langgraph.runtime import get_runtime

from threadkeep.graphs.nodes.base import Step
from threadkeep.graphs.resources import RunContext
from threadkeep.history.graph_conversations import place_in
from threadkeep.history.keys import channel_of, escape_key
from threadkeep.history.memory import Memory
from threadkeep.observe import ReadFailed
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.workflow.turn_options import CallPlace

type PlaceKind = Literal["session", "store", "run"]


@dataclass(frozen=True)
class Place:
    """A memory and a session in it, and whose the model calls are that are made there.

    In a place of kind `run` nothing of what is said is kept when the node is done.
    """

    kind: PlaceKind
    memory: Memory
    session_id: str
    user_id: str | None
    call: CallPlace


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
    call = CallPlace(context.run_id, step.name, context.session_id, transcript=False)
    memory = context.resources.memory.forgetting()
    return Place("run", memory, f"run:{escape_key(context.run_id)}", context.user_id, call)


def place_of_session(step: Step) -> Place:
    """The run's session; the run itself if it belongs to none."""
    context = step.context
    if context.session_id is None:
        return place_of_run(step)
    call = CallPlace(context.run_id, step.name, context.session_id)
    return Place("session", context.resources.memory, context.session_id, context.user_id, call)


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
    if memory.keeps(store, layout):
        call = CallPlace(context.run_id, step.name, key)
        return Place("session", memory, key, context.user_id, call)
    other = await memory.beside(layout, store)
    call = CallPlace(context.run_id, step.name, context.session_id, place_in(layout, key))
    return Place("store", other, key, context.user_id, call)
