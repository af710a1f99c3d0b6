"""Helpers for tests of agents: ask an agent, read its session, and read the messages that its model received."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph

from threadkeep import Memory, Message
from threadkeep.testing import ScriptedModel

type Agent = CompiledStateGraph[Any, Any, Any, Any]
type Tools = Sequence[BaseTool | Callable[..., Any]]

ROOM = "telegram:1"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def adding(call_id: str = "call-1", a: int = 1, b: int = 2, *, content: str = "") -> AIMessage:
    """Return an assistant message that calls `add`."""
    return AIMessage(content, tool_calls=[{"name": "add", "args": {"a": a, "b": b}, "id": call_id}])


def make_agent(
    model: ScriptedModel,
    middleware: Sequence[AgentMiddleware[Any, Any, Any]],
    tools: Tools = (),
    *,
    checkpointer: BaseCheckpointSaver[str] | None = None,
    system_prompt: str | None = None,
) -> Agent:
    """Return an agent made by LangChain's `create_agent`."""
    return create_agent(
        model, list(tools), middleware=list(middleware), checkpointer=checkpointer, system_prompt=system_prompt
    )


def config_of(thread_id: str = ROOM, **configurable: object) -> RunnableConfig:
    """Return the config of a run in a session."""
    return {"configurable": {"thread_id": thread_id, **configurable}}


def input_of(words: str, message_id: str | None = None) -> dict[str, list[BaseMessage]]:
    """Return a person's text as an agent's input."""
    return {"messages": [HumanMessage(words, id=message_id)]}


class Meanwhile(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that changes the session before each model call, as another process might."""

    def __init__(self, event: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._event = event

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Change the session, then call the model."""
        await self._event()
        return await handler(request)


async def ask(agent: Agent, words: str, *, message_id: str | None = None, thread_id: str = ROOM) -> str:
    """Ask an agent and return its answer."""
    state = await agent.ainvoke(input_of(words, message_id), config_of(thread_id))
    return str(state["messages"][-1].text)


async def tokens(agent: Agent, words: str, *, message_id: str | None = None) -> AsyncGenerator[str]:
    """Yield the chunks of the agent's answer; closing the generator closes the run."""
    events = agent.astream(input_of(words, message_id), config_of(), stream_mode="messages")
    async with aclosing(cast("AsyncGenerator[tuple[BaseMessage, object]]", events)) as pieces:
        async for message, _ in pieces:
            if isinstance(message, AIMessageChunk) and message.text:
                yield message.text


async def stream(agent: Agent, words: str, *, message_id: str | None = None) -> str:
    """Return the chunks of the agent's answer, read to the end."""
    return "".join([piece async for piece in tokens(agent, words, message_id=message_id)])


async def kept(memory: Memory, thread_id: str = ROOM) -> list[tuple[str, str]]:
    """Return the roles and texts of a session."""
    return [(message.role, message.content) for message in await memory.session(thread_id).tail(1000)]


async def kept_with_status(memory: Memory, thread_id: str = ROOM) -> list[tuple[str, str, str]]:
    """Return the roles, texts and statuses of a session."""
    return [(message.role, message.content, message.status) for message in await memory.session(thread_id).tail(1000)]


def seen(call: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Return the types and texts of a model call."""
    return [(message.type, str(message.text)) for message in call]


def numbered(count: int) -> list[Message]:
    """Return messages `message 1`, `message 2`, …, alternately by user and assistant."""
    return [Message(role="user" if n % 2 else "assistant", content=f"message {n}") for n in range(1, count + 1)]
