"""Keys of conversations in a LangGraph store."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from threadkeep.errors import InvalidInput
from threadkeep.store.graph_transcripts.chunks import CHUNK_SIZE, chunk_key

type Namespace = tuple[str, ...]

# The other fields of a message in a chunk: a text field of such a name would be overwritten.
_TAKEN = frozenset(
    {
        "seq",
        "role",
        "id",
        "tokens",
        "status",
        "confidence",
        "escalated",
        "run_id",
        "metadata",
        "original",
        "sent_at",
        "created_at",
        "author",
        "answers",
        "ordinal",
        "told_at",
        "superseded_at",
        "superseded_by",
    }
)
_RESERVED_ROOT = "langgraph"

STEPS = "steps-sha256:"
"""The prefix of the keys of steps."""


class ItemKey(NamedTuple):
    """The location of an item in a LangGraph store."""

    namespace: Namespace
    key: str


@dataclass(frozen=True)
class GraphLayout:
    """The layout of conversations in a LangGraph store.

    The `namespace` has the metadata of each conversation, under its key and `meta_key_suffix`, and its chunks of
    `chunk_size` messages, under its key and `chunk:000000` and so on; an existing conversation keeps its chunk size. A
    namespace beside it, which ends in `_ids`, has the ids of messages. `value_field` is the field of a message's text.
    """

    namespace: Namespace = ("agent_chat_history",)
    meta_key_suffix: str = "__meta__"
    chunk_size: int = CHUNK_SIZE
    value_field: str = "content"

    def __post_init__(self) -> None:
        """Refuse a layout that a LangGraph store would refuse, or in which items would collide.

        Raises:
            InvalidInput: the message names the field.
        """
        object.__setattr__(self, "namespace", tuple(self.namespace))
        if not self.namespace or not all(_is_label(label) for label in self.namespace):
            raise InvalidInput("The namespace of histories is one label or more, each text without a full stop.")
        if self.namespace[0] == _RESERVED_ROOT:
            raise InvalidInput(f"The namespace of histories cannot begin with {_RESERVED_ROOT!r}, LangGraph's own.")
        suffix = self.meta_key_suffix
        if not suffix or not suffix.isprintable() or suffix[-1].isdigit():
            raise InvalidInput("The suffix of metadata keys is printable text that does not end in a digit.")
        if isinstance(self.chunk_size, bool) or not 1 <= self.chunk_size <= 10_000:
            raise InvalidInput("A chunk has 1 to 10000 messages.")
        if not self.value_field or self.value_field in _TAKEN:
            raise InvalidInput(f"The field of a message's text has a name of its own, not {', '.join(sorted(_TAKEN))}.")

    def lies_as(self, other: GraphLayout) -> bool:
        """Return whether both layouts have the same conversations; the chunk size may differ."""
        return replace(self, chunk_size=other.chunk_size) == other

    def metadata(self, session_id: str) -> ItemKey:
        """Return the key of a conversation's metadata."""
        return ItemKey(self.namespace, f"{session_id}{self.meta_key_suffix}")

    def session_of(self, key: str) -> str | None:
        """Return the conversation of a metadata key; None if it is no metadata key."""
        session_id = key.removesuffix(self.meta_key_suffix)
        return session_id if session_id and session_id != key else None

    def chunk(self, session_id: str, chunk: int) -> ItemKey:
        """Return the key of a chunk."""
        return ItemKey(self.namespace, f"{session_id}:{chunk_key(chunk)}")

    def is_chunk(self, session_id: str, key: str) -> bool:
        """Return whether a key is a chunk of a conversation."""
        return re.fullmatch(rf"{re.escape(session_id)}:chunk:\d{{6,}}", key) is not None

    def message_ids(self, session_id: str) -> Namespace:
        """Return the namespace of the ids of a conversation's messages."""
        root, *rest = self.namespace
        return (f"{root}_ids", *rest, namespace_label(session_id))

    def steps(self, session_id: str, author: str) -> ItemKey:
        """Return the key of an agent's newest steps, in the namespace of the message ids."""
        return ItemKey(self.message_ids(session_id), f"{STEPS}{sha256(author.encode()).hexdigest()}")

    def message_id(self, session_id: str, message_id: str) -> ItemKey:
        """Return the key of the note with the `seq` of a message id."""
        return ItemKey(self.message_ids(session_id), message_id)


def namespace_label(session_id: str) -> str:
    """Return a session id as a namespace label, which cannot have a full stop; different ids have different labels."""
    return session_id.replace("%", "%25").replace(".", "%2E")


def _is_label(label: object) -> bool:
    return isinstance(label, str) and label != "" and "." not in label and label.isprintable()
