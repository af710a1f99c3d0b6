"""Transcripts in a LangGraph store: the contract, conversation by conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime

from threadkeep.observe import Backend
from threadkeep.records import SPEAKERS, Message, Page, Receipt, SessionInfo, Turn
from threadkeep.store.codec import Counter, clean_text
from threadkeep.store.graph_transcripts.items import Items, Value
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.graph_transcripts.listing import selected
from threadkeep.store.graph_transcripts.reading import ConversationReader
from threadkeep.store.graph_transcripts.shapes import Conversation, conversation_of
from threadkeep.store.graph_transcripts.writing import ConversationWriter
from threadkeep.store.preparing import prepare
from threadkeep.store.times import time_text
from threadkeep.store.transcripts import END, Recent, SessionChanges, SessionQuery

_ANSWER_REACH = 10_000


class GraphTranscripts:
    """The transcript's contract on a LangGraph store; see `threadkeep.store.transcripts.Transcripts` for its laws.

    `count` counts the tokens of a text, once, when it is stored. `clock` gives `created_at` and `updated_at`.
    `conflicted` is told the session of each write that somebody else got in the way of. It is tried again a few times;
    after that `append` raises `ConversationChanged`, and the turn is the caller's to keep.
    """

    def __init__(
        self,
        items: Items,
        layout: GraphLayout | None = None,
        *,
        count: Counter,
        clock: Callable[[], datetime],
        conflicted: Callable[[str], object] | None = None,
    ) -> None:
        self.layout = layout or GraphLayout()
        self._items = items
        self._count = count
        self._clock = clock
        self.reader = ConversationReader(items, self.layout)
        self.writer = ConversationWriter(items, self.layout, conflicted=conflicted)

    @property
    def backend(self) -> Backend:
        """Which engine is below, for metrics."""
        return self._items.backend

    async def append(self, turn: Turn) -> Receipt:
        """Store a turn."""
        now = self._clock()
        prepared = prepare(turn.messages, count=self._count, stored_at=lambda _: time_text(now))
        return await self.writer.append(turn, prepared, now)

    async def newest(self, session_id: str, *, limit: int, before: int = END, user_id: str | None = None) -> Page:
        """The newest messages before a `seq`, oldest first."""
        conversation = await self.reader.conversation(session_id, user_id=user_id) if limit > 0 else None
        if conversation is None:
            return Page((), None)
        high = min(before - 1, conversation.last_seq)
        messages = tuple(await self.reader.between(conversation, high - limit + 1, high))
        older = messages and (messages[0].seq or 0) > conversation.deleted_seq + 1
        return Page(messages, messages[0].seq if older else None)

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """The raw material of a window."""
        conversation = await self.reader.conversation(session_id, user_id=user_id)
        if conversation is None:
            return Recent(())
        low = max(conversation.reset_seq, after)
        found: list[Message] = []
        if limit > 0:
            async for message in self.reader.down(conversation, before - 1, low + 1):
                if message.role in SPEAKERS:
                    found.append(message)
                    if len(found) == limit:
                        break
        newest_user = None
        if found and all(message.role != "user" for message in found):
            newest_user = await self._newest_user(conversation, (found[-1].seq or 0) - 1, low + 1)
        deleted = conversation.deleted_seq
        return Recent(tuple(found), conversation.reset_seq, newest_user, deleted, deleted)

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """The message with an id."""
        if clean_text(message_id) != message_id:
            return None
        conversation = await self.reader.conversation(session_id)
        seq = await self.reader.place_of(conversation, message_id) if conversation is not None else None
        if conversation is None or seq is None:
            return None
        return next((m for m in await self.reader.at(conversation, [seq]) if m.id == message_id), None)

    async def at(self, session_id: str, places: Collection[int]) -> list[Message]:
        """The messages with these `seq`, in order; those that are there."""
        conversation = await self.reader.conversation(session_id) if places else None
        return [] if conversation is None else await self.reader.at(conversation, places)

    async def answer(self, session_id: str, *, after: int, run_id: str) -> Message | None:
        """The newest assistant message of a run that follows a message."""
        conversation = await self.reader.conversation(session_id)
        if conversation is None:
            return None
        async for message in self.reader.down(conversation, after + _ANSWER_REACH, after + 1):
            if message.run_id == run_id and message.role == "assistant":
                return message
        return None

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """What is known of a session."""
        conversation = await self.reader.conversation(session_id, user_id=user_id)
        return None if conversation is None else conversation.info()

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Some sessions, newest activity first; the metadata of all of them are read."""
        return selected([conversation_of(value).info() async for value in self.all()], query)

    def all(self) -> AsyncIterator[Value]:
        """The metadata of all conversations, in no order."""
        return self._items.conversations(self.layout)

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change what is known of a session."""
        await self.writer.change(session_id, changes)

    async def reset(self, session_id: str, *, user_id: str | None = None) -> int | None:
        """Let later windows start after what is there now."""
        return await self.writer.reset(session_id, user_id=user_id)

    async def delete(self, session_id: str) -> bool:
        """Delete a session and its messages."""
        return await self.writer.delete(session_id)

    async def _newest_user(self, conversation: Conversation, high: int, low: int) -> Message | None:
        """The newest user message between two places, both included."""
        async for message in self.reader.down(conversation, min(high, conversation.last_user_seq), low):
            if message.role == "user":
                return message
        return None
