"""Proposals: facts that a learner found in messages. A person accepts them, or high confidence is enough."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Literal, cast

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import InvalidInput
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.graphiti.service import Graphiti
from threadkeep.knowledge.promotion import PromotedKind, Promotion
from threadkeep.knowledge.rows import OWNER_SQL, canonical, known_owner, owner_columns, page_parameters, seen_row
from threadkeep.records.json_values import Json
from threadkeep.records.knowledge import (
    Evidence,
    FactKind,
    NewFact,
    Proposal,
    ProposalQuery,
    ProposalStatus,
    Scope,
    check_name,
)
from threadkeep.records.sessions import check_argument, check_each
from threadkeep.store.codec import clean_text, time_of, time_text
from threadkeep.store.driver import Connection, Driver, Row
from threadkeep.store.statements import ClockedTables

type LearnerKind = Literal["model", "directives"]


@dataclass(frozen=True)
class Proposed:
    """A fact that a learner found in the message `seq` of a session. If it was a directive, `promoted` is its kind."""

    scope: Scope
    key: str
    value: Json
    seq: int
    kind: FactKind | None = None
    confidence: float = 1.0
    promoted: str | None = None
    run_id: str | None = None


@dataclass(frozen=True)
class Reading:
    """The messages of a session that a learner has read: after `before_seq` and up to `upto_seq`.

    `session_began` is the stored creation time of the session, because a later session may have the same id. If it is
    None, the session is identified by its id only.
    """

    session_id: str
    kind: LearnerKind
    learner: str
    before_seq: int
    upto_seq: int
    session_began: object = None


class Proposals(ClockedTables, sql=(*OWNER_SQL, "learning.sql")):
    """The table `chat_fact_proposals`: facts that learners found in messages, and the decisions about them.

    A learner reads each message once, even with several processes. If a person has rejected or undone a model's
    proposal, no proposal with the same key and value is created. A directive can be proposed again by another message.
    """

    def __init__(
        self, driver: Driver, knowledge: Knowledge, graphiti: Graphiti, *, clock: Callable[[], datetime]
    ) -> None:
        super().__init__(driver, clock=clock)
        self._knowledge = knowledge
        self._graphiti = graphiti

    async def add(self, reading: Reading, proposed: Sequence[Proposed]) -> int | None:
        """Store proposals and the last `seq` that was read; return the number of new proposals.

        Return None if the session was deleted, or if another process has read the messages first.
        """
        check_argument("reading", reading, Reading, required=True)
        check_each("proposed", proposed, Proposed)
        now = self._clock()
        added = 0
        async with self._driver.writing() as connection:
            parameters = {"session_id": reading.session_id}
            session = await connection.fetch(self._sql["keep_session"], parameters)
            if not session or reading.session_began not in (None, session[0][0]):
                return None
            if not await connection.fetch(self._sql["note_read"], vars(reading)):
                return None
            for one in sorted(proposed, key=lambda one: one.seq):  # a later message may state an earlier value again
                fact = NewFact(one.key, one.value, one.kind, one.confidence)
                owner = await known_owner(connection, self._sql, one.scope, now)
                row = {
                    **owner_columns(owner),
                    **parameters,
                    "proposal_id": str(uuid7()),
                    "seq": one.seq,
                    "run_id": one.run_id,
                    "key": fact.key,
                    "value": canonical(one.value),
                    "kind": one.kind,
                    "promoted": one.promoted,
                    "confidence": float(one.confidence),
                    "learner": reading.learner,
                    "now": time_text(now),
                }
                added += await connection.execute(self._sql["add_proposal"], row)
        return added

    async def proposal(self, proposal_id: str, *, user_id: str | None = None) -> Proposal:
        """Return the proposal with the given id.

        Raises:
            KnowledgeNotFound: the proposal does not exist, or the user may not see it.
        """
        async with self._driver.reading() as connection:
            return await self._find(connection, proposal_id, user_id)

    async def page(self, query: ProposalQuery) -> tuple[list[Proposal], tuple[datetime, str] | None]:
        """Return one page of proposals, last changed first, and the cursor of the next page.

        Raises:
            InvalidInput: the page size is out of range.
        """
        check_argument("query", query, ProposalQuery, required=True)
        parameters = {
            **page_parameters(query.limit, query.cursor, "proposal_id"),
            "status": query.status,
            "session_id": None if query.session_id is None else clean_text(query.session_id),
            "scope": None if query.scope is None else query.scope.kind,
            "owner": None if query.scope is None else query.scope.owner,
            "user_id": query.user_id,
        }
        rows = await self._driver.fetch(self._sql["proposals"], parameters)
        found = [_proposal(row) for row in rows[: query.limit]]
        return found, (found[-1].updated_at, found[-1].id) if len(rows) > query.limit else None

    async def accept(self, proposal_id: str, *, by: str, user_id: str | None = None) -> Proposal:
        """Remember a proposed fact, with its message as evidence; queue a directive for Graphiti if consent covers it.

        Raises:
            KnowledgeNotFound: the proposal does not exist, or the user may not see it.
            InvalidInput: the proposal was accepted or undone before, or its message was superseded or deleted.
            StoreUnavailable: the database does not answer; a retry is safe.
        """
        check_name("person's name", by, 512)
        async with self._driver.reading() as connection:
            proposal = await self._find(connection, proposal_id, user_id)
            said = await connection.fetch(self._sql["is_said"], proposal.evidence._asdict())
        if proposal.status not in ("open", "rejected"):
            raise InvalidInput(f"This proposal is already {proposal.status}; only open or rejected ones are accepted.")
        if not said:
            raise InvalidInput("The message of this proposal was taken back; reject the proposal.")
        known = NewFact(proposal.key, proposal.value, proposal.kind, proposal.confidence, proposal.evidence)
        sends = proposal.directive is not None and await self._graphiti.fact_closure(proposal.scope) is None
        queued = 0
        async with self._driver.writing() as connection:
            accepted = await self._decide(connection, proposal, "accepted", by)
            fact = await self._knowledge.remember_in(connection, proposal.scope, known)
            accepted = await self._decide(connection, accepted, "accepted", by, fact.id)
            if sends and proposal.directive is not None:
                kind = cast("PromotedKind", proposal.directive)  # `Promotion` rejects an unknown kind
                promotion = Promotion(kind, str(proposal.value), proposal.scope.kind, proposal.key)
                queued = await self._graphiti.queue_fact(connection, fact, promotion)
        self._graphiti.notify_queued(queued)
        return accepted

    async def reject(self, proposal_id: str, *, by: str, user_id: str | None = None) -> Proposal:
        """Reject an open proposal. It can still be accepted later.

        Raises:
            KnowledgeNotFound: the proposal does not exist, or the user may not see it.
            InvalidInput: the proposal is already decided.
        """
        check_name("person's name", by, 512)
        proposal = await self.proposal(proposal_id, user_id=user_id)
        if proposal.status != "open":
            raise InvalidInput(f"This proposal is already {proposal.status}; an accepted one can be undone.")
        async with self._driver.writing() as connection:
            return await self._decide(connection, proposal, "rejected", by)

    async def undo(self, proposal_id: str, *, by: str, user_id: str | None = None) -> Proposal:
        """Undo an accepted proposal here and, as far as the server supports it, in Graphiti.

        Raises:
            KnowledgeNotFound: the proposal does not exist, or the user may not see it.
            InvalidInput: the proposal was not accepted.
        """
        check_name("person's name", by, 512)
        proposal = await self.proposal(proposal_id, user_id=user_id)
        if proposal.status != "accepted" or proposal.fact_id is None:
            raise InvalidInput(f"This proposal is {proposal.status}; only accepted ones can be undone.")
        await self._knowledge.take_back(proposal.fact_id, proposal.evidence)
        if proposal.directive is not None:
            await self._graphiti.retract(proposal.fact_id)
        async with self._driver.writing() as connection:
            return await self._decide(connection, proposal, "undone", by)

    async def acceptable(self, session_id: str, kind: LearnerKind, confidence: float) -> list[str]:
        """Return the ids of a learner's open proposals in a session with at least this confidence."""
        row = {"session_id": session_id, "kind": kind, "confidence": confidence}
        return [found[0] for found in await self._driver.fetch(self._sql["open_proposals_of"], row)]

    async def _decide(
        self, connection: Connection, proposal: Proposal, status: ProposalStatus, by: str, fact_id: str | None = None
    ) -> Proposal:
        """Store the decision on a proposal, unless it was decided after it was read.

        Raises:
            InvalidInput: the proposal was decided in the meantime.
            KnowledgeNotFound: the proposal was deleted.
        """
        row = {
            "proposal_id": proposal.id,
            "status": status,
            "before": proposal.status,
            "fact_id": fact_id,
            "by": by,
            "now": time_text(self._clock()),
        }
        decided = await connection.execute(self._sql["decide_proposal"], row)
        found = await self._find(connection, proposal.id, None)
        if not decided:
            raise InvalidInput(f"This proposal is already {found.status}: somebody else decided at the same time.")
        return found

    async def _find(self, connection: Connection, proposal_id: str, user_id: str | None) -> Proposal:
        return _proposal(await seen_row(connection, self._sql, "proposal", proposal_id, user_id))


def _proposal(row: Row) -> Proposal:
    proposal_id, scope, owner, session_id, seq, run_id, *columns = row
    names = [field.name for field in fields(Proposal) if field.name not in ("id", "scope", "evidence")]
    values = dict(zip(names, columns, strict=True))
    values |= {name: time_of(values[name]) for name in ("created_at", "updated_at")}
    values["value"] = json.loads(values["value"])
    return Proposal(id=proposal_id, scope=Scope(scope, owner), evidence=Evidence(session_id, seq, run_id), **values)
