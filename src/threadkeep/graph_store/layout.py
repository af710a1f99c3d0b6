"""Layouts of conversations in a LangGraph store (the keys of their items), and a table of all layouts in use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import NamedTuple

from threadkeep.errors import InvalidInput
from threadkeep.records import Message
from threadkeep.records.json_values import is_whole
from threadkeep.store.codec import time_text
from threadkeep.store.statements import ClockedTables

type Ranges = tuple[tuple[int, int], ...]
"""`seq` ranges, both ends included; they are in order and do not overlap."""

CHUNK_SIZE = 200
"""The default number of messages in a chunk. Larger chunks mean more bytes per write, smaller ones more reads."""

_KEY_DIGITS = 6


@dataclass(frozen=True)
class ChunkSpan:
    """A range of message numbers (`seq`) inside one chunk, both ends included."""

    chunk: int
    first_seq: int
    last_seq: int

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last `seq`."""
        return self.first_seq, self.last_seq


def chunk_key(chunk: int) -> str:
    """Return the key of a chunk by its number, from 0: `chunk:000021` is the twenty-second chunk."""
    return f"chunk:{chunk:0{_KEY_DIGITS}d}"


def chunk_of(seq: int, size: int) -> int:
    """Return the number of the chunk that contains the message with this `seq`.

    Raises:
        ValueError: the `seq` or the size is below 1.
    """
    if seq < 1 or size < 1:
        raise ValueError("`seq` values and the sizes of chunks begin at 1")
    return (seq - 1) // size


def first_of(chunk: int, size: int) -> int:
    """Return the first message number (`seq`) that a chunk can contain. Chunks are numbered from 0."""
    return chunk * size + 1


def chunk_spans(first_seq: int, last_seq: int, size: int, *, newest_first: bool = False) -> Iterator[ChunkSpan]:
    """Split a range of message numbers (`seq`) at the boundaries of chunks; yield nothing for an empty range."""
    if last_seq < first_seq:
        return
    chunks = range(chunk_of(first_seq, size), chunk_of(last_seq, size) + 1)
    for chunk in reversed(chunks) if newest_first else chunks:
        yield ChunkSpan(chunk, max(first_seq, first_of(chunk, size)), min(last_seq, (chunk + 1) * size))


def joined(first: Ranges, second: Ranges) -> Ranges:
    """Return the union of two lists of `seq` ranges; ranges that touch are joined."""
    found: list[tuple[int, int]] = []
    for low, high in sorted((*first, *second)):
        if found and found[-1][1] >= low - 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def clipped(ranges: Sequence[tuple[int, int]], first_seq: int, last_seq: int) -> Ranges:
    """Cut ranges down to the `seq` values from `first_seq` to `last_seq`, both included; drop empty ranges."""
    cut = ((max(low, first_seq), min(high, last_seq)) for low, high in ranges)
    return tuple((low, high) for low, high in cut if low <= high)


def size_of(ranges: Ranges) -> int:
    """Return the number of `seq` values (messages) in all ranges."""
    return sum(high - low + 1 for low, high in ranges)


def seqs_down(high: int, low: int, without: Ranges) -> Iterator[int]:
    """Yield the `seq` values from `high` down to `low`, except those in `without`."""
    for first, last in (*reversed(without), (low - 1, low - 1)):
        yield from range(high, max(last, low - 1), -1)
        high = min(high, first - 1)


type Namespace = tuple[str, ...]

# The fields of a message in a chunk. The field with the message's text must have another name.
_TAKEN = {one.name for one in fields(Message)} - {"content"} | {"told_at"}
_RESERVED_ROOT = "langgraph"

STEPS = "steps-sha256:"
"""The prefix of the keys of items with tool calls."""
RECALL_INDEX = "recall-index:"
"""The key of the item with the recall index."""
OWN = "own-session:"
"""The prefix of the keys of items that name the conversations of a session's agents."""
ANSWER = "answer-sha256:"
"""The prefix of the keys of notes for answers; see `GraphLayout.note`."""


class ItemKey(NamedTuple):
    """The namespace and the key of an item in a LangGraph store."""

    namespace: Namespace
    key: str


