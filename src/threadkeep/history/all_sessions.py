"""All sessions: those of a memory, and the conversations that agents keep in a graph store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from itertools import chain, zip_longest

from threadkeep.errors import InvalidInput, SessionDamaged, SessionNotFound
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.conversation_calls import calls_in, runs_in
from threadkeep.history.graph_conversations import order_name, place_in
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import SearchResult, SessionInfo
from threadkeep.store.manifests import Cursor, StoredManifest
from threadkeep.store.transcripts import SessionQuery

type _Cursor = tuple[datetime, str]


class AllSessions:
    """The sessions of a memory and the conversations of its agents, as one list for the interfaces.

    If a session and a conversation have the same id, reads return the session. An erasure deletes everything with the
    id, because an id belongs to one person.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def page(self, query: SessionQuery) -> tuple[list[SessionInfo], _Cursor | None]:
        """Return one page, newest activity first, and the cursor of the next page (None at the end).

        It reads the metadata of all conversations; sessions have an index.
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
        # A cursor cannot separate two entries with the same id and time, so they stay on one page.
        while 0 < cut < len(found) and _place(found[cut]) == _place(found[cut - 1]):
            cut += 1
        if len(found) <= cut and more is None:
            return found, None
        return found[:cut], _place(found[:cut][-1])

    async def places(self) -> list[tuple[GraphLayout | None, Memory]]:
        """Return every location of sessions: the memory's own first, then the conversations with their layouts."""
        return [(None, self._memory), *[place async for place in self._beside()]]

    async def keeper(self, layout: GraphLayout | None) -> Memory:
        """Return the memory of the sessions, or of a layout's conversations in the graph store, which it registers."""
        if layout is None:
            return self._memory
        store = await self._memory.graph_store()
        return self._memory if self._memory.keeps(store, layout) else await self._memory.beside(layout, store)

    async def search(self, query: str, *, user_id: str | None = None, limit: int = 10) -> SearchResult:
        """Return messages that contain all words of a query; results alternate between the locations.

        Scores of different locations cannot be compared.
        """
        own = await self._memory.search_result(query, user_id=user_id, limit=limit)
        found, damaged = [own.hits], [*own.damaged]
        async for _, memory in self._beside():
            result = await memory.search_result(query, user_id=user_id, limit=limit)
            found.append(result.hits)
            damaged += result.damaged
        hits = [hit for hit in chain.from_iterable(zip_longest(*found)) if hit is not None]
        return SearchResult(hits[:limit], own.unindexed, tuple(dict.fromkeys(damaged)))

    async def damaged(self, user_id: str | None = None) -> list[SessionDamaged]:
        """Return the damaged items that this process has found in all locations, of one user or of all."""
        found = self._memory.damaged(user_id)
        async for _, memory in self._beside():
            found += memory.damaged(user_id)
        return found

    async def find(self, session_id: str, *, user_id: str | None = None) -> tuple[Session, SessionInfo]:
        """Return the session with an id, and its info.

        Raises:
            SessionNotFound: there is none, or not for this user.
        """
        _, session, info = await self._found(session_id, user_id)
        return session, info

    async def calls(
        self, session_id: str, *, user_id: str | None = None, limit: int = 50, before: Cursor | None = None
    ) -> list[StoredManifest]:
        """Return the records of a session's model calls, the newest first; `before` is a `cursor`.

        For a conversation, the calls of the run that spoke last come first, because records are stored with runs.

        Raises:
            SessionNotFound: there is none, or not for this user.
        """
        layout, session, _ = await self._found(session_id, user_id)
        manifests = self._memory.manifests
        if layout is None:
            return await manifests.of_session(session_id, user_id=user_id, limit=limit, before=before)
        return await calls_in(session, place_in(layout, session_id), manifests, limit=limit, before=before)

    async def erase(self, session_id: str, *, user_id: str | None = None) -> bool:
        """Delete everything with an id and everything derived from it; return False if there was nothing.

        The runs of a session are deleted with it. Runs that spoke in a conversation and belong to no session are
        deleted with the conversation.
        """
        gone = await self._memory.session(session_id, user_id=user_id).delete()
        if gone:
            await self._memory.runs.places.forget(session_id)
        return await self.erase_beside(session_id, user_id=user_id) or gone

    async def erase_beside(self, session_id: str, *, user_id: str | None = None) -> bool:
        """Delete only the conversations with an id; the session is deleted separately."""
        gone = False
        for _, layout, memory in await self._memory.besides():
            session = memory.session(session_id, user_id=user_id)
            runs: list[str] = []
            with contextlib.suppress(SessionDamaged):  # its other runs are deleted by their own retention
                async for some in runs_in(session):
                    runs += some
            await self._memory.runs.records.forget_runs(sorted(runs))
            if await session.delete():
                gone = True
                await self._memory.runs.places.forget(order_name(layout, session_id))
        return gone

    async def where(self, session_id: str, *, user_id: str | None = None) -> GraphLayout | None:
        """Return the layout of the location that has a session, damaged or not; None for the memory's own.

        Raises:
            SessionNotFound: there is none, or not for this user.
        """
        for layout, memory in await self.places():
            with contextlib.suppress(SessionNotFound):
                with contextlib.suppress(SessionDamaged):
                    await memory.session(session_id, user_id=user_id).info()
                return layout
        raise SessionNotFound(session_id)

    async def _found(self, session_id: str, user_id: str | None) -> tuple[GraphLayout | None, Session, SessionInfo]:
        """Return a session, or else a conversation with its layout."""
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
        """Yield the memories of conversations with their layouts, each location once."""
        seen: set[object] = set()
        for store, layout, memory in await self._memory.besides():
            place = (store, replace(layout, chunk_size=1))
            if place not in seen:
                seen.add(place)
                yield layout, memory


def _place(info: SessionInfo) -> _Cursor:
    return info.updated_at, info.session_id
