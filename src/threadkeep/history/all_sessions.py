"""All that people said: the sessions of a memory, and conversations that agents keep in a graph store by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from itertools import chain, zip_longest

from threadkeep.errors import InvalidInput, SessionNotFound
from threadkeep.history.conversation_calls import calls_in, runs_in
from threadkeep.history.graph_conversations import place_in
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import SearchResult, SessionInfo
from threadkeep.store.graph_transcripts.layout import GraphLayout
from threadkeep.store.manifests import Cursor, StoredManifest
from threadkeep.store.transcripts import SessionQuery

type _Cursor = tuple[datetime, str]


class AllSessions:
    """The sessions of a memory and the conversations beside them, as one list for the faces.

    Where both have an id, it means the session; what is erased is all that has it: an id is one person's place.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def page(self, query: SessionQuery) -> tuple[list[SessionInfo], _Cursor | None]:
        """One page, newest activity first, and the cursor of the next (None at the end).

        The metadata of all conversations are read; sessions have an index.
        """
        if query.limit < 1:
            raise InvalidInput("A page of sessions has at least one.")
        found, more = await self._memory.sessions_page(query)
        async for layout, memory in self._beside():
            infos, further = await memory.sessions_page(query)
            found += [replace(info, namespace=layout.namespace) for info in infos]
            more = more or further
        found.sort(key=_place, reverse=True)
        cut = query.limit
        # Two of one id and one moment cannot be told apart by a cursor, and are on one page.
        while 0 < cut < len(found) and _place(found[cut]) == _place(found[cut - 1]):
            cut += 1
        if len(found) <= cut and more is None:
            return found, None
        return found[:cut], _place(found[:cut][-1])

    async def places(self) -> list[tuple[GraphLayout | None, Memory]]:
        """Every place where sessions are: the memory's own first, then those of conversations, with their layouts."""
        return [(None, self._memory), *[place async for place in self._beside()]]

    async def keeper(self, layout: GraphLayout | None) -> Memory:
        """The memory of the sessions, or of the conversations of a layout in its graph store, which it makes known."""
        if layout is None:
            return self._memory
        store = await self._memory.graph_store()
        return self._memory if self._memory.keeps(store, layout) else await self._memory.beside(layout, store)

    async def search(self, query: str, *, user_id: str | None = None, limit: int = 10) -> SearchResult:
        """Messages that have all words of a query; the best of each place in turn, since their scores are not alike."""
        own = await self._memory.search_result(query, user_id=user_id, limit=limit)
        found = [own.hits]
        async for _, memory in self._beside():
            found.append(await memory.search(query, user_id=user_id, limit=limit))
        hits = [hit for hit in chain.from_iterable(zip_longest(*found)) if hit is not None]
        return SearchResult(hits[:limit], own.unindexed)

    async def find(self, session_id: str, *, user_id: str | None = None) -> tuple[Session, SessionInfo]:
        """The session with an id, and what is known of it.

        Raises:
            SessionNotFound: there is none, or not for this user.
        """
        _, session, info = await self._found(session_id, user_id)
        return session, info

    async def calls(
        self, session_id: str, *, user_id: str | None = None, limit: int = 50, before: Cursor | None = None
    ) -> list[StoredManifest]:
        """The records of the model calls of a session, the newest first; `before` is a `cursor`.

        For a conversation they are those of the run that spoke in it last, and so on: records are kept with runs.

        Raises:
            SessionNotFound: there is none, or not for this user.
        """
        layout, session, _ = await self._found(session_id, user_id)
        manifests = self._memory.manifests
        if layout is None:
            return await manifests.of_session(session_id, user_id=user_id, limit=limit, before=before)
        return await calls_in(session, place_in(layout, session_id), manifests, limit=limit, before=before)

    async def erase(self, session_id: str, *, user_id: str | None = None) -> bool:
        """Delete all that has an id, with what was derived from it; False when there was nothing (of this user).

        The runs of a session go with it. Those that spoke in a conversation and are in no session go with that.
        """
        gone = await self._memory.session(session_id, user_id=user_id).delete()
        return await self.erase_beside(session_id, user_id=user_id) or gone

    async def erase_beside(self, session_id: str, *, user_id: str | None = None) -> bool:
        """The same for conversations alone; the session is deleted in its own way."""
        gone = False
        for _, _, memory in await self._memory.besides():
            session = memory.session(session_id, user_id=user_id)
            runs = [run_id async for some in runs_in(session) for run_id in some]
            await self._memory.runs.records.forget_runs(sorted(runs))
            gone = await session.delete() or gone
        return gone

    async def _found(self, session_id: str, user_id: str | None) -> tuple[GraphLayout | None, Session, SessionInfo]:
        """A session, or else a conversation with its layout."""
        session = self._memory.session(session_id, user_id=user_id)
        try:
            return None, session, await session.info()
        except SessionNotFound:
            async for layout, memory in self._beside():
                other = memory.session(session_id, user_id=user_id)
                with contextlib.suppress(SessionNotFound):
                    return layout, other, replace(await other.info(), namespace=layout.namespace)
            raise

    async def _beside(self) -> AsyncIterator[tuple[GraphLayout, Memory]]:
        """The memories of conversations, each place once, with their layouts."""
        seen: set[object] = set()
        for store, layout, memory in await self._memory.besides():
            place = (store, replace(layout, chunk_size=1))
            if place not in seen:
                seen.add(place)
                yield layout, memory


def _place(info: SessionInfo) -> _Cursor:
    return info.updated_at, info.session_id
