"""The index of a conversation for recall: its words, and the vectors of its turns.

An index is cached by this process and updated from the transcript. An embedding model computes the vector of each
message once; it is stored in the database and compared here.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import batched
from typing import Self

from threadkeep.boundary import ErrorBoundary
from threadkeep.context.recall import IndexedTurn, RecallIndex
from threadkeep.context.recall.embedding import Embedder, dot_products, unit_vector
from threadkeep.errors import SessionDamaged, StoreError
from threadkeep.observe import EmbeddingsSkipped, ExtraNotFound, Observer
from threadkeep.records import SPEAKERS, TAKEN_BACK, Message, SessionInfo, Summary
from threadkeep.store.contexts import EmbeddingRows
from threadkeep.store.summaries import Summaries
from threadkeep.store.transcripts import Transcripts

type Vectors = dict[str, array[float]]
"""Vectors of turns by their ids."""
MOST_TURNS = 20_000
"""The maximum number of turns indexed of a session, the newest ones."""
_PAGE = 200
_AT_ONCE = 4_000
"""The characters, with some for each message, that are indexed before other tasks run: a few milliseconds."""
_AT_LEAST = 160
_MOST_DOUBLINGS = 10
_TERMS_OF_TURN = 50

_BATCH = 64
_COMPARED_AT_ONCE = 500
_MOST_CHARACTERS = 8_000
_QUERY_SECONDS = 2.0
_MOST_FAILURES = 12
"""After so many failures in a row the model is at fault, not the input; a batch with one bad text has seven."""


@dataclass(frozen=True)
class _Mark:
    """The state of a session when it was indexed."""

    created_at: datetime
    begin: int
    revision: int

    @property
    def begins(self) -> tuple[datetime, int]:
        """When the session began, and its first message that may be indexed."""
        return self.created_at, self.begin


@dataclass(eq=False)
class Refusals:
    """The turns that could not be embedded: each is skipped for more and more rounds."""

    round: int = 0
    _tries: dict[str, int] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)

    def add(self, turn_id: str) -> None:
        """Postpone a turn; each failure doubles the number of rounds."""
        tries = self._tries[turn_id] = min(self._tries.get(turn_id, 0) + 1, _MOST_DOUBLINGS)
        self._due[turn_id] = self.round + 2**tries

    def is_due(self, turn_id: str) -> bool:
        """Return whether a turn may be tried in this round."""
        return self._due.get(turn_id, 0) <= self.round


@dataclass(eq=False)
class ConversationIndex:
    """The indexed turns of one session or of all of a user's, with their tokens, sessions and days, and vectors.

    `first` and `read` are the first and the last indexed `seq` of each session; `embedded` has the sessions with
    vectors that were read, for each model. Archived messages are not indexed; the `summaries` of them are, at the place
    of the last one. `newest` is an index of the newest messages alone, until the others are indexed;
    `has_newest` is set when it has them. `superseded` are indexed turns that were superseded since,
    `taken_back` the ids of messages of which a note says that their person took them back in a chat.
    """

    words: RecallIndex = field(default_factory=RecallIndex)
    tokens: dict[str, int] = field(default_factory=dict)
    days: dict[str, tuple[str, date | None]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    superseded: set[str] = field(default_factory=set)
    taken_back: set[str] = field(default_factory=set)
    summaries: dict[str, Summary] = field(default_factory=dict)
    vectors: dict[str, Vectors] = field(default_factory=dict)
    embedded: set[tuple[str, str]] = field(default_factory=set)
    embedding: asyncio.Task[None] | None = None
    refusals: Refusals = field(default_factory=Refusals)
    newest: ConversationIndex | None = None
    has_newest: asyncio.Event = field(default_factory=asyncio.Event)
    _marks: dict[str, _Mark] = field(default_factory=dict)
    _unpaused: int = 0

    @classmethod
    def of(cls, infos: Mapping[str, SessionInfo]) -> Self:
        """Return an empty index for these sessions; if they change while it is built, it is outdated."""
        return cls(_marks={session_id: _mark_of(info) for session_id, info in infos.items()})

    @property
    def size(self) -> int:
        """The number of indexed turns, long ones counted as several: each takes about two kilobytes."""
        return len(self.tokens) + self.words.size // _TERMS_OF_TURN

    def holds(self, session_id: str) -> bool:
        """Return whether turns of a session are indexed, or will be."""
        return session_id in self._marks

    def is_outdated(self, infos: Mapping[str, SessionInfo], *, complete: bool) -> bool:
        """Return whether indexed turns were reset, archived or deleted since, or too many are unused.

        If the sessions are not `complete`, a missing one may simply be older than the others.
        """
        missing = sum(session_id not in infos for session_id in self._marks)
        if missing > (0 if complete else len(infos)):
            return True
        known = self._marks.keys() & infos.keys()
        return any(self._marks[session_id].begins != _mark_of(infos[session_id]).begins for session_id in known)

    async def leave_out_superseded(self, infos: Mapping[str, SessionInfo], transcripts: Transcripts) -> bool:
        """Leave out turns that were superseded since; return False if words of them have to go from the index.

        Words have to go if the text of a turn was erased, or if a summary may be withdrawn.
        """
        for session_id, mark in list(self._marks.items()):
            info = infos.get(session_id)
            if info is None or info.revision == mark.revision:
                continue
            ranges = await transcripts.superseded(session_id, after=self.first.get(session_id, 1) - 1)
            seqs = [seq for first, last in ranges for seq in range(first, last + 1)]
            gone = [seq for seq in seqs if id_at(session_id, seq) in self.tokens]
            if self.summaries or not all(message.content for message in await transcripts.at(session_id, gone)):
                return False
            self.superseded.update(id_at(session_id, seq) for seq in gone)
            self._marks[session_id] = replace(mark, revision=info.revision)
        return True

    async def catch_up(
        self,
        info: SessionInfo,
        transcripts: Transcripts,
        summaries: Summaries | None = None,
        most: int = MOST_TURNS,
    ) -> None:
        """Index the new messages of a session, of its newest ones; other tasks run in between."""
        session_id = info.session_id
        if session_id not in self.first and summaries is not None and info.archived_seq > info.reset_seq:
            first = info.reset_seq + 1
            for summary in await summaries.of_messages(session_id, first, info.archived_seq, most):
                self._add_summary(summary)
                await self._pause(len(summary.text))
        mark = self._marks.setdefault(session_id, _mark_of(info))
        begin = max(self.read.get(session_id, 0) + 1, mark.begin, info.last_seq - most + 1)
        self.first.setdefault(session_id, begin)
        async for message in _messages(transcripts, session_id, begin, info.last_seq):
            seq = message.seq or 0
            if seq <= self.read.get(session_id, 0):
                continue
            self.read[session_id] = seq
            if message.role == "system" and (taken_back := message.metadata.get(TAKEN_BACK)):
                self.taken_back.add(str(taken_back))
            if message.role in SPEAKERS and message.content:
                self._add(session_id, seq, message)
                await self._pause(len(message.content))
        self.read[session_id] = max(self.read.get(session_id, 0), info.last_seq)

    async def _pause(self, characters: int) -> None:
        """Let other tasks run after every few thousand characters."""
        self._unpaused += _AT_LEAST + characters
        if self._unpaused >= _AT_ONCE:
            self._unpaused = 0
            await asyncio.sleep(0)

    def _add(self, session_id: str, seq: int, message: Message) -> None:
        turn_id = id_at(session_id, seq)
        time = message.sent_at or message.created_at
        speaker = message.author or message.role
        self.words.add(IndexedTurn(turn_id, message.content, speaker, time, session_id, message.role))
        self.tokens[turn_id] = message.tokens or 0
        self.days[turn_id] = (session_id, time and time.astimezone(UTC).date())

    def _add_summary(self, summary: Summary) -> None:
        turn_id = id_at(summary.session_id, summary.last_seq)
        time, session_id = summary.created_at, summary.session_id
        self.words.add(IndexedTurn(turn_id, summary.text, "summary", time, session_id, "system"))
        self.tokens[turn_id] = summary.tokens
        self.days[turn_id] = (session_id, time and time.astimezone(UTC).date())
        self.summaries[turn_id] = summary


def id_at(session_id: str, seq: int) -> str:
    """Return the id of a message in the index."""
    return f"{session_id}#{seq}"


def position_of(turn_id: str) -> tuple[str, int]:
    """Return the session and the `seq` of an indexed message."""
    session_id, _, seq = turn_id.rpartition("#")
    return session_id, int(seq)


def _mark_of(info: SessionInfo) -> _Mark:
    return _Mark(info.created_at, max(info.reset_seq, info.archived_seq, info.deleted_seq) + 1, info.revision)


def messages_of(info: SessionInfo) -> int:
    """Return the number of messages that may be indexed of a session, at least 1 for summaries of archived ones."""
    return max(info.last_seq - _mark_of(info).begin + 1, min(info.last_seq, 1))


async def _messages(transcripts: Transcripts, session_id: str, first: int, last: int) -> AsyncIterator[Message]:
    """Yield the messages of a range of `seq`, in order, page by page."""
    for start in range(first, last + 1, _PAGE):
        end = min(start + _PAGE - 1, last)
        page = await transcripts.newest(session_id, limit=end - start + 1, before=end + 1)
        for message in page.messages:
            yield message


class TurnVectors:
    """A service that computes and compares the vectors of turns, normalised to length 1."""

    def __init__(self, transcripts: Transcripts, rows: EmbeddingRows, observer: Observer) -> None:
        self._transcripts = transcripts
        self._rows = rows
        self._observer = observer

    async def similarities(self, index: ConversationIndex, query: str, embedder: Embedder) -> dict[str, float]:
        """Return the cosine similarity of the query to every embedded turn; schedule the missing embeddings.

        If the model fails, return an empty result and report the failure.
        """
        vectors = index.vectors.setdefault(embedder.name, {})
        if index.embedding is None or index.embedding.done():
            work = self._embed(index, vectors, embedder)
            index.embedding = asyncio.create_task(work, context=Context(), name="threadkeep-embeddings")
        if not vectors:
            return {}
        wanted: array[float] | None = None
        with ErrorBoundary(self._report):
            async with asyncio.timeout(_QUERY_SECONDS):
                wanted = unit_vector(await embedder.embed_query(index.words.meaningful(query)))
        if wanted is None:
            return {}
        similar: dict[str, float] = {}
        known = [(turn_id, vector) for turn_id, vector in vectors.items() if len(vector) == len(wanted)]
        for some in batched(known, _COMPARED_AT_ONCE):
            products = dot_products(wanted, [vector for _, vector in some])
            similar |= zip((turn_id for turn_id, _ in some), products, strict=True)
            await asyncio.sleep(0)
        return similar

    async def _embed(self, index: ConversationIndex, vectors: Vectors, embedder: Embedder) -> None:
        """Read the stored vectors, and compute the missing ones. After a failure the next question retries."""
        with ErrorBoundary(self._report):
            for session_id in list(index.read):
                if (embedder.name, session_id) not in index.embedded:
                    after = index.first.get(session_id, 1) - 1
                    for seq, vector in await self._rows.of_session(session_id, embedder.name, after):
                        vectors.setdefault(id_at(session_id, seq), array("f", vector))
                    index.embedded.add((embedder.name, session_id))
            index.refusals.round += 1
            unwanted = index.summaries.keys() | index.superseded
            missing = [
                position_of(turn_id)
                for turn_id in index.tokens
                if turn_id not in vectors and turn_id not in unwanted and index.refusals.is_due(turn_id)
            ]
            for session_id in dict.fromkeys(session_id for session_id, _ in missing):
                seqs = [seq for key, seq in missing if key == session_id]
                with contextlib.suppress(SessionDamaged):
                    await self._embed_session(session_id, seqs, index, embedder)

    async def _embed_session(
        self, session_id: str, seqs: Sequence[int], index: ConversationIndex, embedder: Embedder
    ) -> None:
        """Embed in batches. A batch that fails is halved until the text that the model rejects is found and skipped."""
        batches = [seqs[start : start + _BATCH] for start in range(0, len(seqs), _BATCH)]
        batches.reverse()
        refused, in_a_row = 0, 0
        last: Exception | None = None
        while batches and in_a_row < _MOST_FAILURES:
            batch = batches.pop()
            with ErrorBoundary(raising=(StoreError,)) as attempt:
                await self._embed_some(session_id, batch, index.vectors[embedder.name], embedder)
            if attempt.error is None:
                in_a_row = 0
                continue
            last = attempt.error
            in_a_row += 1
            if len(batch) == 1:
                index.refusals.add(id_at(session_id, batch[0]))
                refused += 1
            else:
                batches += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
        if last is not None:
            skipped = EmbeddingsSkipped(
                count=refused + sum(map(len, batches)), error=type(last).__name__, session_id=session_id
            )
            self._observer.notify(skipped)

    async def _embed_some(self, session_id: str, seqs: Sequence[int], vectors: Vectors, embedder: Embedder) -> None:
        messages = await self._transcripts.at(session_id, seqs)
        made = await embedder.embed([message.content[:_MOST_CHARACTERS] for message in messages])
        rows = [(message.seq or 0, unit_vector(vector)) for message, vector in zip(messages, made, strict=True)]
        if messages:
            kept = [(seq, vector.tobytes()) for seq, vector in rows]
            await self._rows.add(session_id, embedder.name, kept, last_id=messages[-1].id)
        vectors |= {id_at(session_id, seq): vector for seq, vector in rows}

    def _report(self, error: Exception) -> None:
        self._observer.notify(ExtraNotFound(section="selected", error=type(error).__name__))
