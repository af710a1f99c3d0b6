"""A graph in Python without a node of Threadkeep's."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph


async def answer(state: MessagesState) -> dict[str, Any]:
    """Answer with what was asked."""
    told = {"confidence": 0.4, "escalated": True}
    return {"messages": [AIMessage(f"You said {state['messages'][-1].text}", response_metadata=told)]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
