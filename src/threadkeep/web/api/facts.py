"""Routes of knowledge: facts that outlive a session, procedures for kinds of tasks, and Graphiti."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from threadkeep.errors import InvalidInput, KnowledgeNotFound
from threadkeep.history.all_sessions import AllSessions
from threadkeep.knowledge.graphiti.maintenance import Backfilled, Purged, Retracted
from threadkeep.knowledge.graphiti.service import GraphitiStatus
from threadkeep.knowledge.graphiti.views import (
    BackfillInput,
    Changed,
    CheckInput,
    CheckList,
    ConsentInput,
    ConsentList,
    DeliveryChoice,
    DeliveryList,
    PromotedView,
    PromotionInput,
    PurgeInput,
    TrustInput,
    TrustView,
    UndoInput,
)
from threadkeep.knowledge.views import (
    DecisionInput,
    FactInput,
    FactList,
    FactView,
    ForgetFactsInput,
    ForgetInput,
    Forgotten,
    ProcedureInput,
    ProcedureList,
    ProcedureView,
    ProposalList,
    ProposalView,
)
from threadkeep.records.graphiti import Consent, DeliveryStatus
from threadkeep.records.knowledge import (
    Evidence,
    FactKind,
    FactQuery,
    ProcedureQuery,
    ProposalQuery,
    ProposalStatus,
    Scope,
    ScopeKind,
)
from threadkeep.web.api.parameters import (
    DEFAULT_LIMIT,
    AppInUse,
    Cursor,
    Limit,
    OwnerInQuery,
    UserId,
    read_cursor,
    scope_in_query,
    write_cursor,
)
from threadkeep.web.callers import ADMINISTERS
from threadkeep.web.problems import documented

_FAILURES = documented(404, 422, 503)
_WRITING = documented(400, 413)

router = APIRouter(prefix="/api/v1/facts", tags=["knowledge"], responses=_FAILURES)

type FactId = Annotated[str, Path(min_length=1, max_length=64, description="The fact's id.")]


@router.get("", summary="List facts")
async def list_facts(
    app: AppInUse,
    *,
    scope: Annotated[ScopeKind | None, Query(description="Only facts of this kind of scope.")] = None,
    owner: OwnerInQuery = None,
    kind: Annotated[FactKind | None, Query(description="Only facts of this kind.")] = None,
    key: Annotated[str | None, Query(max_length=128, description="Only values of this key.")] = None,
    q: Annotated[str | None, Query(max_length=200, description="Only facts with this text in key or value.")] = None,
    past: Annotated[bool, Query(description="Include values that are no longer valid.")] = False,
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> FactList:
    """List facts, most recently changed first. Restrict the list by `scope`, or by `scope` and `owner`."""
    after = read_cursor("facts", cursor)
    query = FactQuery(scope_in_query(scope, owner), scope, kind, key, q, past, user_id, limit, after)
    found, following = await app.memory.knowledge.facts_page(query)
    return FactList(facts=[FactView.of(fact) for fact in found], next_cursor=write_cursor("facts", following))


@router.put("", summary="Remember a fact", responses=_WRITING)
async def remember_fact(fact: FactInput, app: AppInUse, user_id: UserId = None) -> FactView:
    """Store a fact: the value of a key. The same value confirms a stored fact; another value replaces it.

    The session and the run of the `evidence` must exist and be visible to the user.
    """
    if fact.evidence is not None and fact.evidence.session_id is not None:
        await AllSessions(app.memory).find(fact.evidence.session_id, user_id=user_id)
    if fact.evidence is not None and fact.evidence.run_id is not None:
        await (await app.runs.service()).run(fact.evidence.run_id, user_id=user_id)
    remembered = await app.memory.knowledge.remember(
        Scope(fact.scope, fact.owner),
        fact.key,
        fact.value,
        kind=fact.kind,
        confidence=fact.confidence,
        evidence=None if fact.evidence is None else Evidence(**fact.evidence.model_dump()),
        user_id=user_id,
    )
    return FactView.of(remembered)


@router.post("/forget", summary="Forget facts", responses=_WRITING)
async def forget_facts(what: ForgetFactsInput, app: AppInUse, user_id: UserId = None) -> Forgotten:
    """Permanently delete facts with all their values: by `ids`, or all facts of an `owner`, or only some `keys`."""
    knowledge = app.memory.knowledge
    if what.scope is None or what.owner is None:
        deleted, missing = await knowledge.forget_facts(what.ids or (), user_id=user_id)
        return Forgotten(forgotten=deleted, not_found=missing)
    scope = Scope(what.scope, what.owner)
    if what.keys is None:
        return Forgotten(forgotten=await knowledge.forget_all(scope, user_id=user_id))
    counts = await knowledge.forget_keys(scope, what.keys, user_id=user_id)
    return Forgotten(forgotten=sum(counts.values()), not_found=[key for key in what.keys if not counts[key]])


@router.get("/proposals", summary="List proposed facts")
async def list_proposals(
    app: AppInUse,
    *,
    status: Annotated[ProposalStatus | None, Query(description="Only proposals with this status.")] = None,
    scope: Annotated[ScopeKind | None, Query(description="Only this scope; needs its `owner`.")] = None,
    owner: OwnerInQuery = None,
    session_id: Annotated[str | None, Query(max_length=256, description="Only from this session.")] = None,
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ProposalList:
    """List facts that were proposed from messages, most recently changed first, with references to the messages."""
    if scope is not None and owner is None:
        raise InvalidInput("A `scope` of proposals needs its `owner`, such as scope=user&owner=ann.")
    after = read_cursor("proposals", cursor)
    query = ProposalQuery(status, scope_in_query(scope, owner), session_id, user_id, limit, after)
    found, following = await app.memory.proposals.page(query)
    shown = [ProposalView.of(one) for one in found]
    return ProposalList(proposals=shown, next_cursor=write_cursor("proposals", following))


@router.get("/proposals/{proposal_id}", summary="See a proposed fact")
async def get_proposal(proposal_id: FactId, app: AppInUse, user_id: UserId = None) -> ProposalView:
    """Return a proposed fact with a reference to the message that it comes from."""
    return ProposalView.of(await app.memory.proposals.proposal(proposal_id, user_id=user_id))


@router.post("/proposals/{proposal_id}", summary="Decide about a proposed fact", responses=_WRITING)
async def decide_proposal(
    proposal_id: FactId, decision: DecisionInput, app: AppInUse, user_id: UserId = None
) -> ProposalView:
    """Accept an open or rejected proposal, reject an open one, or undo an acceptance. Undo restores the old value."""
    proposals = app.memory.proposals
    verbs = {"accept": proposals.accept, "reject": proposals.reject, "undo": proposals.undo}
    return ProposalView.of(await verbs[decision.decision](proposal_id, by=decision.by, user_id=user_id))


@router.get("/{fact_id}", summary="See a fact")
async def get_fact(fact_id: FactId, app: AppInUse, user_id: UserId = None) -> FactView:
    """Return a fact, even if it is no longer valid, with references to its messages and runs."""
    return FactView.of(await app.memory.knowledge.fact(fact_id, user_id=user_id))


@router.delete("/{fact_id}", summary="Forget a fact", status_code=204)
async def forget_fact(fact_id: FactId, app: AppInUse, user_id: UserId = None) -> None:
    """Delete a fact with all values of its key, permanently."""
    _, missing = await app.memory.knowledge.forget_facts([fact_id], user_id=user_id)
    if missing:
        raise KnowledgeNotFound("fact", fact_id)


procedures_router = APIRouter(prefix="/api/v1/procedures", tags=["knowledge"], responses=_FAILURES)

type ProcedureId = Annotated[str, Path(min_length=1, max_length=64, description="The procedure's id.")]


@procedures_router.get("", summary="List procedures")
async def list_procedures(
    app: AppInUse,
    *,
    scope: Annotated[ScopeKind | None, Query(description="Only procedures of this kind of scope.")] = None,
    owner: OwnerInQuery = None,
    name: Annotated[str | None, Query(max_length=128, description="Only procedures with this name.")] = None,
    q: Annotated[str | None, Query(max_length=200, description="Only with this text in name or description.")] = None,
    active: Annotated[bool | None, Query(description="Only active procedures, or only inactive ones.")] = None,
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ProcedureList:
    """List procedures, most recently changed first. Restrict the list by `scope`, or by `scope` and `owner`."""
    after = read_cursor("procedures", cursor)
    query = ProcedureQuery(scope_in_query(scope, owner), scope, name, q, active, user_id, limit, after)
    found, following = await app.memory.procedures.page(query)
    shown = [ProcedureView.of(one) for one in found]
    return ProcedureList(procedures=shown, next_cursor=write_cursor("procedures", following))


@procedures_router.put("", summary="Teach a procedure", responses=_WRITING)
async def teach_procedure(procedure: ProcedureInput, app: AppInUse, user_id: UserId = None) -> ProcedureView:
    """Store a procedure, or replace the one with the same name. New content resets the counts of its use."""
    return ProcedureView.of(await app.memory.procedures.teach(procedure.record(), user_id=user_id))


@procedures_router.post("/forget", summary="Forget procedures", responses=_WRITING)
async def forget_procedures(what: ForgetInput, app: AppInUse, user_id: UserId = None) -> Forgotten:
    """Delete procedures by id, permanently."""
    deleted, missing = await app.memory.procedures.forget(what.ids, user_id=user_id)
    return Forgotten(forgotten=deleted, not_found=missing)


@procedures_router.get("/{procedure_id}", summary="See a procedure")
async def get_procedure(procedure_id: ProcedureId, app: AppInUse, user_id: UserId = None) -> ProcedureView:
    """Return a procedure with its instructions, its conditions and its usage counts."""
    return ProcedureView.of(await app.memory.procedures.procedure(procedure_id, user_id=user_id))


@procedures_router.delete("/{procedure_id}", summary="Forget a procedure", status_code=204)
async def forget_procedure(procedure_id: ProcedureId, app: AppInUse, user_id: UserId = None) -> None:
    """Delete a procedure permanently."""
    _, missing = await app.memory.procedures.forget([procedure_id], user_id=user_id)
    if missing:
        raise KnowledgeNotFound("procedure", procedure_id)


graphiti_router = APIRouter(prefix="/api/v1/knowledge", tags=["knowledge"])

_READING = documented(422, 503)
_ADMINISTERING: dict[str, Any] = {"responses": documented(400, 404, 409, 413, 422, 503), "openapi_extra": ADMINISTERS}
_ASKING = documented(400, 404, 409, 413, 422, 502, 503)


@graphiti_router.get("/status", summary="Get the status of Graphiti", responses=documented(503))
async def graphiti_status(app: AppInUse) -> GraphitiStatus:
    """Return which data may be sent to Graphiti, how many messages wait, and any problems."""
    return await app.memory.graphiti.status()


@graphiti_router.get("/consent", summary="List consent decisions", responses=documented(503))
async def list_consents(app: AppInUse) -> ConsentList:
    """List the newest 20 consent decisions, for all Graphiti servers, newest first."""
    return ConsentList(consents=await app.memory.graphiti.consents.decisions())


@graphiti_router.put("/consent", summary="Grant or decline consent", **_ADMINISTERING)
async def decide_consent(decision: ConsentInput, app: AppInUse) -> Consent:
    """Grant or decline sending data to the configured endpoint. Declining makes waiting messages `dead` (not sent)."""
    graphiti = app.memory.graphiti
    if decision.decision == "grant":
        return await graphiti.grant(decision.data_classes, by=decision.by)
    return await graphiti.decline(by=decision.by)


@graphiti_router.put("/trust", summary="Trust a workspace", **_ADMINISTERING)
async def trust_workspace(trust: TrustInput, app: AppInUse) -> TrustView:
    """Trust a workspace, or stop trusting it. With consent, a trusted workspace's messages may be sent to Graphiti."""
    consents = app.memory.graphiti.consents
    await (consents.trust(trust.workspace, by=trust.by) if trust.trusted else consents.distrust(trust.workspace))
    return TrustView(trusted=await consents.trusted())


