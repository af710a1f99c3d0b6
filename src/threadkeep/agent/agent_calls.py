"""Facts about one call of an agent, read from its configuration, its request and its state."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from langchain.agents.middleware import AgentState, ModelRequest, ModelResponse
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime, get_runtime
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from threadkeep.agent.conversion import text_of
from threadkeep.agent.participation import CallKey
from threadkeep.agent.turn_options import CallPlace

_READER = "__pregel_read"
"""LangGraph's name of the reader among the values of a node's config."""

_REDACTING = re.compile(r"PIIMiddleware\[(.+)\]\.after_model$")

_LIMIT_NOTICES = ("Model call limits exceeded: ", " call limit reached: ")
"""Parts of the answers that LangChain's call limits give; tests hold them against the real middleware."""


def call_key(config: RunnableConfig, runtime: Runtime[Any]) -> CallKey:
    """Return what the hooks of one call of an agent have in common, and no other call of the run."""
    namespace = str(config.get("configurable", {}).get("checkpoint_ns", "")).rpartition("|")[0]
    return id(runtime.control), namespace, id(runtime.stream_writer)


def in_tool(config: RunnableConfig) -> bool:
    """Return whether an agent runs in a tool of another one: below the node `tools` of LangChain's agents."""
    *outer, _ = str(config.get("configurable", {}).get("checkpoint_ns", "")).split("|")
    return any(node.partition(":")[0] == "tools" for node in outer)


def redacted_kinds(config: RunnableConfig) -> frozenset[str]:
    """Return the kinds of data, such as `email`, that `PIIMiddleware` of this agent looks for.

    No middleware is told of another. But LangGraph gives each node a reader of the channels of its graph, where each
    hook of a middleware has a channel with its name.
    """
    reader = config.get("configurable", {}).get(_READER)
    channels = [name for part in getattr(reader, "args", ()) if isinstance(part, Mapping) for name in part]
    return frozenset(found[1] for name in channels if (found := _REDACTING.search(str(name))))


def author_of(config: RunnableConfig, place: CallPlace | None) -> str | None:
    """Return the name of the agent, else of the node that it runs in; None for a nameless agent on its own."""
    if place is not None and place.node:
        return place.node
    if name := config.get("metadata", {}).get("lc_agent_name"):
        return str(name)
    *outer, _ = str(config.get("configurable", {}).get("checkpoint_ns", "")).split("|")
    return outer[-1].partition(":")[0] if outer else None


def node_of(config: RunnableConfig, place: CallPlace | None) -> str | None:
    """Return the name of the node that a function runs in; None outside of a graph."""
    if place is not None and place.node:
        return place.node
    return str(config.get("configurable", {}).get("checkpoint_ns", "")).rpartition("|")[2].partition(":")[0] or None


def control_of() -> object:
    """Return the object that is the same in all nodes of one root run; a new one outside of a graph."""
    try:
        runtime: Runtime[Any] | None = get_runtime()
    except (RuntimeError, KeyError):
        runtime = None
    return runtime.control if runtime is not None and runtime.control is not None else object()


def answered_before(answer: AIMessage, request: ModelRequest[Any], config: RunnableConfig) -> ModelResponse[Any]:
    """Return a stored answer in the place of a model call, with its structured response if the agent gives one."""
    structured = _structured(text_of(answer), request.response_format)
    return ModelResponse(result=[named_as_agent(answer, config)], structured_response=structured)


def named_as_agent(answer: AIMessage, config: RunnableConfig) -> AIMessage:
    """Return an answer under the name of the agent, as its model's own answers are; a nameless agent gives none."""
    name = config.get("metadata", {}).get("lc_agent_name")
    return answer.model_copy(update={"name": str(name)}) if name else answer


def _structured(text: str, wanted: object) -> object:
    if not isinstance(wanted, AutoStrategy | ProviderStrategy | ToolStrategy):
        return None
    try:
        data = json.loads(text)
        # A JSON schema gives plain data.
        schema: Any = wanted.schema
        return data if isinstance(schema, Mapping) else TypeAdapter(schema).validate_python(data)
    except (ValueError, ValidationError):
        return None


def final_answer(state: AgentState[Any], direct_calls: Collection[str]) -> AIMessage | None:
    """Return the last assistant message after the question, a tool's direct result, or a structured response as JSON.

    The answer has the id of the message in the state, so that the two are known to be the same.
    """
    for message in reversed(state["messages"]):
        if message.type == "human":
            return None
        if isinstance(message, ToolMessage) and message.tool_call_id in direct_calls:
            return AIMessage(text_of(message), id=message.id)
        if isinstance(message, AIMessage):
            structured = state.get("structured_response")
            if text_of(message).strip() or structured is None:
                return message
            return AIMessage(to_json(structured).decode(), id=message.id)
    return None


def is_limit_notice(answer: AIMessage, said_ids: Collection[str | None]) -> bool:
    """Return whether an answer is the notice of a call limit instead of a model's answer."""
    return answer.id not in said_ids and any(notice in text_of(answer) for notice in _LIMIT_NOTICES)
