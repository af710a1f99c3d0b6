"""The section `facts` of a model call's context: facts about the session, the workspace and the user of the run."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import NamedTuple

from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import ensure_config

from threadkeep.agent.extras import Extra, ExtraRequest, JoinedSource, block_of
from threadkeep.agent.knowledge_tools import OwnScopes, RunScopes
from threadkeep.agent.recalled_turns import embedder_of
from threadkeep.agent.turn_options import IdOf
from threadkeep.context.manifest import FactExclusion, FactReference, FactsLeftOut, TurnReference
from threadkeep.context.quotation import (
    fact_line,
    facts_text,
    fitting_facts,
    fitting_lines,
    graph_line,
    in_stable_order,
)
from threadkeep.context.tokens import TokenCounter
from threadkeep.history import memory as history
from threadkeep.history.session import Session
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.graphiti.recall import GraphRecall, RecallQuestion
from threadkeep.knowledge.promotion import accepted_directives
from threadkeep.knowledge.recall import normalised, without_shadowed
from threadkeep.memory import Memory, SyncMemory
from threadkeep.memory.on_loop import OnLoop
from threadkeep.observe import ExtraNotFound, ExtraSection
from threadkeep.records.knowledge import SCOPE_KINDS, Fact, Scope, ScopeKind
from threadkeep.store.driver import Statement

_TIMEOUT_SECONDS = 3.0
_MOST_FACTS = 60
_MOST_SELECTIONS = 1_000
_MOST_NAMED = 20
# Send the facts chosen last time again if they include this many of the best facts for the new input.
_DECISIVE = 3

UNOWNED_LINE = (
    "Note of the system: the newest message asks to remember something of the {scope}, and this run has no {scope}. It "
    "was not remembered; tell the person so."
)
REFUSED_LINE = (
    "Note of the system: the newest message asks to remember something that looks like a secret, such as a password or "
    "a key, or that is too long, or more than 100 things. It was not remembered; tell the person so, and do not repeat "
    "it."
)


class _Selection(NamedTuple):
    """A cached choice of the facts to send, and its inputs: all known facts (`of`), `room` and `counter`."""

    ids: frozenset[str]
    facts: list[Fact]
    of: Mapping[str, Fact]
    room: int
    counter: TokenCounter | None


class KnownFacts(JoinedSource):
    """A prompt section with facts about the run's session, workspace and user (all, or the most relevant of many).

    All are sent if they are fewer than 60 and fit. The text changes as little as possible between turns, so that the
    provider can reuse its prompt cache: facts keep their order, and a selection is reused if it has the three best
    facts for the new input. Facts from Graphiti follow if the memory's options enable its recall.
    """

    section: ExtraSection = "facts"

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        scopes: Sequence[ScopeKind] = SCOPE_KINDS,
        workspace: str | IdOf | None = None,
        own: bool = True,
        directives: bool = False,
        embeddings: Embeddings | None = None,
        embeddings_name: str | None = None,
    ) -> None:
        """See `knowledge_tools` for the other arguments. If `own` is False, only facts from Graphiti are sent.

        With `directives`, the section says if a request to remember was refused, so that the model tells the person.

        Raises:
            InvalidInput: a scope is unknown, or none is given.
        """
        self._memory = OnLoop(memory, lambda opened: opened)
        opened = self._memory.made[0]
        self._scopes = RunScopes(opened, scopes, workspace=workspace)
        self._own = own
        self._directives = frozenset(scopes) if directives else frozenset()
        self._embedder = embedder_of(embeddings, embeddings_name)
        self._selections: OrderedDict[tuple[Scope, ...], _Selection] = OrderedDict()

    def joined(self, memory: history.Memory, session: Session) -> tuple[OwnScopes, list[Statement]] | None:
        """Return the scopes of the run and SQL that reads their facts; None if the facts are in another database."""
        opened = self._memory.made[0]
        if not self._own or memory.identity != opened.identity:
            return None
        scopes = self._scopes.of(session, ensure_config())
        return scopes, opened.knowledge.valid_statements([*scopes.usable.values()], _MOST_FACTS)

    async def find(self, request: ExtraRequest, room: int) -> Extra | None:
        """Return a message with the facts that fit into `room` tokens, or None. Report scopes with an invalid id."""
        read = request.reads.get(self)
        known: OwnScopes = read[0] if read else self._scopes.of(request.session, ensure_config())
        for error in known.refused.values():
            self._memory.made[0].observers.notify(
                ExtraNotFound(section="facts", error=type(error).__name__, session_id=request.session.session_id)
            )
        return await self._memory.call(lambda memory: self._find(memory, known.usable, request, room))

    async def _find(
        self, memory: Memory, scopes: Mapping[ScopeKind, Scope], request: ExtraRequest, room: int
    ) -> Extra | None:
        notes = _notes(request.text, self._directives - scopes.keys()) if self._directives else ()
        room -= sum(request.counter(f"{note}\n") for note in notes)
        recalls = memory.graphiti.recalls
        session = request.session
        question = RecallQuestion(request.text, scopes, request.last_messages, session.session_id, session.workspace)
        graph = asyncio.ensure_future(memory.graphiti.recall(question)) if recalls else None
        try:
            kept = await self._known(memory.knowledge, tuple(scopes.values()), request, room) if self._own else []
            recalled = GraphRecall() if graph is None else await graph
        finally:
            if graph is not None:
                graph.cancel()
        return _block(kept, recalled, request, room, notes)

    async def _known(
        self, knowledge: Knowledge, scopes: tuple[Scope, ...], request: ExtraRequest, room: int
    ) -> list[Fact]:
        """Return the stored facts that fit, in the same order each time. Add the others to `request.facts_left_out`."""
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            if read := request.reads.get(self):
                loaded = await knowledge.valid_in(read[1], scopes)
            else:
                loaded = await knowledge.valid(scopes, limit=_MOST_FACTS, shadowed=True)
            kept = await self._fitting(knowledge, scopes, without_shadowed(loaded), request, room)
        request.facts_left_out[:] = _left_out(loaded, kept)
        return kept

    async def _fitting(
        self, knowledge: Knowledge, scopes: tuple[Scope, ...], known: list[Fact], request: ExtraRequest, room: int
    ) -> list[Fact]:
        """Return the facts in the same order each time: all or, if they do not fit, the most relevant to the input."""
        everything, is_all = in_stable_order(known), len(known) < _MOST_FACTS
        if is_all and request.counter(facts_text([fact_line(fact) for fact in everything])) <= room:
            return everything
        find = partial(knowledge.rank, facts=known) if is_all else partial(knowledge.recall, scopes=scopes)
        found = await find(request.text, recent=request.recent, limit=_MOST_FACTS, embedder=self._embedder)
        return self._choose(scopes, found, known, request, room)

    def _choose(
        self,
        scopes: tuple[Scope, ...],
        found: Sequence[Fact],
        known: Sequence[Fact],
        request: ExtraRequest,
        room: int,
    ) -> list[Fact]:
        """Return the facts that fit. Prefer the facts chosen last time if they include the best ones for this input."""
        before = self._selections.get(scopes, _Selection(frozenset(), [], {}, 0, None))
        everything = {fact.id: fact for fact in [*found, *known]}
        ranked = list(everything.values())
        if {fact.id for fact in found[:_DECISIVE]} <= before.ids:
            if before.of == everything and before.room == room and before.counter == request.counter:
                return before.facts
            ranked.sort(key=lambda fact: fact.id not in before.ids)
        kept = in_stable_order(fitting_facts(ranked, room, request.counter))
        ids = frozenset(fact.id for fact in kept)
        self._selections[scopes] = _Selection(ids, kept, everything, room, request.counter)
        self._selections.move_to_end(scopes)
        while len(self._selections) > _MOST_SELECTIONS:
            self._selections.popitem(last=False)
        return kept


def _left_out(loaded: Sequence[Fact], kept: Sequence[Fact]) -> list[FactsLeftOut]:
    """Return the number and the first ids of the facts that were not sent, for each scope and reason."""
    if len(kept) == len(loaded) < _MOST_FACTS:
        return []
    shown, visible = {fact.id for fact in kept}, {fact.id for fact in without_shadowed(loaded)}
    found: list[FactsLeftOut] = []
    for kind in SCOPE_KINDS:
        of_scope = [fact.id for fact in loaded if fact.scope.kind == kind]
        no_room = [one for one in of_scope if one in visible - shown]
        hidden = [one for one in of_scope if one not in visible]
        reasons: tuple[tuple[FactExclusion, list[str]], ...] = (("no_room", no_room), ("same_key", hidden))
        found += [FactsLeftOut(kind, why, len(ids), tuple(ids[:_MOST_NAMED])) for why, ids in reasons if ids]
        if len(of_scope) >= _MOST_FACTS:
            found.append(FactsLeftOut(kind, "over_limit"))
    return found


def _notes(text: str, missing: Collection[ScopeKind]) -> tuple[str, ...]:
    """Return lines that tell the model which requests to remember (directives) in `text` were not fulfilled."""
    accepted, refused = accepted_directives(text)
    unowned = sorted({one.scope for one in accepted if one.scope in missing})
    return (*([REFUSED_LINE] if refused else []), *(UNOWNED_LINE.format(scope=scope) for scope in unowned))


def _block(
    facts: Sequence[Fact], recalled: GraphRecall, request: ExtraRequest, room: int, notes: Sequence[str] = ()
) -> Extra | None:
    """Return a message with the facts, the Graphiti facts that also fit into `room` tokens, and the notes."""
    lines = [fact_line(fact) for fact in facts]
    known = {normalised(fact.text) for fact in facts} if recalled.facts else set()
    fresh = [(rank, fact) for rank, fact in enumerate(recalled.facts, start=1) if normalised(fact.text) not in known]
    all_lines = [*lines, *(graph_line(fact.text, fact.scope, fact.since) for _, fact in fresh)]
    indexes = fitting_lines(all_lines, room, request.counter) if fresh else []
    fitting = [index for index in indexes if index >= len(lines)]
    shown = [fresh[index - len(lines)] for index in fitting]
    request.graph.clear()
    for report in recalled.scopes:
        count = sum(fact.scope == report.scope for _, fact in shown)
        request.graph.append(replace(report, shown=count, no_room=report.shown - count))
    if not facts and not shown and not notes:
        return None
    text = facts_text([*lines, *(all_lines[index] for index in fitting), *notes])
    references = [reference_of(fact, request.session.session_id) for fact in facts]
    for rank, fact in shown:
        since = None if fact.since is None else fact.since.astimezone(UTC).date()
        references.append(FactReference(fact.id, fact.scope, source="graphiti", since=since, rank=rank))
    return block_of("facts", text, request.counter, facts=tuple(references))


def reference_of(fact: Fact, session_id: str) -> FactReference:
    """Return a reference to a fact, without its text, for the record of a model call (manifest) in a session.

    A workspace is shared, so the reference to its fact has no evidence from other sessions: their ids may name persons.
    """
    asked = [
        TurnReference(origin.session_id, origin.seq)
        for origin in fact.evidence
        if origin.session_id and origin.seq and (fact.scope.kind != "workspace" or origin.session_id == session_id)
    ]
    return FactReference(fact.id, fact.scope.kind, since=fact.valid_from.astimezone(UTC).date(), evidence=tuple(asked))
