"""The index of a conversation for recall: its words, and the vectors of its turns.

Each process caches its indexes and updates them from the transcript. The index of a long session can be stored.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import batched
from typing import Self

from threadkeep.context.recall import Analysis, IndexedTurn, RecallIndex, analysis_of
from threadkeep.context.recall.packing import COPIED_AT_ONCE, Packed, analysis_version
from threadkeep.records import SPEAKERS, TAKEN_BACK, Message, SessionInfo, Summary
from threadkeep.store.contexts import IndexedState, IndexedTexts
from threadkeep.store.summaries import Summaries
from threadkeep.store.transcripts import Transcripts

type Vectors = dict[str, array[float]]
"""Vectors of turns, by turn id."""
MOST_TURNS = 20_000
"""The most turns of one session in an index; a longer session has only its newest turns indexed."""
_MOST_SUMMARIES = 20_000
"""The most summaries of archived messages in one index, which may cover several sessions."""
_PAGE = 200
_AT_ONCE = 4_000
"""The number of characters that are indexed (in a few milliseconds) before other tasks run.

Each message counts as `_AT_LEAST` characters more. A longer text is analysed in an OS thread.
"""
_AT_LEAST = 160
_MOST_DOUBLINGS = 10
_NO_DAY = 0
_TURN_BYTES, _VECTOR_BYTES, _SUMMARY_BYTES = 600, 200, 2_000
"""The estimated bytes of a turn without its terms, a vector without numbers, and a summary."""


@cache
def index_version() -> str:
    """Return the version of the format of stored indexes: a digest of the text analysis and of this module."""
    own = (files("threadkeep.history") / "conversation_index.py").read_bytes()
    return sha256(analysis_version().encode() + own).hexdigest()[:16]


@dataclass(eq=False)
class Refusals:
    """The turns that could not be embedded. Each failure doubles the number of embedding rounds that skip a turn."""

    round: int = 0
    _tries: dict[str, int] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)

    def add(self, turn_id: str) -> None:
        """Postpone a turn by 2 embedding rounds, and by twice as many after each further failure."""
        tries = self._tries[turn_id] = min(self._tries.get(turn_id, 0) + 1, _MOST_DOUBLINGS)
        self._due[turn_id] = self.round + 2**tries

    def is_due(self, turn_id: str) -> bool:
        """Return True if a turn is not postponed in the present embedding round."""
        return self._due.get(turn_id, 0) <= self.round


@dataclass(eq=False)
class ConversationIndex:
    """The indexed turns of one session, or of all sessions of a user, with their tokens, days and vectors.

    Archived messages are not indexed, but their summaries are.

    Attributes:
        first, read: the first and the last indexed `seq` of each session.
        stored: the last `seq` of each session's stored index. It is set before the index has been written completely.
        texts: the indexed messages of each session.
        summaries: the indexed summaries, by the turn id of the last message that each of them covers.
        superseded: turns that were taken back or replaced after they had been indexed.
        taken_back: ids of messages that a person took back in a chat.
        embedded: the pairs of an embedding model and a session whose stored vectors are in `vectors`.
        newest: an index of only the newest messages, until the whole index is built.
        has_newest: set when `newest` is complete.
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
    storing: asyncio.Task[None] | None = None
    stored: dict[str, int] = field(default_factory=dict)
    texts: dict[str, IndexedTexts] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    newest: ConversationIndex | None = None
    has_newest: asyncio.Event = field(default_factory=asyncio.Event)
    _marks: dict[str, IndexedState] = field(default_factory=dict)
    _unpaused: int = 0

    @classmethod
    def of(cls, infos: Mapping[str, SessionInfo]) -> Self:
        """Return an empty index that will contain these sessions; note their present state, such as their revisions."""
        return cls(_marks={session_id: IndexedState.of(info) for session_id, info in infos.items()})

    @property
    def size(self) -> int:
        """The estimated bytes that the turns, summaries, terms and vectors take in memory."""
        vectors = sum(_bytes_of(vectors) for vectors in self.vectors.values())
        return _TURN_BYTES * len(self.tokens) + _SUMMARY_BYTES * len(self.summaries) + self.words.size + vectors

    def holds(self, session_id: str) -> bool:
        """Return True if turns of a session are indexed, or will be."""
        return session_id in self._marks

    def is_outdated(self, infos: Mapping[str, SessionInfo], *, complete: bool) -> bool:
        """Return True if indexed turns were reset, archived or deleted, or if indexed sessions are missing.

        If `complete` is false, `infos` is only a page of the sessions. Then up to `len(infos)` sessions may be missing.
        """
        missing = sum(session_id not in infos for session_id in self._marks)
        if missing > (0 if complete else len(infos)):
            return True
        known = self._marks.keys() & infos.keys()
        return any(self._marks[session_id].begins != IndexedState.of(infos[session_id]).begins for session_id in known)

    async def leave_out_superseded(self, infos: Mapping[str, SessionInfo], transcripts: Transcripts) -> bool:
        """Add turns that were taken back or replaced to `superseded`. Return False if the index must be built again.

        This is the case for a changed session if a text was erased, whose words must not stay, or if summaries are
        indexed, which may be outdated.
        """
        for session_id, mark in list(self._marks.items()):
            info = infos.get(session_id)
            if info is None or info.revision == mark.revision:
                continue
            ranges = await transcripts.superseded(session_id, after=self.first.get(session_id, 1) - 1)
            seqs = [seq for first, last in ranges for seq in range(first, last + 1)]
            deleted = [seq for seq in seqs if id_at(session_id, seq) in self.tokens]
            if self.summaries or not all(message.content for message in await transcripts.at(session_id, deleted)):
                return False
            self.superseded.update(id_at(session_id, seq) for seq in deleted)
            self._marks[session_id] = replace(mark, revision=info.revision)
        return True

    async def new_summaries(
        self, infos: Iterable[SessionInfo], summaries: Summaries, most: int
    ) -> dict[str, list[Summary]]:
        """Return the summaries of archived messages that `catch_up` needs for new sessions.

        Args:
            infos: The sessions, the most important one first. A session gets its newest summaries.
            summaries: The stored summaries.
            most: The maximum number of summaries in this index, including those already in it.
        """
        found: dict[str, list[Summary]] = {}
        left = min(most, _MOST_SUMMARIES) - len(self.summaries)
        for info in infos:
            if info.session_id not in self.first and info.archived_seq > info.reset_seq and left > 0:
                newest = await summaries.newest_of_messages(
                    info.session_id, info.reset_seq + 1, info.archived_seq, left
                )
                found[info.session_id] = newest
                left -= len(newest)
        return found

    async def catch_up(
        self, info: SessionInfo, transcripts: Transcripts, summaries: Sequence[Summary] = (), most: int = MOST_TURNS
    ) -> None:
        """Index a session's newest `most` messages, unless they are indexed already. Let other tasks run in between.

        For a session that is new in the index, the `summaries` are indexed first.
        """
        session_id = info.session_id
        if session_id not in self.first:
            for summary in summaries:
                turn_id, time = id_at(session_id, summary.last_seq), summary.created_at
                analysis = await self._analysis_of(summary.text)
                self.words.add(IndexedTurn(turn_id, summary.text, "summary", time, session_id, "system"), analysis)
                self.tokens[turn_id], self.summaries[turn_id] = summary.tokens, summary
                self.days[turn_id] = (session_id, time and time.astimezone(UTC).date())
        mark = self._marks.setdefault(session_id, IndexedState.of(info))
        begin = max(self.read.get(session_id, 0) + 1, mark.begin, info.last_seq - most + 1)
        self.first.setdefault(session_id, begin)
        async for message in _messages(transcripts, session_id, begin, info.last_seq):
            seq = message.seq or 0
            is_turn = message.role in SPEAKERS and message.content != ""
            analysis = await self._analysis_of(message.content) if is_turn else None
            if seq <= self.read.get(session_id, 0):
                continue  # another call has indexed this message while its text was analysed
            self.read[session_id] = seq
            if message.role == "system" and (taken_back := message.metadata.get(TAKEN_BACK)):
                self.taken_back.add(str(taken_back))
            if is_turn:
                self._add(session_id, seq, message, analysis)
        self.read[session_id] = max(self.read.get(session_id, 0), info.last_seq)

    async def dump(self) -> Sequence[Packed]:
        """Return a copy of the index for storage, without its vectors, which are stored separately.

        Other tasks run meanwhile; if one of them adds a turn, all parts are copied again.
        """
        states: list[Packed] = []
        turns = -1
        while turns != len(self.tokens):
            turns, states = len(self.tokens), []
            for state in self._parts():
                states.append(state)
                await asyncio.sleep(0)
        about = {
            "first": dict(self.first),
            "read": dict(self.read),
            "digests": {session_id: texts.digest for session_id, texts in self.texts.items()},
            "superseded": sorted(self.superseded),
            "taken_back": sorted(self.taken_back),
            "summaries": {turn_id: summary.id for turn_id, summary in self.summaries.items()},
            "marks": {
                key: (mark.created_at.isoformat(), mark.begin, mark.revision) for key, mark in self._marks.items()
            },
        }
        return *states, Packed(about, {})

    def _parts(self) -> Iterator[Packed]:
        """Yield copies of the word index and of each turn's tokens and day, part by part, for storage."""
        yield from self.words.dump()
        yield Packed({"tokens": list(self.tokens.items())}, {})
        for some in batched(list(self.days.values()), COPIED_AT_ONCE):
            yield Packed({}, {"days": array("I", [day.toordinal() if day else _NO_DAY for _, day in some])})

    async def load(self, state: Packed, info: SessionInfo, summaries: Sequence[Summary]) -> bool:
        """Fill this index with the stored index of a session; return False if the stored one is outdated."""
        about, session_id = state.values, info.session_id
        created_at, begin, revision = about["marks"][session_id]
        mark = IndexedState(datetime.fromisoformat(created_at), begin, revision)
        if mark.begins != IndexedState.of(info).begins or info.last_seq - about["first"][session_id] > 2 * MOST_TURNS:
            return False
        by_turn = {id_at(session_id, summary.last_seq): summary for summary in summaries}
        if {turn_id: summary.id for turn_id, summary in by_turn.items()} != about["summaries"]:
            return False
        self.words, self.tokens, self.days = await asyncio.to_thread(_turns_of, state)
        self.summaries = by_turn
        self.first, self.read = about["first"], about["read"]
        self.superseded, self.taken_back = set(about["superseded"]), set(about["taken_back"])
        turn_ids = [turn_id for turn_id in self.tokens if turn_id not in by_turn]
        seqs = await asyncio.to_thread(lambda: array("Q", [position_of(turn_id)[1] for turn_id in turn_ids]))
        self.texts = {session_id: IndexedTexts(seqs, about["digests"].get(session_id, ""))}
        self.stored = dict(self.read)
        self._marks = {session_id: mark}
        return True

    def take_over(self, other: ConversationIndex) -> None:
        """Fill this empty index with the contents of `other`, which must not be used any more."""
        self.words, self.tokens, self.days, self.summaries = other.words, other.tokens, other.days, other.summaries
        self.first, self.read, self.stored = other.first, other.read, other.stored
        self.superseded, self.taken_back, self.texts = other.superseded, other.taken_back, other.texts
        self._marks |= other._marks
        self.newest = None

    def extend(self, other: ConversationIndex) -> None:
        """Append the turns of another index. The two indexes must have no session in common."""
        self.words.extend(other.words)
        self.tokens |= other.tokens
        self.days |= other.days
        self.summaries |= other.summaries
        self.first |= other.first
        self.read |= other.read
        self.stored |= other.stored
        self.texts |= other.texts
        self.superseded |= other.superseded
        self.taken_back |= other.taken_back
        self._marks |= other._marks

    def grown(self, session_ids: Iterable[str], least: int) -> set[str]:
        """Return sessions with `least` turns or more whose index is not stored, or has since grown by an eighth."""
        summaries = Counter(one.session_id for one in self.summaries.values())
        found: set[str] = set()
        for session_id in self.read.keys() & session_ids:
            before = self.first[session_id] - 1 - summaries[session_id]
            stored = self.stored.get(session_id, before) - before
            if self.read[session_id] - before >= max(least, stored * 9 // 8):
                found.add(session_id)
        return found

    def extent_of(self, session_id: str) -> tuple[int, IndexedState]:
        """Return a session's last indexed `seq`, and the session's state, such as its revision, when indexing began."""
        return self.read[session_id], self._marks[session_id]

    def texts_of(self, session_id: str) -> IndexedTexts:
        """Return a copy of the positions of a session's indexed messages, and the digest of their texts."""
        return self.texts.get(session_id, IndexedTexts()).copy()

    async def _analysis_of(self, text: str) -> Analysis | None:
        """Return the analysis of a long text, made in an OS thread. Return None for a short text."""
        self._unpaused += _AT_LEAST + len(text)
        if len(text) > _AT_ONCE:
            return await asyncio.to_thread(analysis_of, text)
        if self._unpaused >= _AT_ONCE:
            # After analysing several short texts in a row, let other tasks run.
            self._unpaused = 0
            await asyncio.sleep(0)
        return None

    def _add(self, session_id: str, seq: int, message: Message, analysis: Analysis | None) -> None:
        turn_id = id_at(session_id, seq)
        time = message.sent_at or message.created_at
        speaker = message.author or message.role
        self.words.add(IndexedTurn(turn_id, message.content, speaker, time, session_id, message.role), analysis)
        self.texts.setdefault(session_id, IndexedTexts()).add(seq, message.content)
        self.tokens[turn_id] = message.tokens or 0
        self.days[turn_id] = (session_id, time and time.astimezone(UTC).date())


def _bytes_of(vectors: Vectors) -> int:
    first = next(iter(vectors.values()), array("f"))
    return len(vectors) * (_VECTOR_BYTES + len(first) * first.itemsize)


def _turns_of(state: Packed) -> tuple[RecallIndex, dict[str, int], dict[str, tuple[str, date | None]]]:
    """Return the word index that a stored index contains, and each turn's token count, session and day."""
    tokens = dict(state.values["tokens"])
    days = [None if day == _NO_DAY else date.fromordinal(day) for day in state.arrays["days"]]
    days_of = {turn_id: (position_of(turn_id)[0], day) for turn_id, day in zip(tokens, days, strict=True)}
    return RecallIndex.load(state), tokens, days_of


def id_at(session_id: str, seq: int) -> str:
    """Return the id that a message has in the recall index: its session id and its `seq`."""
    return f"{session_id}#{seq}"


def position_of(turn_id: str) -> tuple[str, int]:
    """Return the session id and the `seq` of a message from the id that it has in the recall index."""
    session_id, _, seq = turn_id.rpartition("#")
    return session_id, int(seq)


def messages_of(info: SessionInfo) -> int:
    """Return how many messages of a session can be indexed.

    A session that ever had a message counts at least 1, because summaries of its archived messages may be indexed.
    """
    return max(info.last_seq - IndexedState.of(info).begin + 1, min(info.last_seq, 1))


async def _messages(transcripts: Transcripts, session_id: str, first: int, last: int) -> AsyncIterator[Message]:
    """Yield a session's messages from `first` to `last` (`seq` values) in order, reading page by page."""
    for start in range(first, last + 1, _PAGE):
        end = min(start + _PAGE - 1, last)
        page = await transcripts.newest(session_id, limit=end - start + 1, before=end + 1)
        for message in page.messages:
            # If messages of the range were superseded, `newest` fills the page with older messages. Skip these.
            if (message.seq or 0) >= start:
                yield message
