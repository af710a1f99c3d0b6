"""Between Threadkeep's messages and LangChain's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
    messages_from_dict,
)
from pydantic_core import to_jsonable_python

from threadkeep.agent.content_blocks import media_mark, media_places
from threadkeep.errors import InvalidMessage
from threadkeep.records import MAX_ID_CHARACTERS, SPEAKERS, Json, Message, Role

_CHAT_ROLES: dict[str, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "system": "system",
    "developer": "system",
}


SENT_AT = "sent_at"
"""The name under which `response_metadata` of a human message has the platform's time, in ISO 8601."""


EDITS = "edits"
"""The name under which `response_metadata` of a human message has the id of the message that it is a new version of."""


def id_of(message: BaseMessage) -> str | None:
    """The id under which a message is stored, looked for and merged: its own, or one made of an id that cannot be kept.

    The same bad id (too long, or with characters that cannot be printed) always makes the same, so that a message which
    is delivered again under it is known.
    """
    if not message.id:
        return None
    if len(message.id) <= MAX_ID_CHARACTERS and message.id.isprintable():
        return message.id
    return f"sha256-{sha256(message.id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def text_of(message: BaseMessage) -> str:
    """The text that people see: no images, no reasoning, no tool calls."""
    return str(message.text)


def transcript_text(message: BaseMessage) -> str:
    """Return the text that transcripts keep: what people see, with a mark for images and files (`[image]`)."""
    places = media_places(message)
    mark = media_mark([message.content[place] for place in places])
    return "\n".join(part for part in (text_of(message), mark) if part)


def role_of(message: BaseMessage) -> Role | None:
    """Return the role of the speaker; None for a tool's result and other messages that are not utterances."""
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, ChatMessage) and message.role in _CHAT_ROLES:
        return _CHAT_ROLES[message.role]
    return None


def is_utterance(message: BaseMessage) -> bool:
    """Return whether transcripts keep a message: not a tool call, a tool result or a system message."""
    return role_of(message) in SPEAKERS and not (isinstance(message, AIMessage) and message.tool_calls)


def opinion_of(message: BaseMessage) -> tuple[float | None, bool]:
    """Return the confidence of an answer, and whether the workflow handed the question to a person.

    It says so in the answer's `response_metadata`, as `confidence` (a finite number) and `escalated` (True).
    """
    told = message.response_metadata if isinstance(message, AIMessage) else {}
    confidence, escalated = told.get("confidence"), told.get("escalated") is True
    if isinstance(confidence, int | float) and not isinstance(confidence, bool) and math.isfinite(confidence):
        return float(confidence), escalated
    return None, escalated


def to_langchain(message: Message) -> BaseMessage:
    """The LangChain message of a stored one, with its id: the full one if it was kept and still says the same."""
    if (full := _original(message)) is not None:
        return full
    if message.role == "user":
        return HumanMessage(message.content, id=message.id)
    if message.role == "assistant":
        return AIMessage(message.content, id=message.id)
    return SystemMessage(message.content, id=message.id)


def from_langchain(message: BaseMessage, *, full: bool = False) -> Message:
    """The message to store: its `transcript_text` and its id, and with `full` all of it as JSON in `original`.

    Raises:
        InvalidMessage: a tool's result, or anything else that is not an utterance of user, assistant or system.
    """
    original: Json = None
    if full:
        original = as_data(message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message)
    if (role := role_of(message)) is None:
        raise InvalidMessage(
            f"A message of type {message.type!r} is no part of a conversation; "
            "store user, assistant and system messages."
        )
    confidence, escalated = opinion_of(message)
    return Message(
        role=role,
        content=transcript_text(message),
        id=id_of(message),
        confidence=confidence,
        escalated=escalated,
        original=original,
        author=_author(message),
        sent_at=_sent_at(message),
    )


def refused_message(question: BaseMessage, run_id: str | None, metadata: Mapping[str, Json] | None) -> Message:
    """Return what is stored of a question that other middleware refused: no text, and an id made of its id.

    Its metadata names the id of the question.
    """
    question_id = id_of(question) or ""
    digest = sha256(question_id.encode("utf-8", "surrogatepass")).hexdigest()
    return Message(
        role="user",
        content="",
        id=f"refused-{digest[:32]}",
        status="failed",
        run_id=run_id,
        metadata={**(metadata or {}), "message_id": question_id},
        sent_at=_sent_at(question),
    )


def _author(message: BaseMessage) -> str | None:
    """Return the name of the person who wrote a message; None if it has none that can be stored."""
    name = message.name if isinstance(message, HumanMessage) else None
    return name if name and name.isprintable() and len(name) <= MAX_ID_CHARACTERS else None


def _sent_at(message: BaseMessage) -> datetime | None:
    told = message.response_metadata.get(SENT_AT) if isinstance(message, HumanMessage) else None
    try:
        moment = datetime.fromisoformat(told) if isinstance(told, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def as_data(message: BaseMessage) -> dict[str, Json]:
    """All of a message that a provider may be sent, in the types of JSON, as `messages_from_dict` reads it.

    What JSON does not have (bytes, NaN, objects) is there as text or None. A tool's artifact is not for the model.
    """
    if isinstance(message, ToolMessage) and message.artifact is not None:
        message = message.model_copy(update={"artifact": None})
    values = message.model_dump(warnings=False)
    data: Json = to_jsonable_python(values, bytes_mode="base64", inf_nan_mode="null", fallback=str)
    return {"type": message.type, "data": data}


def _original(message: Message) -> BaseMessage | None:
    if not isinstance(message.original, dict) or not {"type", "data"} <= set(message.original):
        return None
    try:
        (full,) = messages_from_dict([message.original])
    except (ValueError, TypeError):
        return None  # written by another version of LangChain: the text is still there
    # Messages that were stored before images left a mark have the text alone.
    if message.content not in (transcript_text(full), text_of(full)):
        return None
    return full if full.id == message.id else full.model_copy(update={"id": message.id})
