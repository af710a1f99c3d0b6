"""Converts between Threadkeep's messages and LangChain's, and writes the digests and JSON of sent messages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

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
from langchain_core.utils.uuid import uuid7
from pydantic_core import to_jsonable_python

from threadkeep.agent.counting import media_indexes, media_mark
from threadkeep.errors import InvalidMessage
from threadkeep.records import MAX_ID_CHARACTERS, SPEAKERS, Json, Message, Role, dump_json

if TYPE_CHECKING:
    from _hashlib import HASH

_CHAT_ROLES: dict[str, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "system": "system",
    "developer": "system",
}
_CLASSES: dict[Role, type[BaseMessage]] = {"user": HumanMessage, "assistant": AIMessage, "system": SystemMessage}


SENT_AT = "sent_at"
"""The key in `response_metadata` for the sending time that the chat platform reports, in ISO 8601."""

EDITS = "edits"
"""The key in `response_metadata` for the id of the message that a human message replaces."""


def id_of(message: BaseMessage) -> str | None:
    """Return the id with which a message is stored, searched and merged.

    An id that cannot be stored (too long, or with unprintable characters) is replaced by its hash.
    """
    if not message.id:
        return None
    if len(message.id) <= MAX_ID_CHARACTERS and message.id.isprintable():
        return message.id
    return f"sha256-{sha256(message.id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def identify(messages: Sequence[BaseMessage]) -> None:
    """Give an id to each message that has none, so that state and transcript have the same ids."""
    for message in messages:
        message.id = message.id or str(uuid7())


def text_of(message: BaseMessage) -> str:
    """Return the text that people see or hear, including a refusal."""
    content = message.content
    # Read most texts directly, because the property `text` creates an object at each call.
    return (content if type(content) is str else str(message.text)) or _refusal_or_speech(message)


def _refusal_or_speech(message: BaseMessage) -> str:
    """Return the text of a refusal or a spoken answer from OpenAI, which LangChain's `text` leaves out."""
    if not isinstance(message, AIMessage):
        return ""
    blocks = [block for block in message.content if isinstance(block, dict)]
    given = [block.get("value") if block.get("type") == "non_standard" else block for block in blocks]
    audio = message.additional_kwargs.get("audio")
    texts = [one.get("refusal") for one in (message.additional_kwargs, *given) if isinstance(one, Mapping)]
    texts += [audio.get("transcript")] if isinstance(audio, Mapping) else []
    return "\n".join(words for words in texts if isinstance(words, str))


def transcript_text(message: BaseMessage) -> str:
    """Return the text that transcripts store, with marks for images and files (`[image]`)."""
    if type(message.content) is str:
        return message.content or text_of(message)
    indexes = media_indexes(message)
    mark = media_mark([message.content[index] for index in indexes])
    return "\n".join(part for part in (text_of(message), mark) if part)


def with_only_text[M: BaseMessage](message: M, text: str) -> M:
    """Return a copy with `text` as its content. Remove `output_version`, because format `v1` requires a list."""
    known = {key: value for key, value in message.response_metadata.items() if key != "output_version"}
    return message.model_copy(update={"content": text, "response_metadata": known})


def role_of(message: BaseMessage) -> Role | None:
    """Return the role of the speaker, if the message has one."""
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, ChatMessage) and message.role in _CHAT_ROLES:
        return _CHAT_ROLES[message.role]
    return None


