"""A graph that uses its store and its thread; its reply shows whether it had both."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

BOTH = "stored True, remembered True, begun 1 times: yes"
"""The reply of a graph that has its store and its thread."""

PARENT = "schema: 1\nname: above\nnodes:\n  ask: {kind: subworkflow, workflow: wired, next: end}\n"
NAMED = "wired=tests.wired:graph"
"""The graph as an entry of the setting for workflows; the entry of the parent is its file."""

_PLACE = ("wired",)


async def write(state: WorkflowState, runtime: Runtime[RunContext]) -> WorkflowState:
    """Write a mark to the store, and one to the state, which only a checkpoint keeps during an interrupt."""
    run_id = runtime.context.run_id
    assert runtime.store is not None, "the graph was compiled without its store"
    known = await runtime.store.aget(_PLACE, run_id)
    times = 1 if known is None else known.value["times"] + 1
    await runtime.store.aput(_PLACE, run_id, {"times": times, "broken": state["messages"][-1].text == "break"})
    return {"results": {"write": {"run_id": run_id}}}


async def read(state: WorkflowState, runtime: Runtime[RunContext]) -> WorkflowState:
    """Fail once if the message asks for it, interrupt, and look for both marks."""
    run_id = runtime.context.run_id
    assert runtime.store is not None
    found = await runtime.store.aget(_PLACE, run_id)
    if found is not None and found.value["broken"]:
        await runtime.store.aput(_PLACE, run_id, {**found.value, "broken": False})
        raise ValueError("broken once")
    answer = interrupt("go on?")
    remembered = state.get("results", {}).get("write") == {"run_id": run_id}
    times = found.value["times"] if found is not None else 0
    said = f"stored {found is not None}, remembered {remembered}, begun {times} times: {answer}"
    return {"messages": [AIMessage(said)]}


graph: StateGraph[WorkflowState, RunContext, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
nodes: list[Any] = [("write", write), ("read", read)]
graph.add_sequence(nodes)
graph.add_edge(START, "write")
