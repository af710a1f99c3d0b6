"""The format of a conversation's items (metadata, chunks, messages), and its conversions.

Other programs may use the same conversations. In metadata, the fields that they know come first, then Threadkeep's own.
An item may lack Threadkeep's fields, and keeps unknown fields when it is written again. Stores change numbers and the
order of keys in JSON, so JSON that must keep every byte is stored as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from threadkeep.errors import InvalidMessage, SessionDamaged
from threadkeep.graph_store.items import Stored, Value
from threadkeep.graph_store.layout import (
    ANSWER,
    CHUNK_SIZE,
    GraphLayout,
    ItemKey,
    Ranges,
    chunk_key,
    chunk_of,
    clipped,
    first_of,
    id_note,
    size_of,
)
from threadkeep.records import Json, Message, SessionInfo, dump_json
from threadkeep.store.codec import time_of, time_text

METADATA = "metadata"
"""The name of the metadata item in error messages."""

METADATA_KIND = "conversation"
"""The value of `kind` in metadata; chunks have none, so a search for it finds only metadata."""

_MESSAGE_DEFAULTS: Mapping[str, object] = {
    "status": "complete",
    "confidence": None,
    "escalated": False,
    "run_id": None,
    "metadata": "{}",
    "original": None,
    "sent_at": None,
    "author": None,
    "answers": None,
    "ordinal": None,
    "told_at": None,
    "superseded_at": None,
    "superseded_by": None,
}
_MESSAGE_FIELDS = frozenset(one.name for one in fields(Message))
_INFO_FIELDS = frozenset(one.name for one in fields(SessionInfo))
_TIMES = ("sent_at", "created_at", "superseded_at")


@dataclass(frozen=True)
class Conversation:
    """The metadata of a conversation. `version` counts its writes; it is -1 before the first one.

    `superseded` has the `seq` ranges of superseded messages. `revision` counts how often messages were superseded or
    erased. `foreign` has fields that Threadkeep does not define.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    user_id: str | None = None
    last_seq: int = 0
    chunk_size: int = CHUNK_SIZE
    version: int = -1
    title: str | None = None
    last_message: str | None = None
    last_user_seq: int = 0
    reset_seq: int = 0
    deleted_seq: int = 0
    active: bool = True
    tags: tuple[str, ...] = ()
    metadata: str = "{}"
    revision: int = 0
    superseded: Ranges = ()
    parent_session_id: str | None = None
    parent_seq: int | None = None
    agent: str | None = None
    foreign: Mapping[str, Json] = field(default_factory=dict)

    def superseded_between(self, first_seq: int, last_seq: int) -> Ranges:
        """Return the `seq` ranges of superseded messages from `first_seq` to `last_seq`, both included."""
        return clipped(self.superseded, first_seq, last_seq) if self.superseded else ()

    def info(self) -> SessionInfo:
        """Return the metadata of the conversation as the public record `SessionInfo`."""
        superseded = size_of(self.superseded_between(self.deleted_seq + 1, self.last_seq))
        shared = {name: value for name, value in vars(self).items() if name in _INFO_FIELDS}
        return SessionInfo(
            **{**shared, "metadata": json.loads(self.metadata)},
            message_count=self.last_seq - self.deleted_seq - superseded,
            archived_seq=self.deleted_seq,
        )


def metadata_value(conversation: Conversation) -> Value:
    """Return the metadata item of a conversation, as it is stored."""
    marks = {"revision": conversation.revision, "superseded": [list(one) for one in conversation.superseded]}
    origin = {"parent_session_id": conversation.parent_session_id, "parent_seq": conversation.parent_seq}
    return {
        **conversation.foreign,
        "conversation_key": conversation.session_id,
        "last_seq": conversation.last_seq,
        "chunk_size": conversation.chunk_size,
        "latest_chunk_key": chunk_key(chunk_of(max(conversation.last_seq, 1), conversation.chunk_size)),
        "updated_at": time_text(conversation.updated_at),
        "version": conversation.version,
        "kind": METADATA_KIND,
        "created_at": time_text(conversation.created_at),
        "user_id": conversation.user_id,
        "title": conversation.title,
        "last_message": conversation.last_message,
        "last_user_seq": conversation.last_user_seq,
        "reset_seq": conversation.reset_seq,
        "deleted_seq": conversation.deleted_seq,
        "active": conversation.active,
        "tags": list(conversation.tags),
        "metadata": conversation.metadata,
        **(marks if conversation.revision else {}),
        **(origin if conversation.parent_session_id is not None else {}),
        **({"agent": conversation.agent} if conversation.agent is not None else {}),
    }


