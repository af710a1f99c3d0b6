"""The workflow versions that runs use, and the conversations that agents of runs store apart from the session."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import BaseStore

from threadkeep.agent.turn_options import TurnOptions
from threadkeep.errors import InvalidWorkflow, WorkflowNotFound
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.graph_conversations import of_order_name
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records.runs import Run, RunTrigger
from threadkeep.runs.requests import RunRequest, begin_state, metadata_of
from threadkeep.store.runs.runs import WorkflowVersions
from threadkeep.workflows.built_in import ChatNode, session_workflows
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.loading import restore_workflow
from threadkeep.workflows.nodes import AgentNode
from threadkeep.workflows.nodes.base import Step, references_in
from threadkeep.workflows.nodes.conversations import ConversationFields, ConversationKind, key_scope, order_of
from threadkeep.workflows.nodes.speaking import SpeakingNode
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import BY_HAND, Resources, RunContext
from threadkeep.workflows.state import WorkflowState, initial_state
from threadkeep.workflows.turn_ends import sees_question

_MOST_RESTORED = 64
_KNOWN_SECONDS = 60.0


class VersionGone(Exception):
    """The workflow version of a run is not available any more; `kind` is stored as the run's error."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class RunWorkflows:
    """The registered workflows, and the older versions with which unfinished runs began."""

    def __init__(self, workflows: Workflows, versions: WorkflowVersions) -> None:
        self._workflows = workflows
        self._own = {workflow.name: workflow for workflow in session_workflows()}
        self._versions = versions
        self._known: dict[tuple[str, str], float] = {}
        self._restored: dict[tuple[str, str], Workflow] = {}

    async def newest(self, name: str) -> Workflow:
        """Return the workflow for new runs, and store its version, so that these runs can be resumed later.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
        """
        workflow = self._own.get(name) or self._workflows.get(name)
        key = (name, workflow.version)
        # Store the version again from time to time, because maintenance deletes versions that no run uses.
        if time.monotonic() - self._known.get(key, -_KNOWN_SECONDS) >= _KNOWN_SECONDS:
            await self._versions.keep(name, workflow.version, workflow.definition)
            self._known[key] = time.monotonic()
        return workflow

    async def of(self, run: Run) -> Workflow:
        """Return the workflow of a run, in the version with which the run began.

        Raises:
            VersionGone: the version is not the current one, and it cannot be restored: it was written as code, is not
                stored any more, is invalid, or imports code that no registered workflow imports.
        """
        current: Workflow | None = None
        with contextlib.suppress(WorkflowNotFound):
            current = self._own.get(run.workflow) or self._workflows.get(run.workflow)
        # Built-in workflows depend on the settings of the service, so their runs continue with the current settings.
        if current is not None and (current.source == "built-in" or run.version in (None, current.version)):
            return current
        if run.version is None:
            raise VersionGone("WorkflowGone")
        key = (run.workflow, run.version)
        if key not in self._restored:
            workflow = await self._restore(*key)
            if workflow is None:
                raise VersionGone("WorkflowGone" if current is None else "WorkflowVersionGone")
            if len(self._restored) >= _MOST_RESTORED:
                del self._restored[next(iter(self._restored))]
            self._restored[key] = workflow
        return self._restored[key]

    async def _restore(self, name: str, version: str) -> Workflow | None:
        """Restore a stored version, or return None if that is not possible.

        A version in the database must not decide which code a worker imports; only the operator's files may.
        """
        stored = await self._versions.version(name, version)
        if stored is None or stored.definition is None:
            return None
        allowed = frozenset[str]().union(*(references_in(each.definition or {}) for each in self._workflows.all()))
        # Convert through JSON, because the type of `definition` allows mappings other than dict.
        if not references_in(json.loads(json.dumps(stored.definition))) <= allowed:
            return None
        try:
            return restore_workflow(stored.definition)
        except InvalidWorkflow:
            return None


