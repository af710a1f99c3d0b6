"""A model call for a page: messages with the summaries, quotes and facts behind them, and the messages left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from threadkeep.agent.context_view import ContextView, Difference, SeenMessage, call_before, look_back
from threadkeep.agent.explanations import in_words, join_ranges
from threadkeep.context.manifest import ContextManifest, Exclusion, FactReference, TurnReference
from threadkeep.errors import KnowledgeNotFound
from threadkeep.history.session import Session
from threadkeep.memory import Memory
from threadkeep.records import Message, Summary
from threadkeep.records.knowledge import Fact
from threadkeep.store.manifests import StoredManifest

_SHOWN_OF_RANGE = 20


@dataclass(frozen=True)
class Quote:
    """A message that is quoted, or the evidence of a fact; None if it does not exist any more."""

    reference: TurnReference
    message: Message | None


@dataclass(frozen=True)
class Unfolded:
    """A summary with the last messages of its range."""

    summary: Summary
    messages: Sequence[Message]


@dataclass(frozen=True)
class QuotedFact:
    """A fact of a context with its evidence; the fact is None if it was forgotten, or is Graphiti's."""

    reference: FactReference
    fact: Fact | None
    evidence: Sequence[Quote]


@dataclass(frozen=True)
class CallMessage:
    """A sent message, with its origin."""

    seen: SeenMessage
    summaries: Sequence[Unfolded]
    quotes: Sequence[Quote]
    facts: Sequence[QuotedFact]


@dataclass(frozen=True)
class Gap:
    """A range that was left out: the reason in words, and its last messages."""

    exclusion: Exclusion
    why: str
    messages: Sequence[Message]


@dataclass(frozen=True)
class CallView:
    """A model call with all that its page shows. `difference` is to the call before, if that is on record."""

    view: ContextView
    messages: Sequence[CallMessage]
    gaps: Sequence[Gap]
    difference: Difference | None

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The sections with their tokens, and the free tokens."""
        return [*((str(name), tokens) for name, tokens, _ in self.view.sections), ("free", self.view.free)]


class CallReader:
    """A reader of one call and everything that it refers to, as far as a user may see it."""

    def __init__(self, memory: Memory, user_id: str | None) -> None:
        self._memory = memory
        self._user_id = user_id

    async def read(self, stored: StoredManifest) -> CallView:
        """Return a recorded call."""
        view = await look_back(self._memory, stored)
        transcript = await self._transcript(view.manifest)
        messages = [await self._message(seen, view.manifest) for seen in view.messages]
        gaps = [await self._gap(one, view.manifest, transcript) for one in join_ranges(view.manifest.excluded)]
        before = await call_before(self._memory, stored, user_id=self._user_id)
        difference = None if before is None else Difference.between(await look_back(self._memory, before), view)
        return CallView(view, messages, gaps, difference)

    async def _transcript(self, manifest: ContextManifest) -> Session | None:
        """Return the session that the positions of a manifest refer to."""
        if (conversation := manifest.conversation) is not None:
            return (await self._memory.memory_of(conversation)).session(conversation.key, user_id=self._user_id)
        return self._session(manifest.session_id) if manifest.session_id else None

    def _session(self, session_id: str) -> Session:
        return self._memory.session(session_id, user_id=self._user_id)

    async def _message(self, seen: SeenMessage, manifest: ContextManifest) -> CallMessage:
        entry = seen.entry
        facts = [QuotedFact(one, await self._fact(one), await self._quotes(one.evidence)) for one in entry.facts]
        summaries = await self._unfolded(entry.summaries, manifest)
        return CallMessage(seen, summaries, await self._quotes(entry.turns), facts)

    async def _gap(self, gap: Exclusion, manifest: ContextManifest, transcript: Session | None) -> Gap:
        messages = await _last_of(transcript, gap.first_seq, gap.last_seq) if transcript is not None else []
        return Gap(gap, in_words(gap.reason, manifest), messages)

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
        try:
            return await self._memory.knowledge.fact(reference.id, user_id=self._user_id)
        except KnowledgeNotFound:
            return None


async def _last_of(session: Session, first_seq: int, last_seq: int) -> list[Message]:
    return await session.at(range(max(first_seq, last_seq - _SHOWN_OF_RANGE + 1), last_seq + 1))
