"""What the items of a conversation look like, and back: metadata, chunks, and the messages in them.

The fields that other readers of such a store know come first; those that Threadkeep needs besides stand beside them.
Items without them can be read too. JSON of which every byte matters is kept as text: backends differ in what they do to
numbers and to the order of keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from threadkeep.errors import StoreError
from threadkeep.records import Json, Message, SessionInfo, dump_json
from threadkeep.store.codec import message_of
from threadkeep.store.graph_transcripts.chunks import CHUNK_SIZE, chunk_key, chunk_of, first_of
from threadkeep.store.graph_transcripts.items import Value
from threadkeep.store.times import time_of, time_text

METADATA_KIND = "conversation"
"""Stands in the field `kind` of metadata, so that they can be searched for among the chunks."""

_MESSAGE_DEFAULTS: Mapping[str, object] = {
    "status": "complete",
    "confidence": None,
    "escalated": False,
    "run_id": None,
    "metadata": "{}",
    "original": None,
    "sent_at": None,
}


@dataclass(frozen=True)
class Conversation:
    """The metadata of a conversation; `version` counts its changes, and is -1 for one that is not there yet."""

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

    def info(self) -> SessionInfo:
        """What is known of the session."""
        return SessionInfo(
            session_id=self.session_id,
            user_id=self.user_id,
            title=self.title,
            last_message=self.last_message,
            message_count=self.last_seq - self.deleted_seq,
            last_seq=self.last_seq,
            reset_seq=self.reset_seq,
            active=self.active,
            tags=self.tags,
            metadata=json.loads(self.metadata),
            created_at=self.created_at,
            updated_at=self.updated_at,
            archived_seq=self.deleted_seq,
            deleted_seq=self.deleted_seq,
        )


def metadata_value(conversation: Conversation) -> Value:
    """The metadata item of a conversation."""
    return {
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
    }


def conversation_of(value: Value) -> Conversation:
    """The conversation that a metadata item describes.

    Raises:
        StoreError: the item is not one.
    """
    try:
        updated_at = time_of(value["updated_at"])
        last_seq = int(value["last_seq"])
        return Conversation(
            session_id=value["conversation_key"],
            created_at=time_of(value.get("created_at")) or updated_at,
            updated_at=updated_at,
            user_id=value.get("user_id"),
            last_seq=last_seq,
            chunk_size=int(value["chunk_size"]),
            version=int(value["version"]),
            title=value.get("title"),
            last_message=value.get("last_message"),
            # Unknown: a window that finds no user message looks for one until the beginning.
            last_user_seq=value.get("last_user_seq", last_seq),
            reset_seq=value.get("reset_seq", 0),
            deleted_seq=value.get("deleted_seq", 0),
            active=value.get("active", True),
            tags=tuple(value.get("tags", ())),
            metadata=_json_text(value.get("metadata", "{}")),
        )
    except (KeyError, TypeError, ValueError) as error:
        # From None: what the error says of a value may quote it.
        raise StoreError(
            f"An item of the graph store is not the metadata of a conversation ({type(error).__name__}); "
            "give histories a namespace that nothing else uses."
        ) from None


def chunk_value(conversation: Conversation, chunk: int, messages: Sequence[Value], *, now: datetime) -> Value:
    """The item of a chunk with some messages, which are in their order and at least one."""
    return {
        "conversation_key": conversation.session_id,
        "chunk_key": chunk_key(chunk),
        "start_seq": max(first_of(chunk, conversation.chunk_size), conversation.deleted_seq + 1),
        "end_seq": messages[-1]["seq"],
        "messages": list(messages),
        "updated_at": time_text(now),
    }


def message_value(seq: int, columns: Mapping[str, object], value_field: str) -> Value:
    """A message in a chunk, from the columns that a table would have; what is as by default is left out."""
    rest = {
        name: column
        for name, column in columns.items()
        if name not in ("role", "content") and (name not in _MESSAGE_DEFAULTS or _MESSAGE_DEFAULTS[name] != column)
    }
    return {"seq": seq, "role": columns["role"], value_field: columns["content"], **rest}


def message_in(value: Value, value_field: str) -> Message:
    """The message in a chunk."""
    confidence = value.get("confidence")
    original = value.get("original")
    return message_of(
        (
            value["seq"],
            value.get("id"),
            value["role"],
            value[value_field],
            value.get("tokens"),
            value.get("status", "complete"),
            None if confidence is None else float(confidence),
            value.get("escalated", False),
            value.get("run_id"),
            _json_text(value.get("metadata", "{}")),
            None if original is None else _json_text(original),
            value.get("sent_at"),
            value.get("created_at"),
        )
    )


def _json_text(value: Json) -> str:
    """JSON as text, where somebody else kept it as what it says."""
    return value if isinstance(value, str) else dump_json(value)
