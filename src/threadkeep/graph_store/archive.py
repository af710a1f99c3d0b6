"""Restoring of exported sessions into a graph store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from threadkeep.errors import WrongUser
from threadkeep.graph_store.appending import Appended
from threadkeep.graph_store.index import SessionIndex
from threadkeep.graph_store.items import Writing
from threadkeep.graph_store.shapes import Conversation
from threadkeep.graph_store.writing import ConversationWriter
from threadkeep.records import SessionInfo, dump_json
from threadkeep.store.archive import ArchivedPart, Restored, SummaryArchive
from threadkeep.store.codec import Counter, Prepared, clean_json, clean_text, identified, marks_of, prepare, time_text
from threadkeep.store.driver import Driver


class ConversationArchive:
    """A restorer of exported sessions into conversations.

    It works like `threadkeep.store.archive.Archive`, but the parts of a call are stored one after the other, each
    atomically; an interrupted call can be repeated. Conversations have no archive: archived messages are restored like
    all others. They have no summaries either, so these are skipped.
    """

    def __init__(self, writer: ConversationWriter, *, count: Counter, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._count = count
        self._clock = clock

    async def restore(self, parts: Sequence[ArchivedPart]) -> list[Restored | WrongUser]:
        """Store the parts, in their order."""
        outcomes: list[Restored | WrongUser] = []
        for part in parts:
            try:
                outcomes.append(await self.restore_one(part))
            except WrongUser as error:
                outcomes.append(error)
        return outcomes

    async def restore_one(self, part: ArchivedPart) -> Restored:
        """Store a part.

        Raises:
            WrongUser: the conversation is another user's.
        """
        session_id = part.info.session_id
        restored = await self._writer.hold(session_id, lambda writing, found: self._put(writing, found, part))
        return replace(restored, summaries_left_out=len(part.summaries))

    async def _put(self, writing: Writing, found: Conversation | None, part: ArchivedPart) -> Restored:
        info = part.info
        if found is not None and info.user_id not in (None, found.user_id):
            raise WrongUser(info.session_id)
        conversation = found or self._new(info)
        now = self._clock()
        messages = [identified(message) for message in part.messages]
        prepared = Prepared([], [])
        if messages:
            prepared = prepare(
                messages, count=self._count, stored_at=lambda message: time_text(message.created_at or now)
            )
            rows = [
                {**row, **marks_of(message)} for message, row in zip(prepared.messages, prepared.columns, strict=True)
            ]
            prepared = replace(prepared, columns=rows)
        known = await self._writer.places_of(writing, conversation, [str(message.id) for message in messages])
        appended = await self._writer.appended(writing, conversation, prepared, known, info.updated_at)
        seqs = dict(known)
        for key, value in appended.items.items():
            if "seq" in value:
                seqs[key.key] = int(value["seq"])
        grown = self._with_reset(appended, part, seqs)
        if appended.items or found is None or grown != conversation:
            await self._writer.put(writing, conversation, grown, appended.items)
        fresh = {str(message.id): message for message in messages if str(message.id) not in known}
        moved = sum(1 for message_id, message in fresh.items() if message.seq not in (None, seqs[message_id]))
        return Restored(len(fresh), len(messages) - len(fresh), moved, len(prepared.cleaned))

    def _new(self, info: SessionInfo) -> Conversation:
        return Conversation(
            info.session_id,
            created_at=info.created_at,
            updated_at=info.updated_at,
            user_id=info.user_id,
            last_seq=info.deleted_seq,
            chunk_size=self._writer.layout.chunk_size,
            title=None if info.title is None else clean_text(info.title),
            reset_seq=min(info.reset_seq, info.deleted_seq),
            deleted_seq=info.deleted_seq,
            active=info.active,
            tags=tuple(clean_text(tag) for tag in info.tags),
            metadata=dump_json(clean_json(dict(info.metadata))),
            parent_session_id=info.parent_session_id,
            parent_seq=info.parent_seq,
        )

    def _with_reset(self, appended: Appended, part: ArchivedPart, seqs: dict[str, int]) -> Conversation:
        """Return the conversation with the reset after the same message as before, unless there is a later reset."""
        reset_seq = part.info.reset_seq
        last_before = next((message for message in part.messages if reset_seq and message.seq == reset_seq), None)
        place = seqs.get(str(last_before.id), 0) if last_before is not None else 0
        conversation = appended.conversation
        return replace(conversation, reset_seq=max(conversation.reset_seq, place))


class IndexedArchive(ConversationArchive):
    """A restorer for conversations that have rows in our tables, to which their summaries belong."""

    def __init__(
        self,
        driver: Driver,
        writer: ConversationWriter,
        index: SessionIndex,
        *,
        count: Counter,
        clock: Callable[[], datetime],
    ) -> None:
        super().__init__(writer, count=count, clock=clock)
        self._driver = driver
        self._index = index
        self._summaries = SummaryArchive(driver.backend, clock=clock)

    async def restore_one(self, part: ArchivedPart) -> Restored:
        """Store a part, with its summaries."""
        restored = await super().restore_one(part)
        session_id = part.info.session_id
        await self._index.follow(session_id)
        async with self._driver.writing() as connection:
            stored, left_out = await self._summaries.restore(connection, session_id, part.summaries)
        return replace(restored, summaries=stored, summaries_left_out=left_out)