def typed(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages. Convert a `ChatMessage` with a known role to that role's class, such as `HumanMessage`."""
    found = list(messages)
    for index, message in enumerate(messages):
        if isinstance(message, ChatMessage) and (role := role_of(message)) is not None:
            found[index] = _CLASSES[role](**message.model_dump(exclude={"role", "type"}))
    return found


def is_utterance(message: BaseMessage) -> bool:
    """Return True if transcripts store a message: a user's message, or an assistant's message without tool calls."""
    return role_of(message) in SPEAKERS and not (isinstance(message, AIMessage) and message.tool_calls)


def assessment_of(message: BaseMessage) -> tuple[float | None, bool]:
    """Return an answer's confidence, and whether its question was handed over to a person.

    Both are in the answer's `response_metadata`, as `confidence` (a finite number) and `escalated` (True).
    """
    reported = message.response_metadata if isinstance(message, AIMessage) else {}
    confidence, escalated = reported.get("confidence"), reported.get("escalated") is True
    if isinstance(confidence, int | float) and not isinstance(confidence, bool) and math.isfinite(confidence):
        return float(confidence), escalated
    return None, escalated


def to_langchain(message: Message) -> BaseMessage:
    """Convert a row to a LangChain message: its `original` if that is usable, else a message with role, text and id."""
    if message.original is not None and (full := _original(message)) is not None:
        return full
    if message.role == "user":
        return HumanMessage(message.content, id=message.id)
    if message.role == "assistant":
        return AIMessage(message.content, id=message.id)
    return SystemMessage(message.content, id=message.id)


STRUCTURED: Final = "threadkeep:structured"
"""The key in an answer's metadata for the JSON of its structured response."""

ANSWERS: Final = "threadkeep:answers"
"""The key in a reply's `response_metadata` for the id of its question, if later turns follow the question."""

TASK: Final = "threadkeep:task"
"""The key in an answer's metadata for the digest of the LangGraph task of a nested agent."""

ENDS: Final = "threadkeep:ends"
"""The key in an answer's metadata for the name of the recorded graph that ended with this answer."""

FORGETS: Final = "threadkeep:forgets"
"""The key in a tool's metadata that is set if the tool deletes facts. After its call, facts are read again."""

REPEATS: Final = "threadkeep:repeats"
"""The key in a copied answer's `additional_kwargs` for the id of the original."""


def from_langchain(message: BaseMessage, *, full: bool = False, others: Mapping[str, Any] | None = None) -> Message:
    """Return the message to store. With `full`, its `original` has the whole message as JSON.

    `others` maps fields of the row to values that replace the values from the message.

    Raises:
        InvalidMessage: the message is not from a user, an assistant or the system; for example, a tool's result.
    """
    original: Json = None
    if full:
        original = as_data(message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message)
    if (role := role_of(message)) is None:
        raise InvalidMessage(
            f"A message of type {message.type!r} is not part of a conversation; "
            "store user, assistant and system messages."
        )
    confidence, escalated = assessment_of(message) if message.response_metadata else (None, False)
    structured = message.additional_kwargs.get(STRUCTURED)
    values = {
        "role": role,
        "content": transcript_text(message),
        "id": id_of(message),
        "confidence": confidence,
        "escalated": escalated,
        "metadata": {STRUCTURED: structured} if isinstance(structured, str) else {},
        "original": original,
        "author": _author(message) if message.name else None,
        "sent_at": _sent_at(message) if message.response_metadata else None,
    }
    return Message(**(values if others is None else {**values, **others}))


def refused_message(question: BaseMessage, run_id: str | None, metadata: Mapping[str, Json] | None) -> Message:
    """Return a row without text for a question that other middleware rejected.

    The id of the row is derived from the id of the question. The metadata of the row contains the question's id.
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
    """Return the name of the person who wrote a message; None if it has no name that can be stored."""
    name = message.name if isinstance(message, HumanMessage) else None
    return name if name and name.isprintable() and len(name) <= MAX_ID_CHARACTERS else None


def _sent_at(message: BaseMessage) -> datetime | None:
    reported = message.response_metadata.get(SENT_AT) if isinstance(message, HumanMessage) else None
    try:
        moment = datetime.fromisoformat(reported) if isinstance(reported, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def as_data(message: BaseMessage) -> dict[str, Json]:
    """Return everything in a message that a provider may receive, as JSON for `messages_from_dict`.

    Values that JSON does not have (bytes, NaN, objects) become text or None. A tool's artifact is left out.
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
        return None  # another version of LangChain wrote it, so the caller uses the stored text
    # Not every provider accepts refusals and recordings (OpenAI deletes recordings after an hour), and the tool call of
    # a structured response has no result. So use the stored text if the original has any of these.
    beside = full.additional_kwargs
    if beside.get("refusal") or beside.get("audio") or STRUCTURED in message.metadata:
        return None
    # Early versions stored only the visible text, without marks for images and files (`[image]`).
    if message.content not in (transcript_text(full), text_of(full)):
        return None
    return full if full.id == message.id else full.model_copy(update={"id": message.id})


def is_plain(message: BaseMessage) -> bool:
    """Return True for a user's or assistant's message that is only a text, and whose text can be stored unchanged."""
    if type(message) not in (HumanMessage, AIMessage) or not isinstance(message.content, str):
        return False
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        return False
    if message.name or message.additional_kwargs:
        return False
    text = message.content
    return "\0" not in text and (text.isascii() or text.encode(errors="ignore").decode() == text)


def is_only_text(message: BaseMessage) -> bool:
    """Return True if a message has only a text and an id."""
    return isinstance(message.content, str) and not (
        message.name or message.additional_kwargs or message.response_metadata or message.model_extra
    )


def is_stored_as(row: Message, message: BaseMessage) -> bool:
    """Return True if the row, converted to a LangChain message, equals `message`, and both are plain (`is_plain`)."""
    read = to_langchain(row)
    same = (read.type, read.id, read.content) == (message.type, message.id, message.content)
    return same and is_plain(message) and is_plain(read)


def dump_message(message: BaseMessage) -> str:
    """Return the whole message as JSON, which `load_message` reads."""
    return dump_json(as_data(message))


def load_message(body: str) -> BaseMessage:
    """Return the message that `dump_message` wrote; raise `ValueError`, `TypeError` or `KeyError` for other texts."""
    (message,) = messages_from_dict([json.loads(body)])
    return message


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of_all(messages: Iterable[BaseMessage]) -> str:
    """Return the SHA-256 of a sequence of messages. Manifests identify the sent messages by it."""
    digest = sha256()
    for message in messages:
        add_to_digest(digest, message)
    return digest.hexdigest()


def add_to_digest(digest: HASH, message: BaseMessage, body: str | None = None) -> None:
    """Add a message to the digest of a model call. `body` is the result of `dump_message`, if the caller has it."""
    if is_plain(message):
        written = f"{message.type}\0{message.id}\0{message.content}\0\0"
    else:
        written = f"{body or dump_message(message)}\0\0"
    digest.update(written.encode("utf-8", "surrogatepass"))
