"""Rows and records: what a message looks like in a table, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from langchain_core.utils.uuid import uuid7

from threadkeep.records import Json, Message, Retention, SessionInfo, Turn, dump_json
from threadkeep.store.driver import Row
from threadkeep.store.times import time_of, time_text

_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_UNKEEPABLE_JSON = re.compile(r"\\u0000|[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"

TITLE_CHARACTERS = 50
LAST_MESSAGE_CHARACTERS = 100
MESSAGE_COLUMNS = 13

_new = object.__new__
_set = object.__setattr__

type Counter = Callable[[str], int]


def shorten(text: str, characters: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= characters else text[:characters] + "…"


def clean_text(text: str) -> str:
    """The text with U+FFFD for the characters that databases cannot keep (NUL, lone surrogates)."""
    return text if text.isascii() and "\x00" not in text else _UNKEEPABLE.sub(_REPLACEMENT, text)


def clean_json(value: Json) -> Json:
    """The JSON value with all its text cleaned; the same object if nothing had to be."""
    if not _UNKEEPABLE_JSON.search(dump_json(value)):
        return value
    # What was found may be a text that only looks like an escape.
    cleaned = _clean_inside(value)
    return value if cleaned == value else cleaned


def _clean_mapping(value: Mapping[str, Json]) -> Mapping[str, Json]:
    if not value or not _UNKEEPABLE_JSON.search(dump_json(value)):
        return value
    cleaned = {clean_text(key): _clean_inside(inner) for key, inner in value.items()}
    return value if cleaned == value else cleaned


def _clean_inside(value: Json) -> Json:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(key): _clean_inside(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_clean_inside(inner) for inner in value]
    return value


def clean_message(message: Message) -> Message:
    """The message as it can be kept; the same object if nothing had to be replaced."""
    content = clean_text(message.content)
    metadata = _clean_mapping(message.metadata)
    original = clean_json(message.original) if message.original is not None else None
    if content is message.content and metadata is message.metadata and original is message.original:
        return message
    return replace(message, content=content, metadata=metadata, original=original)


def identified(message: Message) -> Message:
    """The message with an id: its own, or a new one. What it holds was checked when it was made."""
    if message.id is not None:
        return message
    copy = _new(Message)
    _set(copy, "__dict__", {**message.__dict__, "id": str(uuid7())})
    return copy


def message_parameters(message: Message, *, count: Counter, now: str) -> dict[str, object]:
    """The parameters of `insert_message`, but for `session_id` and `seq`."""
    return {
        "id": message.id,
        "role": message.role,
        "content": message.content,
        "tokens": count(message.content) if message.tokens is None else message.tokens,
        "status": message.status,
        "confidence": None if message.confidence is None else float(message.confidence),
        "escalated": message.escalated,
        "run_id": message.run_id,
        "metadata": dump_json(dict(message.metadata)) if message.metadata else "{}",
        "original": None if message.original is None else dump_json(message.original),
        "sent_at": message.sent_at and time_text(message.sent_at),
        "created_at": now,
    }


def message_of(row: Row) -> Message:
    """The message in a row of the columns that every statement for messages selects.

    What comes from the table was checked on its way in, so this fills the record without checking again: windows are
    read at every model call.
    """
    seq, id_, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at = (
        row[:MESSAGE_COLUMNS]
    )
    message = _new(Message)
    _set(
        message,
        "__dict__",
        {
            "role": role,
            "content": content,
            "id": id_,
            "seq": seq,
            "sent_at": sent_at and time_of(sent_at),
            "created_at": time_of(created_at),
            "tokens": tokens,
            "status": status,
            "confidence": confidence,
            "escalated": bool(escalated),
            "run_id": run_id,
            "metadata": {} if metadata == "{}" else json.loads(metadata),
            "original": None if original is None else json.loads(original),
        },
    )
    return message


def session_of(row: Row) -> SessionInfo:
    """The session in a row of the columns of the statement `session`."""
    session_id, user_id, title, last, count, *places, active, tags, metadata, created_at, updated_at = row
    last_seq, reset_seq, archived_seq, deleted_seq, retention = places
    return SessionInfo(
        session_id=session_id,
        user_id=user_id,
        title=title,
        last_message=last,
        message_count=count,
        last_seq=last_seq,
        reset_seq=reset_seq,
        active=bool(active),
        tags=tuple(json.loads(tags)),
        metadata=json.loads(metadata),
        created_at=time_of(created_at),
        updated_at=time_of(updated_at),
        archived_seq=archived_seq,
        deleted_seq=deleted_seq,
        retention=retention_of(retention),
    )


def retention_of(text: str | None) -> Retention | None:
    """The limits of a session in a row, None where it has none of its own."""
    return None if text is None else Retention.from_dict(json.loads(text))


def session_parameters(turn: Turn, messages: list[Message], *, now: str) -> dict[str, object]:
    """The parameters of `reserve` for some messages of one session."""
    first_user = next((m.content for m in messages if m.role == "user"), None)
    newest_user = max((place for place, m in enumerate(messages, start=1) if m.role == "user"), default=0)
    return {
        "session_id": turn.session_id,
        "user_id": turn.user_id,
        "title": None if first_user is None else shorten(first_user, TITLE_CHARACTERS),
        "last_message": shorten(messages[-1].content, LAST_MESSAGE_CHARACTERS) if messages else None,
        "added": len(messages),
        "newest_user": newest_user,
        "now": now,
    }
