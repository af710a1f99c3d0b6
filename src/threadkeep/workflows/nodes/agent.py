"""`agent`: a model with tools, which is called until it requests no more tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import takewhile
from typing import Annotated, Any, ClassVar

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, messages_to_dict
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.config import get_stream_writer
from langgraph.errors import GraphRecursionError
from pydantic import Field, PrivateAttr
from pydantic.json_schema import SkipJsonSchema

from threadkeep.agent.answers import answer_of
from threadkeep.agent.conversion import text_of
from threadkeep.agent.knowledge_tools import MemoryToolKind, knowledge_tools
from threadkeep.agent.lookup_tools import history_tools
from threadkeep.agent.middleware import SessionMemory
from threadkeep.agent.turn_options import CallSite, NodeTurnOptions, TurnOptions
from threadkeep.errors import InvalidInput
from threadkeep.workflows.nodes.base import Again, NodeKind, PythonOnly, Reference, Step, import_named
from threadkeep.workflows.nodes.conversations import (
    Conversation,
    ConversationKind,
    HistoryFields,
    StepContext,
    is_reset,
    run_conversation,
    session_conversation,
    step_context,
    store_conversation,
)
from threadkeep.workflows.nodes.retrieve import FoundPassages, passages_in
from threadkeep.workflows.nodes.speaking import SpeakingNode, reply_update
from threadkeep.workflows.resources import Resources, RunContext, is_idempotent
from threadkeep.workflows.state import WorkflowState

type Tool = BaseTool | Callable[..., Any]
type ToolReference = Reference | SkipJsonSchema[Annotated[BaseTool, PythonOnly()]]

RESET_ANSWER = "The conversation begins anew."
"""The answer to a reset command; the command and this answer are not stored."""

_MOST_AGENTS = 8
_STEPS_A_CALL = 4


class AgentNode(SpeakingNode, HistoryFields):
    """An agent with tools that uses the memory of the run's session.

    Only the agent's final message enters the workflow's state. All messages of its loop are sent to the stream `custom`
    as `agent_messages`, for the trace of the run. With `use_graph_chat_history`, the earlier turns come from a
    conversation in the graph's store. The agent reads and stores no turns in three cases: the node has an `input`; the
    conversation has no key; or the run has no session and `use_graph_chat_history` is off.
    """

    node_kind: ClassVar[NodeKind] = "agent"

    tools: tuple[ToolReference, ...] = Field(
        (), max_length=64, description="Import strings of tools, of functions, or of lists of them."
    )
    history_tools: bool = Field(
        False, description="True to let the agent look up data outside its context: older messages, truncated results."
    )
    memory_tools: tuple[MemoryToolKind, ...] = Field(
        (),
        max_length=4,
        description="The agent's memory tools: facts (remember, recall, forget), episodes (questions and "
        "answers of earlier turns), procedures (how to do something), promotions (promote: decisions, lessons …).",
    )
    tool_memory: int | None = Field(
        None,
        ge=0,
        description="The number of earlier turns to include with tool calls and results, within their share; 0 means "
        "none; by default the service's option (1).",
    )
    max_steps: int = Field(25, ge=1, le=500, description="The maximum number of model calls in a turn.")

    _agents: dict[object, tuple[object, Any]] = PrivateAttr(default_factory=dict)

    @property
    def again(self) -> Again:
        """The cost of executing the agent again, for example `a model call`; it depends on the tools."""
        if not self.tools:
            return "model calls" if self.history_tools or self.memory_tools else "a model call"
        try:
            repeatable = all(map(is_idempotent, self.tool_objects()))
        except InvalidInput:
            return "unknown"
        return "model calls" if repeatable else "marked tools"

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Answer the run's question, or reset the conversation if the question is the reset command."""
        messages = self.asked(state, step)
        conversation = await self.conversation(step, state)
        question = [message for message in messages if message.type == "human"]
        if is_reset(self.reset_command, [text_of(message) for message in question[-1:]]):
            await conversation.memory.session(conversation.session_id, user_id=conversation.user_id).reset()
            return reply_update(step, AIMessage(RESET_ANSWER, id=step.message_id))
        system = self.system_message(state)
        given = [*([system] if system else []), *messages]
        run = {one.name: getattr(step.context, one.name) for one in fields(RunContext)}
        passages = passages_in(state) if self.snippets else ()
        context = StepContext(**run, conversation=conversation, passages=passages)
        # LangGraph also counts tools and hooks of other middleware as steps.
        limit: RunnableConfig = {"recursion_limit": self.max_steps * _STEPS_A_CALL + 2}
        result = await self._agent(step, conversation).ainvoke({"messages": given}, limit, context=context)
        loop = result["messages"][len(given) :]
        get_stream_writer()({"kind": "agent_messages", "node": step.name, "data": {"messages": messages_to_dict(loop)}})
        # If the agent added no message (its answer may have been stored before), look in all messages that it returned.
        return reply_update(step, _final(loop or result["messages"]))

    def tool_objects(self) -> list[Tool]:
        """Return the tools.

        Raises:
            InvalidInput: a tool cannot be imported, or is not a tool.
        """
        return [tool for reference in self.tools for tool in _tools_of(reference)]

    def turn_options(self, step: Step) -> TurnOptions:
        """Return the options of the node's turn. The node's `tool_memory`, if set, replaces the service's."""
        options = super().turn_options(step)
        return options if self.tool_memory is None else replace(options, tool_memory=self.tool_memory)

    async def conversation(self, step: Step, state: WorkflowState) -> Conversation:
        """Return the agent's conversation: the session, one in the graph's store, or one that is not stored."""
        if self.input is not None:
            return run_conversation(step)
        if not self.use_graph_chat_history:
            return session_conversation(step)
        resolution = self.resolve_in(state, step)
        if resolution.key is None:
            return run_conversation(step)
        return await store_conversation(step, self.layout, resolution.key)

    def _agent(self, step: Step, conversation: Conversation) -> Any:
        """Return the compiled agent, which is cached, because it has no data of a run."""
        resources = step.context.resources
        model = step.model(self.model)
        # The key includes the node, because copies of a node share this cache.
        parts = (self, conversation.memory, resources.memory, model, resources.turn_options, *resources.middleware)
        # Keep the parts, too: if one were deleted, another object could get its id and match the key.
        key = (conversation.kind, *map(id, parts))
        if key not in self._agents:
            if len(self._agents) >= _MOST_AGENTS:
                del self._agents[next(iter(self._agents))]
            options = self._options_for(conversation.kind, self.turn_options(step))
            self._agents[key] = (parts, self._make(model, conversation, options, resources))
        return self._agents[key][1]

    def _make(
        self,
        model: BaseChatModel,
        conversation: Conversation,
        options: TurnOptions,
        resources: Resources,
    ) -> Any:
        memory = SessionMemory.of(conversation.memory, options)
        lookups = (
            history_tools(conversation.memory, session_id=_session_of, user_id=_user_of) if self.history_tools else []
        )
        return create_agent(
            model,
            [*self.tool_objects(), *lookups, *self._memory_tools(resources)],
            middleware=[memory, *resources.middleware, ModelLimits(self.timeout_seconds, self.max_steps)],
            context_schema=RunContext,
        )

    def _memory_tools(self, resources: Resources) -> list[BaseTool]:
        if not self.memory_tools:
            return []
        return knowledge_tools(
            resources.memory,
            kinds=self.memory_tools,
            workspace=resources.workspace,
            session_id=_session_of,
            user_id=_user_of,
        )

    def _options_for(self, kind: ConversationKind, options: TurnOptions) -> TurnOptions:
        found_before = (FoundPassages(),) if self.snippets else ()
        sources = (*(options.sources if kind == "session" else ()), *found_before)
        placed = NodeTurnOptions.of(options, _call_of)
        named = replace(placed, sources=sources, session_id=_session_of, user_id=_user_of)
        if kind == "session":
            return named
        # Conversations in a store cannot have anchored windows, summaries or learning, so turn these off.
        return replace(named, plan=replace(options.plan, window="sliding"), compression=None, learning=None)


