"""Messages of chunks that were read before, so that an unchanged one is checked only once."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from threadkeep.graph_store.items import Value
from threadkeep.graph_store.layout import chunk_of
from threadkeep.graph_store.shapes import Conversation, message_in, messages_in
from threadkeep.records import Message

_MOST_CHARACTERS = 8_000_000
_LEAST_CHARACTERS = 1_000
"""What a conversation counts without messages, so that their number is limited too."""
_MESSAGE_CHARACTERS = 500
"""What a message counts without its texts."""


class KnownMessages:
    """The messages of one chunk, each with the value that it was made of; `characters` is the size of the values."""

    def __init__(self, chunk: int, value_field: str) -> None:
        self.chunk = chunk
        self.characters = _LEAST_CHARACTERS
        self._value_field = value_field
        self._known: dict[int, tuple[Value, Message]] = {}

    def message(self, value: Value) -> Message:
        """Return a message of the chunk as `message_in` does; its `seq` was checked."""
        known = self._known.get(value["seq"])
        if known is None or known[0] != value:
            # A copy: some stores return the very object that they keep.
            known = self._known[value["seq"]] = {**value}, message_in(value, self._value_field)
            self.characters += _MESSAGE_CHARACTERS + sum(len(one) for one in value.values() if isinstance(one, str))
        message = known[1]
        # A copy of JSON, which callers may change.
        return message.with_fields() if message.metadata or message.original is not None else message


class KnownChunks:
    """The newest chunk of each conversation that was used last, limited in characters.

    A chunk is read from the store each time: only the messages of equal values are not made again.
    """

    def __init__(self, value_field: str) -> None:
        self._read_plain = partial(message_in, value_field=value_field)
        self._value_field = value_field
        self._chunks: OrderedDict[str, KnownMessages] = OrderedDict()
        self._characters = 0

    def messages_in(
        self, conversation: Conversation, chunk: int, value: Value, places: tuple[int, int] | None = None
    ) -> list[Message]:
        """Return the messages of a chunk as the function of this name does. Raises `SessionDamaged`."""
        if chunk != chunk_of(max(conversation.last_seq, 1), conversation.chunk_size):
            return messages_in(conversation, chunk, value, self._read_plain, places)
        known = self.of(conversation.session_id, chunk)
        before = known.characters
        try:
            return messages_in(conversation, chunk, value, known.message, places)
        finally:
            self._add(known.characters - before)

    def of(self, session_id: str, chunk: int) -> KnownMessages:
        """Return the known messages of the newest chunk of a conversation."""
        known = self._chunks.get(session_id)
        if known is None or known.chunk != chunk:
            self.forget(session_id)
            known = self._chunks[session_id] = KnownMessages(chunk, self._value_field)
            self._add(known.characters)
        self._chunks.move_to_end(session_id)
        return known

    def _add(self, characters: int) -> None:
        self._characters += characters
        while self._characters > _MOST_CHARACTERS:
            self.forget(next(iter(self._chunks)))

    def chunk(self, session_id: str) -> int | None:
        """Return the newest chunk of a conversation when it was read or written last."""
        known = self._chunks.get(session_id)
        return None if known is None else known.chunk

    def forget(self, session_id: str) -> None:
        """Drop the messages of a conversation."""
        known = self._chunks.pop(session_id, None)
        self._characters -= 0 if known is None else known.characters
