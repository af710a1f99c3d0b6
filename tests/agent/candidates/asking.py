"""How the tests of the candidate graph ask: numbered events on one thread."""

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
    """What was said."""
    return [message.text for message in messages]


def asking(number: int) -> CandidateState:
    """An event with a number in it."""
    return {"event": {"id": f"e{number}", "text": f"question {number}"}}


async def ask_all(graph: CandidateGraph, *given: CandidateState) -> dict[str, Any]:
    """The state after one event after another on one thread."""
    states = [await graph.ainvoke(one, CONFIG) for one in given]
    return cast("dict[str, Any]", states[-1])
