"""The place of a speaking node's turn: the run's session, the graph's store, or memory only."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Final, Literal

from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore

from threadkeep.agent.holding import run_hold
from threadkeep.agent.turn_options import CallPlace
from threadkeep.errors import StoreError
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.graph_conversations import order_name, place_in
from threadkeep.history.keys import channel_of, escape_key
from threadkeep.history.memory import Memory
from threadkeep.observe import ReadFailed
from threadkeep.store.driver import waiting_until
from threadkeep.workflows.nodes.base import Step
from threadkeep.workflows.resources import RunContext

type PlaceKind = Literal["session", "store", "run"]

_FIRST_LOOK_SECONDS: Final = 0.05
_LONGEST_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Place:
    """A memory with a session in it, and the owner of the model calls made there.

    In a place of kind `run`, nothing is stored after the node has finished.
    """

    kind: PlaceKind
    memory: Memory
    session_id: str
    user_id: str | None
    call: CallPlace


@dataclass(frozen=True, kw_only=True)
class StepContext(RunContext):
    """The runtime context of an agent inside a node: that of the run, plus values of this step."""

    place: Place
    passages: tuple[tuple[str | None, str], ...] = ()


def step_context() -> StepContext | None:
    """Return the context of the agent whose call is running."""
    context = get_runtime().context
    return context if isinstance(context, StepContext) else None


def place_of_run(step: Step) -> Place:
    """Return the run itself as the place: earlier turns are not read, and none is stored."""
    context = step.context
    call = CallPlace(context.run_id, step.name, context.session_id, transcript=False)
    memory = context.resources.memory.forgetting()
    return Place("run", memory, f"run:{escape_key(context.run_id)}", context.user_id, call)


def place_of_session(step: Step) -> Place:
    """Return the run's session as the place; the run itself if it has no session."""
    context = step.context
    if context.session_id is None:
        return place_of_run(step)
    call = CallPlace(context.run_id, step.name, context.session_id)
    return Place("session", context.resources.memory, context.session_id, context.user_id, call)


def order_of(memory: Memory, store: BaseStore, layout: GraphLayout, key: str) -> str:
    """Return the name of a conversation in the order of turns: its session id, or a name that is not a session id.

    A conversation in the store may have the same key as a session.
    """
    return key if memory.keeps(store, layout) else order_name(layout, key)


async def wait_for_turn(step: Step, place: str) -> None:
    """Wait until no earlier turn is open in a conversation whose key became known only now.

    If the key was known when the run was requested, the run already waited before its start. A run that would wait
    for itself gives up its position and continues, and so does a run whose order cannot be read.
    """
    memory, run_id, seconds = step.context.resources.memory, step.context.run_id, _FIRST_LOOK_SECONDS
    with contextlib.suppress(StoreError):
        while not await _is_turn(memory, run_id, place):
            if seconds >= _LONGEST_LOOK_SECONDS and await memory.runs.places.waits_for_itself(run_id):
                await memory.runs.places.leave(run_id, place)
                return
            await memory.runs.places.freed(seconds)
            seconds = min(2 * seconds, _LONGEST_LOOK_SECONDS)


async def _is_turn(memory: Memory, run_id: str, place: str) -> bool:
    places = memory.runs.places
    with waiting_until(time.monotonic() + memory.pending.wait_seconds):
        if not await places.has(run_id, place):
            await places.take(run_id, place)
        return await places.is_first(run_id, place)


async def place_in_store(step: Step, layout: GraphLayout, key: str) -> Place:
    """Return a conversation in the graph's store as the place, or the run itself if there is no store.

    On return it is this run's turn there.
    """
    context = step.context
    store = step.store
    if store is None:
        context.resources.observer.notify(
            ReadFailed(backend="other", channel=channel_of(key), outcome="fallback", error="NoGraphStore")
        )
        return place_of_run(step)
    memory = context.resources.memory
    await wait_for_turn(step, order_of(memory, store, layout, key))
    keeps = memory.keeps(store, layout)
    other = memory if keeps else await memory.beside(layout, store)
    if (hold := run_hold.get()) is not None:
        hold.sessions.append(other.session(key, user_id=context.user_id))
    if keeps:
        call = CallPlace(context.run_id, step.name, key)
        return Place("session", memory, key, context.user_id, call)
    call = CallPlace(context.run_id, step.name, context.session_id, place_in(layout, key))
    return Place("store", other, key, context.user_id, call)
