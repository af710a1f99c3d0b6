"""The nodes `identify_user`, `remember` and `recall`, which read and write facts.

If the memory is unavailable, the run continues, and the node reports the failure as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import ClassVar, Literal

from pydantic import Field

from threadkeep.agent.conversion import id_of, text_of
from threadkeep.agent.invocation import workspace_in
from threadkeep.agent.knowledge_tools import MemoryKind, OwnScopes, default_workspace, scopes_of
from threadkeep.agent.questions import question_before
from threadkeep.context.quotation import quoted_episode, quoted_fact, quoted_procedure
from threadkeep.errors import InvalidInput, SessionNotFound, StoreClosed, StoreError
from threadkeep.history.keys import channel_of
from threadkeep.knowledge.promotion import looks_like_secret
from threadkeep.observe import ExtraNotFound, WriteFailed
from threadkeep.records import Json
from threadkeep.records.knowledge import SCOPE_KINDS, Episode, Evidence, Fact, FactKind, Procedure, Scope, ScopeKind
from threadkeep.workflows.nodes.base import Again, Node, NodeKind, Step, found, rendered
from threadkeep.workflows.state import WorkflowState

type NotRemembered = Literal["nothing_to_remember", "no_owner", "secret", "invalid", "unavailable"]


class KnowledgeNode(Node):
    """The base class of nodes that read or write knowledge, such as facts, which outlives the session."""

    repetition: ClassVar[Again] = "nothing"

    timeout_seconds: float = Field(3.0, gt=0, description="The time limit of the memory in seconds.")


class IdentifyUserNode(KnowledgeNode):
    """A node that finds the person behind the run's user id, and puts known facts into `user_context`.

    In a run without a user, it finds no person, because there is no shared default person.
    """

    node_kind: ClassVar[NodeKind] = "identify_user"

    max_facts: int = Field(20, ge=0, le=200, description="The maximum number of facts, most recently changed first.")
    max_episodes: int = Field(5, ge=0, le=50, description="The maximum number of recent questions and answers.")

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Find the person behind the run's user id. If the memory is unavailable, continue without a person."""
        user_id = step.context.user_id
        known: dict[str, Json] = {"user_id": None, "is_new_user": False, "names": [], "facts": [], "episodes": []}
        if user_id is not None:
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    known |= await self._known(step, user_id)
            except StoreClosed:
                raise
            except (StoreError, TimeoutError, InvalidInput) as error:
                _notify_unread(step, error)
        update = found(step, known, known)
        update["user_context"] = {**(state.get("user_context") or {}), **known}
        return update

    async def _known(self, step: Step, user_id: str) -> dict[str, Json]:
        memory = step.context.resources.memory
        person = await memory.persons.resolve(user_id)
        scope = Scope("user", person.id)
        facts = await memory.knowledge.valid([scope], limit=max(self.max_facts, 1))
        episodes = await memory.episodes.latest(scope, limit=max(self.max_episodes, 1))
        return {
            "user_id": person.id,
            # Do not return `person.new`: the channel or an earlier attempt may have created the person.
            "is_new_user": not facts and not episodes,
            "names": list(person.names),
            "facts": [_fact(fact) for fact in facts[: self.max_facts]],
            "episodes": [_episode(episode) for episode in episodes[: self.max_episodes]],
        }


class RememberNode(KnowledgeNode):
    """A node that stores a fact, with the run's question as its evidence.

    Text that looks like a secret is not stored.
    """

    node_kind: ClassVar[NodeKind] = "remember"
    template_options: ClassVar[tuple[str, ...]] = ("key", "value")

    key: str = Field(min_length=1, description="The key of the fact; a template.")
    value: str = Field(min_length=1, description="The value of the fact; a template. An empty text is not stored.")
    about: ScopeKind = Field("user", description="The scope of the fact: the run's user, workspace or session.")
    fact_kind: FactKind | None = Field(None, description="The fact's kind; by default world_knowledge for a new fact.")
    confidence: float = Field(1.0, ge=0, le=1, description="The confidence, from 0 to 1.")

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Store the fact. If it is not stored, the node's result has the reason."""
        key, value = rendered(self.key, state).strip(), rendered(self.value, state).strip()
        remembered: Fact | None = None
        reason: NotRemembered | None = None
        usable, refused = _scopes_of(step, (self.about,))
        scope = usable.get(self.about)
        if not key or not value:
            reason = "nothing_to_remember"
        elif scope is None:
            reason = "invalid" if refused else "no_owner"
        elif looks_like_secret(f"{key}: {value}"):
            reason = "secret"
        else:
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    remembered = await self._remember(step, state, scope, key, value)
            except StoreClosed:
                raise
            except SessionNotFound:
                reason = "no_owner"
            except InvalidInput:
                reason = "invalid"
            except (StoreError, TimeoutError) as error:
                reason = "unavailable"
                _notify_unwritten(step, error)
        known: dict[str, Json] = {"remembered": remembered is not None, "reason": reason}
        if remembered is not None:
            known |= {"fact_id": remembered.id, "key": remembered.key, "confirmed": remembered.confirmed}
        return found(step, known, known)

    async def _remember(self, step: Step, state: WorkflowState, scope: Scope, key: str, value: str) -> Fact:
        context = step.context
        memory, session_id, seq = context.resources.memory, context.session_id, None
        asked = question_before(list(state.get("messages") or ()))
        if session_id is not None and asked and (message_id := id_of(asked[-1])) is not None:
            with suppress(SessionNotFound):
                stored = await memory.session(session_id, user_id=context.user_id).find(message_id)
                seq = None if stored is None else stored.seq
        evidence = Evidence(session_id, seq, context.run_id)
        return await memory.knowledge.remember(
            scope, key, value, kind=self.fact_kind, confidence=self.confidence, evidence=evidence
        )