class ModelLimits(AgentMiddleware[AgentState[Any], Any, Any]):
    """A middleware that limits the time of each model call. After `most_calls`, it raises `GraphRecursionError`."""

    def __init__(self, seconds: float, most_calls: int) -> None:
        super().__init__()
        self._seconds = seconds
        self._most_calls = most_calls

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model within the limits."""
        calls = [one for one in request.state["messages"] if isinstance(one, AIMessage) and one.tool_calls]
        if len(calls) >= self._most_calls:
            raise GraphRecursionError(f"The agent has made all of its {self._most_calls} model calls; raise max_steps.")
        async with asyncio.timeout(self._seconds):
            return await handler(request)


def check_tools(reference: str | BaseTool) -> None:
    """Check that a reference is a tool, or is an import string of tools.

    Raises:
        InvalidInput: the reference cannot be imported, or is not a tool.
    """
    for _ in _tools_of(reference):
        pass


def _session_of(_: RunnableConfig) -> str | None:
    context = step_context()
    return context.conversation.session_id if context is not None else None


def _user_of(_: RunnableConfig) -> str | None:
    context = step_context()
    return context.conversation.user_id if context is not None else None


def _call_of(_: RunnableConfig) -> CallSite | None:
    context = step_context()
    return context.conversation.call if context is not None else None


def _tools_of(reference: str | BaseTool) -> Iterator[Tool]:
    found = import_named(reference) if isinstance(reference, str) else reference
    for tool in found if isinstance(found, list | tuple) else (found,):
        if not isinstance(tool, BaseTool) and not (callable(tool) and getattr(tool, "__doc__", None)):
            raise InvalidInput(
                f"{reference!r} is not a tool: name a LangChain tool, a function with a docstring, or a list of them."
            )
        yield tool


def _final(loop: Sequence[BaseMessage]) -> AIMessage:
    """Return an agent's answer: its last message, or the results of the last tools."""
    replies = [message for message in loop if isinstance(message, AIMessage | ToolMessage)]
    if not replies:
        return AIMessage("")
    last = replies[-1]
    if isinstance(last, ToolMessage):
        results = takewhile(lambda message: isinstance(message, ToolMessage), reversed(replies))
        return answer_of([message for message in results if isinstance(message, ToolMessage)][::-1])
    return AIMessage(text_of(last), id=last.id) if last.tool_calls else last
