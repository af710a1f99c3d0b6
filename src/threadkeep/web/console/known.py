"""The page "Should it have known?": a search that shows for each message whether the model received it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from threadkeep.agent.context_view import recorded
from threadkeep.agent.explanations import CallRecord, Fate, fate_of
from threadkeep.errors import SessionNotFound
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.session import Session
from threadkeep.memory import Memory
from threadkeep.records import Message, SessionInfo
from threadkeep.store.codec import clean_text
from threadkeep.store.manifests import StoredManifest
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.console.forms import SeenAs
from threadkeep.web.console.rendering import ConsoleRoute, page

_HITS = 40
_HIDDEN_LOOKED_AT = 2_000
_PAGE = 500

router = APIRouter(prefix="/console", route_class=ConsoleRoute, include_in_schema=False)


@dataclass(frozen=True)
class Found:
    """A message that contains the words, with its fate in a call. `fate` is None if no call is recorded."""

    session: SessionInfo
    message: Message
    call: CallRecord | None
    fate: Fate | None


@router.get("/known")
async def should_it_have_known(
    *,
    request: Request,
    app: AppInUse,
    user: SeenAs = None,
    q: Annotated[str | None, Query(max_length=1000)] = None,
    session: Annotated[str | None, Query(max_length=256)] = None,
    run: Annotated[str | None, Query(max_length=512)] = None,
    call: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """Search messages, and show for each message whether a model call received it.

    This is the requested call, or the newest call of the requested session, or else the newest call of the message's
    own session.
    """
    words = clean_text(q.strip()) if q else ""
    search = _Search(app.memory, user, run=run or None, number=call)
    chosen = await search.session(session) if session else None
    found = [one async for one in search.find(words, chosen)] if words else []
    return page(
        request,
        "known.html",
        q=words,
        user=user or "",
        session=session or "",
        run=run or "",
        number=call or "",
        found=found,
        chosen=chosen,
        compared=await search.call_of(chosen) if chosen else None,
        more=len(found) >= _HITS,
    )


class _Search:
    def __init__(self, memory: Memory, user_id: str | None, *, run: str | None, number: int | None) -> None:
        self._memory = memory
        self._all = AllSessions(memory)
        self._user_id = user_id
        self._run = run
        self._number = number
        self._sessions: dict[str, SessionInfo | None] = {}
        self._calls: dict[str, CallRecord | None] = {}

    async def session(self, session_id: str) -> SessionInfo:
        """Return a session; raise SessionNotFound if this user has no such session."""
        return (await self._all.find(session_id, user_id=self._user_id))[1]

    async def find(self, words: str, chosen: SessionInfo | None) -> AsyncIterator[Found]:
        """Yield the messages with all words. Superseded and archived messages of the chosen session come last."""
        seen: set[tuple[str, int | None]] = set()
        for hit in (await self._all.search(words, user_id=self._user_id, limit=_HITS)).hits:
            home = await self._known(hit.session_id)
            if home is not None:
                seen.add((hit.session_id, hit.message.seq))
                yield await self._found(home, hit.message, chosen)
        if chosen is not None:
            session, _ = await self._all.find(chosen.session_id, user_id=self._user_id)
            async for message in _hidden(session, words):
                if (chosen.session_id, message.seq) not in seen:
                    yield await self._found(chosen, message, chosen)

    async def call_of(self, info: SessionInfo) -> CallRecord | None:
        """Return the requested call, or the newest call of a session."""
        if info.session_id not in self._calls:
            stored = await self._stored(info)
            self._calls[info.session_id] = None if stored is None else await self._record(stored, info)
        return self._calls[info.session_id]

    async def _known(self, session_id: str) -> SessionInfo | None:
        if session_id not in self._sessions:
            try:
                self._sessions[session_id] = await self.session(session_id)
            except SessionNotFound:  # deleted since the search
                self._sessions[session_id] = None
        return self._sessions[session_id]

    async def _found(self, home: SessionInfo, message: Message, chosen: SessionInfo | None) -> Found:
        call = await self.call_of(chosen or home)
        return Found(home, message, call, None if call is None else fate_of(message, home, call))

    async def _stored(self, info: SessionInfo) -> StoredManifest | None:
        if self._run is None:
            newest = await self._all.calls(info.session_id, user_id=self._user_id, limit=1)
            return newest[0] if newest else None
        of_run = await self._memory.manifests.of_run(self._run, user_id=self._user_id)
        return next((one for one in of_run if self._number in (None, one.call)), None)

    async def _record(self, stored: StoredManifest, info: SessionInfo) -> CallRecord:
        summaries = await self._memory.summaries.all_of(info.session_id, user_id=self._user_id)
        return CallRecord(recorded(stored), info, {one.id: one for one in summaries})


async def _hidden(session: Session, words: str) -> AsyncIterator[Message]:
    """Yield the superseded and archived messages with all words, newest first. The search does not find them."""
    archived, wanted = (await session.info()).archived_seq, words.casefold().split()
    before: int | None = None
    for _ in range(_HIDDEN_LOOKED_AT // _PAGE):
        shown = await session.page(before, _PAGE, view="history")
        for message in reversed(shown.messages):
            if message.superseded_at is None and (message.seq or 0) > archived:
                continue
            text = message.content.casefold()
            if all(word in text for word in wanted):
                yield message
        before = shown.next_before
        if before is None:
            return