@graphiti_router.post("/test", summary="Test the Graphiti server", responses=_ASKING, openapi_extra=ADMINISTERS)
async def check_server(how: CheckInput, app: AppInUse) -> CheckList:
    """Check the Graphiti server without sending people's messages; with `smoke`, write and delete a test message."""
    checks = await app.memory.graphiti.test(smoke=how.smoke)
    return CheckList(ok=all(one.ok for one in checks), checks=checks)


@graphiti_router.post("/promote", summary="Promote a fact", **_ADMINISTERING)
async def promote_fact(promotion: PromotionInput, app: AppInUse) -> PromotedView:
    """Store a fact in Threadkeep's database, and queue it for Graphiti if a person has consented."""
    return PromotedView.of(await app.memory.graphiti.promote(promotion.record(), promotion.owner))


@graphiti_router.post("/promote/undo", summary="Undo a promotion", responses=_ASKING, openapi_extra=ADMINISTERS)
async def undo_promotion(what: UndoInput, app: AppInUse) -> Retracted:
    """Retract a promoted fact in the database and in Graphiti, and check that its text (episode) is deleted."""
    return await app.memory.graphiti.undo_promotion(what.fact_id)


@graphiti_router.post("/backfill", summary="Send earlier turns", **_ADMINISTERING)
async def backfill_turns(what: BackfillInput, app: AppInUse) -> Backfilled:
    """Queue older, stored turns for Graphiti; new turns are sent first. Repeat the request until no turns remain."""
    graphiti = app.memory.graphiti
    return await graphiti.backfill(what.session_ids, user_id=what.user_id, limit=what.limit)


