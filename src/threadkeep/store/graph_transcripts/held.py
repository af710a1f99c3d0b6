"""The chunks of a locked conversation: all changes are written together at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

from threadkeep.records import Message
from threadkeep.store.graph_transcripts.chunks import chunk_of, places_down, stretches
from threadkeep.store.graph_transcripts.items import Value, Writing
from threadkeep.store.graph_transcripts.layout import GraphLayout, ItemKey, Namespace
from threadkeep.store.graph_transcripts.shapes import Conversation, answer_note, message_in, messages_in, missing_chunk


@dataclass
class HeldChunks:
    """The chunks of a conversation that is held: each is read once, and what changes of them is in `items`."""

    writing: Writing
    layout: GraphLayout
    conversation: Conversation
    items: dict[ItemKey, Value | None] = field(default_factory=dict)
    read: dict[int, Value | None] = field(default_factory=dict)

    async def get(self, chunk: int) -> Value | None:
        """Return a chunk as it is now. Raises `SessionDamaged`."""
        key = self.layout.chunk(self.conversation.session_id, chunk)
        if key in self.items:
            return self.items[key]
        if chunk not in self.read:
            [value] = await self.writing.get([key])
            if value is not None:
                messages_in(self.conversation, chunk, value, self.layout.value_field)
            elif chunk == chunk_of(max(self.conversation.last_seq, 1), self.conversation.chunk_size):
                raise missing_chunk(self.conversation)
            self.read[chunk] = value
        return self.read[chunk]

    async def messages(self, chunk: int) -> list[Message]:
        """Return the messages in a chunk that are there."""
        value = await self.get(chunk)
        found = [message_in(one, self.layout.value_field) for one in value["messages"]] if value is not None else []
        low, high = self.conversation.deleted_seq, self.conversation.last_seq
        return [message for message in found if low < (message.seq or 0) <= high]

    async def value(self, seq: int) -> Value:
        """Return the stored value of the message with a `seq` that is known to exist."""
        chunk = await self.get(chunk_of(seq, self.conversation.chunk_size))
        return next(one for one in (chunk or {}).get("messages", ()) if one["seq"] == seq)

    async def note(self, seq: int, fields: Value) -> None:
        """Set additional fields of the message with a `seq`."""
        number = chunk_of(seq, self.conversation.chunk_size)
        if (chunk := await self.get(number)) is not None:
            messages = [{**one, **fields} if one["seq"] == seq else one for one in chunk["messages"]]
            self.items[self.layout.chunk(self.conversation.session_id, number)] = {**chunk, "messages": messages}

    async def message(self, seq: int) -> Message:
        """Return the message at a place that is known to be there."""
        found = await self.messages(chunk_of(seq, self.conversation.chunk_size))
        return next(message for message in found if message.seq == seq)

    async def mark(
        self, chunk: int, places: tuple[int, int], mark: Value, successors: dict[str | None, str | None]
    ) -> list[Message]:
        """Mark the messages of a chunk between two places, both included; return them as they were."""
        value = await self.get(chunk)
        if value is None:
            return []
        session_id, first, last = self.conversation.session_id, *places
        marked, messages = list[Value](), list[Message]()
        for one in value["messages"]:
            if not first <= one["seq"] <= last:
                marked.append(one)
                continue
            messages.append(message_in(one, self.layout.value_field))
            successor = successors.get(one.get("id"))
            marked.append({**one, **mark, **({"superseded_by": successor} if successor else {})})
            if (note := answer_note(one)) is not None:
                self.items[self.layout.message_id(session_id, note)] = None
        self.items[self.layout.chunk(session_id, chunk)] = {**value, "messages": marked}
        return messages

    async def active_down(self, conversation: Conversation) -> AsyncIterator[Message]:
        """Yield the active messages of the conversation as it will be, newest first."""
        last = 0
        found: list[Message] = []
        for seq in places_down(conversation.last_seq, conversation.deleted_seq + 1, conversation.superseded):
            if (chunk := chunk_of(seq, conversation.chunk_size)) != last or not found:
                last, found = chunk, await self.messages(chunk)
            for message in found:
                if message.seq == seq:
                    yield message

    async def active_up(self, conversation: Conversation) -> AsyncIterator[Message]:
        """Yield the active messages of the conversation as it will be, oldest first."""
        for part in stretches(conversation.deleted_seq + 1, conversation.last_seq, conversation.chunk_size):
            if conversation.superseded_between(*part.places) != (part.places,):
                for message in await self.messages(part.chunk):
                    if message.superseded_at is None:
                        yield message


class Overlay:
    """The items of a conversation that is held, with the changes that are not written yet."""

    def __init__(self, chunks: HeldChunks) -> None:
        self._chunks = chunks

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        stored = await self._chunks.writing.get(keys)
        return [self._chunks.items.get(key, value) for key, value in zip(keys, stored, strict=True)]

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys of a namespace that begin with a text, without the changes."""
        return await self._chunks.writing.keys(namespace, beginning)

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Refuse to write: all changes are put together at the end."""
        raise NotImplementedError

    async def put(self, metadata: Value | None, others: object, *, version: int | None) -> None:
        """Refuse to write: all changes are put together at the end."""
        raise NotImplementedError