class RecallNode(KnowledgeNode):
    """A node that searches for facts, episodes or procedures that are relevant to a question."""

    node_kind: ClassVar[NodeKind] = "recall"
    template_options: ClassVar[tuple[str, ...]] = ("query",)

    query: str | None = Field(None, description="The query, instead of the question; a template.")
    memory: tuple[MemoryKind, ...] = Field(
        ("facts",), min_length=1, max_length=3, description="The kinds of knowledge: facts, episodes, procedures."
    )
    scopes: tuple[ScopeKind, ...] = Field(
        SCOPE_KINDS, min_length=1, max_length=3, description="The scopes: session, workspace, user."
    )
    limit: int = Field(10, ge=1, le=100, description="The maximum number of results of each kind.")

    async def run(self, step: Step, state: WorkflowState) -> WorkflowState:
        """Search the kinds of knowledge that the option `memory` lists; after a failure, return the results so far."""
        query = rendered(self.query, state) if self.query is not None else _question(state)
        usable, refused = _scopes_of(step, self.scopes)
        for unusable in refused.values():
            _notify_unread(step, unusable)
        scopes = list(usable.values())
        memory = step.context.resources.memory
        facts, episodes, procedures = list[Fact](), list[Episode](), list[Procedure]()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                if "facts" in self.memory:
                    facts = await memory.knowledge.recall(query, scopes, limit=self.limit)
                if "episodes" in self.memory:
                    episodes = await memory.episodes.recall(query, scopes, limit=self.limit)
                if "procedures" in self.memory:
                    procedures = await memory.procedures.recall(query, scopes, limit=self.limit)
        except StoreClosed:
            raise
        except (StoreError, TimeoutError) as error:
            _notify_unread(step, error)
        lines = [*map(quoted_fact, facts), *map(quoted_episode, episodes), *map(quoted_procedure, procedures)]
        text = "\n".join(lines)
        known: dict[str, Json] = {
            "facts": [_fact(fact) for fact in facts],
            "episodes": [_episode(episode) for episode in episodes],
            "procedures": [{"name": one.name, "type": one.content_type, "content": one.content} for one in procedures],
            "text": text,
            "count": len(lines),
        }
        return found(step, text, known)


def _scopes_of(step: Step, kinds: Collection[ScopeKind]) -> OwnScopes:
    """Return the scopes of the given kinds (session, workspace, user) for which the run has an id."""
    context = step.context
    given = default_workspace(context.resources.memory, context.resources.workspace)
    workspace = workspace_in(step.config, given) if "workspace" in kinds else None
    return scopes_of(kinds, context.session_id, workspace, context.user_id)


def _question(state: WorkflowState) -> str:
    asked = question_before(list(state.get("messages") or ()))
    return "\n".join(map(text_of, asked)) or state.get("text") or ""


def _fact(fact: Fact) -> dict[str, Json]:
    since = fact.valid_from.date().isoformat()
    return {"key": fact.key, "value": fact.value, "kind": fact.kind, "about": fact.scope.kind, "since": since}


def _episode(episode: Episode) -> dict[str, Json]:
    return {
        "asked": episode.asked,
        "answered": episode.answered,
        "ended": episode.ended,
        "tools": list(episode.tools),
        "session_id": episode.session_id,
        "seq": episode.seq,
        "at": episode.at.isoformat(),
    }


def _notify_unread(step: Step, error: Exception) -> None:
    step.context.resources.observer.notify(
        ExtraNotFound(section="facts", error=type(error).__name__, session_id=step.context.session_id)
    )


def _notify_unwritten(step: Step, error: Exception) -> None:
    session_id = step.context.session_id
    step.context.resources.observer.notify(
        WriteFailed(
            backend="other",
            channel=channel_of(session_id) if session_id is not None else "other",
            error=type(error).__name__,
            session_id=session_id,
        )
    )
