"""What the nodes of a workflow share in one run. A session's history is never part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.utils.uuid import uuid7
from langgraph.graph.message import add_messages

from threadkeep.records import Json
from threadkeep.workflow.conversion import text_of


def merged(before: Mapping[str, Json] | None, update: Mapping[str, Json] | None) -> dict[str, Json]:
    """Both together; where both have a name, the newer value."""
    return {**(before or {}), **(update or {})}


class WorkflowState(TypedDict, total=False):
    """The shared state of a run.

    `messages` are what was said in this run: the question, and one final message of each node that speaks. `results`
    has what each node found, for templates; `node_outputs` what each gave, whole. `inputs` and `user_context` are as
    the run was given them; `text` is what was asked.
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
    """What a run begins with: a question, and what is known besides.

    `inputs` are the payload that started the run, `results` what its channel found in it (`telegram_events_parser`,
    say). Without a text there is no question: the run was started by something else than a message.
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
    """What a run says in the end: its newest assistant message after the question; None if it says nothing."""
    messages = state.get("messages")
    for message in reversed(messages if isinstance(messages, Sequence) else ()):
        if isinstance(message, HumanMessage):
            return None
        if isinstance(message, AIMessage) and not message.tool_calls and text_of(message).strip():
            return message
    return None


def last_text(state: WorkflowState) -> str:
    """The text of the newest message; empty if there is none."""
    messages: Sequence[BaseMessage] = state.get("messages") or ()
    return text_of(messages[-1]) if messages else ""
