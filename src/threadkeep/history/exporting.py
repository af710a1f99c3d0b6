"""The export of sessions as lines of JSON, which are written page by page."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import BinaryIO, NamedTuple

from threadkeep.errors import RecordUnreadable, SessionDamaged, SessionNotFound, StoreError
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.archive_lines import message_line, session_line, summary_line
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Json, Message, SessionInfo, View
from threadkeep.store.codec import ERROR_KEY
from threadkeep.store.summaries import ArchivedSummary

PAGE_MESSAGES = 500


class Exportable(NamedTuple):
    """A session to export; `layout` is set if it is a conversation in a LangGraph store."""

    info: SessionInfo
    memory: Memory
    layout: GraphLayout | None


@dataclass
class Exported:
    """The counts of exported data so far, and the stored items that could not be read."""

    sessions: int = 0
    messages: int = 0
    summaries: int = 0
    damaged: dict[tuple[str, str], StoreError] = field(default_factory=dict)

    def note_damage(self, error: SessionDamaged) -> None:
        """Record that a stored item of a session could not be read."""
        self.damaged[error.session_id, error.item] = error

    def to_dict(self) -> dict[str, Json]:
        """Return the counts as JSON values, with the ids of sessions that could not be read completely, if any."""
        numbers: dict[str, Json] = {name: getattr(self, name) for name in ("sessions", "messages", "summaries")}
        damaged = sorted({session_id for session_id, _ in self.damaged})
        return {**numbers, **({"damaged": damaged} if damaged else {})}


class _Numbering:
    """The positions (`seq`) of messages in an export: without gaps, as an import will number them."""

    def __init__(self, superseded: Sequence[tuple[int, int]]) -> None:
        self._superseded = superseded
        self._starts = [first for first, _ in superseded]
        self._earlier = [0, *accumulate(last - first + 1 for first, last in superseded)]

    @classmethod
    async def of(cls, session: Session, info: SessionInfo, view: View) -> _Numbering:
        """Return the numbering of a session's messages; the view `active` leaves out superseded ones."""
        return cls(await session.superseded() if info.revision and view == "active" else ())

    def has(self, message: Message) -> bool:
        """Return True if a message gets a position, which means that it is part of the export."""
        seq = message.seq or 0
        return self.of_seq(seq) > self.of_seq(seq - 1)

    def of_seq(self, seq: int) -> int:
        """Return the exported position of the message `seq`, or of the last exported message before it."""
        number = bisect_right(self._starts, seq)
        if number == 0:
            return seq
        first, last = self._superseded[number - 1]
        return seq - self._earlier[number - 1] - (min(seq, last) - first + 1)

    def of_info(self, info: SessionInfo) -> SessionInfo:
        return replace(info, reset_seq=self.of_seq(info.reset_seq), archived_seq=self.of_seq(info.archived_seq))

    def of_message(self, message: Message) -> Message:
        """Return a message with its exported position; if superseded messages are left out, mark it as active."""
        if not self._superseded:
            return message
        return message.with_fields(seq=self.of_seq(message.seq or 0), superseded_at=None, superseded_by=None)

    def of_summary(self, archived: ArchivedSummary) -> ArchivedSummary:
        summary = archived.summary
        first, last = self.of_seq(summary.first_seq - 1) + 1, self.of_seq(summary.last_seq)
        return replace(archived, summary=replace(summary, first_seq=first, last_seq=last))


async def export(
    sessions: AsyncIterator[Exportable],
    stream: BinaryIO,
    report: Callable[[Exported], None],
    *,
    view: View = "active",
) -> Exported:
    """Write sessions to a stream, as lines of JSON, and return the counts of what was written.

    Pages and sessions that cannot be read are left out, and so are messages that are stored during the export.
    """
    done = Exported()
    async for stored, memory, layout in sessions:
        begun = False
        try:
            info = await _with_origin(await _checked(stored, memory), memory, view)
        except RecordUnreadable as error:
            done.damaged[stored.session_id, "metadata"] = error
            continue
        done.sessions += 1
        session = memory.session(info.session_id)
        numbering = await _Numbering.of(session, info, view)
        async for messages in _pages(session, info, done):
            if not begun:
                stream.write(session_line(numbering.of_info(_beginning_with(info, messages)), layout).encode())
                begun = True
            exported = [numbering.of_message(message) for message in messages if numbering.has(message)]
            stream.write("".join([message_line(info.session_id, message) for message in exported]).encode())
            done.messages += len(exported)
            report(done)
        if not begun:
            stream.write(session_line(numbering.of_info(_beginning_with(info, ())), layout).encode())
        # Skip summaries under a conversation's id: they belong to a session with the same id.
        for archived in await memory.summaries.for_export(info.session_id, view=view) if layout is None else ():
            first, last = archived.summary.first_seq, archived.summary.last_seq
            # Skip a summary that covers messages newer than this export, or none of the exported messages.
            if last <= info.last_seq and numbering.of_seq(first - 1) < numbering.of_seq(last):
                stream.write(summary_line(numbering.of_summary(archived)).encode())
                done.summaries += 1
    stream.flush()
    return done


