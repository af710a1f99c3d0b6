"""All kinds of damage to one item of a conversation, done without Threadkeep."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from threadkeep.store.address import parse_address

type Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Damage:
    """A change of one item of a conversation: its metadata, or its only chunk."""

    item: str
    change: Change
    found_at: str | None = None

    @property
    def reported(self) -> str:
        """Return the item that errors name."""
        return self.found_at or self.item

    def do(self, url: str, session_id: str) -> None:
        """Damage the item of a conversation."""
        key = f"{session_id}__meta__" if self.item == "metadata" else f"{session_id}:{self.item}"
        rewrite(url, key, self.change)


def _metadata(change: Change) -> Damage:
    return Damage("metadata", change)


def _chunk(change: Change) -> Damage:
    return Damage("chunk:000000", change)


def _message(**fields: object) -> Damage:
    """Return a damage that changes fields of the newest message."""
    return _chunk(lambda chunk: {**chunk, "messages": [*chunk["messages"][:-1], {**chunk["messages"][-1], **fields}]})


def _without(name: str) -> Change:
    return lambda value: {key: inner for key, inner in value.items() if key != name}


def _with(**fields: object) -> Change:
    return lambda value: {**value, **fields}


DAMAGES: Mapping[str, Damage] = {
    "metadata is null": _metadata(lambda _: None),
    "metadata is text": _metadata(lambda _: "text"),
    "metadata is a number": _metadata(lambda _: 7),
    "metadata is a list": _metadata(lambda _: []),
    "metadata is empty": _metadata(lambda _: {}),
    "metadata has no last_seq": _metadata(_without("last_seq")),
    "metadata has no version": _metadata(_without("version")),
    "metadata has no conversation_key": _metadata(_without("conversation_key")),
    "last_seq is text": _metadata(_with(last_seq="two")),
    "last_seq is negative": _metadata(_with(last_seq=-2)),
    "last_seq is huge": _metadata(_with(last_seq=2**60)),
    "last_seq is another chunk's": _metadata(_with(last_seq=100_000_000)),
    "last chunk is far away": Damage(
        "metadata", _with(last_seq=10**15, latest_chunk_key="chunk:4999999999999"), "chunk:4999999999999"
    ),
    "chunk size is 0": _metadata(_with(chunk_size=0)),
    "chunk size is text": _metadata(_with(chunk_size="many")),
    "version is text": _metadata(_with(version="new")),
    "updated_at is no time": _metadata(_with(updated_at="yesterday")),
    "updated_at is a number": _metadata(_with(updated_at=5)),
    "deleted_seq is behind the end": _metadata(_with(deleted_seq=99)),
    "reset_seq is text": _metadata(_with(reset_seq="x")),
    "superseded are a number": _metadata(_with(superseded=1, revision=1)),
    "superseded are no ranges": _metadata(_with(superseded=[[2, 1]], revision=1)),
    "superseded are behind the end": _metadata(_with(superseded=[[1, 9]], revision=1)),
    "tags are a number": _metadata(_with(tags=3)),
    "session metadata is not JSON": _metadata(_with(metadata="{")),
    "title is a list": _metadata(_with(title=[1])),
    "conversation_key is another's": _metadata(_with(conversation_key="telegram:b:8")),
    "chunk is null": _chunk(lambda _: None),
    "chunk is text": _chunk(lambda _: "text"),
    "chunk is a list": _chunk(lambda chunk: chunk["messages"]),
    "chunk is empty": _chunk(lambda _: {}),
    "chunk is another's": _chunk(_with(conversation_key="telegram:b:8")),
    "messages are missing": _chunk(_without("messages")),
    "messages are null": _chunk(_with(messages=None)),
    "messages are text": _chunk(_with(messages="text")),
    "messages are an object": _chunk(lambda chunk: {**chunk, "messages": {"0": chunk["messages"][0]}}),
    "a message is null": _chunk(lambda chunk: {**chunk, "messages": [*chunk["messages"], None]}),
    "a message is text": _chunk(lambda chunk: {**chunk, "messages": ["text", *chunk["messages"]]}),
    "messages are in another order": _chunk(lambda chunk: {**chunk, "messages": chunk["messages"][::-1]}),
    "a message is there twice": _chunk(lambda chunk: {**chunk, "messages": chunk["messages"] + chunk["messages"][-1:]}),
    "seq is missing": _message(seq=None),
    "seq is negative": _message(seq=-1),
    "seq is text": _message(seq="two"),
    "seq is another chunk's": _message(seq=201),
    "role is missing": _message(role=None),
    "role is unknown": _message(role="robot"),
    "content is missing": _message(content=None),
    "content is a number": _message(content=5),
    "status is unknown": _message(status="odd"),
    "tokens are text": _message(tokens="many"),
    "confidence is text": _message(confidence="high"),
    "superseded_at is no time": _message(superseded_at="x"),
    "author is a list": _message(author=["a"]),
    "ordinal is negative": _message(ordinal=-1),
    "created_at is no time": _message(created_at="yesterday"),
    "message metadata is not JSON": _message(metadata="{"),
}


SAMPLE = (
    "metadata is null",
    "metadata has no last_seq",
    "last_seq is another chunk's",
    "last chunk is far away",
    "superseded are behind the end",
    "conversation_key is another's",
    "chunk is null",
    "messages are missing",
    "a message is null",
    "seq is another chunk's",
    "role is unknown",
    "message metadata is not JSON",
)
"""One kind of damage per check that detects it: enough for a second database, HTTP and the command line."""

SESSIONS: Mapping[str, str] = {f"room:{number}": kind for number, kind in enumerate(SAMPLE)}
"""A session for each kind of damage in the sample."""


def rewrite(url: str, key: str, change: Change) -> None:
    """Replace the value of an item."""
    address = parse_address(url)
    if address.dsn is not None:
        with psycopg.connect(address.dsn) as connection:
            [row] = connection.execute("SELECT value FROM store WHERE key = %s", (key,)).fetchall()
            changed = json.dumps(change(row[0]))
            connection.execute("UPDATE store SET value = %s::jsonb WHERE key = %s", (changed, key))
        return
    with closing(sqlite3.connect(str(address.path))) as database, database:
        [row] = database.execute("SELECT value FROM store WHERE key = ?", (key,)).fetchall()
        database.execute("UPDATE store SET value = ? WHERE key = ?", (json.dumps(change(json.loads(row[0]))), key))
