"""How soon the progress of a run has to be kept, so that a crash costs no more than a model call."""

from __future__ import annotations

from collections.abc import Callable
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
    """Whether each step is stored before the next begins: where code of others may do something twice that must not."""
    return len(_known(workflow)) < len(workflow.builder.nodes)


def beside_of(workflow: Workflow) -> Callable[[str], bool]:
    """Whether the progress of a place in a run is stored beside its next step, by `threadkeep.runs.progress.progress`.

    Before a marked tool is called all of it is stored, by `threadkeep.runs.once_only`. Where each step of the workflow
    is stored before the next, those inside our own nodes need not be.
    """
    if not keeps_each_step(workflow):
        return lambda _: True
    known = _known(workflow)
    return lambda place: place.partition(":")[0] in known


def _known(workflow: Workflow) -> frozenset[str]:
    """The nodes of which it is known what it costs to carry them out once more."""
    return frozenset(name for name, node in workflow.nodes.items() if node.again != "unknown")