async def named_sessions(memory: Memory, session_ids: Sequence[str], user_id: str | None) -> AsyncIterator[Exportable]:
    """Yield the sessions and the conversations with these ids.

    Raises:
        SessionNotFound: an id has no session and no conversation of this user; nothing is yielded.
    """
    locations = await AllSessions(memory).locations()
    found = [each for session_id in dict.fromkeys(session_ids) for each in await _named(locations, session_id, user_id)]
    for each in found:
        yield each


async def every_session(memory: Memory, user_id: str | None) -> AsyncIterator[Exportable]:
    """Yield all sessions and conversations, each once.

    A session that gets a message meanwhile moves to the beginning of the list and may be missed. So the list is read
    again until every session that existed at the start has been yielded.
    """
    started = memory.clock()
    for layout, home in await AllSessions(memory).locations():
        given: set[str] = set()
        missed = True
        while missed:
            missed = False
            first_pass = not given
            async for info in home.sessions(user_id):
                if info.session_id in given or (not first_pass and info.created_at > started):
                    continue
                given.add(info.session_id)
                missed = True
                yield Exportable(info, home, layout)


async def count_messages(
    memory: Memory, session_ids: Sequence[str], user_id: str | None, *, view: View = "active"
) -> int:
    """Return the number of messages to export from these sessions, or from all if `session_ids` is empty."""
    locations = await AllSessions(memory).locations()
    if session_ids:
        sessions = [home.session(one, user_id=user_id) for _, home in locations for one in set(session_ids)]
        return sum([await session.count(view=view) for session in sessions])
    infos = [info for _, home in locations async for info in home.sessions(user_id)]
    if view == "active":
        return sum(info.message_count for info in infos)
    return sum(info.last_seq - info.deleted_seq for info in infos)


async def _named(
    locations: Sequence[tuple[GraphLayout | None, Memory]], session_id: str, user_id: str | None
) -> list[Exportable]:
    found: list[Exportable] = []
    for layout, home in locations:
        with contextlib.suppress(SessionNotFound):
            found.append(Exportable(await home.session(session_id, user_id=user_id).info(), home, layout))
    if not found:
        raise SessionNotFound(session_id)
    return found


async def _pages(session: Session, info: SessionInfo, done: Exported) -> AsyncIterator[tuple[Message, ...]]:
    """Yield a session's messages in pages; unreadable pages are left out and recorded in `done`."""
    for first in range(info.deleted_seq + 1, info.last_seq + 1, PAGE_MESSAGES):
        after = min(first + PAGE_MESSAGES, info.last_seq + 1)
        try:
            messages = (await session.page(before=after, limit=after - first, view="history")).messages
        except SessionDamaged as error:
            done.note_damage(error)
            continue
        if messages:
            yield messages


async def _checked(info: SessionInfo, memory: Memory) -> SessionInfo:
    """Return a listed session's metadata; read them again if the list of sessions marks them as unreadable.

    Raises:
        RecordUnreadable: the metadata are still damaged.
    """
    marked = info.metadata.get(ERROR_KEY) == RecordUnreadable.__name__
    return await memory.session(info.session_id).info() if marked else info


async def _with_origin(info: SessionInfo, memory: Memory, view: View) -> SessionInfo:
    if info.parent_session_id is None or view == "history":
        return info
    parent = memory.session(info.parent_session_id)
    with contextlib.suppress(SessionNotFound, SessionDamaged, RecordUnreadable):
        numbering = await _Numbering.of(parent, await parent.info(), view)
        return replace(info, parent_seq=numbering.of_seq(info.parent_seq or 0) or None)
    return info


def _beginning_with(info: SessionInfo, messages: Sequence[Message]) -> SessionInfo:
    """Return the metadata of a session as if it began with `messages` and all earlier messages had been deleted."""
    deleted_seq = (messages[0].seq or 1) - 1 if messages else info.last_seq
    return replace(info, deleted_seq=deleted_seq, archived_seq=max(info.archived_seq, deleted_seq))
