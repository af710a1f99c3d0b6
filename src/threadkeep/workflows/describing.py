"""Descriptions of workflows as JSON values."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START

from threadkeep.workflows.compiling import Compiler
from threadkeep.workflows.definition import Workflow

_PLACES = {START: "start", END: "end"}


def describe(workflow: Workflow) -> dict[str, Any]:
    """Return the description of a workflow in a list."""
    return {
        "name": workflow.name,
        "description": workflow.description,
        "version": workflow.version,
        "source": workflow.source,
        "nodes": len(workflow.builder.nodes),
        "children": list(workflow.children),
    }


def describe_whole(workflow: Workflow) -> dict[str, Any]:
    """Return the description with nodes, edges, options, and the definition if there is one.

    Raises:
        InvalidWorkflow: the graph cannot be compiled.
    """
    graph = Compiler(checkpointer=None, store=None).compiled(workflow).get_graph()
    following: dict[str, list[str]] = {}
    for edge in sorted(graph.edges, key=lambda one: (one.source, one.target)):
        following.setdefault(edge.source, []).append(_PLACES.get(edge.target, edge.target))
    kinds = {name: node.node_kind for name, node in workflow.nodes.items()}
    nodes = [
        {"name": name, "kind": kinds.get(name, "python"), "next": following.get(name, [])}
        for name in workflow.builder.nodes
    ]
    return {
        **describe(workflow),
        "nodes": nodes,
        "options": workflow.options.model_dump(mode="json"),
        "output": workflow.output,
        "definition": workflow.definition,
    }
