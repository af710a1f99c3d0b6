"""Reading of messages from the chunks of a conversation."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

from threadkeep.errors import SessionDamaged, StoreUnavailable
from threadkeep.records import Message
from threadkeep.store.graph_transcripts.chunks import chunk_key, chunk_of, stretches
from threadkeep.store.graph_transcripts.damage import DamageRegister
from threadkeep.store.graph_transcripts.items import Items, Value
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.graph_transcripts.shapes import (
    METADATA,
    Conversation,
    conversation_of,
    messages_in,
    missing_chunk,
    noted_seq,
)

_CHUNKS_AT_ONCE = 10


class ConversationReader:
    """A reader of the conversations of a layout.

    Messages beyond the last `seq` of the metadata do not count: on stores without transactions they may be left from a
    turn that was never completed. A missing chunk is skipped, because stores may expire items, unless it is the newest.
    An item that cannot be read raises `SessionDamaged` and is listed in `damages`. Superseded messages are included,
    unless only `active` ones are requested.
    """

    def __init__(self, items: Items, layout: GraphLayout) -> None:
        self._items = items
        self._layout = layout
        self.damages = DamageRegister()
        self.owner_of: Callable[[str], Awaitable[str | None]] | None = None
        """Who owns a conversation whose metadata do not say it any more."""

    async def conversation(self, session_id: str, *, user_id: str | None = None) -> Conversation | None:
        """Return the metadata of a conversation; None if it does not exist (or is not this user's).

        Raises:
            SessionDamaged: the metadata cannot be read, and the conversation is not known to be another user's.
        """
        [found] = await self._items.get([self._layout.metadata(session_id)])
        if found is None:
            self.damages.forget(session_id)
            return None
        try:
            conversation = self.described(session_id, found)
        except SessionDamaged as error:
            await self._name_owner(error)
            if user_id not in (None, error.user_id):
                return None
            raise
        return conversation if user_id in (None, conversation.user_id) else None

    def described(self, session_id: str, metadata: Value) -> Conversation:
        """Return the conversation that metadata describe. Raises `SessionDamaged`."""
        with self.damages.noting(session_id, METADATA):
            return conversation_of(session_id, metadata)

    async def all(self) -> AsyncIterator[Conversation]:
        """Yield every conversation of the layout with readable metadata, unordered."""
        async for session_id, metadata in self._items.conversations(self._layout):
            try:
                conversation = self.described(session_id, metadata)
            except SessionDamaged:
                continue  # `damages` lists it
            yield conversation

    async def unreadable(self, session_ids: Sequence[str]) -> set[str]:
        """Return the conversations whose metadata cannot be read; none while the store does not answer."""
        damaged: set[str] = set()
        with contextlib.suppress(StoreUnavailable):
            found = await self._items.get([self._layout.metadata(session_id) for session_id in session_ids])
            for session_id, metadata in zip(session_ids, found, strict=True):
                try:
                    if metadata is not None:
                        self.described(session_id, metadata)
                except SessionDamaged as error:
                    await self._name_owner(error)
                    damaged.add(session_id)
        return damaged

    async def _name_owner(self, error: SessionDamaged) -> None:
        if error.user_id is None and self.owner_of is not None:
            error.user_id = await self.owner_of(error.session_id)

    async def places_of(self, conversation: Conversation, message_ids: Sequence[str]) -> list[int]:
        """Return the noted `seq` values of message ids; search for those whose note is damaged."""
        keys = [self._layout.message_id(conversation.session_id, message_id) for message_id in message_ids]
        notes = zip(message_ids, await self._items.get(keys), strict=True)
        places = {message_id: noted_seq(note) for message_id, note in notes if note is not None}
        if None in places.values():
            async for message in self.down(conversation, conversation.last_seq, 1):
                if message.id is not None and places.get(message.id, 0) is None:
                    places[message.id] = message.seq
        return [seq for seq in places.values() if seq is not None]

    async def between(self, conversation: Conversation, first_seq: int, last_seq: int) -> list[Message]:
        """Return the existing messages between two `seq` values, both included, in order."""
        first = max(first_seq, conversation.deleted_seq + 1)
        last = min(last_seq, conversation.last_seq)
        chunks = [part.chunk for part in stretches(first, last, conversation.chunk_size)]
        return [m for m in await self._chunks(conversation, chunks) if first <= (m.seq or 0) <= last]

    async def down(
        self, conversation: Conversation, high: int, low: int, *, active: bool = False
    ) -> AsyncIterator[Message]:
        """Yield the messages between two `seq` values, both included, newest first; chunks are read on demand."""
        first, last = max(low, conversation.deleted_seq + 1), min(high, conversation.last_seq)
        for part in stretches(first, last, conversation.chunk_size, newest_first=True):
            if active and conversation.superseded_between(*part.places) == (part.places,):
                continue
            for message in reversed(await self.between(conversation, *part.places)):
                if not (active and message.superseded_at is not None):
                    yield message

    async def up(self, conversation: Conversation, low: int, high: int) -> AsyncIterator[Message]:
        """Yield the messages between two `seq` values, both included, oldest first; chunks are read on demand."""
        first = max(low, conversation.deleted_seq + 1)
        for part in stretches(first, min(high, conversation.last_seq), conversation.chunk_size):
            for message in await self.between(conversation, part.first_seq, part.last_seq):
                yield message

    async def values_up(self, conversation: Conversation, low: int, high: int) -> AsyncIterator[Value]:
        """Yield the messages between two `seq` values, both included, as stored in their chunks."""
        first, last = max(low, conversation.deleted_seq + 1), min(high, conversation.last_seq)
        for part in stretches(first, last, conversation.chunk_size):
            async for chunk, _ in self._read(conversation, [part.chunk]):
                for value in chunk["messages"]:
                    if first <= value["seq"] <= last:
                        yield value

    async def at(self, conversation: Conversation, places: Collection[int]) -> list[Message]:
        """Return the existing messages with these `seq` values, in order."""
        wanted = {seq for seq in places if conversation.deleted_seq < seq <= conversation.last_seq}
        chunks = sorted({chunk_of(seq, conversation.chunk_size) for seq in wanted})
        return [message for message in await self._chunks(conversation, chunks) if message.seq in wanted]

    async def _chunks(self, conversation: Conversation, chunks: Sequence[int]) -> list[Message]:
        """Return all messages of some chunks."""
        return [message async for _, messages in self._read(conversation, chunks) for message in messages]

    async def _read(
        self, conversation: Conversation, chunks: Sequence[int]
    ) -> AsyncIterator[tuple[Value, list[Message]]]:
        """Yield chunks as stored, each with its messages."""
        newest = chunk_of(max(conversation.last_seq, 1), conversation.chunk_size)
        for start in range(0, len(chunks), _CHUNKS_AT_ONCE):
            numbers = chunks[start : start + _CHUNKS_AT_ONCE]
            values = await self._items.get([self._layout.chunk(conversation.session_id, chunk) for chunk in numbers])
            for number, value in zip(numbers, values, strict=True):
                if number == newest:
                    with self.damages.noting(conversation.session_id, "newest"):
                        if value is None and not await self._changed(conversation):
                            raise missing_chunk(conversation)
                if value is not None:
                    with self.damages.noting(conversation.session_id, chunk_key(number)):
                        messages = messages_in(conversation, number, value, self._layout.value_field)
                    yield value, messages

    async def _changed(self, conversation: Conversation) -> bool:
        """Return whether a conversation was changed or deleted since its metadata were read."""
        now = await self.conversation(conversation.session_id)
        return now is None or now.version != conversation.version