@dataclass(frozen=True)
class RunPlan:
    """Facts about a workflow, computed once for all its runs in this process.

    `chat`: the name, node and options of the built-in chat if it needs no agent. `at_once`: the options for storing
    a run's question together with the run; None if it is stored later. `silent`: nodes that do not answer the question.
    """

    chat: tuple[str, ChatNode, Mapping[ConversationKind, TurnOptions]] | None
    at_once: TurnOptions | None
    silent: frozenset[str]

    @classmethod
    def of(cls, workflow: Workflow, resources: Resources) -> RunPlan:
        """Return the plan of a workflow whose nodes use `resources`."""
        nodes, speaker = workflow.nodes.items(), workflow.speaker
        silent = frozenset(name for name, node in nodes if not (isinstance(node, SpeakingNode) and node.answers))
        if speaker is None:
            return cls(None, None, silent)
        [name] = workflow.nodes
        step = Step(name, RunContext("", workflow.name, resources), None)
        chat = at_once = None
        if isinstance(speaker, ChatNode) and not speaker.needs_agent(resources):
            chat = name, speaker, speaker.reply_options(step)
        # Store the question later if middleware may change it, or if it may be a reset command.
        if not any(map(sees_question, resources.middleware)) and getattr(speaker, "reset_command", None) is None:
            options = speaker.turn_options(step)
            at_once = options if options.scope == "turn" and not options.no_history else None
        return cls(chat, at_once, silent)


def order_keys(
    workflow: Workflow, request: RunRequest, session_id: str | None, memory: Memory, store: BaseStore
) -> tuple[str, ...]:
    """Return the queue names of the conversations, other than the session, in which a new run waits for its turn.

    A conversation whose key depends on a node's result is left out: the run waits for it when it reaches the agent.
    """
    given = initial_state(
        request.text, inputs=request.inputs, results=request.results, user_context=request.user_context
    )
    values = {"session_id": session_id, "user_id": request.user_id, "message_metadata": request.metadata}
    found = _keys(workflow.known_conversations, given, values, request.trigger)
    keys = [order_of(memory, store, layout, key) for layout, key in found]
    return tuple(dict.fromkeys(name for name in keys if name != session_id))


async def sessions_known(workflow: Workflow, run: Run, memory: Memory, store: BaseStore | None) -> list[Session]:
    """Return the graph store conversations that get the run's question and whose keys follow from the run's request."""
    keeping = [node for node in workflow.known_conversations if isinstance(node, AgentNode)]
    if store is None or not keeping:
        return []
    values = {"session_id": run.session_id, "user_id": run.user_id, "message_metadata": metadata_of(run)}
    found = []
    for layout, key in _keys(keeping, begin_state(run), values, run.trigger):
        other = memory if memory.has_namespace(store, layout) else await memory.namespace(layout, store)
        found.append(other.session(key, user_id=run.user_id))
    return found


async def sessions_reached(run: Run, memory: Memory, store: BaseStore | None) -> list[Session]:
    """Return the conversations in which a run has waited for its turn in any process, as the database records."""
    found = []
    for name in await memory.runs.positions.of(run.run_id):
        conversation = of_order_name(name)
        if conversation is None:
            found.append(memory.session(name, user_id=run.user_id))
        elif store is not None:
            layout, key = conversation
            found.append((await memory.namespace(layout, store)).session(key, user_id=run.user_id))
    return found


def _keys(
    nodes: Iterable[ConversationFields], state: WorkflowState, values: Mapping[str, Any], trigger: RunTrigger
) -> list[tuple[GraphLayout, str]]:
    """Return the `GraphLayout` and key of each conversation that the nodes store; leave out nodes without a key."""
    scope = key_scope(state, values["session_id"], {"configurable": dict(values)})
    found = [(node.layout, node.resolve(scope, by_hand=trigger in BY_HAND).key) for node in nodes]
    return list(dict.fromkeys((layout, key) for layout, key in found if key is not None))
