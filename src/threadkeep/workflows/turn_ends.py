"""Storing of the turn for graphs in Python that store neither question nor answer themselves."""

from __future__ import annotations

import copy
from collections import defaultdict
from itertools import count
from typing import Any

from langgraph.graph import END, START, StateGraph

from threadkeep.workflows.nodes import Node, RecordAnswerNode, RecordQuestionNode
from threadkeep.workflows.nodes.base import END_NAME
from threadkeep.workflows.nodes.recording import RecordingNode
from threadkeep.workflows.nodes.speaking import SpeakingNode
from threadkeep.workflows.redacting import has_middleware

type Graph = StateGraph[Any, Any, Any, Any]

QUESTION, ANSWER = "record_question", "record_answer"
_MESSAGES = "messages"


def add_node(builder: Graph, name: str, node: Node, *, defer: bool = False) -> None:
    """Add a Threadkeep node to a graph, with its kind and its possible next nodes, which drawings show."""
    destinations = {END if target == END_NAME else target: why for target, why in node.targets().items()}
    # LangGraph has no type for a node that takes both a config and a runtime.
    action: Any = node
    kind = {"kind": node.node_kind}
    builder.add_node(name, action, metadata=kind, defer=defer, destinations=destinations or None)


def nodes_in(builder: Graph) -> dict[str, Node]:
    """Return the Threadkeep nodes of a graph, by name."""
    found: dict[str, Node] = {}
    for name, spec in builder.nodes.items():
        called = getattr(spec.runnable, "afunc", None)
        if isinstance(called, Node):
            found[name] = called
    return found


def with_turn_ends(builder: Graph) -> Graph:
    """Return a graph that stores its turn: the question first, and its last message as the answer.

    If an agent of the graph has middleware that sees the question before its model, the question is stored after it.
    The graph is returned unchanged if it has a Threadkeep node that answers or stores messages, if its state has no
    messages, or if it has deferred nodes, which would run in parallel to the node that stores the answer.
    """
    if _MESSAGES not in builder.channels or any(spec.defer for spec in builder.nodes.values()):
        return builder
    if any(isinstance(node, SpeakingNode | RecordingNode) for node in nodes_in(builder).values()):
        return builder
    grown = _copied(builder)
    question, answer = _free_name(builder, QUESTION), _free_name(builder, ANSWER)
    first = {edge for edge in grown.edges if edge[0] == START}
    if not first and START not in grown.branches:
        return builder  # LangGraph reports the error
    grown.edges = (grown.edges - first) | {(question, end) for _, end in first}
    if START in grown.branches:
        grown.branches[question] = grown.branches.pop(START)
    add_node(grown, question, RecordQuestionNode(waits=has_middleware(builder)))
    add_node(grown, answer, RecordAnswerNode(), defer=True)
    grown.add_edge(START, question)
    # Deferred: it runs after everything else, on every path to the end.
    grown.add_edge(question, answer)
    grown.add_edge(answer, END)
    return grown


def _copied(builder: Graph) -> Graph:
    """Return a copy to add nodes to; the caller's graph does not change."""
    copied = copy.copy(builder)
    copied.nodes, copied.edges = dict(builder.nodes), set(builder.edges)
    copied.branches = defaultdict(dict, {name: dict(branches) for name, branches in builder.branches.items()})
    copied.waiting_edges, copied.channels = set(builder.waiting_edges), dict(builder.channels)
    copied.managed, copied.schemas = dict(builder.managed), dict(builder.schemas)
    return copied


def _free_name(builder: Graph, name: str) -> str:
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(one for one in names if one not in builder.nodes and one not in builder.channels)
