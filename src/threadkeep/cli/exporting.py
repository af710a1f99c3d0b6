"""Sessions as the lines of an export, a page at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

from threadkeep.cli.jsonl import message_line, session_line, summary_line
from threadkeep.cli.wording import counted
from threadkeep.errors import SessionNotFound
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Message, SessionInfo
from threadkeep.store.graph_transcripts.layout import GraphLayout

PAGE_MESSAGES = 500


class Exportable(NamedTuple):
    """A session, the memory that has it, and for a conversation that an agent keeps by itself its layout."""

    info: SessionInfo
    memory: Memory
    layout: GraphLayout | None


@dataclass
class Exported:
    """How much is written so far."""

    sessions: int = 0
    messages: int = 0
    summaries: int = 0

    def __str__(self) -> str:
        summaries = f" and {counted(self.summaries, 'summary', 'summaries')}" if self.summaries else ""
        return f"{counted(self.messages, 'message')}{summaries} of {counted(self.sessions, 'session')}"


async def export(sessions: AsyncIterator[Exportable], stream: BinaryIO, told: Callable[[Exported], None]) -> Exported:
    """Write sessions to a stream; what is said in them meanwhile is left out."""
    done = Exported()
    async for info, memory, layout in sessions:
        done.sessions += 1
        begun = False
        async for messages in _pages(memory.session(info.session_id), info):
            if not begun:
                stream.write(session_line(_as_read(info, messages), layout).encode())
                begun = True
            stream.write("".join([message_line(info.session_id, message) for message in messages]).encode())
            done.messages += len(messages)
            told(done)
        if not begun:
            stream.write(session_line(_as_read(info, ()), layout).encode())
        # Conversations have none; those under such a key are of a session with that id.
        for archived in await memory.summaries.for_export(info.session_id) if layout is None else ():
            # One that was made meanwhile may stand for what was said meanwhile.
            if archived.summary.last_seq <= info.last_seq:
                stream.write(summary_line(archived).encode())
                done.summaries += 1
    stream.flush()
    return done


async def named_sessions(memory: Memory, session_ids: Sequence[str], user_id: str | None) -> AsyncIterator[Exportable]:
    """All that has some ids.

    Raises:
        SessionNotFound: one of them has nothing, and none is given.
    """
    places = await AllSessions(memory).places()
    found = [each for session_id in dict.fromkeys(session_ids) for each in await _named(places, session_id, user_id)]
    for each in found:
        yield each


async def every_session(memory: Memory, user_id: str | None) -> AsyncIterator[Exportable]:
    """All sessions that are there now, place by place, newest activity first, each once.

    A session in which something is said while they are listed moves to the front and may be passed over: the list is
    read again until it has nothing new.
    """
    started = memory.clock()
    for layout, keeper in await AllSessions(memory).places():
        given: set[str] = set()
        missed = True
        while missed:
            missed = False
            first_round = not given
            async for info in keeper.sessions(user_id):
                if info.session_id in given or (not first_round and info.created_at > started):
                    continue
                given.add(info.session_id)
                missed = True
                yield Exportable(info, keeper, layout)


async def count_messages(memory: Memory, session_ids: Sequence[str], user_id: str | None) -> int:
    """How many messages there are to export."""
    places = await AllSessions(memory).places()
    if session_ids:
        sessions = [keeper.session(one, user_id=user_id) for _, keeper in places for one in set(session_ids)]
        return sum([await session.count() for session in sessions])
    return sum([info.message_count for _, keeper in places async for info in keeper.sessions(user_id)])


async def _named(
    places: Sequence[tuple[GraphLayout | None, Memory]], session_id: str, user_id: str | None
) -> list[Exportable]:
    found: list[Exportable] = []
    for layout, keeper in places:
        with contextlib.suppress(SessionNotFound):
            found.append(Exportable(await keeper.session(session_id, user_id=user_id).info(), keeper, layout))
    if not found:
        raise SessionNotFound(session_id)
    return found


async def _pages(session: Session, info: SessionInfo) -> AsyncIterator[tuple[Message, ...]]:
    """All that was there, in order: `seq` has no gaps, so each page is where it must be, or deleted meanwhile."""
    for first in range(info.deleted_seq + 1, info.last_seq + 1, PAGE_MESSAGES):
        after = min(first + PAGE_MESSAGES, info.last_seq + 1)
        if messages := (await session.page(before=after, limit=after - first)).messages:
            yield messages


def _as_read(info: SessionInfo, messages: Sequence[Message]) -> SessionInfo:
    """What is known of a session as its first messages were read: more may have been deleted since it was looked up."""
    deleted_seq = (messages[0].seq or 1) - 1 if messages else info.last_seq
    return replace(info, deleted_seq=deleted_seq, archived_seq=max(info.archived_seq, deleted_seq))
