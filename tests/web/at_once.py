"""Workflows that stream two messages, simultaneously or one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from threadkeep import SessionMemory
from threadkeep.testing import Gate, ScriptedModel
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState


class Meeting(Gate):
    """A gate that two callers pass together."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        super().__init__()
        self._barrier = barrier

    async def pass_through(self) -> None:
        """Wait for the other caller."""
        await self._barrier.wait()


async def answer(state: MessagesState) -> dict[str, Any]:
    """Call two models simultaneously."""
    meeting = Meeting(asyncio.Barrier(2))
    models = [ScriptedModel([[first, meeting, rest]]) for first, rest in (("one", " three"), ("two", " four"))]
    return {"messages": list(await asyncio.gather(*(model.ainvoke(state["messages"]) for model in models)))}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")


class _OwnIds(BaseChatModel):
    """A model whose pieces have the model's own id, and none is marked as the last."""

    name: str

    @property
    def _llm_type(self) -> str:
        return "own-ids"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.name, id=self.name))])

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for text in (self.name, " says so"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=text, id=self.name))


async def answer_twice(state: MessagesState) -> dict[str, Any]:
    """Call two models one after the other."""
    return {"messages": [await _OwnIds(name=name).ainvoke(state["messages"]) for name in ("first", "second")]}


in_turn = StateGraph(MessagesState)
in_turn.add_node("answer", answer_twice)
in_turn.add_edge(START, "answer")


def _agent(name: str, reply: str) -> Any:
    async def speak(state: WorkflowState, runtime: Runtime[RunContext]) -> dict[str, Any]:
        memory = runtime.context.resources.memory
        agent: Any = create_agent(ScriptedModel([reply]), [], middleware=[SessionMemory(memory)], name=name)
        run = runtime.context
        config: RunnableConfig = {"configurable": {"thread_id": run.session_id, "user_id": run.user_id}}
        return {"messages": (await agent.ainvoke({"messages": state["messages"]}, config))["messages"][-1:]}

    return speak


team = StateGraph(WorkflowState, context_schema=RunContext)
team.add_node("writer", _agent("writer", "A draft."))
team.add_node("editor", _agent("editor", "A text."))
team.add_edge(START, "writer")
team.add_edge("writer", "editor")


async def answer_beside_tools(state: MessagesState) -> dict[str, Any]:
    """Call a model that streams text, and one that calls a tool and ends before the text does."""
    whole = asyncio.Event()

    class Slow(_OwnIds):
        async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
            async for chunk in super()._astream(messages):
                yield chunk
                await whole.wait()

    async def call_tool() -> BaseMessage:
        called = AIMessage("", tool_calls=[{"name": "look_up", "args": {}, "id": "c1"}])
        message = await ScriptedModel([called]).ainvoke(state["messages"])
        whole.set()
        return message

    text, _ = await asyncio.gather(Slow(name="first").ainvoke(state["messages"]), call_tool())
    return {"messages": [text]}


beside_tools = StateGraph(MessagesState)
beside_tools.add_node("answer", answer_beside_tools)
beside_tools.add_edge(START, "answer")
