"""Marking messages as superseded, and copying conversations to branches, each in a single write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

from threadkeep.errors import MessageNotFound, SessionNotFound, WrongUser
from threadkeep.graph_store.appending import chunk_items
from threadkeep.graph_store.items import Value, Writing
from threadkeep.graph_store.layout import STEPS, ItemKey, Ranges, chunk_of, joined, seqs_down, size_of
from threadkeep.graph_store.reading import title_in, title_without
from threadkeep.graph_store.shapes import Conversation, answer_note, message_in, message_value, notes_of
from threadkeep.graph_store.writing import ConversationWriter
from threadkeep.records import Message, Receipt, Turn
from threadkeep.store.codec import Prepared, listed_texts, time_of, time_text
from threadkeep.store.driver import TurnRefused
from threadkeep.store.superseding import check_branch, done_before, no_message_at, ranges_of
from threadkeep.store.transcripts import Branching, Superseded, Superseding


class HeldChunks:
    """A locked conversation with changes that are not written yet; reads see them. `items` has the changed items."""

    def __init__(self, writer: ConversationWriter, writing: Writing, found: Conversation) -> None:
        self.writing = writing
        self.conversation = found
        self.items: dict[ItemKey, Value | None] = {}
        self._reader = writer.reader
        self._layout = writer.layout

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in the order of the keys."""
        stored = await self.writing.get(keys)
        return [self.items.get(key, value) for key, value in zip(keys, stored, strict=True)]

    def values(self, first_seq: int, last_seq: int) -> AsyncIterator[Value]:
        """Yield the stored values of the messages from `first_seq` to `last_seq`. Raises `SessionDamaged`."""
        return self._reader.values(self.conversation, first_seq, last_seq, items=self)

    async def value(self, seq: int) -> Value:
        """Return the stored value of the message with this `seq`, which must exist."""
        [found] = [value async for value in self.values(seq, seq)]
        return found

    async def replace(self, values: Mapping[int, Value]) -> None:
        """Change messages in `items`, but do not write them yet; `values` maps each `seq` to the new stored value."""
        for number in sorted({chunk_of(seq, self.conversation.chunk_size) for seq in values}):
            key = self._layout.chunk(self.conversation.session_id, number)
            [chunk] = await self.get([key])
            if chunk is not None:
                messages = [values.get(one["seq"], one) for one in chunk["messages"]]
                self.items[key] = {**chunk, "messages": messages}


