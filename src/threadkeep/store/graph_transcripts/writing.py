"""Writes to a conversation: each holds it, reads what it has to know, and puts all that changes at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from threadkeep.errors import QuestionGone, StoreUnavailable, WrongUser
from threadkeep.records import Receipt, Turn, dump_json
from threadkeep.store.codec import clean_json, clean_text
from threadkeep.store.graph_transcripts.appending import Appended, Place, append
from threadkeep.store.graph_transcripts.chunks import chunk_of, stretches
from threadkeep.store.graph_transcripts.items import ConversationChanged, Items, Value, Writing
from threadkeep.store.graph_transcripts.layout import GraphLayout, ItemKey
from threadkeep.store.graph_transcripts.shapes import Conversation, conversation_of, metadata_value
from threadkeep.store.preparing import Prepared
from threadkeep.store.transcripts import SessionChanges

type Work[T] = Callable[[Writing, Conversation | None], Awaitable[T]]

_PAUSES_SECONDS: Final = (0.025, 0.05, 0.1)
_CHUNKS_AT_ONCE = 10


@dataclass(frozen=True)
class Beginning:
    """What follows the border of a conversation up to a place; with a time, only while nothing was said since."""

    after_seq: int
    upto_seq: int
    idle_before: datetime | None = None

    def is_of(self, conversation: Conversation) -> bool:
        """Whether the border is still there."""
        idle = self.idle_before is None or conversation.updated_at < self.idle_before
        return idle and conversation.deleted_seq == self.after_seq


class ConversationWriter:
    """Writes conversations of a layout.

    A write that somebody else gets in the way of is tried again after a short, random pause, three times; `conflicted`
    is told the session each time. Then `ConversationChanged` is raised, and nothing is written.
    """

    def __init__(self, items: Items, layout: GraphLayout, *, conflicted: Callable[[str], object] | None) -> None:
        self._items = items
        self.layout = layout
        self._conflicted = conflicted

    async def append(self, turn: Turn, prepared: Prepared, now: datetime) -> Receipt:
        """Put a turn behind a conversation, which begins with it if it is not there.

        Raises:
            WrongUser: it is another user's.
            QuestionGone: what the turn answers is not there.
        """

        async def work(writing: Writing, found: Conversation | None) -> Receipt:
            if found is not None and turn.user_id not in (None, found.user_id):
                raise WrongUser(turn.session_id)
            if turn.answers is not None and (found is None or not await self.places_of(writing, found, [turn.answers])):
                raise QuestionGone(turn.session_id)
            new = Conversation(turn.session_id, now, now, turn.user_id, chunk_size=self.layout.chunk_size)
            former = found or new
            there = await self.places_of(writing, former, [str(message.id) for message in prepared.messages])
            appended = await self.appended(writing, former, prepared, there, now)
            if appended.items:
                await self.put(writing, former, appended.conversation, appended.items)
            return appended.receipt

        return await self.hold(turn.session_id, work)

    async def appended(
        self,
        writing: Writing,
        conversation: Conversation,
        prepared: Prepared,
        there: Mapping[str, int],
        now: datetime,
    ) -> Appended:
        """What messages make of a conversation that is held; `there` says where those are whose ids it has."""
        [last] = await writing.get([self._chunk_with(conversation, conversation.last_seq + 1)])
        place = Place(self.layout, () if last is None else last["messages"], now)
        return append(conversation, prepared, there=there, place=place)

    async def places_of(
        self, writing: Writing, conversation: Conversation, message_ids: Sequence[str]
    ) -> dict[str, int]:
        """Where those messages are that a conversation has of some ids."""
        if conversation.version < 0:
            return {}
        session_id = conversation.session_id
        noted = await writing.get([self.layout.message_id(session_id, message_id) for message_id in message_ids])
        places = {
            message_id: int(value["seq"])
            for message_id, value in zip(message_ids, noted, strict=True)
            if value is not None and conversation.deleted_seq < value["seq"] <= conversation.last_seq
        }
        # A note may be of a turn that was never finished, on a store without transactions.
        keys = list(dict.fromkeys(self._chunk_with(conversation, seq) for seq in places.values()))
        ids = {
            message["seq"]: message.get("id")
            for value in filter(None, await writing.get(keys) if keys else [])
            for message in value["messages"]
        }
        return {message_id: seq for message_id, seq in places.items() if ids.get(seq) == message_id}

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change what is known of a conversation; nothing where there is none."""
        tags = None if changes.tags is None else tuple(clean_text(tag) for tag in changes.tags)
        metadata = None if changes.metadata is None else dump_json(clean_json(dict(changes.metadata)))

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is not None:
                changed = replace(
                    found,
                    title=found.title if changes.title is None else clean_text(changes.title),
                    tags=found.tags if tags is None else tags,
                    metadata=found.metadata if metadata is None else metadata,
                    active=found.active if changes.active is None else changes.active,
                )
                await self.put(writing, found, changed)

        await self.hold(session_id, work)

    async def reset(self, session_id: str, *, user_id: str | None) -> int | None:
        """Let later windows start after what is there now; answers the last place before, None for no conversation."""

        async def work(writing: Writing, found: Conversation | None) -> int | None:
            if found is None or user_id not in (None, found.user_id):
                return None
            await self.put(writing, found, replace(found, reset_seq=found.last_seq))
            return found.last_seq

        return await self.hold(session_id, work)

    async def take_away(self, session_id: str, beginning: Beginning, *, title: tuple[str | None, str | None]) -> bool:
        """Remove the beginning of a conversation; False when it is not as it was. A title becomes another one."""

        async def work(writing: Writing, found: Conversation | None) -> bool:
            if found is None or not beginning.is_of(found):
                return False
            shorter = replace(
                found,
                deleted_seq=beginning.upto_seq,
                title=title[1] if found.title == title[0] else found.title,
                last_message=None if found.last_seq == beginning.upto_seq else found.last_message,
            )
            await self.put(writing, found, shorter, await self._without(writing, found, beginning))
            return True

        return await self.hold(session_id, work)

    async def delete(self, session_id: str, *, idle_before: datetime | None = None) -> bool:
        """Remove every item of a conversation; False when it was not there.

        With a time it is removed only when its messages are gone and nothing was said in it since.
        """

        async def work(writing: Writing, found: Conversation | None) -> bool:
            if found is None:
                return False
            if idle_before is not None and not Beginning(found.last_seq, 0, idle_before).is_of(found):
                return False
            await writing.put(None, await self._all_items(writing, found), version=found.version)
            return True

        return await self.hold(session_id, work)

    async def hold[T](self, session_id: str, work: Work[T]) -> T:
        """Work on a conversation that nobody else writes to meanwhile; the metadata are read first.

        Raises:
            ConversationChanged: somebody did all the same, again and again.
        """
        key = self.layout.metadata(session_id)
        pauses = list(_PAUSES_SECONDS)
        broken = False
        while True:
            try:
                async with self._items.writing(key) as writing:
                    [found] = await writing.get([key])
                    return await work(writing, None if found is None else conversation_of(found))
            except ConversationChanged:
                if self._conflicted is not None:
                    self._conflicted(session_id)
                if not pauses:
                    raise
                await asyncio.sleep(pauses.pop(0) * random.uniform(0.5, 1.5))
            except StoreUnavailable as error:
                # The commit may have happened before the connection broke: what is there already is recognised.
                if broken or not error.interrupted:
                    raise
                broken = True

    async def put(
        self,
        writing: Writing,
        former: Conversation,
        conversation: Conversation,
        others: Mapping[ItemKey, Value | None] | None = None,
    ) -> None:
        """Write a conversation as it is now, in the place of what it was, with other items of it."""
        version = former.version if former.version >= 0 else None
        value = metadata_value(replace(conversation, version=max(former.version, 0) + 1))
        await writing.put(value, others or {}, version=version)

    async def _without(
        self, writing: Writing, conversation: Conversation, beginning: Beginning
    ) -> dict[ItemKey, Value | None]:
        """The items that change when the beginning goes: its ids, its chunks, and what stays of the last of these."""
        session_id, changed = conversation.session_id, dict[ItemKey, Value | None]()
        for part in stretches(beginning.after_seq + 1, beginning.upto_seq, conversation.chunk_size):
            key = self.layout.chunk(session_id, part.chunk)
            [value] = await writing.get([key])
            messages = [] if value is None else value["messages"]
            rest = [message for message in messages if message["seq"] > beginning.upto_seq]
            changed[key] = {**value, "start_seq": rest[0]["seq"], "messages": rest} if value and rest else None
            gone = [message["id"] for message in messages[: len(messages) - len(rest)] if message.get("id")]
            changed |= dict.fromkeys(self.layout.message_id(session_id, message_id) for message_id in gone)
        return changed

    async def _all_items(self, writing: Writing, conversation: Conversation) -> dict[ItemKey, None]:
        """All items of a conversation but its metadata."""
        session_id = conversation.session_id
        last = chunk_of(max(conversation.last_seq, 1), conversation.chunk_size)
        found: dict[ItemKey, None] = {}
        for start in range(0, last + 1, _CHUNKS_AT_ONCE):
            numbers = range(start, min(start + _CHUNKS_AT_ONCE, last + 1))
            keys = [self.layout.chunk(session_id, number) for number in numbers]
            found |= dict.fromkeys(keys)
            for value in filter(None, await writing.get(keys)):
                ids = [message["id"] for message in value["messages"] if message.get("id")]
                found |= dict.fromkeys(self.layout.message_id(session_id, message_id) for message_id in ids)
        return found

    def _chunk_with(self, conversation: Conversation, seq: int) -> ItemKey:
        return self.layout.chunk(conversation.session_id, chunk_of(seq, conversation.chunk_size))
