"""Recall of older turns that are relevant to a new input, from the session or from all sessions of its user.

The first query of a conversation builds its index from the transcript, and later queries extend the index. The index of
a long session is stored, so that the next process can load it. If building takes longer than an answer should wait, it
continues in the background, and the query uses the turns that are indexed so far. While a long index is built, the
newest messages get a separate, searchable index.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from threadkeep.boundary import retrieve_exception
from threadkeep.context.recall import Passage, passage_of, select
from threadkeep.context.recall.embedding import Embedder
from threadkeep.errors import SessionDamaged
from threadkeep.history.conversation_index import MOST_TURNS, ConversationIndex, id_at, messages_of, position_of
from threadkeep.history.stored_indexes import StoredIndexes, TurnVectors
from threadkeep.observe import Observer
from threadkeep.records import Message, SessionInfo, Summary
from threadkeep.store.contexts import EmbeddingRows, RecallIndexes
from threadkeep.store.summaries import Summaries
from threadkeep.store.transcripts import SessionQuery, Transcripts

type RecallScope = Literal["session", "user"]

_TIMEOUT_SECONDS = 0.3
_MOST_INDEXES = 200
_MOST_BYTES = 400_000_000
"""The limit for all indexes, in bytes, enough for about 200,000 chat messages."""
_MOST_OF_USER = 50_000
_NEWEST = (50, 500)
"""How many of the newest messages of a long conversation to index first: 50, then 500."""
_NEWEST_SECONDS = 1.0
_LOADING_SECONDS = 0.8
"""If loading an index takes longer than this, the newest messages are indexed in the meantime."""
_MOST_SESSIONS = 100
_MOST_RANKED = 400
_FRAME_TOKENS = 6
"""The tokens that the speaker's name and the line end add to each quoted turn."""
_DAY_TOKENS = 11
"""The tokens that the date adds to the first quoted turn of a day."""
_MORE = 16
"""The selection may exceed the budget by a sixteenth of it, because the exact size of the quotation is known later."""
_PASSAGE_TOKENS, _LONG_TOKENS = 160, 240
"""The tokens that are quoted from a long turn, and the tokens above which a turn is long."""


@dataclass(frozen=True)
class Search:
    """A query for older turns, and the session or user to search.

    `recent` are the last turns before the query, oldest first, to which "it" and "that" may refer. The search skips
    messages that are already in the prompt (their `seq` is in `known`), or whose `seq` is `before` or higher.
    `asker` is the name of the person who asks; None means any user.
    """

    session_id: str
    user_id: str | None
    query: str
    recent: Sequence[str] = ()
    known: Collection[int] = ()
    before: int | None = None
    scope: RecallScope = "session"
    now: datetime | None = None
    asker: str | None = None


@dataclass(frozen=True)
class FoundTurn:
    """A stored message that may be relevant, and the passage to quote if it is long.

    For a summary of archived messages, `message` has the summary's text, and `summary_id` is set.
    """

    session_id: str
    message: Message
    part: Passage | None = None
    summary_id: str | None = None


