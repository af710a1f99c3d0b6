"""Writes to conversations. Each write locks its conversation, and makes all changes at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from threadkeep.errors import QuestionGone, SessionDamaged, StoreError, StoreUnavailable, WrongUser
from threadkeep.graph_store.appending import Appended, Written, append, receipt_of, steps_left
from threadkeep.graph_store.items import ConversationChanged, Items, Readable, ReadOnce, Stored, Value, Writing
from threadkeep.graph_store.layout import OWN, STEPS, GraphLayout, ItemKey, chunk_of, chunk_spans, id_note
from threadkeep.graph_store.reading import ConversationReader
from threadkeep.graph_store.shapes import Conversation, answer_note, metadata_value, missing_chunk, noted_seq, notes_of
from threadkeep.records import Receipt, Turn, dump_json
from threadkeep.store.codec import Prepared, clean_json, clean_text, time_text
from threadkeep.store.driver import RowLocked, Statement, StatementCancelled
from threadkeep.store.transcripts import SessionChanges

type Work[T] = Callable[[ReadOnce, Conversation | None], Awaitable[T]]

type Beside = Callable[[Written], Sequence[Statement]]
"""A function that returns statements to execute with an appended turn. The last one returns a row if all succeed."""

_PAUSES_SECONDS: Final = (0.025, 0.05, 0.1)
_MOST_CHUNKS = 10_000
"""The maximum number of chunk keys to compute. Metadata that imply more may be wrong."""


@dataclass(frozen=True)
class Beginning:
    """The oldest messages of a conversation, to be deleted. With `idle_before`, the last write must be earlier."""

    after_seq: int
    upto_seq: int
    idle_before: datetime | None = None

    def is_of(self, conversation: Conversation) -> bool:
        """Return True if the messages may be deleted: they still are the oldest, and the last write is old enough."""
        idle = self.idle_before is None or conversation.updated_at < self.idle_before
        return idle and conversation.deleted_seq == self.after_seq


type ReplaceAnswers = Callable[[Writing, Conversation, Prepared, Sequence[Value], datetime], Awaitable[Receipt]]
"""A function that stores an answer, and supersedes with it the stored answers in the sequence."""


class ConversationWriter:
    """A writer of the conversations that have one layout (the scheme of their keys) in a LangGraph store.

    If a write conflicts with another writer, `conflicted` is called with the session id, and the write is retried up to
    three times after short, random pauses. Then `ConversationChanged` is raised, and nothing is written.
    """

    def __init__(
        self,
        items: Items,
        layout: GraphLayout,
        reader: ConversationReader,
        *,
        conflicted: Callable[[str], object] | None,
    ) -> None:
        self._items = items
        self.layout = layout
        self.reader = reader
        self._conflicted = conflicted
        self.beside: Beside | None = None
        """Returns statements for an appended turn. If the write fails, a retry may omit them."""

    async def append(self, turn: Turn, prepared: Prepared, now: datetime, replace_answers: ReplaceAnswers) -> Written:
        """Append a turn to a conversation; create it if it does not exist.

        An answer is not stored if its question already has a stored answer, unless a caller got the new answer while
        the store was down (`Turn.told_at`). Then it replaces the stored answer (`replace_answers`) or, if a caller also
        got that one, is stored as superseded. With `completes`, the turn's answer replaces the message with this id.

        Raises:
            WrongUser: the conversation belongs to another user.
            QuestionGone: the message that the turn answers does not exist.
        """

        async def work(writing: ReadOnce, found: Conversation | None, *, beside: Beside | None = None) -> Written:
            if found is not None and turn.user_id not in (None, found.user_id):
                raise WrongUser(turn.session_id)
            if found is not None:
                await writing.get(self._ends(found))
            new = self._new(turn, now)
            former = found or new
            question_seq = 0 if turn.answers is None else await self._question_seq(writing, found, turn)
            ready = prepared
            if former.superseded_between(question_seq, question_seq):
                ready = _marked(prepared, {"superseded_at": time_text(now)})
            there = await self.seqs_of(writing, former, [str(message.id) for message in ready.messages])
            fresh, adopted = await self._without_answered(writing, former, ready, there)
            replaces = adopted is None and turn.completes is not None
            if adopted is not None and turn.told_at is not None:
                replaces = not adopted.get("told_at") and len(ready.messages) == 1
                fresh = _marked(ready, {"superseded_at": time_text(now), "superseded_by": adopted.get("id")})
            losers = await self._losers(writing, former, turn, adopted) if replaces and not there else []
            if losers:
                after = _with_reset(former, replace(former, last_seq=former.last_seq + 1), question_seq)
                held = replace(former, reset_seq=after.reset_seq)
                return Written(await replace_answers(writing, held, ready, losers, now))
            if adopted is not None and not fresh.messages and not there:
                return Written(receipt_of(prepared, adopted))
            appended = await self.appended(writing, former, fresh, there, now)
            written = Written(appended.receipt)
            if appended.items:
                grown = _with_reset(former, appended.conversation, question_seq)
                appended = replace(appended, conversation=_next_version(former, grown))
                written = Written(appended.receipt, former.version, appended, writing.rows)
                writing.beside = () if beside is None or adopted is not None else beside(written)
                await self.put(writing, former, appended.conversation, appended.items)
                if self.reader.is_snapshot:
                    last = chunk_of(appended.conversation.last_seq, former.chunk_size)
                    written_chunk = appended.items[self.layout.chunk(turn.session_id, last)]
                    self.reader.known.hold(appended.conversation, last, written_chunk)
            return written if adopted is None else Written(replace(written.receipt, adopted=str(adopted.get("id"))))

        return await self._locked_with_rows(turn.session_id, work, self._needed(turn, prepared))

    async def _losers(
        self, writing: Writing, conversation: Conversation, turn: Turn, adopted: Value | None
    ) -> list[Value]:
        """Return the stored answers that `turn` replaces: the answer that it completes, and `adopted`, if given."""
        names = [] if turn.completes is None else [id_note(turn.completes)]
        found = await self.noted(writing, conversation, names, lambda message: id_note(message.get("id") or ""))
        active = [one for one in found.values() if not one.get("superseded_at")]
        return active if adopted is None else [*active, adopted]

    def _new(self, turn: Turn, now: datetime) -> Conversation:
        parent_session_id, agent = turn.parent or (None, None)
        return Conversation(
            turn.session_id,
            now,
            now,
            turn.user_id,
            chunk_size=self.layout.chunk_size,
            parent_session_id=parent_session_id,
            agent=agent,
        )

    async def _locked_with_rows(
        self, session_id: str, work: Callable[..., Awaitable[Written]], needed: Sequence[ItemKey]
    ) -> Written:
        """Call `work` with the SQL of `beside` in its transaction; if this SQL may have failed, retry without it."""
        async with self._order(session_id):
            if self.beside is not None:
                try:
                    return await self._once(session_id, partial(work, beside=self.beside), needed)
                except StoreError as error:
                    if not _may_be_of_rows(error):
                        raise
            return await self._attempts(session_id, work, needed)

    def _order(self, session_id: str) -> asyncio.Lock:
        """Return the lock that orders this process's writes to a conversation. Hold it until the last attempt ends."""
        return self._items.locks.setdefault(self.layout.metadata(session_id), asyncio.Lock())

    def _needed(self, turn: Turn, prepared: Prepared) -> list[ItemKey]:
        """Return the keys of the notes, and possibly of the first chunk, that must be read to append `turn`."""
        names = [id_note(str(message.id)) for message in prepared.messages]
        names += [note for row in prepared.columns if (note := answer_note(row)) is not None]
        names += [] if turn.answers is None else [id_note(turn.answers)]
        first = [] if self.reader.known.chunk(turn.session_id) else [self.layout.chunk(turn.session_id, 0)]
        return [*(self.layout.note(turn.session_id, name) for name in names), *first]

    def _ends(self, conversation: Conversation) -> list[ItemKey]:
        """Return the keys of the chunk for the next message and of the newest chunk, often the same one."""
        last_seq, size = conversation.last_seq, conversation.chunk_size
        chunks = (chunk_of(last_seq + 1, size), chunk_of(max(last_seq, 1), size))
        return [self.layout.chunk(conversation.session_id, chunk) for chunk in chunks]

    async def _question_seq(self, writing: Writing, found: Conversation | None, turn: Turn) -> int:
        """Return the `seq` of the message that a turn answers. Raises `QuestionGone`."""
        question = str(turn.answers)
        noted = {} if found is None else await self.seqs_of(writing, found, [question])
        if question not in noted:
            raise QuestionGone(turn.session_id)
        return noted[question]

    async def _without_answered(
        self, writing: Writing, conversation: Conversation, prepared: Prepared, there: Mapping[str, int]
    ) -> tuple[Prepared, Value | None]:
        """Drop new answers to questions that have a stored answer. Return the rest, and one of the stored answers."""
        notes = {str(row["id"]): note for row in prepared.columns if (note := answer_note(row)) is not None}
        notes = {message_id: note for message_id, note in notes.items() if message_id not in there}
        if not notes or conversation.version < 0:
            return prepared, None
        found = await self.noted(writing, conversation, list(notes.values()), answer_note)
        taken = {message_id for message_id, note in notes.items() if note in found}
        if not taken:
            return prepared, None
        messages = [message for message in prepared.messages if message.id not in taken]
        left = replace(prepared, messages=messages, columns=[row for row in prepared.columns if row["id"] not in taken])
        return left, found[notes[min(taken)]]

    async def noted(
        self,
        writing: Readable,
        conversation: Conversation,
        names: Sequence[str],
        name_of: Callable[[Value], str | None],
    ) -> dict[str, Value]:
        """Return the stored messages to which notes (items with a message's `seq`) refer, by the name of the note.

        An incomplete write may have left a wrong note. So a message is returned only if `name_of`, called with the
        message, returns the note's name. If a note is damaged, all messages are searched.
        """
        keys = [self.layout.note(conversation.session_id, name) for name in names]
        notes = zip(names, await writing.get(keys), strict=True)
        noted = {name: noted_seq(note) for name, note in notes if note is not None}
        low, high, size = conversation.deleted_seq + 1, conversation.last_seq, conversation.chunk_size
        wanted: list[int] = []
        if None in noted.values():
            newest = self.layout.chunk(conversation.session_id, chunk_of(max(high, 1), size))
            if high >= low and await writing.get([newest]) == [None]:
                raise missing_chunk(conversation)
            wanted = [part.chunk for part in chunk_spans(low, high, size)]
        wanted += [chunk_of(seq, size) for seq in noted.values() if seq is not None and low <= seq <= high]
        chunks, seqs = list(dict.fromkeys(wanted)), set(noted.values())
        found: dict[str, Value] = {}
        values = await writing.get([self.layout.chunk(conversation.session_id, chunk) for chunk in chunks])
        for chunk, value in zip(chunks, values, strict=True):
            for message in () if value is None else self._read(conversation, chunk, value):
                if message["seq"] not in seqs and None not in seqs:
                    continue
                name = name_of(message)
                if name in noted and noted[name] in (None, message["seq"]) and low <= message["seq"] <= high:
                    found[name] = message
        return found

    async def appended(
        self,
        writing: Readable,
        conversation: Conversation,
        prepared: Prepared,
        there: Mapping[str, int],
        now: datetime,
    ) -> Appended:
        """Return the changes that append messages. `there` maps ids of already stored messages to their `seq`."""
        last, newest = await writing.get(self._ends(conversation))
        if newest is None and conversation.last_seq > conversation.deleted_seq:
            raise missing_chunk(conversation)
        if last is not None:
            self._read(conversation, chunk_of(conversation.last_seq + 1, conversation.chunk_size), last)
        return append(conversation, prepared, there=there, layout=self.layout, last_chunk=last, now=now)

    async def seqs_of(self, writing: Writing, conversation: Conversation, message_ids: Sequence[str]) -> dict[str, int]:
        """Map the ids of the messages that exist to their `seq`."""
        if conversation.version < 0:
            return {}
        names = [id_note(message_id) for message_id in message_ids]
        found = await self.noted(writing, conversation, names, lambda message: id_note(message.get("id") or ""))
        return {message["id"]: message["seq"] for message in found.values()}

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change fields of a conversation; do nothing if it does not exist."""
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

    async def reset(self, session_id: str, *, user_id: str | None, known: Conversation | None = None) -> int | None:
        """Let later model calls omit all messages stored so far. Return the last `seq`, or None if nothing was reset.

        `known` is the conversation as the caller has read it: messages that were stored since then stay visible, and if
        the conversation was deleted since then, nothing is reset.
        """

        async def work(writing: Writing, found: Conversation | None) -> int | None:
            before = known or found
            if found is None or before is None or user_id not in (None, found.user_id):
                return None
            if before.created_at != found.created_at:
                return None
            index, reset_seq = self.layout.recall_index(session_id), max(before.last_seq, found.reset_seq)
            await self.put(writing, found, replace(found, reset_seq=reset_seq), {index: None})
            return reset_seq

        return await self.hold(session_id, work)

    async def delete_old(self, session_id: str, beginning: Beginning, *, title: tuple[str | None, str | None]) -> bool:
        """Delete the oldest messages and update the title. Return False if the conversation has changed meanwhile."""

        async def work(writing: Writing, found: Conversation | None) -> bool:
            if found is None or not beginning.is_of(found):
                return False
            shorter = replace(
                found,
                deleted_seq=beginning.upto_seq,
                title=title[1] if found.title == title[0] else found.title,
                superseded=found.superseded_between(beginning.upto_seq + 1, found.last_seq),
            )
            if shorter.info().message_count == 0:
                shorter = replace(shorter, last_message=None)
            items = await self._without(writing, found, beginning)
            items[self.layout.recall_index(session_id)] = None
            await self.put(writing, found, shorter, items | await self._steps_without(writing, shorter))
            return True

        try:
            return await self.hold(session_id, work)
        finally:
            self.reader.known.forget(session_id)

    async def delete(
        self, session_id: str, *, idle_before: datetime | None = None, created_at: datetime | None = None
    ) -> bool:
        """Delete every item of a conversation, even a damaged one; return False if it did not exist.

        With `idle_before`, keep a conversation that has messages or was written after this time. With `created_at`,
        keep a conversation that was created at another time, unless its metadata are damaged. If another program has
        deleted the metadata, delete only the notes and the other items in their namespace.
        """

        async def work(writing: Writing, found: Conversation | None) -> bool:
            if found is None:
                await writing.remove(await self._ids(writing, session_id))
                return False
            if created_at not in (None, found.created_at):
                return False
            if idle_before is not None and not Beginning(found.last_seq, 0, idle_before).is_of(found):
                return False
            await writing.put(None, dict.fromkeys(await self._keys(writing, found)), version=found.version)
            return True

        try:
            deleted = await self.hold(session_id, work)
        except SessionDamaged:
            if idle_before is not None:
                raise
            deleted = await self._remove_damaged(session_id)
        self.reader.forget(session_id)
        return deleted

    async def own_sessions(self, session_id: str) -> list[str]:
        """Return the ids of the separate conversations of a session's agents. Deleting the session deletes them too."""
        async with self._items.writing(self.layout.metadata(session_id)) as writing:
            keys = await writing.keys(self.layout.message_ids(session_id), OWN)
        return [key.removeprefix(OWN) for key in keys]

    async def remove_rest(self, session_id: str) -> None:
        """Delete the remaining items of a conversation whose metadata another program has deleted."""

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is None:
                await writing.remove(await self._ids(writing, session_id))

        await self.hold(session_id, work)

    async def _remove_damaged(self, session_id: str) -> bool:
        """Delete all items of a conversation whose metadata are damaged. Find them by searching for their keys."""
        metadata = self.layout.metadata(session_id)
        async with self._order(session_id), self._items.writing(metadata) as writing:
            found = [*await self._written_chunks(writing, session_id), *await self._ids(writing, session_id)]
            await writing.remove([metadata, *found])
        return True

    async def hold[T](self, session_id: str, work: Work[T]) -> T:
        """Lock a conversation and execute work on it, with retries.

        Raises:
            ConversationChanged: another writer changed the conversation in each attempt.
        """
        async with self._order(session_id):
            return await self._attempts(session_id, work)

    async def _attempts[T](self, session_id: str, work: Work[T], needed: Sequence[ItemKey] = ()) -> T:
        """Call `work` with a locked conversation, with retries. Each attempt reads the `needed` items first."""
        pauses = list(_PAUSES_SECONDS)
        broken = False
        while True:
            try:
                return await self._once(session_id, work, needed)
            except ConversationChanged:
                if self._conflicted is not None:
                    self._conflicted(session_id)
                if not pauses:
                    raise
                await asyncio.sleep(pauses.pop(0) * random.uniform(0.5, 1.5))
            except StoreUnavailable as error:
                # The transaction may have been committed although the connection broke. Retry once: the retry skips
                # messages that are stored already.
                if broken or not error.interrupted:
                    raise
                broken = True

    async def _once[T](self, session_id: str, work: Work[T], needed: Sequence[ItemKey]) -> T:
        """Lock a conversation, read the `needed` items, and call `work` once."""
        keys = [*self.reader.beginning(session_id), *(needed if self.reader.is_snapshot else ())]
        async with self._items.writing(keys[0]) as held:
            writing = ReadOnce(held)
            found, *_ = await writing.get(keys)
            return await work(writing, None if found is None else self.reader.described(session_id, found))

    async def put(
        self,
        writing: Writing,
        former: Conversation,
        conversation: Conversation,
        others: Mapping[ItemKey, Value | None] | None = None,
    ) -> None:
        """Write items, and the metadata with the next version number.

        If a new conversation belongs to a session's agent, also write the item that links the session to it.
        """
        version, items = former.version if former.version >= 0 else None, dict(others or {})
        if version is None and conversation.agent is not None and conversation.parent_session_id is not None:
            items[self.layout.own(conversation.parent_session_id, conversation.session_id)] = Stored({})
        await writing.put(metadata_value(_next_version(former, conversation)), items, version=version)

    async def _without(
        self, writing: Writing, conversation: Conversation, beginning: Beginning
    ) -> dict[ItemKey, Value | None]:
        """Return the chunks and notes that change when the messages `beginning` are deleted; None deletes an item."""
        session_id, changed = conversation.session_id, dict[ItemKey, Value | None]()
        for part in chunk_spans(beginning.after_seq + 1, beginning.upto_seq, conversation.chunk_size):
            key = self.layout.chunk(session_id, part.chunk)
            [value] = await writing.get([key])
            messages = () if value is None else self._read(conversation, part.chunk, value)
            rest = [message for message in messages if message["seq"] > beginning.upto_seq]
            changed[key] = {**value, "start_seq": rest[0]["seq"], "messages": rest} if value and rest else None
            changed |= dict.fromkeys(notes_of(self.layout, session_id, messages[: len(messages) - len(rest)]))
        return changed

    async def _steps_without(self, writing: Writing, shorter: Conversation) -> dict[ItemKey, Value | None]:
        """Return the items with tool calls, but drop turns whose question was deleted. None deletes an item."""
        namespace = self.layout.message_ids(shorter.session_id)
        keys = [ItemKey(namespace, key) for key in await writing.keys(namespace, STEPS)]
        return steps_left(dict(zip(keys, await writing.get(keys), strict=True)), shorter) if keys else {}

    async def _keys(self, writing: Writing, conversation: Conversation) -> list[ItemKey]:
        """Return the keys of all items of a conversation except its metadata."""
        session_id, size = conversation.session_id, conversation.chunk_size
        first, last = chunk_of(conversation.deleted_seq + 1, size), chunk_of(max(conversation.last_seq, 1), size)
        ids = await self._ids(writing, session_id)
        if last - first > _MOST_CHUNKS:
            return ids + await self._written_chunks(writing, session_id)
        chunks = [self.layout.chunk(session_id, chunk) for chunk in range(first, last + 1)]
        # In a store without transactions, an incomplete write may have left later chunks. Add their keys too.
        while await writing.get([left := self.layout.chunk(session_id, last := last + 1)]) != [None]:
            chunks.append(left)
        return ids + chunks

    async def _written_chunks(self, writing: Writing, session_id: str) -> list[ItemKey]:
        """Return the keys of a conversation's chunks by searching the keys of the namespace."""
        keys = await writing.keys(self.layout.namespace, f"{session_id}:")
        return [ItemKey(self.layout.namespace, key) for key in keys if self.layout.is_chunk(session_id, key)]

    async def _ids(self, writing: Writing, session_id: str) -> list[ItemKey]:
        namespace = self.layout.message_ids(session_id)
        return [ItemKey(namespace, key) for key in await writing.keys(namespace)]

    def _read(self, conversation: Conversation, chunk: int, value: Value) -> Sequence[Value]:
        """Return the validated messages of a chunk as they are stored. Raises `SessionDamaged`."""
        self.reader.known.check(conversation, chunk, value)
        found: Sequence[Value] = value["messages"]
        return found


def _with_reset(former: Conversation, grown: Conversation, question_seq: int) -> Conversation:
    """Let a reset that excludes the question exclude the answer too, unless messages were stored after the reset."""
    if 0 < question_seq <= former.reset_seq == former.last_seq:
        return replace(grown, reset_seq=grown.last_seq)
    return grown


def _next_version(former: Conversation, conversation: Conversation) -> Conversation:
    return replace(conversation, version=max(former.version, 0) + 1)


def _may_be_of_rows(error: StoreError) -> bool:
    """Return True if a write may have failed because of its SQL for index rows. The caller then omits this SQL."""
    if isinstance(error, StoreUnavailable):
        return error.interrupted or isinstance(error, RowLocked | StatementCancelled)
    return not isinstance(error, SessionDamaged)


def _marked(prepared: Prepared, mark: Mapping[str, object]) -> Prepared:
    """Return prepared messages with `mark` added to their columns; it says that the messages are superseded."""
    return replace(prepared, columns=[{**row, **mark} for row in prepared.columns])