_NOW = datetime.now(UTC)
_METADATA_FIELDS = frozenset(metadata_value(Conversation("", _NOW, _NOW, revision=1, parent_session_id="", agent="")))


def conversation_of(session_id: str, value: Value) -> Conversation:
    """Return the conversation that a metadata item describes.

    Raises:
        SessionDamaged: the item does not describe this conversation, or has invalid fields.
    """
    try:
        read = _Fields(value)
        if read.text("conversation_key") != session_id:
            raise _UnexpectedFormat("is of another conversation")
        last_seq, updated_at = read.number("last_seq"), read.time("updated_at")
        conversation = Conversation(
            session_id=session_id,
            created_at=read.time("created_at", updated_at),
            updated_at=updated_at,
            user_id=read.text("user_id", None),
            last_seq=last_seq,
            chunk_size=read.number("chunk_size", least=1),
            version=read.number("version"),
            title=read.text("title", None),
            last_message=read.text("last_message", None),
            # A search for the newest user message begins at this `seq`; if the field is missing, at the last message.
            last_user_seq=read.number("last_user_seq", last_seq, most=last_seq),
            reset_seq=read.number("reset_seq", 0, most=last_seq),
            deleted_seq=read.number("deleted_seq", 0, most=last_seq),
            active=read.flag("active", default=True),
            tags=read.texts("tags"),
            metadata=read.json_text("metadata"),
            revision=read.number("revision", 0),
            superseded=read.ranges("superseded", most=last_seq),
            parent_session_id=read.text("parent_session_id", None),
            parent_seq=read.number("parent_seq", 0) or None,
            agent=read.text("agent", None),
        )
        latest = chunk_key(chunk_of(max(last_seq, 1), conversation.chunk_size))
        if read.text("latest_chunk_key", latest) != latest:
            raise _UnexpectedFormat("has a latest_chunk_key that is not that of its last_seq")
    except _UnexpectedFormat as error:
        raise SessionDamaged(session_id, METADATA, str(error), user_id=owner_in(value)) from None
    foreign = {name: value[name] for name in value if name not in _METADATA_FIELDS}
    return replace(conversation, foreign=foreign) if foreign else conversation


def owner_in(metadata: Value) -> str | None:
    """Return the user id in metadata, even if they are damaged."""
    user_id = metadata.get("user_id")
    return user_id if isinstance(user_id, str) else None


def chunk_value(
    conversation: Conversation, chunk: int, messages: Sequence[Value], *, now: datetime, former: Value | None
) -> Value:
    """Return the item of a chunk with these messages in order; keep unknown fields of `former`.

    Fields that every turn changes follow the messages, so that a database rewrites only the item's end.
    """
    return Stored(
        {
            **{name: found for name, found in (former or {}).items() if name not in _CHUNK_FIELDS},
            "conversation_key": conversation.session_id,
            "chunk_key": chunk_key(chunk),
            "start_seq": max(first_of(chunk, conversation.chunk_size), conversation.deleted_seq + 1),
            "messages": list(messages),
            "end_seq": messages[-1]["seq"],
            "updated_at": time_text(now),
        }
    )


_CHUNK_FIELDS = frozenset({"conversation_key", "chunk_key", "start_seq", "messages", "end_seq", "updated_at"})


def messages_in(
    conversation: Conversation,
    chunk: int,
    value: Value,
    value_field: str,
    span: tuple[int, int] | None = None,
) -> list[Message]:
    """Return the messages of a chunk in order, or only those in the `seq` range `span`.

    Raises:
        SessionDamaged: the item is not this chunk of this conversation, or one of these messages cannot be used.
    """
    first, last = span or (1, conversation.last_seq + conversation.chunk_size)
    with damaged_chunk(conversation, chunk):
        values = values_in(conversation, chunk, value)
        return [message_in(each, value_field) for each in values if first <= each["seq"] <= last]


