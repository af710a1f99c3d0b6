"""A workflow in Python: our nodes and a function, in any graph that LangGraph can build.

Register it with THREADKEEP_WORKFLOWS=in_python=examples.in_python:graph
"""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph

from threadkeep.workflows.building import add_node
from threadkeep.workflows.nodes import ModelNode
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState


async def count_words(state: WorkflowState) -> WorkflowState:
    """Take down how long the question is."""
    return {"results": {"count": {"words": len(state["text"].split())}}}


graph: StateGraph[Any, Any, Any, Any] = StateGraph(WorkflowState, context_schema=RunContext)
graph.add_node("count", count_words)
add_node(graph, "answer", ModelNode(system_prompt="The question has {{results.count.words}} words."))
graph.add_edge(START, "count")
graph.add_edge("count", "answer")
graph.add_edge("answer", END)
