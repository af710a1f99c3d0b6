"""How one message is answered: an agent with the session's memory, behind one verb that the chat calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from threadkeep.context.tokens import estimate
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.workflow.chat_options import ChatOptions
from threadkeep.workflow.conversion import opinion_of, text_of
from threadkeep.workflow.middleware import SessionMemory
from threadkeep.workflow.recalled_turns import RecalledTurns


@dataclass(frozen=True)
class Question:
    """One message to answer; with `stream` its reader wants the pieces as they come."""

    text: str
    session_id: str
    message_id: str
    run_id: UUID
    user_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True)
class Reply:
    """A complete answer. `input_tokens` is None when the provider did not report any."""

    text: str
    input_tokens: int | None
    output_tokens: int
    confidence: float | None = None
    escalated: bool = False


class Answering(Protocol):
    """What answers the messages of a chat: pieces of text as they come, then the whole as a `Reply`.

    It stores the question before it calls a model and the answer at the end, whatever happens in between.
    """

    @property
    def workflow(self) -> str:
        """The name of what answers."""
        ...

    def answer(self, question: Question) -> AsyncIterator[str | Reply]:
        """Answer one message. Raises what the model raises, and `WrongUser`."""
        ...


class ChatAgent:
    """The built-in workflow `chat`: a model, some tools, the session's memory."""

    def __init__(
        self, memory: Memory, model: BaseChatModel, options: ChatOptions, tools: Sequence[BaseTool] = ()
    ) -> None:
        """Raises `InvalidSettings` when the options leave no room for a question in the model's context window."""
        options.check_room(model)
        sources = () if options.recall == "off" else (RecalledTurns(memory, scope=options.recall),)
        turns = options.turn_options(sources)
        session_memory = SessionMemory(
            memory,
            max_messages=turns.max_messages,
            max_tokens=turns.max_tokens,
            plan=turns.plan,
            sources=turns.sources,
            compression=turns.compression,
            context_window=turns.context_window,
            max_output_tokens=turns.max_output_tokens,
        )
        self._agent: Any = create_agent(
            model,
            list(tools),
            system_prompt=options.system_prompt or None,
            middleware=[session_memory, ModelDeadline(options.model_timeout_seconds)],
        )

    @property
    def workflow(self) -> str:
        """The name of what answers."""
        return "chat"

    async def answer(self, question: Question) -> AsyncIterator[str | Reply]:
        """Answer one message."""
        given = {"messages": [HumanMessage(content=question.text, id=question.message_id)]}
        config: RunnableConfig = {
            "configurable": {
                "thread_id": question.session_id,
                "user_id": question.user_id,
                "message_metadata": dict(question.metadata),
            },
            "run_id": question.run_id,
        }
        if not question.stream:
            # Asked as a whole: a provider need not support streams, and reports the usage.
            yield _reply((await self._agent.ainvoke(given, config))["messages"])
            return
        messages: list[BaseMessage] = []
        async for mode, event in self._agent.astream(given, config, stream_mode=["messages", "values"]):
            if mode == "values":
                messages = event["messages"]
            elif isinstance(event[0], AIMessageChunk) and (piece := text_of(event[0])):
                yield piece
        yield _reply(messages)


class ModelDeadline(AgentMiddleware[AgentState[Any], Any, Any]):
    """Gives each model call a time limit: one that is over raises `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model within the limit."""
        async with asyncio.timeout(self._seconds):
            return await handler(request)


def _reply(messages: Sequence[BaseMessage]) -> Reply:
    said = [message for message in messages if isinstance(message, AIMessage)]
    reported = [message.usage_metadata for message in said if message.usage_metadata]
    final = said[-1] if said else AIMessage(content="")
    text = text_of(final)
    confidence, escalated = opinion_of(final)
    return Reply(
        text,
        input_tokens=sum(usage["input_tokens"] for usage in reported) if reported else None,
        output_tokens=sum(usage["output_tokens"] for usage in reported) if reported else estimate(text),
        confidence=confidence,
        escalated=escalated,
    )
