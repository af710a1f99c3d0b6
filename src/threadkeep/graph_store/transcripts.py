"""Transcripts in a LangGraph store, with the tool calls of agents and the indexes that find relevant older turns."""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable
from datetime import datetime

from threadkeep.errors import SessionDamaged, StoreError
from threadkeep.graph_store.appending import Written, mark_of, turns_in
from threadkeep.graph_store.items import Items, Value, Writing
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.graph_store.reading import ConversationReader
from threadkeep.graph_store.shapes import Conversation, metadata_value
from threadkeep.graph_store.superseding import ConversationSuperseding
from threadkeep.graph_store.writing import ConversationWriter
from threadkeep.observe import Backend
from threadkeep.records import SPEAKERS, Message, Page, Receipt, SessionInfo, Turn, View
from threadkeep.store.codec import Counter, clean_text, prepare, prepare_turn, time_text
from threadkeep.store.contexts import IndexedState, IndexedTexts, Steps
from threadkeep.store.null_stores import NullContexts
from threadkeep.store.search_terms import fold
from threadkeep.store.transcripts import END, Branching, Recent, SessionChanges, SessionQuery, Superseded, Superseding


def selected(infos: Iterable[SessionInfo], query: SessionQuery) -> list[SessionInfo]:
    """Return one page of the sessions that match a query, newest activity first."""
    text = None if query.query is None else fold(clean_text(query.query))
    wanted = [
        info
        for info in infos
        if (query.user_id is None or info.user_id == query.user_id)
        and (query.active is None or info.active == query.active)
        and (query.prefix is None or info.session_id.startswith(query.prefix))
        and (query.tag is None or clean_text(query.tag) in info.tags)
        and (query.cursor is None or (info.updated_at, info.session_id) < query.cursor)
        and (text is None or text in fold(f"{info.title or ''} {info.last_message or ''} {info.session_id}"))
    ]
    wanted.sort(key=lambda info: (info.updated_at, info.session_id), reverse=True)
    return wanted[: query.limit]


_ANSWER_REACH = 10_000


