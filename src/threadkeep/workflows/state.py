"""The shared state of a workflow's nodes in one run. It never contains a session's history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.utils.uuid import uuid7
from langgraph.graph.message import add_messages

from threadkeep.agent.conversion import text_of
from threadkeep.records import Json


def merged(before: Mapping[str, Json] | None, update: Mapping[str, Json] | None) -> dict[str, Json]:
    """Merge two mappings; the newer value wins."""
    return {**(before or {}), **(update or {})}


class WorkflowState(TypedDict, total=False):
    """The shared state of a run.

    `messages` are the messages of this run: the question, and one final message of each speaking node. `results` has
    each node's result for templates; `node_outputs` each node's whole output. `inputs` and `user_context` are the
    run's parameters; `text` is the question.
    """

    messages: Annotated[list[AnyMessage], add_messages]
    node_outputs: Annotated[dict[str, Json], merged]
    results: Annotated[dict[str, Json], merged]
    inputs: dict[str, Json]
    user_context: dict[str, Json]
    text: str


def initial_state(
    text: str,
    *,
    message_id: str | None = None,
    inputs: Mapping[str, Json] | None = None,
    results: Mapping[str, Json] | None = None,
    user_context: Mapping[str, Json] | None = None,
) -> WorkflowState:
    """Return the initial state of a run: a question and the known values.

    `inputs` are the payload that started the run, `results` the values that its channel parsed from it (such as
    `telegram_events_parser`). Without a text there is no question: the run was not started by a message.
    """
    question = [HumanMessage(text, id=message_id or str(uuid7()))] if text else []
    return {
        "messages": list(question),
        "node_outputs": {},
        "results": dict(results or {}),
        "inputs": dict(inputs or {}),
        "user_context": dict(user_context or {}),
        "text": text,
    }


def answer_of(state: Mapping[str, object]) -> AIMessage | None:
    """Return the answer of a run: its newest assistant message after the question; None if there is none."""
    messages = state.get("messages")
    for message in reversed(messages if isinstance(messages, Sequence) else ()):
        if isinstance(message, HumanMessage):
            return None
        if isinstance(message, AIMessage) and not message.tool_calls and text_of(message).strip():
            return message
    return None


def last_text(state: WorkflowState) -> str:
    """Return the text of the newest message; empty if there is none."""
    messages: Sequence[BaseMessage] = state.get("messages") or ()
    return text_of(messages[-1]) if messages else ""
