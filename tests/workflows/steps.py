"""A Python graph without nodes of Threadkeep."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph


async def answer(state: MessagesState) -> dict[str, Any]:
    """Repeat the message of the user."""
    told = {"confidence": 0.4, "escalated": True}
    return {"messages": [AIMessage(f"You said {state['messages'][-1].text}", response_metadata=told)]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
