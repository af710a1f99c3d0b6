"""Pages of model calls: a list with a chart, one call, and a search for a message.

The search "Should it have known?" shows for each message whether the model received it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from threadkeep.agent.context_view import ContextView, Difference, SeenMessage, call_before, recorded_view
from threadkeep.agent.explanations import CallRecord, MessageOutcome, in_words, outcome_of
from threadkeep.agent.rebuilding import recorded
from threadkeep.context.manifest import ContextManifest, FactReference, TurnReference
from threadkeep.context.window import Exclusion, join_ranges
from threadkeep.errors import KnowledgeNotFound, SessionNotFound
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.session import Session
from threadkeep.memory import Memory
from threadkeep.records import Message, SessionInfo, Summary
from threadkeep.records.knowledge import Fact
from threadkeep.store.codec import clean_text
from threadkeep.store.manifests import StoredManifest
from threadkeep.web.api.parameters import AppInUse, RunId, SessionId, read_call_cursor, write_cursor
from threadkeep.web.console.rendering import Column, ConsoleRoute, SeenAs, page, run_address
from threadkeep.web.problems import ProblemRaised, make_problem

_SHOWN_OF_RANGE = 20


@dataclass(frozen=True)
class Quote:
    """A reference to a message that was quoted, or that is evidence of a fact. `message` is None if it was deleted."""

    reference: TurnReference
    message: Message | None


@dataclass(frozen=True)
class Unfolded:
    """A summary of older messages, with up to 20 of the newest messages that it summarizes."""

    summary: Summary
    messages: Sequence[Message]


@dataclass(frozen=True)
class QuotedFact:
    """A fact that the model received, with the messages that are its evidence."""

    reference: FactReference
    fact: Fact | None
    evidence: Sequence[Quote]


@dataclass(frozen=True)
class CallMessage:
    """A message that the model received, with the summaries, quotations and facts that it contains."""

    seen: SeenMessage
    summaries: Sequence[Unfolded]
    quotes: Sequence[Quote]
    facts: Sequence[QuotedFact]


@dataclass(frozen=True)
class Gap:
    """A range of messages that the model did not receive, with the reason."""

    exclusion: Exclusion
    why: str
    messages: Sequence[Message]


@dataclass(frozen=True)
class CallView:
    """The data that the page of a model call shows. `difference` compares it with the previous recorded call."""

    view: ContextView
    messages: Sequence[CallMessage]
    gaps: Sequence[Gap]
    difference: Difference | None

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The names and tokens of the context's sections, in order; the last one is `free`, the unused tokens."""
        order = [message.seen.entry.section for message in self.messages]
        sections = sorted(self.view.sections, key=lambda one: order.index(one[0]) if one[0] in order else -1)
        return [*((str(name), tokens) for name, tokens, _ in sections), ("free", self.view.free)]

    @property
    def question(self) -> str | None:
        """The text of the call's input message, or None if the call has none."""
        return next((one.seen.text for one in self.messages if one.seen.entry.section == "input"), None)


class CallReader:
    """A reader of recorded model calls with their messages and facts: only a user's, or all if `user_id` is None."""

    def __init__(self, memory: Memory, user_id: str | None) -> None:
        self._memory = memory
        self._user_id = user_id

    async def read(self, stored: StoredManifest) -> CallView:
        """Return a recorded call with everything that its page shows."""
        view = await recorded_view(self._memory, stored)
        transcript = self._session(view.manifest.session_id) if view.manifest.session_id else None
        if (conversation := view.manifest.conversation) is not None:
            memory = await self._memory.memory_of(conversation)
            transcript = memory.session(conversation.key, user_id=self._user_id)
        messages = [await self._message(seen, view.manifest) for seen in view.messages]
        gaps: list[Gap] = []
        for gap in join_ranges(view.manifest.excluded):
            left_out = await _last_of(transcript, gap.first_seq, gap.last_seq) if transcript is not None else []
            gaps.append(Gap(gap, in_words(gap.reason, view.manifest), left_out))
        before = await call_before(self._memory, stored, user_id=self._user_id)
        difference = None if before is None else Difference.between(await recorded_view(self._memory, before), view)
        return CallView(view, messages, gaps, difference)

    def _session(self, session_id: str) -> Session:
        return self._memory.session(session_id, user_id=self._user_id)

    async def _message(self, seen: SeenMessage, manifest: ContextManifest) -> CallMessage:
        entry = seen.entry
        facts = [QuotedFact(one, await self._fact(one), await self._quotes(one.evidence)) for one in entry.facts]
        summaries = await self._unfolded(entry.summaries, manifest)
        return CallMessage(seen, summaries, await self._quotes(entry.turns), facts)

    async def _unfolded(self, ids: Sequence[str], manifest: ContextManifest) -> list[Unfolded]:
        if not ids or manifest.session_id is None:
            return []
        found = await self._memory.summaries.all_of(manifest.session_id, user_id=self._user_id)
        session = self._session(manifest.session_id)
        return [
            Unfolded(one, await _last_of(session, one.first_seq, one.last_seq)) for one in found if one.id in set(ids)
        ]

    async def _quotes(self, references: Iterable[TurnReference]) -> list[Quote]:
        wanted: dict[str, list[int]] = {}
        for one in references:
            wanted.setdefault(one.session_id, []).append(one.seq)
        quotes: list[Quote] = []
        for session_id, seqs in wanted.items():
            found = {message.seq: message for message in await self._session(session_id).at(seqs)}
            quotes += [Quote(TurnReference(session_id, seq), found.get(seq)) for seq in seqs]
        return quotes

    async def _fact(self, reference: FactReference) -> Fact | None:
        if reference.source != "memory":
            return None
        with suppress(KnowledgeNotFound):
            return await self._memory.knowledge.fact(reference.id, user_id=self._user_id)
        return None