class GraphTranscripts:
    """Transcripts in a LangGraph store; for the guarantees, see `threadkeep.store.transcripts.Transcripts`.

    `count` counts the tokens of a text when it is stored. `clock` supplies the times. `conflicted` is called with the
    session id each time a write conflicts with another writer. After three retries, `append` raises
    `ConversationChanged`, and the caller must store the turn later.
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
        self.items = items
        self._count = count
        self._clock = clock
        self.reader = ConversationReader(items, self.layout)
        self.writer = ConversationWriter(items, self.layout, self.reader, conflicted=conflicted)
        self._superseding = ConversationSuperseding(self.writer)

    @property
    def backend(self) -> Backend:
        """The name of the store in metrics."""
        return self.items.backend

    async def append(self, turn: Turn) -> Receipt:
        """Store the messages of a turn in one write."""
        return (await self.write(turn)).receipt

    async def write(self, turn: Turn) -> Written:
        """Store a turn; return its receipt, and what the write changed."""
        now = self._clock()
        prepared = prepare_turn(turn, count=self._count, now=time_text(now))
        return await self.writer.append(turn, prepared, now, self._superseding.replace_answers)

    async def newest(
        self,
        session_id: str,
        *,
        limit: int,
        before: int = END,
        user_id: str | None = None,
        view: View = "active",
    ) -> Page:
        """Return the newest `limit` messages whose `seq` is below `before`, oldest first."""
        if limit <= 0:
            return Page((), None)
        conversation, items = await self.reader.opened(session_id, limit, user_id=user_id)
        if conversation is None:
            return Page((), None)
        high = min(before - 1, conversation.last_seq)
        if view == "active" and conversation.superseded:
            return await self._newest_active(conversation, high, limit)
        messages = tuple(await self.reader.between(conversation, high - limit + 1, high, items=items))
        older = messages and (messages[0].seq or 0) > conversation.deleted_seq + 1
        return Page(messages, messages[0].seq if older else None)

    async def _newest_active(self, conversation: Conversation, high: int, limit: int) -> Page:
        found: list[Message] = []
        async for message in self.reader.down(conversation, high, 1, active=True):
            if len(found) == limit:
                return Page(tuple(reversed(found)), found[-1].seq)
            found.append(message)
        return Page(tuple(reversed(found)), None)

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """Return the newest messages, which a model call may include verbatim; see `Recent` for what is included."""
        conversation, items = await self.reader.opened(session_id, limit, user_id=user_id)
        if conversation is None:
            return Recent(())
        low = max(conversation.reset_seq, after)
        found: list[Message] = []
        if limit > 0:
            async for message in self.reader.down(conversation, before - 1, low + 1, active=True, items=items):
                if message.role in SPEAKERS:
                    found.append(message)
                    if len(found) == limit:
                        break
        newest_user = None
        if found and all(message.role != "user" for message in found):
            high = min((found[-1].seq or 0) - 1, conversation.last_user_seq)
            earlier = self.reader.down(conversation, high, low + 1, active=True)
            newest_user = await anext((message async for message in earlier if message.role == "user"), None)
        deleted = conversation.deleted_seq
        return Recent(tuple(found), conversation.reset_seq, newest_user, deleted, deleted, conversation.revision)

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """Return the message with this id, even if it is superseded; None if it does not exist."""
        found = await self.with_ids(session_id, [message_id])
        return found[0] if found else None

    async def with_ids(self, session_id: str, message_ids: Collection[str]) -> list[Message]:
        """Return the existing messages with these ids, including superseded ones, in order."""
        wanted = {message_id for message_id in message_ids if clean_text(message_id) == message_id}
        conversation = await self.reader.conversation(session_id) if wanted else None
        if conversation is None:
            return []
        seqs = await self.reader.seqs_of(conversation, sorted(wanted))
        return [message for message in await self.reader.at(conversation, seqs) if message.id in wanted]

    async def at(self, session_id: str, seqs: Collection[int]) -> list[Message]:
        """Return the existing messages with these `seq` values, including superseded ones, in order."""
        conversation = await self.reader.conversation(session_id) if seqs else None
        return [] if conversation is None else await self.reader.at(conversation, seqs)

    async def answers_to(self, session_id: str, question: Message) -> list[Message]:
        """Return the complete answers to a stored question, in order, from the 10,000 messages after it.

        Superseded answers are included only if the question is superseded.
        """
        conversation = await self.reader.conversation(session_id)
        if conversation is None or question.seq is None:
            return []
        after, found, of_run = question.seq, list[Message](), list[Message]()
        active = question.superseded_at is None
        async for message in self.reader.down(conversation, after + _ANSWER_REACH, after + 1, active=active):
            if message.role != "assistant" or message.status != "complete":
                continue
            if message.answers == question.id:
                found.append(message)
            elif message.answers is None and message.run_id is not None and message.run_id == question.run_id:
                of_run.append(message)
        # Answers from before version 0.2 do not name their question, but have its run id.
        return found[::-1] or of_run[:1]

    async def tell(self, session_id: str, message_id: str) -> Message | None:
        """Mark an answer, or its newest replacement, as delivered to a caller; return it, or None if it is missing."""
        return await self._superseding.tell(session_id, message_id, self._clock())

    async def supersede(self, superseding: Superseding) -> Superseded:
        """Supersede messages in one write."""
        now = self._clock()
        by = superseding.by
        new = None if by is None else prepare((by,), count=self._count, stored_at=time_text(now))
        return await self._superseding.supersede(superseding, new, now)

    async def append_instead(self, turn: Turn, seq: int, seen: tuple[int, int]) -> None:
        """Store a turn in place of messages after `seq` if the session's `last_seq` and `revision` are still `seen`."""
        now = self._clock()
        prepared = prepare_turn(turn, count=self._count, now=time_text(now))
        await self._superseding.append_instead(turn, seq, seen, prepared, now)

    async def empty(self, session_id: str, seqs: Collection[int]) -> None:
        """Remove the content of messages that must be erased. Model calls and searches then omit the messages."""
        await self._superseding.empty(session_id, seqs, self._clock())

    async def superseded(self, session_id: str, *, after: int = 0, before: int = END) -> list[tuple[int, int]]:
        """Return the `seq` ranges of superseded messages between `after` and `before`, both excluded."""
        conversation = await self.reader.conversation(session_id)
        if conversation is None:
            return []
        return list(conversation.superseded_between(max(after, conversation.deleted_seq) + 1, before - 1))

    async def branch(self, branching: Branching) -> None:
        """Create a session with copies of another session's messages."""
        await self._superseding.branch(branching, self._clock())

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """Return the metadata of a session, unless it is missing or another user's."""
        conversation = await self.reader.conversation(session_id, user_id=user_id)
        return None if conversation is None else conversation.info()

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Return one page of sessions, newest activity first; reads the metadata of all sessions."""
        return selected([conversation.info() async for conversation in self.reader.all()], query)

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change fields of a session; do nothing if it does not exist."""
        await self.writer.change(session_id, changes)

    async def reset(self, session_id: str, *, user_id: str | None = None, run_id: str | None = None) -> int | None:
        """Let later model calls omit all messages stored so far. Return the last `seq`, or None if nothing was reset.

        `run_id` is ignored.
        """
        return await self.writer.reset(session_id, user_id=user_id)

    async def delete(self, session_id: str, *, run_id: str | None = None) -> bool | None:
        """Delete a session and its messages. Return False if it did not exist. `run_id` is ignored."""
        for own_session_id in await self.writer.own_sessions(session_id):
            await self.delete(own_session_id)
        return await self.writer.delete(session_id)


