"""Workflows (uncompiled graphs with the data that their runs need), and their compiler."""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer, Durability

from threadkeep.boundary import without_exit
from threadkeep.errors import InvalidWorkflow
from threadkeep.records import Json
from threadkeep.workflows.nodes import (
    AgentNode,
    AppendMessageNode,
    ModelNode,
    Node,
    RecordQuestionNode,
    SubworkflowNode,
)
from threadkeep.workflows.nodes.conversations import ConversationFields
from threadkeep.workflows.resources import RunOptions
from threadkeep.workflows.state import nodes_named
from threadkeep.workflows.turn_ends import (
    Graph,
    copied_graph,
    nodes_in,
    reset_commands,
    stores_question,
    with_turn_ends,
)
from threadkeep.workflows.yaml_source import YamlSource

type WorkflowSource = Literal["yaml", "python", "built-in"]

_DIGITS = 16


@dataclass(frozen=True, eq=False)
class Workflow:
    """A workflow: an uncompiled graph (`builder`) with the data that its runs need.

    version: changes with the definition; a run keeps the version with which it began.
    definition: the YAML as JSON values, from which the workflow can be rebuilt; None for a workflow in Python.
    output: the node whose output is the result; by default, the result is the answer.
    origin: the file or the import string.
    positions: the line and column of each part of the workflow in its file, for error messages.
    """

    name: str
    builder: Graph
    version: str
    source: WorkflowSource = "python"
    description: str = ""
    options: RunOptions = field(default_factory=RunOptions)
    definition: Mapping[str, Json] | None = None
    output: str | None = None
    origin: str | None = None
    positions: YamlSource | None = field(default=None, repr=False)

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """The Threadkeep nodes by name; a graph in Python may have other nodes as well."""
        return nodes_in(self.builder)

    @cached_property
    def recorder(self) -> RecordQuestionNode | None:
        """A node that can store the question outside the graph; None if no node of the graph stores questions."""
        nodes = tuple(self.nodes.values())
        if not any(map(stores_question, nodes)):
            return None
        waits = any(isinstance(node, RecordQuestionNode) and node.waits for node in nodes)
        return RecordQuestionNode(reset_commands=reset_commands(nodes), waits=waits)

    @property
    def children(self) -> tuple[str, ...]:
        """The names of the workflows that this workflow runs."""
        return tuple(dict.fromkeys(node.workflow for node in self.nodes.values() if isinstance(node, SubworkflowNode)))

    @cached_property
    def speaker(self) -> AgentNode | ModelNode | None:
        """The only node, if it is an agent or a model that answers in the run's session; otherwise None."""
        node = next(iter(self.nodes.values()), None)
        if len(self.builder.nodes) != 1 or not isinstance(node, AgentNode | ModelNode):
            return None
        return node if node.answers and stores_question(node) else None

    @cached_property
    def durability(self) -> Durability:
        """LangGraph's durability mode for the workflow.

        - `exit`: for workflows with at most one model call. Nothing is stored until the run fails or waits. After a
          crash the run starts again, which costs at most this call.
        - `async`: for several model calls, or tools that may run again. LangGraph saves a step during the next step.
        - `sync`: for tools that must not run twice, or nodes that Threadkeep does not know. LangGraph saves each step
          before the next one begins, so that all progress can be stored before such a tool is called.
        """
        again = [node.again for node in self.nodes.values()]
        if self.keeps_each_step or "marked tools" in again:
            return "sync"
        return "exit" if again.count("a model call") <= 1 and "model calls" not in again else "async"

    @cached_property
    def keeps_each_step(self) -> bool:
        """True if each step must be stored before the next: a second execution of some node may repeat its actions."""
        return len(self._known) < len(self.builder.nodes)

    def is_stored_in_background(self, namespace: str) -> bool:
        """Return True if the checkpoints of a LangGraph namespace may be stored during the next step.

        Before a tool that must not run twice, `threadkeep.runs.tool_idempotency` stores all progress.
        """
        return not self.keeps_each_step or namespace.partition(":")[0] in self._known

    @cached_property
    def _known(self) -> frozenset[str]:
        """The names of the nodes whose `Node.again` says what a second execution costs."""
        return frozenset(name for name, node in self.nodes.items() if node.again != "unknown")

    @cached_property
    def known_conversations(self) -> tuple[ConversationFields, ...]:
        """The nodes that store turns in the graph's store, under a key that depends on no result of another node."""
        found: list[ConversationFields] = []
        for node in self.nodes.values():
            if not isinstance(node, AgentNode | AppendMessageNode) or not node.use_graph_chat_history:
                continue
            candidates = (one for one in node.history_key_candidates if isinstance(one, str))
            named = {name for template in (node.history_key_template, *candidates) for name in nodes_named(template)}
            if named.isdisjoint(self.builder.nodes) and not (isinstance(node, AgentNode) and node.input is not None):
                found.append(node)
        return tuple(found)