def values_in(conversation: Conversation, chunk: int, value: Value) -> Sequence[Value]:
    """Return the stored form of a chunk's messages, after checking their order.

    Raises:
        _UnexpectedFormat: the item is not this chunk of this conversation, or its messages are not in order.
    """
    expected = {"conversation_key": conversation.session_id, "chunk_key": chunk_key(chunk)}
    if any(value.get(name) not in (None, wanted) for name, wanted in expected.items()):
        raise _UnexpectedFormat("is another chunk, or of another conversation")
    found = value.get("messages")
    if not isinstance(found, list | tuple):
        raise _UnexpectedFormat("has no list of messages")
    if not set(map(type, found)) <= {dict}:
        raise _UnexpectedFormat("has a message that is no object")
    seqs = [each.get("seq") for each in found]
    if not set(map(type, seqs)) <= {int}:
        # Some `seq` is no integer: let `number` raise the error that describes it.
        seqs = [_Fields(each).number("seq", least=1) for each in found]
    first = first_of(chunk, conversation.chunk_size)
    if seqs != sorted(set(seqs)) or (seqs and not first <= seqs[0] <= seqs[-1] < first + conversation.chunk_size):
        raise _UnexpectedFormat("has messages that are not in order")
    return found


@contextmanager
def damaged_chunk(conversation: Conversation, chunk: int) -> Iterator[None]:
    """Turn a `_UnexpectedFormat` error that is raised in the block into `SessionDamaged` for this chunk."""
    try:
        yield
    except _UnexpectedFormat as error:
        raise SessionDamaged(
            conversation.session_id, chunk_key(chunk), str(error), user_id=conversation.user_id
        ) from None


def missing_chunk(conversation: Conversation) -> SessionDamaged:
    """Return the error for a conversation whose newest chunk is missing."""
    newest = chunk_key(chunk_of(conversation.last_seq, conversation.chunk_size))
    return SessionDamaged(conversation.session_id, newest, "is missing", user_id=conversation.user_id)


def noted_seq(note: Value) -> int | None:
    """Return the `seq` in a note (an item that tells where a message is), or None if the note is damaged."""
    try:
        return _Fields(note).number("seq", least=1)
    except _UnexpectedFormat:
        return None


def message_value(seq: int, columns: Mapping[str, object], value_field: str) -> Value:
    """Return a message as it is stored in a chunk; fields with default values are left out."""
    rest = {
        name: column
        for name, column in columns.items()
        if name not in ("role", "content") and (name not in _MESSAGE_DEFAULTS or _MESSAGE_DEFAULTS[name] != column)
    }
    return {"seq": seq, "role": columns["role"], value_field: columns["content"], **rest}


def answer_note(value: Mapping[str, object]) -> str | None:
    """Return the name of the note that finds a message by its question; None unless it is an active, complete answer.

    Two answers of an author to the same question have the same name, unless their `ordinal` differs.
    """
    if value.get("answers") is None or value.get("status", "complete") != "complete" or value.get("superseded_at"):
        return None
    key = dump_json([value["answers"], value.get("author") or "", value.get("ordinal") or 1])
    return f"{ANSWER}{sha256(key.encode()).hexdigest()}"


def notes_of(layout: GraphLayout, session_id: str, messages: Iterable[Value]) -> dict[ItemKey, Value]:
    """Return the notes (items that find messages): one for each id, and one for each active, complete answer."""
    return {
        layout.note(session_id, name): {"seq": one["seq"]}
        for one in messages
        for name in (id_note(one["id"]) if one.get("id") else None, answer_note(one))
        if name is not None
    }


