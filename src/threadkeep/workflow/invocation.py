"""What a run was called with: the session, the user, the question, and what the caller knows about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime, get_runtime

from threadkeep.errors import InvalidKey
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Json
from threadkeep.workflow.turn_options import TurnOptions


def question_in(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The newest input: the human messages at the end."""
    start = len(messages)
    while start and isinstance(messages[start - 1], HumanMessage):
        start -= 1
    return list(messages[start:])


def question_before(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The input that a run in its loop is answering: the newest block of human messages, wherever it stands.

    Nothing if that was answered already and a system message came after it: then the run speaks by itself.
    """
    end = len(messages)
    told = False
    while end and not isinstance(message := messages[end - 1], HumanMessage):
        told = told or isinstance(message, SystemMessage)
        if told and isinstance(message, AIMessage) and not message.tool_calls:
            return []
        end -= 1
    return question_in(messages[:end])


def session_for(memory: Memory, options: TurnOptions, config: RunnableConfig) -> Session:
    """The session that a run belongs to.

    Raises:
        InvalidKey: the run names no session, or one that is not a valid key.
    """
    configurable = config.get("configurable", {})
    session_id = options.session_id(config) if options.session_id else configurable.get("thread_id")
    if session_id is None or session_id == "":
        raise InvalidKey(
            'The run names no session: call the agent with {"configurable": {"thread_id": "telegram:123"}}, '
            "or give SessionMemory a session_id function.",
            reason="empty",
        )
    user_id = options.user_id(config) if options.user_id else configurable.get("user_id")
    return memory.session(str(session_id), user_id=None if user_id is None else str(user_id))


def metadata_of(config: RunnableConfig) -> Mapping[str, Json] | None:
    """What the caller wants to have kept with the question: `configurable["message_metadata"]`."""
    metadata = config.get("configurable", {}).get("message_metadata")
    return metadata if isinstance(metadata, Mapping) else None


def run_id_of(config: RunnableConfig) -> str | None:
    """The id that the caller gave the run, if any: in a graph's nodes only the runtime still has it.

    A run of a workflow says it in its context: an agent in one of its nodes has an id of its own besides.
    """
    if run_id := config.get("run_id"):
        return str(run_id)
    try:
        runtime: Runtime[Any] | None = get_runtime()
    except (RuntimeError, KeyError):  # not in a graph
        return None
    if isinstance(named := getattr(runtime.context if runtime else None, "run_id", None), str):
        return named
    return runtime.execution_info.run_id if runtime and runtime.execution_info else None
