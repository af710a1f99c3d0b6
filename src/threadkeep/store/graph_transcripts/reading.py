"""Messages read from the chunks of a conversation: a stretch of them, some of them, or from one place down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence

from threadkeep.records import Message
from threadkeep.store.graph_transcripts.chunks import chunk_of, stretches
from threadkeep.store.graph_transcripts.items import Items
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.graph_transcripts.shapes import Conversation, conversation_of, message_in

_CHUNKS_AT_ONCE = 10


class ConversationReader:
    """Reads conversations of a layout.

    What is behind the last place of the metadata is not there: on stores without transactions it may be what is left of
    a turn that was never finished. A chunk that is missing was deleted a moment ago, with its conversation.
    """

    def __init__(self, items: Items, layout: GraphLayout) -> None:
        self._items = items
        self._layout = layout

    async def conversation(self, session_id: str, *, user_id: str | None = None) -> Conversation | None:
        """The metadata of a conversation; None when it is not there (or not this user's)."""
        [found] = await self._items.get([self._layout.metadata(session_id)])
        conversation = None if found is None else conversation_of(found)
        if conversation is not None and user_id not in (None, conversation.user_id):
            return None
        return conversation

    async def place_of(self, conversation: Conversation, message_id: str) -> int | None:
        """Where the message with an id is noted to be."""
        [found] = await self._items.get([self._layout.message_id(conversation.session_id, message_id)])
        return None if found is None else int(found["seq"])

    async def between(self, conversation: Conversation, first_seq: int, last_seq: int) -> list[Message]:
        """The messages from one place to another, both included, in order; those that are there."""
        first = max(first_seq, conversation.deleted_seq + 1)
        last = min(last_seq, conversation.last_seq)
        chunks = [part.chunk for part in stretches(first, last, conversation.chunk_size)]
        return [m for m in await self._chunks(conversation, chunks) if first <= (m.seq or 0) <= last]

    async def down(self, conversation: Conversation, high: int, low: int) -> AsyncIterator[Message]:
        """The messages from a place down to another, both included, newest first; each chunk when it is needed."""
        first = max(low, conversation.deleted_seq + 1)
        for part in reversed(stretches(first, min(high, conversation.last_seq), conversation.chunk_size)):
            for message in reversed(await self.between(conversation, part.first_seq, part.last_seq)):
                yield message

    async def up(self, conversation: Conversation, low: int, high: int) -> AsyncIterator[Message]:
        """The messages from a place up to another, both included, oldest first; each chunk when it is needed."""
        first = max(low, conversation.deleted_seq + 1)
        for part in stretches(first, min(high, conversation.last_seq), conversation.chunk_size):
            for message in await self.between(conversation, part.first_seq, part.last_seq):
                yield message

    async def at(self, conversation: Conversation, places: Collection[int]) -> list[Message]:
        """The messages at some places, in order; those that are there."""
        wanted = {seq for seq in places if conversation.deleted_seq < seq <= conversation.last_seq}
        chunks = sorted({chunk_of(seq, conversation.chunk_size) for seq in wanted})
        return [message for message in await self._chunks(conversation, chunks) if message.seq in wanted]

    async def _chunks(self, conversation: Conversation, chunks: Sequence[int]) -> list[Message]:
        """All that is in some chunks."""
        found: list[Message] = []
        for start in range(0, len(chunks), _CHUNKS_AT_ONCE):
            numbers = chunks[start : start + _CHUNKS_AT_ONCE]
            values = await self._items.get([self._layout.chunk(conversation.session_id, chunk) for chunk in numbers])
            for value in filter(None, values):
                found += [message_in(message, self._layout.value_field) for message in value["messages"]]
        return found
