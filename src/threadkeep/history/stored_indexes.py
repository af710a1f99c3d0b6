"""Stored indexes for the search for older turns, one per session. A new process need not build them."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterable, Mapping, Sequence

from threadkeep.context.recall.packing import pack, unpack
from threadkeep.errors import SessionDamaged, StoreError
from threadkeep.history.conversation_index import MOST_TURNS, ConversationIndex, index_version, messages_of
from threadkeep.observe import Observer, RecallIndexNotStored
from threadkeep.records import SessionInfo, Summary
from threadkeep.store.contexts import RecallIndexes
from threadkeep.store.driver import RightsMissing
from threadkeep.store.summaries import Summaries
from threadkeep.store.transcripts import Transcripts

_LEAST_STORED, _LEAST_JOINED = 1_000, 50
"""The least number of turns for which a session's index is stored; `_LEAST_JOINED` is for use in a user's index."""

_UNREADABLE = (zlib.error, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""The errors that invalid stored data raise. Such data are deleted, and the index is built again."""


class StoredIndexes:
    """The stored search indexes of sessions, which can be joined into one index of all sessions of a user."""

    def __init__(
        self, rows: RecallIndexes, transcripts: Transcripts, summaries: Summaries | None, observer: Observer
    ) -> None:
        self._rows = rows
        self._transcripts = transcripts
        self._summaries = summaries
        self._observer = observer

    async def load(self, info: SessionInfo, summaries: Sequence[Summary]) -> ConversationIndex | None:
        """Return the stored index of a session; delete it if it is outdated.

        Also return None if the database role lacks rights on the stored indexes.
        """
        session_id, found = info.session_id, ConversationIndex()
        with contextlib.suppress(RightsMissing):
            data = await self._rows.of_session(session_id, index_version(), info.last_seq)
            if data is None:
                return None
            with contextlib.suppress(*_UNREADABLE):
                usable = await found.load(await asyncio.to_thread(unpack, data), info, summaries)
                usable = usable and await found.leave_out_superseded({session_id: info}, self._transcripts)
                if usable and await self._rows.has_texts(session_id, found.texts_of(session_id)):
                    return found
            await self._rows.remove(session_id)
        return None

    async def save(self, index: ConversationIndex, session_id: str) -> None:
        """Store the index of one session, and report a failure.

        If another program has changed indexed texts, delete the stored index instead.
        """
        state = await index.dump()
        extent, texts = index.extent_of(session_id), index.texts_of(session_id)
        try:
            if not await self._rows.has_texts(session_id, texts):
                await self._rows.remove(session_id)
                return
            await self._rows.save(session_id, index_version(), await asyncio.to_thread(pack, state), *extent)
        except StoreError as error:
            self._observer.notify(RecallIndexNotStored(error=type(error).__name__, session_id=session_id))

    async def join(self, infos: Mapping[str, SessionInfo], allowed: Mapping[str, int]) -> ConversationIndex:
        """Return one index of several sessions, each with its `allowed` number of newest messages.

        For a session of at least 50 turns, all of which are allowed, the stored index is used; if it is missing or
        outdated, it is built and stored. Damaged sessions are left out.
        """
        joined = ConversationIndex()
        summaries = await self._summaries_of([infos[session_id] for session_id in reversed(list(allowed))])
        for session_id, most in allowed.items():
            info, of_archived = infos[session_id], summaries.get(session_id, ())
            with contextlib.suppress(SessionDamaged):
                if len(of_archived) + most >= _LEAST_JOINED and most == min(messages_of(info), MOST_TURNS):
                    index = await self._current(info, of_archived)
                    # This runs in an OS thread, because it takes tenths of a second for a long session.
                    await asyncio.to_thread(joined.extend if joined.read else joined.take_over, index)
                else:
                    await joined.catch_up(info, self._transcripts, of_archived, most)
        return joined

    def grown(self, index: ConversationIndex, infos: Iterable[SessionInfo], *, of_user: bool) -> list[SessionInfo]:
        """Return the sessions whose index must be stored: long sessions whose index is new, or grew by an eighth."""
        if len(index.tokens) < _LEAST_STORED:
            return []
        by_id = {info.session_id: info for info in infos}
        grown = index.grown(by_id, _LEAST_JOINED if of_user else _LEAST_STORED)
        return [info for session_id, info in by_id.items() if session_id in grown]

    async def renew(self, infos: Iterable[SessionInfo]) -> None:
        """Update the stored search indexes of sessions; skip a session with unreadable items."""
        for info in infos:
            summaries = await self._summaries_of([info])
            with contextlib.suppress(SessionDamaged):
                await self._current(info, summaries.get(info.session_id, ()))

    async def _summaries_of(self, infos: Sequence[SessionInfo]) -> Mapping[str, Sequence[Summary]]:
        if self._summaries is None:
            return {}
        return await ConversationIndex().new_summaries(infos, self._summaries, MOST_TURNS)

    async def _current(self, info: SessionInfo, summaries: Sequence[Summary]) -> ConversationIndex:
        """Load or create a session's index, bring it up to date, and store it if it has grown."""
        index = await self.load(info, summaries) or ConversationIndex()
        await index.catch_up(info, self._transcripts, summaries)
        if index.grown([info.session_id], _LEAST_JOINED):
            index.stored |= index.read
            await self.save(index, info.session_id)
        return index