def message_in(value: Value, value_field: str) -> Message:
    """Return the message from its stored value in a chunk.

    Raises:
        _UnexpectedFormat: a field is missing or cannot be used.
    """
    read = _Fields(value)
    given = {name: found for name, found in value.items() if found is not None and name in _MESSAGE_FIELDS}
    given |= {"seq": read.number("seq", least=1), "role": read.text("role"), "content": read.text(value_field)}
    given |= {name: read.time(name) for name in _TIMES if name in given}
    if "confidence" in given:
        given["confidence"] = read.decimal("confidence")
    for name in ("metadata", "original"):
        if isinstance(given.get(name), str):
            given[name] = _parsed(name, given[name])
    try:
        return Message(**given)
    except InvalidMessage as error:
        # The text of this error names the field, and does not quote its value.
        raise _UnexpectedFormat(f"has a message that cannot be used: {str(error).rstrip('.')}") from None


class _UnexpectedFormat(Exception):
    """An item has an unexpected format. The error's text is a predicate, for example "has no seq"."""


class _Fields:
    """A reader of the fields of an item. Its methods raise `_UnexpectedFormat` if a field has another type.

    For a missing field, they return the default, if there is one.
    """

    def __init__(self, value: Value) -> None:
        self._value = value

    def text(self, name: str, *default: Any) -> Any:
        return self._get(name, str, "text", default)

    def flag(self, name: str, *, default: bool) -> bool:
        return bool(self._get(name, bool, "true or false", (default,)))

    def number(self, name: str, *default: int, least: int = 0, most: int = 2**53) -> int:
        """Return a field with a whole number from `least` to `most`."""
        found = self._get(name, int, "a whole number", default)
        if isinstance(found, bool) or not least <= found <= most:
            raise _UnexpectedFormat(f"has a {name} that is out of range")
        return int(found)

    def decimal(self, name: str) -> float:
        found = self._get(name, int | float, "a number", ())
        try:
            return math.nan if isinstance(found, bool) else float(found)
        except OverflowError:
            raise _UnexpectedFormat(f"has a {name} that is out of range") from None

    def time(self, name: str, *default: datetime) -> datetime:
        found = self._get(name, (str, datetime), "a time", default)
        try:
            moment: datetime = time_of(found)
            if moment.tzinfo is UTC:
                return moment
            # A time without a time zone cannot be compared with others. Take it as UTC.
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            raise _UnexpectedFormat(f"has a {name} that is no time") from None

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._get(name, list | tuple, "a list", ((),))
        if not all(isinstance(each, str) for each in found):
            raise _UnexpectedFormat(f"has {name} that are not text")
        return tuple(found)

    def ranges(self, name: str, *, most: int) -> Ranges:
        """Return a field with ordered, separate `seq` ranges up to `most`."""
        found = self._get(name, list | tuple, "a list", ((),))
        try:
            ranges = tuple((low, high) for low, high in found)
        except (TypeError, ValueError):
            raise _UnexpectedFormat(f"has {name} that are not ranges") from None
        end = 0
        for low, high in ranges:
            if type(low) is not int or type(high) is not int or not end < low <= high <= most:
                raise _UnexpectedFormat(f"has {name} that are not ordered ranges up to its last_seq")
            end = high
        return ranges

    def json_text(self, name: str) -> str:
        """Return a field with a JSON object as JSON text; other programs store it as an object."""
        found = self._get(name, str | Mapping, "a JSON object", ("{}",))
        if isinstance(found, str) and isinstance(_parsed(name, found), dict):
            return found
        try:
            return dump_json(dict(found))
        except (InvalidMessage, ValueError):
            raise _UnexpectedFormat(f"has a {name} that is no JSON object") from None

    def _get(self, name: str, kind: Any, described: str, default: tuple[Any, ...]) -> Any:
        found = self._value.get(name)
        if found is None and default:
            return default[0]
        if found is None:
            raise _UnexpectedFormat(f"has no {name}")
        if not isinstance(found, kind):
            raise _UnexpectedFormat(f"has a {name} that is not {described}")
        return found


def _parsed(name: str, text: str) -> Json:
    try:
        parsed: Json = json.loads(text)
    except (ValueError, RecursionError):
        raise _UnexpectedFormat(f"has a {name} that is not JSON") from None
    return parsed
