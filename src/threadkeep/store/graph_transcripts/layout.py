"""Under which keys of a LangGraph store conversations are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from threadkeep.errors import InvalidInput
from threadkeep.store.graph_transcripts.chunks import CHUNK_SIZE, chunk_key

type Namespace = tuple[str, ...]

# What else a message has in a chunk: a text of that name would be written over.
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
    }
)
_RESERVED_ROOT = "langgraph"


class ItemKey(NamedTuple):
    """Where an item of a LangGraph store is."""

    namespace: Namespace
    key: str


@dataclass(frozen=True)
class GraphLayout:
    """How conversations are laid out in a LangGraph store.

    In the `namespace` are the metadata of each conversation, under its key and `meta_key_suffix`, and its chunks of
    `chunk_size` messages, under its key and `chunk:000000` and so on; a conversation that is there keeps the size that
    it has. In a namespace beside it, which ends in `_ids`, are the ids of messages. `value_field` names the text of a
    message.
    """

    namespace: Namespace = ("agent_chat_history",)
    meta_key_suffix: str = "__meta__"
    chunk_size: int = CHUNK_SIZE
    value_field: str = "content"

    def __post_init__(self) -> None:
        """Refuse what a LangGraph store would, or what would mix items up.

        Raises:
            InvalidInput: names the field.
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
        """Whether conversations of both are the same, but for the size of the chunks of new ones."""
        return replace(self, chunk_size=other.chunk_size) == other

    def metadata(self, session_id: str) -> ItemKey:
        """Where the metadata of a conversation are."""
        return ItemKey(self.namespace, f"{session_id}{self.meta_key_suffix}")

    def chunk(self, session_id: str, chunk: int) -> ItemKey:
        """Where a chunk of a conversation is."""
        return ItemKey(self.namespace, f"{session_id}:{chunk_key(chunk)}")

    def message_id(self, session_id: str, message_id: str) -> ItemKey:
        """Where it is noted at which place of a conversation the message with an id is."""
        root, *rest = self.namespace
        return ItemKey((f"{root}_ids", *rest, session_id), message_id)


def _is_label(label: object) -> bool:
    return isinstance(label, str) and label != "" and "." not in label and label.isprintable()