async def _last_of(session: Session, first_seq: int, last_seq: int) -> list[Message]:
    return await session.at(range(max(first_seq, last_seq - _SHOWN_OF_RANGE + 1), last_seq + 1))


_CALLS = 60
_NEWEST = "last"
_NO_CALL = (
    "This model call is not recorded, or it belongs to another user. Records are kept for "
    "THREADKEEP_MANIFEST_RETENTION_DAYS, and are deleted with their session."
)

router = APIRouter(prefix="/console", route_class=ConsoleRoute, include_in_schema=False)


@router.get("/sessions/{session_id}/calls")
async def list_calls(
    request: Request,
    session_id: SessionId,
    app: AppInUse,
    user: SeenAs = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Response:
    """Show a page of 60 model calls of a session, newest first, with their tokens."""
    everything = AllSessions(app.memory)
    _, info = await everything.find(session_id, user_id=user)
    found = await everything.calls(session_id, user_id=user, limit=_CALLS + 1, before=read_call_cursor(cursor))
    shown, more = found[:_CALLS], len(found) > _CALLS
    calls = [recorded(stored) for stored in shown]
    columns: list[Column] = []
    for call in reversed(calls):
        label = f"{call.created_at:%d %b %H:%M} UTC" if call.created_at else f"call {call.call}"
        parts = {str(name): float(tokens) for name, tokens in call.sections.items()}
        columns.append(Column(label, parts, run_address(call.run_id, "calls", str(call.call), user_id=user)))
    following = write_cursor("calls", shown[-1].cursor) if more else None
    return page(request, "calls.html", info=info, user=user or "", calls=calls, columns=columns, next_cursor=following)


@router.get("/runs/{run_id}/calls/{call}")
async def show_call(request: Request, run_id: RunId, call: str, app: AppInUse, user: SeenAs = None) -> Response:
    """Show a model call with the messages that were sent, and why others were excluded."""
    found = {one.call: one for one in await app.memory.manifests.of_run(run_id, user_id=user)}
    number = max(found, default=0) if call == _NEWEST else int(call) if call.isdecimal() and len(call) < 9 else 0
    if number not in found:
        raise ProblemRaised(make_problem(404, "call-not-found", _NO_CALL))
    shown, count = await CallReader(app.memory, user).read(found[number]), len(found)
    factor = await app.memory.learned_factors.of(stored_model) if (stored_model := shown.view.manifest.model) else None
    return page(
        request, "call.html", call=shown, manifest=shown.view.manifest, count=count, factor=factor, user=user or ""
    )


_HITS = 40
_HIDDEN_LOOKED_AT = 2_000
_PAGE = 500


@dataclass(frozen=True)
class Found:
    """A message that a search found. `outcome` says whether the model call `call` received the message."""

    session: SessionInfo
    message: Message
    call: CallRecord | None
    outcome: MessageOutcome | None


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

    Without a `run`, take the newest call of the requested session or, without a `session`, of the message's session.
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
        """Yield messages that contain all words, best first; then superseded and archived ones in `chosen`, if any."""
        seen: set[tuple[str, int | None]] = set()
        for hit in (await self._all.search(words, user_id=self._user_id, limit=_HITS)).hits:
            home = await self._session_or_none(hit.session_id)
            if home is not None:
                seen.add((hit.session_id, hit.message.seq))
                yield await self._compared(home, hit.message, chosen)
        if chosen is not None:
            session, _ = await self._all.find(chosen.session_id, user_id=self._user_id)
            async for message in _hidden(session, words):
                if (chosen.session_id, message.seq) not in seen:
                    yield await self._compared(chosen, message, chosen)

    async def call_of(self, info: SessionInfo) -> CallRecord | None:
        """Return the model call that the user chose or, without a choice, the session's newest call, or None."""
        if info.session_id not in self._calls:
            if self._run is None:
                found = await self._all.calls(info.session_id, user_id=self._user_id, limit=1)
            else:
                of_run = await self._memory.manifests.of_run(self._run, user_id=self._user_id)
                found = [one for one in of_run if self._number in (None, one.call)]
            summaries = await self._memory.summaries.all_of(info.session_id, user_id=self._user_id) if found else ()
            by_id = {one.id: one for one in summaries}
            self._calls[info.session_id] = CallRecord(recorded(found[0]), info, by_id) if found else None
        return self._calls[info.session_id]

    async def _session_or_none(self, session_id: str) -> SessionInfo | None:
        if session_id not in self._sessions:
            self._sessions[session_id] = None
            with suppress(SessionNotFound):  # deleted since the search
                self._sessions[session_id] = await self.session(session_id)
        return self._sessions[session_id]

    async def _compared(self, home: SessionInfo, message: Message, chosen: SessionInfo | None) -> Found:
        call = await self.call_of(chosen or home)
        return Found(home, message, call, None if call is None else outcome_of(message, home, call))


async def _hidden(session: Session, words: str) -> AsyncIterator[Message]:
    """Yield a session's superseded and archived messages that contain all words. The normal search omits them.

    Only the newest 2,000 messages of the session are read.
    """
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
