"""The reading of conversations from a LangGraph store: their metadata, and their messages in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from itertools import batched

from threadkeep.errors import SessionDamaged, StoreUnavailable
from threadkeep.graph_store.items import Items, Readable, ReadItems, TableItems, Value
from threadkeep.graph_store.known import KnownChunks
from threadkeep.graph_store.layout import GraphLayout, ItemKey, chunk_key, chunk_of, chunk_spans, id_note
from threadkeep.graph_store.shapes import METADATA, Conversation, conversation_of, missing_chunk, noted_seq
from threadkeep.records import Message
from threadkeep.store.backend import DamageRegister
from threadkeep.store.codec import TITLE_CHARACTERS, shorten


async def title_in(messages: AsyncIterator[Message]) -> str | None:
    """Return the title that a conversation gets from its first active user message with a text."""
    async for message in messages:
        if message.role == "user" and message.content and message.superseded_at is None:
            return shorten(message.content, TITLE_CHARACTERS)
    return None


async def title_without(title: str | None, removed: Iterable[Message], rest: AsyncIterator[Message]) -> str | None:
    """Return the session's title after a deletion. If the title was taken from a deleted message, derive a new one."""
    first = next((message for message in removed if message.role == "user" and message.content), None)
    if first is None or title != shorten(first.content, TITLE_CHARACTERS):
        return title
    return await title_in(rest)


_CHUNKS_AT_ONCE = 10
"""The maximum number of chunks that one call to the store reads."""

_NONE = (1, 0)
"""A `seq` range without messages."""


