"""All sessions of a memory, together with the conversations that agents store in a LangGraph store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, zip_longest

from threadkeep.context.manifest import ContextManifest, ConversationLocation
from threadkeep.errors import InvalidInput, SessionDamaged, SessionNotFound
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.graph_conversations import location_in, order_name
from threadkeep.history.keys import check_session_id
from threadkeep.history.manifests import Manifests
from threadkeep.history.memory import Memory
from threadkeep.history.retention import PlannedRemoval, Pruned, Pruner
from threadkeep.history.session import LONGEST_PAGE, Session
from threadkeep.records import Retention, SearchResult, SessionInfo
from threadkeep.store.manifests import Cursor, StoredManifest
from threadkeep.store.transcripts import Cursor as SessionCursor
from threadkeep.store.transcripts import SessionQuery


async def runs_in(
    session: Session, *, page_size: int = LONGEST_PAGE, since: datetime | None = None
) -> AsyncIterator[list[str]]:
    """Yield the ids of the runs that stored messages in a session, one list per page; newest first, each id once.

    Pages grow from `page_size` messages up to `LONGEST_PAGE`. Reading stops after a page with a message older than
    `since`. If the session is a branch, copied messages are skipped, because their runs belong to the parent session.
    """
    try:
        info = await session.info()
    except SessionNotFound:
        return
    begun = info.created_at if info.parent_session_id is not None else None
    seen: set[str] = set()
    before: int | None = None
    while True:
        page = await session.page(before, min(page_size, LONGEST_PAGE), view="history")
        newest_first = [
            message.run_id
            for message in reversed(page.messages)
            if message.run_id is not None and not (begun and message.created_at and message.created_at < begun)
        ]
        if found := [run_id for run_id in dict.fromkeys(newest_first) if run_id not in seen]:
            seen.update(found)
            yield found
        oldest = page.messages[0].created_at if page.messages else None
        if page.next_before is None or (since is not None and oldest is not None and oldest < since):
            return
        before, page_size = page.next_before, page_size * 2


async def calls_in(
    session: Session,
    conversation: ConversationLocation,
    manifests: Manifests,
    *,
    limit: int,
    before: Cursor | None = None,
) -> list[StoredManifest]:
    """Return up to `limit` records of a conversation's model calls, sorted by run, newest first.

    `before` is the `cursor` of the last record on the previous page, if there is one. The result begins after it.
    """
    if limit < 1:
        raise InvalidInput("A page of manifests has at least one entry; use a limit from 1.")
    found: list[StoredManifest] = []
    last_run = None if before is None else before[1]
    async for runs in runs_in(session, page_size=2 * limit, since=manifests.kept_since()):
        if last_run is not None and last_run not in runs:
            continue
        wanted = runs if last_run is None else runs[runs.index(last_run) :]
        last_run = None
        rank = {run_id: number for number, run_id in enumerate(wanted)}
        calls = [call for call in await manifests.of_runs(wanted) if _was_made_in(call, conversation)]
        calls.sort(key=lambda call: call.cursor, reverse=True)
        calls.sort(key=lambda call: rank[call.run_id])
        if before is not None:
            calls = [call for call in calls if call.run_id != before[1] or call.cursor < before]
        found += calls
        if len(found) >= limit:
            break
    return found[:limit]


def _was_made_in(call: StoredManifest, conversation: ConversationLocation) -> bool:
    """Return True if a record says that its model call was made in a conversation, or if the record is damaged."""
    stored = call.manifest.get("conversation")
    if not isinstance(stored, dict) or stored.get("key") != conversation.key:
        return False
    try:
        return ContextManifest.from_dict(call.manifest).conversation == conversation
    except ValueError:
        return True  # list a damaged record too, so that the reader can report it


class AllSessions:
    """The sessions of a memory and the conversations of its agents, as one list for user interfaces.

    If a session and a conversation have the same id, reads return the session. `erase` deletes both, because an id
    belongs to one person.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def page(self, query: SessionQuery) -> tuple[list[SessionInfo], SessionCursor | None]:
        """Return a page of sessions and conversations, newest activity first, and the cursor of the next page.

        Each call reads the metadata of all conversations, because a LangGraph store has no index for this order.
        """
        if query.limit < 1:
            raise InvalidInput("A page of sessions has at least one entry; use a limit from 1.")
        found, more = await self._memory.sessions_page(query)
        async for layout, memory in self._namespaces():
            infos, further = await memory.sessions_page(query)
            found += [replace(info, namespace=layout.namespace) for info in infos]
            more = more or further
        found.sort(key=_cursor_of, reverse=True)
        cut = query.limit
        # Entries with the same id and time have the same cursor, so they must be on one page.
        while 0 < cut < len(found) and _cursor_of(found[cut]) == _cursor_of(found[cut - 1]):
            cut += 1
        if len(found) <= cut and more is None:
            return found, None
        return found[:cut], _cursor_of(found[:cut][-1])

    async def locations(self) -> list[tuple[GraphLayout | None, Memory]]:
        """Return pairs of layout and memory: None and the main memory, then each layout of agents' conversations."""
        return [(None, self._memory), *[one async for one in self._namespaces()]]

    async def memory_of(self, layout: GraphLayout | None) -> Memory:
        """Return the memory of agents' conversations with this layout; for None, the main memory of sessions."""
        if layout is None:
            return self._memory
        store = await self._memory.graph_store()
        if self._memory.has_namespace(store, layout):
            return self._memory
        return await self._memory.namespace(layout, store)

    async def search(self, query: str, *, user_id: str | None = None, limit: int = 10) -> SearchResult:
        """Return up to `limit` messages that contain all words of a query.

        Results from the sessions and from each layout of agents' conversations alternate, because scores of different
        stores are not comparable.
        """
        own = await self._memory.search_result(query, user_id=user_id, limit=limit)
        found, damaged = [own.hits], [*own.damaged]
        async for _, memory in self._namespaces():
            result = await memory.search_result(query, user_id=user_id, limit=limit)
            found.append(result.hits)
            damaged += result.damaged
        hits = [hit for hit in chain.from_iterable(zip_longest(*found)) if hit is not None]
        return SearchResult(hits[:limit], own.unindexed, tuple(dict.fromkeys(damaged)))

    async def damaged(self, user_id: str | None = None) -> list[SessionDamaged]:
        """Return the unreadable items in LangGraph stores that this process has found, of one user or of all users."""
        found = self._memory.damaged(user_id)
        async for _, memory in self._namespaces():
            found += memory.damaged(user_id)
        return found

    async def find(self, session_id: str, *, user_id: str | None = None) -> tuple[Session, SessionInfo]:
        """Return the session or else the conversation with this id, and its metadata.

        Raises:
            SessionNotFound: the session does not exist, or belongs to another user.
        """
        _, session, info = await self._found(session_id, user_id)
        return session, info

    async def calls(
        self, session_id: str, *, user_id: str | None = None, limit: int = 50, before: Cursor | None = None
    ) -> list[StoredManifest]:
        """Return up to `limit` records of a session's model calls, newest first, beginning after the cursor `before`.

        The records of a conversation are sorted by run; the run with the newest message comes first.

        Raises:
            SessionNotFound: the session does not exist, or belongs to another user.
        """
        layout, session, _ = await self._found(session_id, user_id)
        manifests = self._memory.manifests
        if layout is None:
            return await manifests.of_session(session_id, user_id=user_id, limit=limit, before=before)
        return await calls_in(session, location_in(layout, session_id), manifests, limit=limit, before=before)

    async def erase(self, session_id: str, *, user_id: str | None = None) -> bool:
        """Delete the session and all conversations with this id; return False if there are none.

        This also deletes the session's runs, and runs without a session that stored messages in these conversations.
        """
        deleted = await self._memory.session(session_id, user_id=user_id).delete()
        if deleted:
            await self._memory.runs.positions.forget(session_id)
        return await self.erase_conversations(session_id, user_id=user_id) or deleted

    async def erase_conversations(self, session_id: str, *, user_id: str | None = None) -> bool:
        """Delete the conversations with this id, but not the session; return False if there are none."""
        deleted = False
        for _, layout, memory in await self._memory.namespaces():
            session = memory.session(session_id, user_id=user_id)
            runs: list[str] = []
            with contextlib.suppress(SessionDamaged):  # runs that are not listed are deleted by retention later
                async for some in runs_in(session):
                    runs += some
            await self._memory.runs.records.forget_runs(sorted(runs))
            if await session.delete():
                deleted = True
                await self._memory.runs.positions.forget(order_name(layout, session_id))
        return deleted

    async def where(self, session_id: str, *, user_id: str | None = None) -> GraphLayout | None:
        """Return None if a session has this id, or else the layout of the conversation, even of a damaged one.

        Raises:
            SessionNotFound: neither a session nor a conversation has this id, or it belongs to another user.
        """
        for layout, memory in await self.locations():
            with contextlib.suppress(SessionNotFound):
                with contextlib.suppress(SessionDamaged):
                    await memory.session(session_id, user_id=user_id).info()
                return layout
        raise SessionNotFound(session_id)

    async def _found(self, session_id: str, user_id: str | None) -> tuple[GraphLayout | None, Session, SessionInfo]:
        session = self._memory.session(session_id, user_id=user_id)
        try:
            return None, session, await session.info()
        except SessionNotFound:
            async for layout, memory in self._namespaces():
                other = memory.session(session_id, user_id=user_id)
                with contextlib.suppress(SessionNotFound):
                    return layout, other, replace(await other.info(), namespace=layout.namespace)
            raise

    async def _namespaces(self) -> AsyncIterator[tuple[GraphLayout, Memory]]:
        """Yield each layout of conversations with its memory; layouts that differ only in chunk size count as one."""
        seen: set[object] = set()
        for store, layout, memory in await self._memory.namespaces():
            location = (store, replace(layout, chunk_size=1))
            if location not in seen:
                seen.add(location)
                yield layout, memory


