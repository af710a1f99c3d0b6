"""What is indexed of a talk, to find older turns in it: kept by this process, caught up with what is stored."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from threadkeep.context.recall import IndexedTurn, RecallIndex
from threadkeep.records import SPEAKERS, Message, SessionInfo
from threadkeep.store.transcripts import Transcripts

type Vectors = dict[str, array[float]]
"""Vectors of turns by their ids."""

MOST_TURNS = 20_000
"""Of a session that is longer, the newest are indexed."""

_PAGE = 200
_AT_ONCE = 25
_MOST_DOUBLINGS = 10


@dataclass(frozen=True)
class _Mark:
    """What a session was when it was indexed: another mark, and what was indexed does not count any more."""

    created_at: datetime
    begin: int


@dataclass(eq=False)
class Refusals:
    """The turns that no vector could be made of: each is left alone for longer and longer, counted in rounds."""

    round: int = 0
    _tries: dict[str, int] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)

    def add(self, turn_id: str) -> None:
        """Leave a turn alone for some rounds, twice as many as before."""
        tries = self._tries[turn_id] = min(self._tries.get(turn_id, 0) + 1, _MOST_DOUBLINGS)
        self._due[turn_id] = self.round + 2**tries

    def is_due(self, turn_id: str) -> bool:
        """Whether a turn may be tried in this round."""
        return self._due.get(turn_id, 0) <= self.round


@dataclass(eq=False)
class TalkIndex:
    """The turns of one session, or of all of a user's, with what their text costs and the vectors they have by now.

    `read` says how far each session was read, `embedded` of which the stored vectors of a model were read.
    """

    index: RecallIndex = field(default_factory=RecallIndex)
    tokens: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    vectors: dict[str, Vectors] = field(default_factory=dict)
    embedded: set[tuple[str, str]] = field(default_factory=set)
    embedding: asyncio.Task[None] | None = None
    refusals: Refusals = field(default_factory=Refusals)
    _marks: dict[str, _Mark] = field(default_factory=dict)

    def holds(self, session_id: str) -> bool:
        """Whether anything of a session is indexed."""
        return session_id in self._marks

    def is_outdated(self, infos: Mapping[str, SessionInfo], *, complete: bool) -> bool:
        """Whether something that is indexed was reset, archived or deleted since, or too much of it is of no use.

        Where the sessions are not `complete`, one that is missing may simply be older than the others.
        """
        missing = sum(session_id not in infos for session_id in self._marks)
        if missing > (0 if complete else len(infos)):
            return True
        known = self._marks.keys() & infos.keys()
        return any(self._marks[session_id] != _mark_of(infos[session_id]) for session_id in known)

    async def catch_up(self, info: SessionInfo, transcripts: Transcripts) -> None:
        """Index what a session has more than was read; others get their turn in between."""
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
        self.index.add(IndexedTurn(turn_id, message.content, message.role, time, session_id))
        self.tokens[turn_id] = message.tokens or 0


def id_at(session_id: str, seq: int) -> str:
    """The id of a message among all that are indexed."""
    return f"{session_id}#{seq}"


def place_of(turn_id: str) -> tuple[str, int]:
    """The session and the `seq` of an indexed message."""
    session_id, _, seq = turn_id.rpartition("#")
    return session_id, int(seq)


def _mark_of(info: SessionInfo) -> _Mark:
    return _Mark(info.created_at, max(info.reset_seq, info.archived_seq, info.deleted_seq) + 1)


async def _messages(transcripts: Transcripts, session_id: str, first: int, last: int) -> AsyncIterator[Message]:
    """The messages from one place to another, in order, page by page."""
    for start in range(first, last + 1, _PAGE):
        end = min(start + _PAGE - 1, last)
        page = await transcripts.newest(session_id, limit=end - start + 1, before=end + 1)
        for message in page.messages:
            yield message