class ConversationReader:
    """A reader of the conversations that have one layout (the scheme of their keys) in a LangGraph store.

    Messages beyond the last `seq` in the metadata are ignored: in stores without transactions, an incomplete write may
    have left them. A missing chunk is skipped unless it is the newest, because items may expire. If an item cannot be
    read, `SessionDamaged` is raised, and `damages` lists the item. Superseded messages are included unless
    `active=True`.
    """

    def __init__(self, items: Items, layout: GraphLayout) -> None:
        self._items = items
        self._layout = layout
        self.damages = DamageRegister()
        self.known = KnownChunks(layout.value_field)
        self.is_snapshot = isinstance(items, TableItems)
        """True if one read returns all items as of the same moment. If it is False, read the metadata first."""
        self.owner_of: Callable[[str], Awaitable[str | None]] | None = None
        """A function that returns the owner of a conversation whose damaged metadata do not name it."""

    def beginning(self, session_id: str) -> list[ItemKey]:
        """Return the keys of the items to read first: the metadata and, if it is cached, the newest chunk."""
        chunk = self.known.chunk(session_id) if self.is_snapshot else None
        newest = [] if chunk is None else [self._layout.chunk(session_id, chunk)]
        return [self._layout.metadata(session_id), *newest]

    async def opened(
        self, session_id: str, limit: int, *, user_id: str | None = None
    ) -> tuple[Conversation | None, Readable]:
        """Return the metadata (see `conversation`), and a cache of items for reading the `limit` newest messages."""
        items = ReadItems(self._items)
        if limit <= self._layout.chunk_size:
            await items.get(self.beginning(session_id))
        return await self.conversation(session_id, user_id=user_id, items=items), items

    async def conversation(
        self, session_id: str, *, user_id: str | None = None, items: Readable | None = None
    ) -> Conversation | None:
        """Return the metadata of a conversation, unless it is missing or another user's.

        Raises:
            SessionDamaged: the metadata cannot be read, and the conversation may belong to this user.
        """
        [found] = await (items or self._items).get([self._layout.metadata(session_id)])
        if found is None:
            self.forget(session_id)
            return None
        try:
            conversation = self.described(session_id, found)
        except SessionDamaged as error:
            await self._name_owner(error)
            if user_id not in (None, error.user_id):
                return None
            raise
        return conversation if user_id in (None, conversation.user_id) else None

    def forget(self, session_id: str) -> None:
        """Drop the cached data of a conversation that does not exist any more."""
        self.damages.forget(session_id)
        self.known.forget(session_id)

    def described(self, session_id: str, metadata: Value) -> Conversation:
        """Return the conversation of `metadata`. Add damaged metadata to `damages`, and raise `SessionDamaged`."""
        with self.damages.noting(session_id, METADATA):
            return conversation_of(session_id, metadata)

    async def all(self) -> AsyncIterator[Conversation]:
        """Yield each conversation of the layout whose metadata can be read, in any order."""
        async for session_id, metadata in self._items.conversations(self._layout):
            try:
                conversation = self.described(session_id, metadata)
            except SessionDamaged:
                continue  # `described` has listed the conversation in `damages`
            yield conversation

    async def unreadable(self, session_ids: Sequence[str]) -> set[str]:
        """Return the ids of conversations with unreadable metadata, or none if the store does not answer."""
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

    async def seqs_of(self, conversation: Conversation, message_ids: Sequence[str]) -> list[int]:
        """Return the `seq` of each existing message from its note item, or search all messages if a note is damaged."""
        keys = [self._layout.note(conversation.session_id, id_note(message_id)) for message_id in message_ids]
        notes = zip(message_ids, await self._items.get(keys), strict=True)
        seqs = {message_id: noted_seq(note) for message_id, note in notes if note is not None}
        if None in seqs.values():
            async for message in self.down(conversation, conversation.last_seq, 1):
                if message.id is not None and seqs.get(message.id, 0) is None:
                    seqs[message.id] = message.seq
        return [seq for seq in seqs.values() if seq is not None]

    async def between(
        self, conversation: Conversation, first_seq: int, last_seq: int, *, items: Readable | None = None
    ) -> list[Message]:
        """Return the existing messages from `first_seq` to `last_seq`, both included, in order."""
        first = max(first_seq, conversation.deleted_seq + 1)
        last = min(last_seq, conversation.last_seq)
        chunks = (part.chunk for part in chunk_spans(first, last, conversation.chunk_size))
        reading = self._read(conversation, chunks, (first, last), items)
        return [message async for _, messages in reading for message in messages]

    async def down(
        self,
        conversation: Conversation,
        high: int,
        low: int,
        *,
        active: bool = False,
        items: Readable | None = None,
    ) -> AsyncIterator[Message]:
        """Yield the messages from `high` down to `low`, both included, and read chunks as needed."""
        first, last = max(low, conversation.deleted_seq + 1), min(high, conversation.last_seq)
        for part in chunk_spans(first, last, conversation.chunk_size, newest_first=True):
            if active and conversation.superseded_between(*part.span) == (part.span,):
                continue
            for message in reversed(await self.between(conversation, *part.span, items=items)):
                if not (active and message.superseded_at is not None):
                    yield message

    async def up(
        self, conversation: Conversation, low: int, high: int, *, items: Readable | None = None
    ) -> AsyncIterator[Message]:
        """Yield the messages from `low` up to `high`, both included, and read chunks as needed."""
        first = max(low, conversation.deleted_seq + 1)
        for part in chunk_spans(first, min(high, conversation.last_seq), conversation.chunk_size):
            for message in await self.between(conversation, part.first_seq, part.last_seq, items=items):
                yield message

    async def values(
        self, conversation: Conversation, low: int, high: int, *, items: Readable | None = None, checks: bool = True
    ) -> AsyncIterator[Value]:
        """Yield the stored form of the messages from `low` up to `high`; check their fields if `checks` is true."""
        first, last = max(low, conversation.deleted_seq + 1), min(high, conversation.last_seq)
        chunks = (part.chunk for part in chunk_spans(first, last, conversation.chunk_size))
        async for chunk, _ in self._read(conversation, chunks, None if checks else _NONE, items):
            for value in chunk["messages"]:
                if first <= value["seq"] <= last:
                    yield value

    async def at(self, conversation: Conversation, seqs: Collection[int]) -> list[Message]:
        """Return the existing messages with these `seq` values, in order, including superseded ones."""
        wanted = {seq for seq in seqs if conversation.deleted_seq < seq <= conversation.last_seq}
        chunks = sorted({chunk_of(seq, conversation.chunk_size) for seq in wanted})
        reading = self._read(conversation, chunks, (min(wanted, default=1), max(wanted, default=0)))
        return [message async for _, messages in reading for message in messages if message.seq in wanted]

    async def _read(
        self,
        conversation: Conversation,
        chunks: Iterable[int],
        span: tuple[int, int] | None = None,
        items: Readable | None = None,
    ) -> AsyncIterator[tuple[Value, list[Message]]]:
        """Yield each chunk in its stored form, with its messages in `span`."""
        newest = chunk_of(max(conversation.last_seq, 1), conversation.chunk_size)
        # Damaged metadata may claim billions of messages, so do not compute the keys of all chunks at once.
        for numbers in batched(chunks, _CHUNKS_AT_ONCE):
            keys = [self._layout.chunk(conversation.session_id, chunk) for chunk in numbers]
            values = await (items or self._items).get(keys)
            for number, value in zip(numbers, values, strict=True):
                if number == newest:
                    with self.damages.noting(conversation.session_id, "newest"):
                        if value is None and not await self._changed(conversation):
                            raise missing_chunk(conversation)
                if value is not None:
                    with self.damages.noting(conversation.session_id, chunk_key(number)):
                        messages = self.known.messages_in(conversation, number, value, span)
                    yield value, messages

    async def _changed(self, conversation: Conversation) -> bool:
        """Return True if a conversation was changed or deleted since its metadata were read."""
        now = await self.conversation(conversation.session_id)
        return now is None or now.version != conversation.version