@graphiti_router.get("/deliveries", summary="List deliveries", responses=_READING)
async def list_deliveries(
    app: AppInUse,
    *,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries with this status.")] = None,
    after: Annotated[int, Query(ge=0, lt=2**53, description="Only deliveries with a higher number.")] = 0,
    limit: Limit = DEFAULT_LIMIT,
) -> DeliveryList:
    """List messages that wait for Graphiti, that were delivered, or that are dead (no longer sent), with the reason."""
    found = await app.memory.graphiti.deliveries(status=status, after=after, limit=limit)
    following = found[-1].number if len(found) == limit else None
    return DeliveryList(deliveries=found, next_after=following)


@graphiti_router.post("/deliveries/retry", summary="Send dead messages again", **_ADMINISTERING)
async def retry_deliveries(choice: DeliveryChoice, app: AppInUse) -> Changed:
    """Queue a dead message again. Without a `number`, queue all dead messages but dropped, purged and undone ones."""
    return Changed(changed=await app.memory.graphiti.retry(choice.number))


@graphiti_router.post("/deliveries/drop", summary="Drop messages", **_ADMINISTERING)
async def drop_deliveries(choice: DeliveryChoice, app: AppInUse) -> Changed:
    """Permanently drop queued or dead messages: the one with this `number`, all with this `status`, or all."""
    return Changed(changed=await app.memory.graphiti.drop(choice.number, status=choice.status))


@graphiti_router.post("/purge", summary="Delete a group", responses=_ASKING, openapi_extra=ADMINISTERS)
async def purge_group(what: PurgeInput, app: AppInUse) -> Purged:
    """Delete all data of a session, workspace or user on the Graphiti server, and check that it is gone."""
    return await app.memory.graphiti.purge(Scope(what.scope, what.owner))
