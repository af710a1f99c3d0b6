"""How soon the progress of a run has to be kept, so that a crash costs no more than a model call."""

from __future__ import annotations

from langgraph.types import Durability

from threadkeep.graphs.definition import Workflow


def durability_of(workflow: Workflow) -> Durability:
    """How soon, as LangGraph calls it.

    What calls a model once and does nothing else begins anew after a crash, at the cost that it would have anyway;
    until it ends, or fails, nothing is written. With several calls the progress is written beside the next node. Where
    a node may do something twice, as tools and code of others may, each step is kept before the next one begins.
    """
    nodes = workflow.nodes
    again = [node.again for node in nodes.values()]
    if len(nodes) < len(workflow.builder.nodes) or "unknown" in again:
        return "sync"
    return "exit" if again.count("a model call") <= 1 else "async"