class OlderTurns:
    """A search for older turns that are relevant to an input, with a cache of the last used indexes."""

    def __init__(
        self,
        transcripts: Transcripts,
        embeddings: EmbeddingRows,
        observer: Observer,
        summaries: Summaries | None = None,
        stored: RecallIndexes | None = None,
    ) -> None:
        self._transcripts = transcripts
        self._summaries = summaries
        self._stored = StoredIndexes(stored, transcripts, summaries, observer) if stored is not None else None
        self._vectors = TurnVectors(transcripts, embeddings, observer)
        self._indexes: OrderedDict[tuple[RecallScope, str], ConversationIndex] = OrderedDict()
        self._tasks: dict[tuple[RecallScope, str], asyncio.Task[None]] = {}

    async def find(self, search: Search, budget: int, embedder: Embedder | None = None) -> list[FoundTurn]:
        """Return the most relevant turns, best first, in up to about `budget` tokens in all."""
        infos = await self._sessions(search)
        key = (search.scope, search.user_id or "" if search.scope == "user" else search.session_id)
        if not infos:
            self._drop(key)
            return []
        index = await self._index_of(key, infos)
        await self._wait_for(key, lambda: self._catch_up(key, index, infos))
        if self._indexes.get(key) is not index:
            return []  # another query has replaced this index meanwhile
        index, semantic = await self._searchable(key, index, infos), None
        if embedder is not None and self._indexes.get(key) is index:
            semantic = await self._vectors.similarities(index, search.query, embedder)
        known = index.superseded.union(id_at(search.session_id, seq) for seq in search.known)
        # Leave out messages from `before` on, and summaries of other sessions.
        home, end = search.session_id, index.read.get(search.session_id, 0) + 1
        known.update(id_at(home, seq) for seq in range(end if search.before is None else search.before, end))
        known.update(turn_id for turn_id in index.summaries if position_of(turn_id)[0] != home)
        ranked = index.words.rank(
            search.query,
            recent=search.recent,
            asker=search.asker,
            now=search.now,
            exclude=known,
            limit=_MOST_RANKED,
            semantic=semantic,
        )
        if search.scope == "user":
            sessions = infos.keys()
            ranked = [entry for entry in ranked if index.days[entry.id][0] in sessions]
        chosen = select(
            ranked,
            lambda turn: _FRAME_TOKENS + (size if (size := index.tokens[turn]) <= _LONG_TOKENS else _PASSAGE_TOKENS),
            budget + budget // _MORE,
            group_of=index.days.__getitem__,
            group_cost=_DAY_TOKENS,
        )
        terms = index.words.weights_of(search.query)
        found = await self._read([entry.id for entry in chosen], index)
        long = [number for number, turn in enumerate(found) if (turn.message.tokens or 0) > _LONG_TOKENS]
        if long:
            # This runs in an OS thread, because a text may have tens of thousands of characters.
            parts = await asyncio.to_thread(_parts_of, [found[number].message for number in long], terms)
            for number, part in zip(long, parts, strict=True):
                found[number] = replace(found[number], part=part)
        return found

    def index(self, scope: RecallScope, name: str) -> ConversationIndex | None:
        """Return the cached index of a session or of a user, or None if it is not cached."""
        return self._indexes.get((scope, name))

    def forget(self, session_id: str) -> None:
        """Drop this process's indexes that contain a deleted session."""
        for key in [key for key, index in self._indexes.items() if key[1] == session_id or index.holds(session_id)]:
            self._drop(key)

    def _drop(self, key: tuple[RecallScope, str]) -> None:
        index, task = self._indexes.pop(key, None), self._tasks.pop(key, None)
        for work in (task, *((index.embedding, index.storing) if index else ())):
            if work is not None:
                work.cancel()

    async def close(self) -> None:
        """Stop all background work on indexes; the next query continues indexes that are not complete."""
        others = [work for index in self._indexes.values() for work in (index.embedding, index.storing) if work]
        tasks = [*self._tasks.values(), *others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sessions(self, search: Search) -> dict[str, SessionInfo]:
        if search.scope == "user" and search.user_id is not None:
            found = await self._transcripts.sessions(SessionQuery(search.user_id, limit=_MOST_SESSIONS))
            return {info.session_id: info for info in reversed(found)}
        info = await self._transcripts.session(search.session_id, user_id=search.user_id)
        return {search.session_id: info} if info is not None else {}

    async def _index_of(self, key: tuple[RecallScope, str], infos: dict[str, SessionInfo]) -> ConversationIndex:
        index = self._indexes.get(key)
        usable = index is None or await index.leave_out_superseded(infos, self._transcripts)
        if not usable and self._indexes.get(key) is index:
            self._drop(key)
        index = self._indexes.get(key)
        if index is None or index.is_outdated(infos, complete=len(infos) < _MOST_SESSIONS):
            if task := self._tasks.pop(key, None):
                task.cancel()
            index = self._indexes[key] = ConversationIndex.of(infos)
            if _is_long(infos):
                index.newest = ConversationIndex()
        self._indexes.move_to_end(key)
        while len(self._indexes) > _MOST_INDEXES or (
            len(self._indexes) > 1 and sum(one.size for one in self._indexes.values()) > _MOST_BYTES
        ):
            self._drop(next(iter(self._indexes)))
        return index

    async def _catch_up(
        self, key: tuple[RecallScope, str], index: ConversationIndex, infos: dict[str, SessionInfo]
    ) -> None:
        is_new, of_user = not index.read, key[0] == "user"
        if self._stored is not None and is_new and not of_user:
            [info] = infos.values()
            summaries = await self._new_summaries(index, infos, MOST_TURNS)
            meanwhile = asyncio.create_task(self._index_newest(index, infos, delay=_LOADING_SECONDS))
            meanwhile.add_done_callback(retrieve_exception)
            try:
                found = await self._stored.load(info, summaries.get(info.session_id, ()))
            finally:
                meanwhile.cancel()
            if found is not None:
                index.take_over(found)
        await self._index_newest(index, infos)
        if self._stored is not None and is_new and of_user and index.newest is not None:
            index.take_over(await self._stored.join(infos, _allowed(infos, _MOST_OF_USER)))
        behind = await self._index_new(index, infos, _MOST_OF_USER)
        index.newest = None
        if self._stored is not None and (not of_user or _is_long(infos)):
            self._store(self._stored, key, index, [infos[session_id] for session_id in behind])

    async def _index_newest(
        self, index: ConversationIndex, infos: dict[str, SessionInfo], *, delay: float = 0.0
    ) -> None:
        """Index the newest messages of a long conversation after `delay` seconds."""
        await asyncio.sleep(delay)
        if index.has_newest.is_set():
            return
        for most in _NEWEST if index.newest is not None else ():
            newest = ConversationIndex()
            await self._index_new(newest, infos, most)
            index.newest = newest
        index.has_newest.set()

    def _store(
        self, stored: StoredIndexes, key: tuple[RecallScope, str], index: ConversationIndex, infos: list[SessionInfo]
    ) -> None:
        """Start a background task that writes indexes to the database if they have grown enough."""
        grown = stored.grown(index, infos, of_user=key[0] == "user")
        if grown and (index.storing is None or index.storing.done()):
            index.stored |= {info.session_id: index.read[info.session_id] for info in grown}
            work = stored.renew(grown) if key[0] == "user" else stored.save(index, key[1])
            index.storing = asyncio.create_task(work, context=Context(), name="threadkeep-recall-index")
            index.storing.add_done_callback(retrieve_exception)

    async def _searchable(
        self, key: tuple[RecallScope, str], index: ConversationIndex, infos: dict[str, SessionInfo]
    ) -> ConversationIndex:
        """Return the index of the whole conversation; while it is being built, the index of the newest messages."""
        if key in self._tasks and index.newest is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(index.has_newest.wait(), _NEWEST_SECONDS)
        most = 0 if key in self._tasks else _MOST_OF_USER
        if not most and index.newest is not None:
            index = index.newest
            most = _NEWEST[0] if index.read else 0
        # Also index messages that were stored after the indexing task began.
        await self._index_new(index, infos, most)
        return index

    async def _index_new(self, index: ConversationIndex, infos: dict[str, SessionInfo], most: int) -> Collection[str]:
        """Index new messages among the newest `most` messages; return the ids of sessions that had new messages."""
        behind = {
            session_id: allowed
            for session_id, allowed in _allowed(infos, most).items()
            if infos[session_id].last_seq > index.read.get(session_id, 0)
        }
        summaries = await self._new_summaries(index, {session_id: infos[session_id] for session_id in behind}, most)
        for session_id, allowed in behind.items():
            with contextlib.suppress(SessionDamaged):  # the other sessions can still be searched
                found = summaries.get(session_id, ())
                await index.catch_up(infos[session_id], self._transcripts, found, allowed)
        return behind

    async def _new_summaries(
        self, index: ConversationIndex, infos: Mapping[str, SessionInfo], most: int
    ) -> dict[str, list[Summary]]:
        if self._summaries is None:
            return {}
        return await index.new_summaries(reversed(list(infos.values())), self._summaries, most)

    async def _wait_for(self, key: tuple[RecallScope, str], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Update an index in a task, and wait for it for up to 0.3 seconds."""
        task = self._tasks.get(key)
        if task is None or task.done():
            # Use an empty context: the first caller's context would keep its run in memory.
            task = asyncio.create_task(work(), context=Context(), name="threadkeep-older-turns")
            task.add_done_callback(retrieve_exception)
            self._tasks[key] = task
        await asyncio.wait([task], timeout=_TIMEOUT_SECONDS)
        if task.done():
            if self._tasks.get(key) is task:
                del self._tasks[key]
            if not task.cancelled():
                task.result()

    async def _read(self, turn_ids: Sequence[str], index: ConversationIndex) -> list[FoundTurn]:
        """Return the messages and summaries that still exist and are active, in the order of `turn_ids`."""
        summaries = index.summaries
        found = {position_of(one): _summary_turn(summaries[one]) for one in turn_ids if one in summaries}
        every = [position_of(one) for one in turn_ids]
        positions = [position for position in every if position not in found]
        for session_id in dict.fromkeys(session_id for session_id, _ in positions):
            seqs = [seq for key, seq in positions if key == session_id]
            with contextlib.suppress(SessionDamaged):
                for message in await self._transcripts.at(session_id, seqs):
                    if message.superseded_at is None and message.id not in index.taken_back:
                        found[session_id, message.seq or 0] = FoundTurn(session_id, message)
        return [found[position] for position in every if position in found]


def _is_long(infos: Mapping[str, SessionInfo]) -> bool:
    """Return True if there are so many messages that the newest ones are indexed first."""
    return sum(_allowed(infos, _MOST_OF_USER).values()) > 2 * _NEWEST[-1]


def _allowed(infos: Mapping[str, SessionInfo], most: int) -> dict[str, int]:
    """Return how many messages of each session to index: `most` in all, beginning with the newest sessions."""
    allowed: dict[str, int] = {}
    for session_id, info in reversed(list(infos.items())):
        if (count := min(messages_of(info), MOST_TURNS, most)) > 0:
            allowed[session_id] = count
            most -= count
    return dict(reversed(list(allowed.items())))


def _parts_of(messages: Sequence[Message], terms: Mapping[str, float]) -> list[Passage]:
    """Return the most relevant passage of each message, given the weights of the query's `terms`."""
    lengths = [len(message.content) * _PASSAGE_TOKENS // (message.tokens or 1) for message in messages]
    return [passage_of(message.content, terms, length) for message, length in zip(messages, lengths, strict=True)]


def _summary_turn(summary: Summary) -> FoundTurn:
    text = " ".join(summary.text.split())
    author = f"summary of messages {summary.first_seq} to {summary.last_seq}"
    message = Message(
        "system", text, author=author, seq=summary.last_seq, tokens=summary.tokens, created_at=summary.created_at
    )
    return FoundTurn(summary.session_id, message, summary_id=summary.id)