class ConversationSuperseding:
    """A writer that marks messages of conversations as superseded, and copies conversations to branches."""

    def __init__(self, writer: ConversationWriter) -> None:
        self._reader = writer.reader
        self._writer = writer
        self._layout = writer.layout

    async def supersede(self, superseding: Superseding, new: Prepared | None, now: datetime) -> Superseded:
        """Supersede messages; store `new`, the new version, if given. Raises the errors of `Transcripts.supersede`."""

        async def work(writing: Writing, found: Conversation | None) -> Superseded:
            if found is not None and superseding.user_id not in (None, found.user_id):
                raise WrongUser(superseding.session_id)
            if found is None:
                if superseding.message_id is not None:
                    raise MessageNotFound(superseding.session_id, superseding.message_id)
                return Superseded()
            chunks = HeldChunks(self._writer, writing, found)
            if superseding.message_id is None:
                seqs = seqs_down(found.last_seq, found.deleted_seq + 1, found.superseded)
                superseded = ranges_of(islice(seqs, superseding.newest))
            else:
                named = await self._ranges(writing, chunks, superseding)
                if isinstance(named, Superseded):
                    return named
                superseded = named
            return await self._write(chunks, superseding, superseded, new, now)

        return await self._writer.hold(superseding.session_id, work)

    async def append_instead(self, turn: Turn, seq: int, seen: tuple[int, int], new: Prepared, now: datetime) -> None:
        """Supersede the messages after a `seq`, and store a turn instead of them; `new` has the prepared turn.

        Raises:
            WrongUser: the conversation belongs to another user.
            TurnRefused: see `Transcripts.append_instead`.
        """

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is not None and turn.user_id not in (None, found.user_id):
                raise WrongUser(turn.session_id)
            if found is None or (found.last_seq, found.revision) != seen:
                raise TurnRefused("Another writer has changed the session since it was read.")
            if await self._writer.seqs_of(writing, found, [str(message.id) for message in new.messages]):
                raise TurnRefused("A message of the turn is known already.")
            later = ranges_of(seqs_down(found.last_seq, seq + 1, found.superseded))
            chunks = HeldChunks(self._writer, writing, found)
            await self._write(chunks, Superseding(turn.session_id), later, new, now)

        await self._writer.hold(turn.session_id, work)

    async def _ranges(self, writing: Writing, chunks: HeldChunks, superseding: Superseding) -> Ranges | Superseded:
        """Return the `seq` ranges to supersede, or the earlier result if the same request was executed before."""
        conversation, message_id = chunks.conversation, str(superseding.message_id)
        ids = [message_id]
        if superseding.by is not None and superseding.by.id is not None:
            ids.append(superseding.by.id)
        seqs = await self._writer.seqs_of(writing, conversation, ids)
        if message_id not in seqs:
            raise MessageNotFound(superseding.session_id, message_id)
        field = self._layout.value_field
        stored = {one: message_in(await chunks.value(seqs[one]), field) for one in ids if one in seqs}
        if done := done_before(superseding, stored[message_id], stored.get(ids[-1]) if len(ids) > 1 else None):
            return done
        first = seqs[message_id] + (superseding.scope == "after")
        last = first if superseding.scope == "message" else min(conversation.last_seq, superseding.upto)
        if superseding.scope == "run":
            return await self._run_ranges(chunks, stored[message_id], last)
        return ranges_of(seqs_down(last, first, conversation.superseded))

    async def _run_ranges(self, chunks: HeldChunks, question: Message, last: int) -> Ranges:
        """Return the `seq` ranges of a question, its active answers, and the later active messages of its run."""
        found = {question.seq or 0}
        async for message in self._reader.up(chunks.conversation, min(found) + 1, last, items=chunks):
            is_of_run = question.run_id is not None and message.run_id == question.run_id
            if (is_of_run or message.answers == question.id) and message.superseded_at is None:
                found.add(message.seq or 0)
        return ranges_of(found)

    async def _write(
        self, chunks: HeldChunks, superseding: Superseding, ranges: Ranges, new: Prepared | None, now: datetime
    ) -> Superseded:
        former = chunks.conversation
        new_id = None if new is None or superseding.message_id is None else str(new.messages[0].id)

        def mark(value: Value) -> Value:
            successor = {"superseded_by": new_id} if new_id and value.get("id") == superseding.message_id else {}
            return {"superseded_at": time_text(now), **successor}

        changed, taken = await self.mark(chunks, ranges, mark)
        by = None
        if new is not None:
            changed, by = await self._appended(chunks, changed, new, now)
        if not ranges and by is None:
            return Superseded()
        await self._writer.put(chunks.writing, former, changed, chunks.items)
        bounds = (ranges[0][0], ranges[-1][1]) if ranges else (0, 0)
        return Superseded(size_of(ranges), *bounds, tuple(taken) if superseding.newest else (), by)

    async def mark(
        self, chunks: HeldChunks, ranges: Ranges, mark: Callable[[Value], Value]
    ) -> tuple[Conversation, list[Message]]:
        """Mark messages in `chunks` as superseded, with the fields that `mark` returns for a stored message.

        Return the changed conversation, and the messages as they were before.
        """
        former, taken, marked = chunks.conversation, list[Message](), dict[int, Value]()
        for span in ranges:
            async for value in chunks.values(*span):
                taken.append(message_in(value, self._layout.value_field))
                marked[value["seq"]] = {**value, **mark(value)}
                if (note := answer_note(value)) is not None:
                    chunks.items[self._layout.note(former.session_id, note)] = None
        await chunks.replace(marked)
        superseded = joined(former.superseded, ranges)
        changed = replace(former, superseded=superseded, revision=former.revision + bool(ranges))
        return await self._retitled(chunks, changed, taken), taken

    async def _retitled(self, chunks: HeldChunks, conversation: Conversation, taken: Sequence[Message]) -> Conversation:
        """Return the conversation with the title and the last messages that remain after `taken` were superseded."""
        last_message, last_user_seq = None, 0
        last_seq = conversation.last_seq
        async for message in self._reader.down(conversation, last_seq, 1, active=True, items=chunks):
            last_message = last_message or listed_texts([message])[1]
            if message.role == "user" and not last_user_seq:
                last_user_seq = message.seq or 0
            if last_message is not None and last_user_seq:
                break
        rest = self._reader.up(conversation, 1, last_seq, items=chunks)
        title = await title_without(conversation.title, taken, rest)
        return replace(conversation, last_message=last_message, last_user_seq=last_user_seq, title=title)

    async def _appended(
        self, chunks: HeldChunks, conversation: Conversation, new: Prepared, now: datetime
    ) -> tuple[Conversation, Message]:
        """Add the message `new` to the changes that are not written yet; return the conversation and the message."""
        appended = await self._writer.appended(chunks, conversation, new, {}, now)
        chunks.items |= appended.items
        field = self._layout.value_field
        value = message_value(appended.conversation.last_seq, appended.rows[-1], field)
        return appended.conversation, message_in(value, field)

    async def replace_answers(
        self, writing: Writing, conversation: Conversation, prepared: Prepared, losers: Sequence[Value], now: datetime
    ) -> Receipt:
        """Store an answer, supersede the answers `losers` with it, and return its receipt."""
        message = prepared.messages[0]
        superseding = Superseding(conversation.session_id, message_id=losers[-1]["id"], scope="message", by=message)
        ranges = ranges_of(int(loser["seq"]) for loser in losers)
        await self._write(HeldChunks(self._writer, writing, conversation), superseding, ranges, prepared, now)
        seq = conversation.last_seq + 1
        return Receipt(first_seq=seq, last_seq=seq, cleaned=prepared.cleaned, ids=(str(message.id),))

    async def tell(self, session_id: str, message_id: str, now: datetime) -> Message | None:
        """Mark an answer, or its newest replacement, as delivered to a caller; return it, or None if it is missing."""

        async def work(writing: Writing, found: Conversation | None) -> Message | None:
            chunks = None if found is None else HeldChunks(self._writer, writing, found)
            value = None if chunks is None else await self._current_version(chunks, message_id)
            if chunks is None or value is None:
                return None
            if not value.get("told_at") and not value.get("superseded_at"):
                await chunks.replace({value["seq"]: {**value, "told_at": time_text(now)}})
                await self._writer.put(writing, chunks.conversation, chunks.conversation, chunks.items)
            return message_in(value, self._layout.value_field)

        return await self._writer.hold(session_id, work)

    async def empty(self, session_id: str, seqs: Collection[int], now: datetime) -> None:
        """Remove the content of messages, supersede them, and delete the conversation's recall index and tool calls."""

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is None:
                return
            chunks, taken, emptied = HeldChunks(self._writer, writing, found), list[Message](), dict[int, Value]()
            for seq in sorted(seqs):
                # The message may have been deleted since the caller read it.
                async for value in chunks.values(seq, seq):
                    if not value.get("superseded_at"):
                        taken.append(message_in(value, self._layout.value_field))
                    kept = {name: value.get(name) for name in ("seq", "id", "role", "created_at")}
                    mark = {"superseded_at": value.get("superseded_at") or time_text(now)}
                    emptied[seq] = {**kept, self._layout.value_field: "", "tokens": 0, "status": "erased", **mark}
            await chunks.replace(emptied)
            chunks.items[self._layout.recall_index(session_id)] = None
            steps = self._layout.message_ids(session_id)
            chunks.items |= dict.fromkeys(ItemKey(steps, key) for key in await writing.keys(steps, STEPS))
            superseded = joined(found.superseded, ranges_of(emptied))
            changed = replace(found, superseded=superseded, revision=found.revision + 1)
            await self._writer.put(writing, found, await self._retitled(chunks, changed, taken), chunks.items)

        await self._writer.hold(session_id, work)
        self._reader.known.forget(session_id)

    async def _current_version(self, chunks: HeldChunks, message_id: str) -> Value | None:
        """Return the newest version of a message, following its replacements; None if the message does not exist."""
        known, wanted = set[str](), message_id
        while True:
            seqs = await self._writer.seqs_of(chunks.writing, chunks.conversation, [wanted])
            if wanted not in seqs:
                return None
            value = await chunks.value(seqs[wanted])
            known.add(wanted)
            successor = value.get("superseded_by")
            if not isinstance(successor, str) or successor in known:
                return value
            wanted = successor

    async def branch(self, branching: Branching, now: datetime) -> None:
        """Copy messages to a new conversation, unless the branch exists. Raises the errors of `Transcripts.branch`."""
        parent = await self._reader.conversation(branching.session_id)
        if parent is None:
            raise SessionNotFound(branching.session_id)
        if branching.user_id not in (None, parent.user_id):
            raise WrongUser(branching.session_id)
        values = await self._values(branching, parent)

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is not None:
                if parent.user_id not in (None, found.user_id):
                    raise WrongUser(branching.branch_id)
                check_branch(branching, (found.parent_session_id, found.parent_seq))
                return
            title, last_message = listed_texts([message_in(value, self._layout.value_field) for value in values])
            new = replace(_branched(branching, parent, values, now), last_message=last_message)
            if parent.title in (None, await title_in(self._reader.up(parent, 1, parent.last_seq))):
                new = replace(new, title=title)
            marks = ("superseded_at", "superseded_by")
            unmarked = [{name: one for name, one in value.items() if name not in marks} for value in values]
            renumbered = [{**value, "seq": seq} for seq, value in enumerate(unmarked, start=1)]
            items = notes_of(self._layout, new.session_id, renumbered)
            items |= chunk_items(self._layout, new, renumbered, now)
            await self._writer.put(writing, replace(new, version=-1), new, items)

        await self._writer.hold(branching.branch_id, work)

    async def _values(self, branching: Branching, parent: Conversation) -> list[Value]:
        """Return the messages to copy into a branch, as they are stored in their chunks."""
        upto = parent.last_seq if branching.at is None else branching.at
        there = {value["seq"]: value async for value in self._reader.values(parent, 1, upto)}
        if branching.at is not None and upto not in there:
            raise no_message_at(branching.session_id, upto)
        since = None if branching.at is None else there[upto].get("superseded_at")
        return [
            value
            for value in there.values()
            if (at := value.get("superseded_at")) is None or (since is not None and time_of(at) >= time_of(since))
        ]


def _branched(branching: Branching, parent: Conversation, values: Sequence[Value], now: datetime) -> Conversation:
    return replace(
        parent,
        session_id=branching.branch_id,
        created_at=now,
        updated_at=now,
        last_seq=len(values),
        last_user_seq=max((seq for seq, one in enumerate(values, start=1) if one["role"] == "user"), default=0),
        reset_seq=sum(1 for one in values if one["seq"] <= parent.reset_seq),
        deleted_seq=0,
        active=True,
        revision=0,
        superseded=(),
        parent_session_id=parent.session_id,
        parent_seq=parent.last_seq if branching.at is None else branching.at,
    )
