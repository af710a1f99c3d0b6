"""How soon the progress of a run has to be kept, so that a crash costs no more than a model call."""

from __future__ import annotations

from functools import lru_cache

from langgraph.types import Durability

from threadkeep.graphs.definition import Workflow


@lru_cache(maxsize=256)
def durability_of(workflow: Workflow) -> Durability:
    """How soon, as LangGraph calls it.

    What calls a model once and does nothing else begins anew after a crash, at the cost that it would have anyway;
    until it fails, or waits, nothing is written. With several calls, and tools that may run again, the progress is
    written beside the next step, by `threadkeep.runs.progress`. Where something may be done twice that must not, by a
    marked tool or by code of others, each step is kept before the next one begins.
    """
    nodes = workflow.nodes
    again = [node.again for node in nodes.values()]
    if len(nodes) < len(workflow.builder.nodes) or "unknown" in again:
        return "sync"
    return "exit" if again.count("a model call") <= 1 and "model calls" not in again else "async"