def python_workflow(
    name: str,
    builder: object,
    *,
    version: str | None = None,
    description: str = "",
    options: RunOptions | None = None,
    output: str | None = None,
    origin: str | None = None,
) -> Workflow:
    """Return the workflow of a graph that was built in Python.

    The question is stored in the run's session before the first node, and the graph's last message is stored as the
    answer, unless the graph has an `AgentNode`, a `ModelNode` or another node that stores either of them. If middleware
    may change the question, it is stored after the middleware; see `with_turn_ends`. Nothing is stored if the graph has
    deferred nodes, or no messages in its state.

    Args:
        name: the name of the workflow.
        builder: a `StateGraph` that is not compiled.
        version: the version. The default is a digest of the source of the module in `origin`, or else of the calling
            module.
        description: the purpose of the workflow.
        options: the options of its runs.
        output: the node whose output is the result.
        origin: the import string of the graph, if it has one.

    Raises:
        InvalidWorkflow: `builder` is not an uncompiled `StateGraph`; the error says what to use instead.
    """
    if not isinstance(builder, StateGraph):
        compiled = isinstance(getattr(builder, "builder", None), StateGraph)
        cure = "it is compiled already: name its `builder`" if compiled else "name a StateGraph that is not compiled"
        raise InvalidWorkflow(f"Workflow {name!r} cannot be used ({type(builder).__name__}): {cure}.")
    module = (origin or "").partition(":")[0] or _caller()
    return Workflow(
        name,
        with_turn_ends(builder),
        version=version or _digest_of_module(module),
        description=description,
        options=options or RunOptions(),
        output=output,
        origin=origin,
    )


def digest_of(definition: Json) -> str:
    """Return the version of a definition: a digest that does not depend on the order of keys or the YAML notation."""
    text = json.dumps(definition, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _caller() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def _digest_of_module(name: str) -> str:
    """Return a digest of a module's source, or of its name if the source is not available."""
    module = sys.modules.get(name)
    try:
        text = inspect.getsource(module) if module is not None else name
    except (OSError, TypeError):
        text = name
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _without_exits(builder: Graph) -> Graph:
    """Return a copy of a graph whose nodes fail on SystemExit, instead of ending the process."""
    copied = copied_graph(builder)
    for name, spec in builder.nodes.items():
        if (call := getattr(spec.runnable, "afunc", None)) is not None:
            runnable: Any = copy.copy(spec.runnable)
            runnable.afunc = without_exit(call)
            copied.nodes[name] = replace(spec, runnable=runnable)
    return copied


type CompiledWorkflow = CompiledStateGraph[Any, Any, Any, Any]

_MOST_COMPILED = 256


class Compiler:
    """A compiler for workflows, with a checkpointer and a graph store. It caches compiled graphs.

    The application must open and close the checkpointer and the store.
    """

    def __init__(self, *, checkpointer: Checkpointer, store: BaseStore | None) -> None:
        self._checkpointer = checkpointer
        self.store = store
        self._compiled: dict[Workflow, CompiledWorkflow] = {}

    def compiled(self, workflow: Workflow) -> CompiledWorkflow:
        """Return the compiled graph of a workflow.

        Raises:
            InvalidWorkflow: LangGraph cannot compile the graph; the error contains the reason.
        """
        known = self._compiled.get(workflow)
        if known is None:
            if len(self._compiled) >= _MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            known = self._compiled[workflow] = self._compile(workflow)
        return known

    def _compile(self, workflow: Workflow) -> CompiledWorkflow:
        builder = _without_exits(workflow.builder)
        try:
            return builder.compile(checkpointer=self._checkpointer, store=self.store, name=workflow.name)
        except ValueError as error:
            raise InvalidWorkflow(f"The graph of workflow {workflow.name!r} cannot be compiled: {error}") from error
