"""How soon the progress of a run has to be kept, so that a crash costs no more than a model call."""

from __future__ import annotations

from functools import lru_cache

from langgraph.types import Durability

from threadkeep.graphs.definition import Workflow


@lru_cache(maxsize=256)
def durability_of(workflow: Workflow) -> Durability:
    """How soon LangGraph hands the progress over, as it calls it.

    What calls a model once and does nothing else begins anew after a crash, at the cost that it would have anyway;
    until it fails, or waits, nothing is handed over. With several calls, and tools that may run again, the progress is
    handed over beside the next step. With marked tools, and code of others, that of each step is handed over before the
    next one begins: when a marked tool is called, all of it is there to be kept.
    """
    again = [node.again for node in workflow.nodes.values()]
    if keeps_each_step(workflow) or "marked tools" in again:
        return "sync"
    return "exit" if again.count("a model call") <= 1 and "model calls" not in again else "async"


@lru_cache(maxsize=256)
def keeps_each_step(workflow: Workflow) -> bool:
    """Whether each step is stored before the next begins: where code of others may do something twice that must not.

    The progress of all others is stored beside the next step, by `threadkeep.runs.progress`, and before a marked tool
    is called, by `threadkeep.runs.once_only`.
    """
    nodes = workflow.nodes
    return len(nodes) < len(workflow.builder.nodes) or any(node.again == "unknown" for node in nodes.values())
