"""Conversations that agents of a run keep under their own keys, as far as they are known before the run begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore

from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.graph_conversations import of_order_name
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Json
from threadkeep.records.runs import Run, RunTrigger
from threadkeep.runs.requests import RunRequest, begin_state, metadata_of
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.nodes import AgentNode, AppendMessageNode
from threadkeep.workflows.nodes.places import ConversationFields, key_scope, order_of
from threadkeep.workflows.resources import BY_HAND
from threadkeep.workflows.state import WorkflowState, initial_state, nodes_named


class _Caller(NamedTuple):
    """The values that keys may refer to besides the state of a run, with the trigger of the run."""

    session_id: str | None
    user_id: str | None
    metadata: Mapping[str, Json]
    trigger: RunTrigger


def places_known(
    workflow: Workflow, request: RunRequest, session_id: str | None, memory: Memory, store: BaseStore | None
) -> tuple[str, ...]:
    """Return the ordering keys of a requested run in the conversations of its agents.

    A key that refers to a node of the workflow is not known yet; the run enters that order when it gets there.
    """
    if store is None or not (keeping := list(_keeping(workflow))):
        return ()
    given = initial_state(
        request.text, inputs=request.inputs, results=request.results, user_context=request.user_context
    )
    caller = _Caller(session_id, request.user_id, request.metadata, request.trigger)
    places = [order_of(memory, store, layout, key) for layout, key in _keys(keeping, given, caller)]
    return tuple(dict.fromkeys(place for place in places if place != session_id))


async def sessions_known(workflow: Workflow, run: Run, memory: Memory, store: BaseStore | None) -> list[Session]:
    """Return the conversations of a run in which its question is stored."""
    keeping = [node for node in _keeping(workflow) if isinstance(node, AgentNode)]
    if store is None or not keeping:
        return []
    caller = _Caller(run.session_id, run.user_id, metadata_of(run), run.trigger)
    found = []
    for layout, key in _keys(keeping, begin_state(run), caller):
        other = memory if memory.keeps(store, layout) else await memory.beside(layout, store)
        found.append(other.session(key, user_id=run.user_id))
    return found


async def sessions_reached(run: Run, memory: Memory, store: BaseStore | None) -> list[Session]:
    """Return the conversations that a run has come to, in whichever process: their keys are in the order of turns."""
    found = []
    for place in await memory.runs.places.of(run.run_id):
        conversation = of_order_name(place)
        if conversation is None:
            found.append(memory.session(place, user_id=run.user_id))
        elif store is not None:
            layout, key = conversation
            found.append((await memory.beside(layout, store)).session(key, user_id=run.user_id))
    return found


def _keeping(workflow: Workflow) -> Iterable[ConversationFields]:
    """Yield the nodes that keep a conversation under a key that is known when a run is requested."""
    for node in workflow.nodes.values():
        if not isinstance(node, AgentNode | AppendMessageNode) or not node.use_graph_chat_history:
            continue
        templates = [node.history_key_template, *(one for one in node.history_key_candidates if isinstance(one, str))]
        named = {name for template in templates for name in nodes_named(template)}
        if named.isdisjoint(workflow.builder.nodes) and not (isinstance(node, AgentNode) and node.input is not None):
            yield node


def _keys(
    keeping: Iterable[ConversationFields], state: WorkflowState, caller: _Caller
) -> list[tuple[GraphLayout, str]]:
    """Return each node's layout and conversation key in a run; nodes without a key are left out."""
    values = {"session_id": caller.session_id, "user_id": caller.user_id, "message_metadata": caller.metadata}
    config: RunnableConfig = {"configurable": values}
    scope = key_scope(state, caller.session_id, config)
    found = [(node.layout, node.resolve(scope, by_hand=caller.trigger in BY_HAND).key) for node in keeping]
    return list(dict.fromkeys((layout, key) for layout, key in found if key is not None))
