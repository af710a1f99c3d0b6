"""The index of a conversation for recall: cached by this process and updated from the transcript."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from threadkeep.context.recall import IndexedTurn, RecallIndex
from threadkeep.records import SPEAKERS, Message, SessionInfo
from threadkeep.store.transcripts import Transcripts

type Vectors = dict[str, array[float]]
"""Vectors of turns by their ids."""

MOST_TURNS = 20_000
"""The maximum number of turns indexed of a session, the newest ones."""

_PAGE = 200
_AT_ONCE = 25
_MOST_DOUBLINGS = 10


@dataclass(frozen=True)
class _Mark:
    """The state of a session when it was indexed; if it differs, the index is outdated."""

    created_at: datetime
    begin: int
    revision: int


@dataclass(eq=False)
class Refusals:
    """The turns that could not be embedded: each is skipped for more and more rounds."""

    round: int = 0
    _tries: dict[str, int] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)

    def add(self, turn_id: str) -> None:
        """Skip a turn for some rounds, twice as many as before."""
        tries = self._tries[turn_id] = min(self._tries.get(turn_id, 0) + 1, _MOST_DOUBLINGS)
        self._due[turn_id] = self.round + 2**tries

    def is_due(self, turn_id: str) -> bool:
        """Return whether a turn may be tried in this round."""
        return self._due.get(turn_id, 0) <= self.round


@dataclass(eq=False)
class TalkIndex:
    """The indexed turns of one session or of all of a user's, with their tokens, sessions and days, and vectors.

    `read` is the last indexed `seq` of each session; `embedded` are the sessions whose stored vectors of a model were
    read.
    """

    index: RecallIndex = field(default_factory=RecallIndex)
    tokens: dict[str, int] = field(default_factory=dict)
    days: dict[str, tuple[str, date | None]] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    vectors: dict[str, Vectors] = field(default_factory=dict)
    embedded: set[tuple[str, str]] = field(default_factory=set)
    embedding: asyncio.Task[None] | None = None
    refusals: Refusals = field(default_factory=Refusals)
    _marks: dict[str, _Mark] = field(default_factory=dict)

    def holds(self, session_id: str) -> bool:
        """Return whether any turn of a session is indexed."""
        return session_id in self._marks

    def is_outdated(self, infos: Mapping[str, SessionInfo], *, complete: bool) -> bool:
        """Return whether indexed turns were reset, archived, superseded or deleted since, or too many are unused.

        If the sessions are not `complete`, a missing one may simply be older than the others.
        """
        missing = sum(session_id not in infos for session_id in self._marks)
        if missing > (0 if complete else len(infos)):
            return True
        known = self._marks.keys() & infos.keys()
        return any(self._marks[session_id] != _mark_of(infos[session_id]) for session_id in known)

    async def catch_up(self, info: SessionInfo, transcripts: Transcripts) -> None:
        """Index the new messages of a session; other tasks run in between."""
        session_id = info.session_id
        mark = self._marks.setdefault(session_id, _mark_of(info))
        begin = max(self.read.get(session_id, 0) + 1, mark.begin, info.last_seq - MOST_TURNS + 1)
        added = 0
        async for message in _messages(transcripts, session_id, begin, info.last_seq):
            seq = message.seq or 0
            if seq <= self.read.get(session_id, 0):
                continue
            self.read[session_id] = seq
            if message.role in SPEAKERS and message.content:
                self._add(session_id, seq, message)
                added += 1
                if added % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        self.read[session_id] = max(self.read.get(session_id, 0), info.last_seq)

    def _add(self, session_id: str, seq: int, message: Message) -> None:
        turn_id = id_at(session_id, seq)
        time = message.sent_at or message.created_at
        speaker = message.author or message.role
        self.index.add(IndexedTurn(turn_id, message.content, speaker, time, session_id, message.role))
        self.tokens[turn_id] = message.tokens or 0
        self.days[turn_id] = (session_id, time and time.astimezone(UTC).date())


def id_at(session_id: str, seq: int) -> str:
    """Return the id of a message in the index."""
    return f"{session_id}#{seq}"


def place_of(turn_id: str) -> tuple[str, int]:
    """Return the session and the `seq` of an indexed message."""
    session_id, _, seq = turn_id.rpartition("#")
    return session_id, int(seq)


def _mark_of(info: SessionInfo) -> _Mark:
    return _Mark(info.created_at, max(info.reset_seq, info.archived_seq, info.deleted_seq) + 1, info.revision)


async def _messages(transcripts: Transcripts, session_id: str, first: int, last: int) -> AsyncIterator[Message]:
    """Yield the messages of a range of `seq`, in order, page by page."""
    for start in range(first, last + 1, _PAGE):
        end = min(start + _PAGE - 1, last)
        page = await transcripts.newest(session_id, limit=end - start + 1, before=end + 1)
        for message in page.messages:
            yield message
