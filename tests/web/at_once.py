"""A workflow whose node streams two messages at once: both begin before either goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from threadkeep.testing import Gate, ScriptedModel


class Meeting(Gate):
    """A gate that lets two through together."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        super().__init__()
        self._barrier = barrier

    async def pass_through(self) -> None:
        """Wait for the other one."""
        await self._barrier.wait()


async def answer(state: MessagesState) -> dict[str, Any]:
    """Ask two models at once."""
    meeting = Meeting(asyncio.Barrier(2))
    models = [ScriptedModel([[first, meeting, rest]]) for first, rest in (("one", " three"), ("two", " four"))]
    return {"messages": list(await asyncio.gather(*(model.ainvoke(state["messages"]) for model in models)))}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
