"""A cache of the messages in chunks, so that an unchanged message is validated only once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter

from threadkeep.graph_store.items import Stored, Value
from threadkeep.graph_store.layout import chunk_of
from threadkeep.graph_store.shapes import Conversation, damaged_chunk, message_in, messages_in, values_in
from threadkeep.records import Message

_MOST_CHARACTERS = 16_000_000
_LEAST_CHARACTERS = 1_000
"""The size counted for a conversation without messages, which limits the number of conversations."""
_MESSAGE_CHARACTERS = 500
"""The size counted for a message without its texts."""
_SEQ = itemgetter("seq")


class KnownMessages:
    """The cached messages of one chunk.

    `characters` is their estimated size in the cache. `value` is the chunk as it was last written or read.
    """

    def __init__(self, chunk: int, value_field: str) -> None:
        self.chunk = chunk
        self.characters = _LEAST_CHARACTERS
        self.value: Value | None = None
        self._value_field = value_field
        self._taken: tuple[Value, int] | None = None
        self._checked = False
        self._values: Sequence[Value] = ()
        self._messages: list[Message | None] = []

    def messages_in(
        self, conversation: Conversation, value: Value, span: tuple[int, int] | None = None
    ) -> list[Message]:
        """Return the messages of the chunk, or only those in the `seq` range `span`; reuse unchanged messages."""
        with damaged_chunk(conversation, self.chunk):
            self._take(conversation, value)
            first = 0 if span is None else bisect_left(self._values, span[0], key=_SEQ)
            last = len(self._values) if span is None else bisect_right(self._values, span[1], key=_SEQ)
            return [self._message(at) for at in range(first, last)]

    def check(self, conversation: Conversation, value: Value) -> None:
        """Validate every message of the chunk. Raises `SessionDamaged`."""
        with damaged_chunk(conversation, self.chunk):
            self._take(conversation, value)
            if not self._checked:
                for at, message in enumerate(self._messages):
                    if message is None:
                        self._message(at)
                self._checked = True

    def _take(self, conversation: Conversation, value: Value) -> None:
        if self._taken is not None and self._taken[0] is value and self._taken[1] == conversation.chunk_size:
            return
        self._keep(conversation, value, values_in(conversation, self.chunk, value))
        self._checked = False

    def hold(self, conversation: Conversation, value: Value) -> None:
        """Cache a chunk that was just written; its messages are validated already."""
        self._keep(conversation, value, value["messages"])
        self._checked = True

    def _keep(self, conversation: Conversation, value: Value, values: Sequence[Value]) -> None:
        kept = self._messages
        if values[: len(kept)] != self._values:
            pairs = zip(self._values, kept, values, strict=False)
            kept = [message if former == now else None for former, message, now in pairs]
        # A value from `TableItems` never changes. Another store may change a value later, so copy its messages.
        own = isinstance(value, Stored)
        self._values = values if own else [{**each} for each in values]
        self._messages = [*kept, *[None] * (len(values) - len(kept))]
        self._taken = (value, conversation.chunk_size) if own else None
        self.value = value
        texts = len(value.text) if isinstance(value, Stored) else 0
        texts = texts or sum(len(one) for each in values for one in each.values() if isinstance(one, str))
        # Count texts twice, because the JSON of the chunk is cached too.
        self.characters = _LEAST_CHARACTERS + _MESSAGE_CHARACTERS * len(values) + 2 * texts

    def _message(self, at: int) -> Message:
        message = self._messages[at]
        if message is None:
            value = self._values[at]
            message = self._messages[at] = message_in(value, self._value_field)
        # The caller may change the JSON values of a message, so return a copy.
        return message.with_fields() if message.metadata or message.original is not None else message


class KnownChunks:
    """A cache of the newest chunks of recently used conversations, up to a number of characters.

    The store is read each time, but an unchanged message is not validated again.
    """

    def __init__(self, value_field: str) -> None:
        self._value_field = value_field
        self._chunks: OrderedDict[str, KnownMessages] = OrderedDict()
        self._characters = 0

    def messages_in(
        self, conversation: Conversation, chunk: int, value: Value, span: tuple[int, int] | None = None
    ) -> list[Message]:
        """Return the messages of a chunk, if possible from the cache. Raises `SessionDamaged`."""
        if chunk != chunk_of(max(conversation.last_seq, 1), conversation.chunk_size):
            return messages_in(conversation, chunk, value, self._value_field, span)
        with self._entry(conversation.session_id, chunk) as known:
            return known.messages_in(conversation, value, span)

    def check(self, conversation: Conversation, chunk: int, value: Value) -> None:
        """Validate every message of a chunk. Raises `SessionDamaged`."""
        if chunk != chunk_of(max(conversation.last_seq, 1), conversation.chunk_size):
            messages_in(conversation, chunk, value, self._value_field)
            return
        with self._entry(conversation.session_id, chunk) as known:
            known.check(conversation, value)

    def hold(self, conversation: Conversation, chunk: int, value: Value) -> None:
        """Cache a chunk that was just written."""
        with self._entry(conversation.session_id, chunk) as known:
            known.hold(conversation, value)

    @contextmanager
    def _entry(self, session_id: str, chunk: int) -> Iterator[KnownMessages]:
        """Yield the entry of a conversation's `chunk` in the cache, then update the size of the cache."""
        known = self._chunks.get(session_id)
        if known is None or known.chunk != chunk:
            self.forget(session_id)
            known = self._chunks[session_id] = KnownMessages(chunk, self._value_field)
            self._add(known.characters)
        self._chunks.move_to_end(session_id)
        before = known.characters
        try:
            yield known
        finally:
            self._add(known.characters - before)

    def _add(self, characters: int) -> None:
        self._characters += characters
        while self._characters > _MOST_CHARACTERS:
            self.forget(next(iter(self._chunks)))

    def chunk(self, session_id: str) -> int | None:
        """Return the number of a conversation's newest chunk if it is cached; otherwise None."""
        known = self._chunks.get(session_id)
        return None if known is None else known.chunk

    def forget(self, session_id: str) -> None:
        """Drop the cached messages of a conversation."""
        known = self._chunks.pop(session_id, None)
        self._characters -= 0 if known is None else known.characters
