"""A memory's transcripts in a graph store, with the rows in its tables that all else hangs on."""

from __future__ import annotations

from collections.abc import Callable, Collection

from threadkeep.errors import StoreError
from threadkeep.observe import Backend
from threadkeep.records import Message, Page, Receipt, SessionInfo, Turn
from threadkeep.store.graph_transcripts.index import SessionIndex
from threadkeep.store.graph_transcripts.items import Locks
from threadkeep.store.graph_transcripts.shapes import conversation_of
from threadkeep.store.graph_transcripts.transcripts import GraphTranscripts
from threadkeep.store.transcripts import END, Recent, SessionChanges, SessionQuery, Transcripts


class IndexedTranscripts:
    """The transcript's contract: conversations are the graph store's, lists of them come from the tables.

    What is stored is stored when the graph store has it. Rows that could not follow it are brought up by `catch_up`,
    and `failed` is told of the session and why. Those of one that is gone go so, with all that hangs on them.
    """

    def __init__(
        self,
        conversations: GraphTranscripts,
        index: SessionIndex,
        listed: Transcripts,
        *,
        failed: Callable[[str, StoreError], object],
    ) -> None:
        self._conversations = conversations
        self._index = index
        self._listed = listed
        self._failed = failed
        self._behind: set[str] = set()
        self._following = Locks[str]()
        self._compared = False

    @property
    def backend(self) -> Backend:
        """Which engine is below, for metrics."""
        return self._conversations.backend

    async def append(self, turn: Turn) -> Receipt:
        """Store a turn."""
        receipt = await self._conversations.append(turn)
        await self._follow(turn.session_id)
        return receipt

    async def newest(self, session_id: str, *, limit: int, before: int = END, user_id: str | None = None) -> Page:
        """The newest messages before a `seq`, oldest first."""
        return await self._conversations.newest(session_id, limit=limit, before=before, user_id=user_id)

    async def recent(
        self, session_id: str, *, limit: int, before: int = END, after: int = 0, user_id: str | None = None
    ) -> Recent:
        """The raw material of a window."""
        return await self._conversations.recent(session_id, limit=limit, before=before, after=after, user_id=user_id)

    async def find(self, session_id: str, message_id: str) -> Message | None:
        """The message with an id."""
        return await self._conversations.find(session_id, message_id)

    async def at(self, session_id: str, places: Collection[int]) -> list[Message]:
        """The messages with these `seq`, in order; those that are there."""
        return await self._conversations.at(session_id, places)

    async def answer(self, session_id: str, *, after: int, run_id: str) -> Message | None:
        """The newest assistant message of a run that follows a message."""
        return await self._conversations.answer(session_id, after=after, run_id=run_id)

    async def session(self, session_id: str, *, user_id: str | None = None) -> SessionInfo | None:
        """What is known of a session."""
        return await self._conversations.session(session_id, user_id=user_id)

    async def sessions(self, query: SessionQuery) -> list[SessionInfo]:
        """Some sessions, newest activity first."""
        return await self._listed.sessions(query)

    async def change(self, session_id: str, changes: SessionChanges) -> None:
        """Change what is known of a session."""
        await self._conversations.change(session_id, changes)
        await self._follow(session_id)

    async def reset(self, session_id: str, *, user_id: str | None = None) -> int | None:
        """Let later windows start after what is there now."""
        if await self._conversations.session(session_id, user_id=user_id) is None:
            return None
        await self._index.follow(session_id)
        await self._index.hide_summaries(session_id)
        last_seq = await self._conversations.reset(session_id, user_id=user_id)
        await self._follow(session_id)
        return last_seq

    async def delete(self, session_id: str) -> bool:
        """Delete a session, its messages and all that was derived from them."""
        # The rows last: the run that deletes is among them, and goes on with it when its process dies in between.
        there = await self._conversations.delete(session_id)
        # Who asks again may hear that there is no such conversation: what fails from here on is done without them.
        self._behind.add(session_id)
        rows = await self._index.delete(session_id)
        # Somebody may have written to it in between, and its rows been made again.
        await self._index.follow(session_id)
        self._behind.discard(session_id)
        return there or rows

    async def catch_up(self) -> None:
        """Bring up the rows that are behind; the first time those of all sessions are compared.

        Raises:
            StoreError: a database does not answer.
        """
        if not self._compared:
            self._behind |= await self._differing()
            self._compared = True
        failure: StoreError | None = None
        for session_id in list(self._behind):
            try:
                await self._index.follow(session_id)
            except StoreError as error:
                failure = error
            else:
                self._behind.discard(session_id)
        if failure is not None:
            raise failure

    async def _differing(self) -> set[str]:
        """Sessions whose rows are not as their conversations are."""
        versions = {session_id: version async for session_id, version in self._index.versions()}
        differing = set(versions)
        async for value in self._conversations.all():
            conversation = conversation_of(value)
            if versions.get(conversation.session_id) == conversation.version:
                differing.discard(conversation.session_id)
            else:
                differing.add(conversation.session_id)
        return differing

    async def _follow(self, session_id: str) -> None:
        """Let the rows of a session follow; what was written is written, whatever becomes of them."""
        self._behind.add(session_id)
        try:
            async with self._following.of(session_id):
                await self._index.follow(session_id)
        except StoreError as error:
            self._failed(session_id, error)
        else:
            self._behind.discard(session_id)