class ConversationContexts(NullContexts):
    """The tool calls of earlier turns in a graph store, which later model calls include.

    Each agent has an item with the tool calls of its newest turns. If a message of a turn was deleted or superseded,
    the turn is ignored, and the next write removes it.
    """

    def __init__(self, items: Items, writer: ConversationWriter) -> None:
        super().__init__()
        self._items = items
        self._writer = writer

    async def steps(self, session_id: str, author: str, *, since: int) -> list[Steps]:
        """Return an agent's tool calls for questions whose `seq` is at least `since`, oldest first."""
        conversation = await self._writer.reader.conversation(session_id)
        if conversation is None:
            return []
        [found] = await self._items.get([self._writer.layout.steps(session_id, author)])
        turns = [turn for turn in turns_in(found, conversation) if turn["seq"] >= since]
        return [Steps(turn["seq"], turn["body"]) for turn in turns]

    async def keep_steps(
        self, session_id: str, steps: Steps, *, question_id: str, author: str, ordinal: int = 1, turns: int = 1
    ) -> None:
        """Store the tool calls of an answer to an active question; keep only the agent's newest `turns` turns."""
        key = self._writer.layout.steps(session_id, author)

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is None or found.superseded_between(steps.seq, steps.seq):
                return
            if (await self._writer.seqs_of(writing, found, [question_id])).get(question_id) != steps.seq:
                return
            [former] = await writing.get([key])
            new = {"seq": steps.seq, "ordinal": ordinal, "body": clean_text(steps.body), **mark_of(found, steps.seq)}
            rest = [turn for turn in turns_in(former, found) if (turn["seq"], turn["ordinal"]) != (steps.seq, ordinal)]
            kept = sorted([*rest, new], key=lambda turn: (turn["seq"], turn["ordinal"]))
            newest = sorted({turn["seq"] for turn in kept})[-turns:]
            value = {"author": author, "turns": [turn for turn in kept if turn["seq"] in newest]}
            await self._writer.put(writing, found, found, {key: value})

        await self._writer.hold(session_id, work)


class RecallIndexItems:
    """The recall indexes of conversations, which find relevant older turns, as bytes in a LangGraph store.

    Writes that remove texts also delete the index. Other programs may delete messages too, so `has_texts` compares the
    index with the stored texts.
    """

    def __init__(self, items: Items, writer: ConversationWriter) -> None:
        self._items = items
        self._writer = writer
        self._layout = writer.layout

    async def of_session(self, session_id: str, version: str, last_seq: int) -> bytes | None:
        """Return the index if its format is `version` and it has no message after `last_seq`; otherwise delete it."""
        [item] = await self._items.get([self._layout.recall_index(session_id)])
        if item is None:
            return None
        data, upto = item.get("data"), item.get("last_seq")
        # An index that ends after `last_seq` is from an earlier conversation with this id. Another program deleted it.
        is_usable = item.get("version") == version and isinstance(upto, int) and upto <= last_seq
        if is_usable and isinstance(data, str):
            with contextlib.suppress(ValueError):
                return b64decode(data)
        await self.remove(session_id)
        return None

    async def save(self, session_id: str, version: str, data: bytes, last_seq: int, state: IndexedState) -> None:
        """Store an index in place of the old one, if the conversation still has the `state` in which indexing began."""
        item = {"version": version, "last_seq": last_seq, "data": b64encode(data).decode()}

        async def work(writing: Writing, found: Conversation | None) -> None:
            if found is not None and IndexedState.of(found.info()) == state and found.last_seq >= last_seq:
                await self._put(writing, found, item)

        await self._writer.hold(session_id, work)

    async def remove(self, session_id: str) -> None:
        """Delete the recall index of a conversation; errors of the store are ignored."""

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
            wanted, low = set(texts.seqs), min(texts.seqs, default=1)
            async for value in self._writer.reader.values(conversation, low, max(wanted, default=0), checks=False):
                if value["seq"] in wanted:
                    found.add(value["seq"], str(value.get(self._layout.value_field)))
        return found == texts

    async def _put(self, writing: Writing, found: Conversation, item: Value | None) -> None:
        """Write `item` as the index, or delete the index (None), without changing the version of the conversation."""
        changes = {self._layout.recall_index(found.session_id): item}
        await writing.put(metadata_value(found), changes, version=found.version)
