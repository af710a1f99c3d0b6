"""Helpers for tests of the candidate graph: numbered events on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph

from threadkeep.agent.candidates import CandidateState

type CandidateGraph = CompiledStateGraph[CandidateState, None, CandidateState, CandidateState]

CONFIG: RunnableConfig = {"configurable": {"thread_id": "room:1"}}


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the texts of the messages."""
    return [message.text for message in messages]


def asking(number: int) -> CandidateState:
    """Return an event with a number in its text."""
    return {"event": {"id": f"e{number}", "text": f"question {number}"}}


async def ask_all(graph: CandidateGraph, *given: CandidateState) -> dict[str, Any]:
    """Send events one after the other on one thread and return the last state."""
    states = [await graph.ainvoke(one, CONFIG) for one in given]
    return cast("dict[str, Any]", states[-1])