def _cursor_of(info: SessionInfo) -> SessionCursor:
    return info.updated_at, info.session_id


class AllRetention:
    """A service that archives and deletes old data of all sessions and conversations."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def has_work(self) -> bool:
        """Return True if there are retention rules, or if any session has its own limits."""
        return await self._memory.retention.has_work()

    async def plan(
        self, rules: Retention | None = None, *, session_ids: Sequence[str] = (), user_id: str | None = None
    ) -> AsyncIterator[PlannedRemoval]:
        """Yield the messages and sessions that retention would remove now; write nothing.

        Raises:
            SessionNotFound: a named session does not exist, or belongs to another user.
        """
        for pruner, chosen in await self._chosen(session_ids, user_id):
            async for removal in pruner.plan(rules, session_ids=chosen, user_id=user_id):
                yield removal

    async def prune(
        self,
        rules: Retention | None = None,
        *,
        session_ids: Sequence[str] = (),
        user_id: str | None = None,
        report: Callable[[Pruned], object] | None = None,
        may_continue: Callable[[], Awaitable[bool]] | None = None,
    ) -> Pruned:
        """Archive and delete data beyond the retention limits, in sessions and conversations.

        Raises:
            SessionNotFound: a named session does not exist, or belongs to another user; nothing was done.
            StoreError: a database is not available; completed steps stay done.
        """
        done = Pruned()
        for pruner, chosen in await self._chosen(session_ids, user_id):

            def add(here: Pruned, before: Pruned = done) -> None:
                if report is not None:
                    report(before + here)

            done += await pruner.prune(
                rules, session_ids=chosen, user_id=user_id, report=add, may_continue=may_continue
            )
        return done

    async def change(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> None:
        """Set the limits of one session; None removes them.

        Raises:
            SessionNotFound: the session does not exist, or belongs to another user.
            InvalidInput: the session is in a LangGraph store, where sessions cannot have limits of their own.
        """
        for _, memory in await AllSessions(self._memory).locations():
            with contextlib.suppress(SessionNotFound):
                return await memory.retention.change(session_id, retention, user_id=user_id)
        raise SessionNotFound(session_id)

    async def _chosen(self, session_ids: Sequence[str], user_id: str | None) -> list[tuple[Pruner, list[str]]]:
        """Return the pruner of each memory that has some of the sessions, with their ids; without ids, all pruners."""
        wanted = list(dict.fromkeys(session_ids))
        for session_id in wanted:
            check_session_id(session_id)
        chosen: list[tuple[Pruner, list[str]]] = []
        for _, memory in await AllSessions(self._memory).locations():
            listed: list[str] = []
            for session_id in wanted:
                with contextlib.suppress(SessionNotFound):
                    await memory.retention.of(session_id, user_id=user_id)
                    listed.append(session_id)
            if listed or not wanted:
                chosen.append((memory.retention, listed))
        found = {session_id for _, listed in chosen for session_id in listed}
        for session_id in wanted:
            if session_id not in found:
                raise SessionNotFound(session_id)
        return chosen