@dataclass(frozen=True)
class GraphLayout:
    """The layout of conversations in a LangGraph store.

    `namespace` contains each conversation's metadata item, with the session id and `meta_key_suffix` as its key, and
    its chunks, with the session id and `:chunk:000000`, `:chunk:000001` … as their keys. A new conversation gets chunks
    of `chunk_size` messages; an existing one keeps its chunk size. `value_field` is the name of the field with a
    message's text.

    Each conversation also has its own namespace, with `_ids` appended to the first label, for notes and other items,
    such as tool calls and the recall index.
    """

    namespace: Namespace = ("agent_chat_history",)
    meta_key_suffix: str = "__meta__"
    chunk_size: int = CHUNK_SIZE
    value_field: str = "content"

    def __post_init__(self) -> None:
        """Reject a layout that no LangGraph store takes, or in which items would overwrite each other."""
        object.__setattr__(self, "namespace", tuple(self.namespace))
        texts = [label for label in self.namespace if isinstance(label, str) and label and label.isprintable()]
        if not texts or len(texts) < len(self.namespace) or "." in "".join(texts):
            raise InvalidInput("The namespace of histories is one label or more, each text without a full stop.")
        if self.namespace[0] == _RESERVED_ROOT:
            raise InvalidInput(f"The namespace of histories cannot begin with {_RESERVED_ROOT!r}, LangGraph's own.")
        suffix = self.meta_key_suffix
        if not suffix or not suffix.isprintable() or suffix[-1].isdigit():
            raise InvalidInput("The suffix of metadata keys is printable text that does not end in a digit.")
        if not is_whole(self.chunk_size, 1, 10_000):
            raise InvalidInput("A chunk has 1 to 10000 messages.")
        if not self.value_field or self.value_field in _TAKEN:
            raise InvalidInput(f"The field of a message's text has a name of its own, not {', '.join(sorted(_TAKEN))}.")

    def finds_same_as(self, other: GraphLayout) -> bool:
        """Return True if both layouts find the same conversations: all their fields except the chunk size are equal."""
        return replace(self, chunk_size=other.chunk_size) == other

    def has(self, namespace: Namespace) -> bool:
        """Return True if a namespace is one of the two namespaces of this layout, or below one of them."""
        root, *rest = self.namespace
        return any(namespace[: len(own)] == own for own in (self.namespace, (f"{root}_ids", *rest)))

    def metadata(self, session_id: str) -> ItemKey:
        """Return the key of a conversation's metadata."""
        return ItemKey(self.namespace, f"{session_id}{self.meta_key_suffix}")

    def session_of(self, key: str) -> str | None:
        """Return the session id that the key of a metadata item contains, or None for the key of any other item."""
        session_id = key.removesuffix(self.meta_key_suffix)
        return session_id if session_id and session_id != key else None

    def chunk(self, session_id: str, chunk: int) -> ItemKey:
        """Return the key of a conversation's chunk."""
        return ItemKey(self.namespace, f"{session_id}:{chunk_key(chunk)}")

    def is_chunk(self, session_id: str, key: str) -> bool:
        """Return True if a key is the key of a conversation's chunk."""
        return re.fullmatch(rf"{re.escape(session_id)}:chunk:\d{{6,}}", key) is not None

    def message_ids(self, session_id: str) -> Namespace:
        """Return the namespace of a session's notes, tool calls, recall index and links to agents' conversations."""
        root, *rest = self.namespace
        # Labels of namespaces cannot contain full stops.
        return (f"{root}_ids", *rest, session_id.replace("%", "%25").replace(".", "%2E"))

    def steps(self, session_id: str, author: str) -> ItemKey:
        """Return the key of the item with the tool calls of the newest turns that the agent `author` answered."""
        return ItemKey(self.message_ids(session_id), f"{STEPS}{sha256(author.encode()).hexdigest()}")

    def recall_index(self, session_id: str) -> ItemKey:
        """Return the key of a conversation's recall index, which finds relevant older turns."""
        return ItemKey(self.message_ids(session_id), RECALL_INDEX)

    def own(self, parent_session_id: str, session_id: str) -> ItemKey:
        """Return the key of the item that links a session to `session_id`, the conversation of one of its agents."""
        return ItemKey(self.message_ids(parent_session_id), f"{OWN}{session_id}")

    def note(self, session_id: str, name: str) -> ItemKey:
        """Return the key of a note, an item with a message's `seq`. `name` is from `id_note` or `answer_note`."""
        return ItemKey(self.message_ids(session_id), name)


def id_note(message_id: str) -> str:
    """Return the name of the note (an item with a message's `seq`) for a message id; it is usually the id itself.

    If the id begins like the key of another item, a tab is put before it. No message id begins with a tab.
    """
    return f"\t{message_id}" if message_id.startswith((STEPS, RECALL_INDEX, OWN, ANSWER)) else message_id


class ConversationLayouts(ClockedTables, sql=("conversation_layouts.sql",)):
    """The layouts in the table `chat_conversation_layouts`, without the chunk size, which each conversation stores."""

    async def add(self, layout: GraphLayout) -> None:
        """Register a layout; do nothing if it is registered already."""
        row = {
            "namespace": ".".join(layout.namespace),
            "meta_key_suffix": layout.meta_key_suffix,
            "value_field": layout.value_field,
            "now": time_text(self._clock()),
        }
        await self._driver.write([(self._sql["add_layout"], row)])

    async def all(self) -> list[GraphLayout]:
        """Return all registered layouts, in a fixed order."""
        rows = await self._driver.fetch(self._sql["layouts"], {})
        return [
            GraphLayout(tuple(namespace.split(".")), suffix, value_field=field) for namespace, suffix, field in rows
        ]
