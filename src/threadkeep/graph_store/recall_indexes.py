"""Recall indexes of conversations; each conversation has one item, in the namespace of its message ids."""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from itertools import batched

from threadkeep.errors import SessionDamaged, StoreError
from threadkeep.graph_store.items import Items, Value, Writing
from threadkeep.graph_store.layout import chunk_of
from threadkeep.graph_store.reading import CHUNKS_AT_ONCE
from threadkeep.graph_store.shapes import Conversation, damaged_chunk, metadata_value, values_in
from threadkeep.graph_store.writing import ConversationWriter
from threadkeep.store.contexts import IndexedState, IndexedTexts


class RecallIndexItems:
    """The recall indexes of conversations in a LangGraph store; the caller defines the format of an index.

    Each write that removes texts or messages also deletes the index. But other programs may delete messages from the
    store too, so `has_texts` compares an index with the stored texts.
    """

    def __init__(self, items: Items, writer: ConversationWriter) -> None:
        self._items = items
        self._writer = writer
        self._layout = writer.layout

    async def of_session(self, session_id: str, version: str, last_seq: int) -> bytes | None:
        """Return a usable index of a conversation that ends by `last_seq`; delete any other index and return None."""
        [item] = await self._items.get([self._layout.recall_index(session_id)])
        if item is None:
            return None
        data, upto = item.get("data"), item.get("last_seq")
        # An index that includes later messages belongs to an earlier conversation, which another program has deleted.
        is_usable = item.get("version") == version and isinstance(upto, int) and upto <= last_seq
        if is_usable and isinstance(data, str):
            with contextlib.suppress(ValueError):
                return b64decode(data)
        await self.remove(session_id)
        return None

    async def save(self, session_id: str, version: str, data: bytes, last_seq: int, state: IndexedState) -> None:
        """Replace the stored index of a conversation; do nothing if the conversation has changed since `state`."""
        item = {"version": version, "last_seq": last_seq, "data": b64encode(data).decode()}

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is not None and IndexedState.of(found.info()) == state and found.last_seq >= last_seq:
                await self._put(writing, found, item)

        await self._writer.hold(session_id, work)

    async def remove(self, session_id: str) -> None:
        """Delete the index of a conversation; errors of the store are ignored."""

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is not None:
                await self._put(writing, found, None)

        with contextlib.suppress(StoreError):
            await self._writer.hold(session_id, work)

    async def has_texts(self, session_id: str, texts: IndexedTexts) -> bool:
        """Return True if the messages still have the texts from which the index was made."""
        found = IndexedTexts()
        with contextlib.suppress(SessionDamaged):
            conversation = await self._writer.reader.conversation(session_id)
            if conversation is None:
                return False
            chunks = dict.fromkeys(chunk_of(seq, conversation.chunk_size) for seq in texts.seqs)
            wanted = set(texts.seqs)
            for some in batched(chunks, CHUNKS_AT_ONCE):
                for seq, text in await self._texts_in(conversation, some):
                    if seq in wanted:
                        found.add(seq, text)
        return found == texts

    async def _texts_in(self, conversation: Conversation, chunks: Sequence[int]) -> list[tuple[int, str]]:
        """Return the `seq` and the text of each message in the chunks. Raises `SessionDamaged`."""
        found: list[tuple[int, str]] = []
        values = await self._items.get([self._layout.chunk(conversation.session_id, chunk) for chunk in chunks])
        for chunk, value in zip(chunks, values, strict=True):
            with damaged_chunk(conversation, chunk):
                messages = () if value is None else values_in(conversation, chunk, value)
            found += [(one["seq"], str(one.get(self._layout.value_field))) for one in messages]
        return found

    async def _put(self, writing: Writing, found: Conversation, item: Value | None) -> None:
        """Write the index item, or delete it if `item` is None. The version of the conversation does not change."""
        changes = {self._layout.recall_index(found.session_id): item}
        await writing.put(metadata_value(found), changes, version=found.version)
