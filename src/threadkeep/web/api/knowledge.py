"""Routes of Graphiti: consent, trust, deliveries, promotion, backfill and deletion."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from threadkeep.knowledge.graphiti.maintenance import Backfilled, Purged, Retracted, all_ok
from threadkeep.knowledge.graphiti.service import GraphitiStatus
from threadkeep.knowledge.graphiti.views import (
    BackfillInput,
    Changed,
    CheckInput,
    CheckList,
    CheckView,
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
from threadkeep.records.graphiti import Consent, DeliveryStatus
from threadkeep.records.knowledge import Scope
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Limit
from threadkeep.web.callers import ADMINISTERS
from threadkeep.web.problems import documented

router = APIRouter(prefix="/api/v1/knowledge", tags=["knowledge"])

_READING = documented(422, 503)
_WRITING = documented(400, 404, 409, 413, 422, 503)
_ASKING = documented(400, 404, 409, 413, 422, 502, 503)


@router.get("/status", summary="Get the status of Graphiti", responses=documented(503))
async def graphiti_status(app: AppInUse) -> GraphitiStatus:
    """Return the data that may be sent to Graphiti, the messages that wait to be sent, and any problems."""
    return await app.memory.graphiti.status()


@router.get("/consent", summary="List consent decisions", responses=documented(503))
async def list_consents(app: AppInUse) -> ConsentList:
    """List the consent decisions for all endpoints, newest first."""
    return ConsentList(consents=await app.memory.graphiti.consents.decisions())


@router.put("/consent", summary="Grant or decline consent", responses=_WRITING, openapi_extra=ADMINISTERS)
async def decide_consent(decision: ConsentInput, app: AppInUse) -> Consent:
    """Record a person's decision about the configured endpoint. If it is declined, waiting messages are given up."""
    graphiti = app.memory.graphiti
    if decision.decision == "grant":
        return await graphiti.grant(decision.data_classes, by=decision.by)
    return await graphiti.decline(by=decision.by)


@router.put("/trust", summary="Trust a workspace", responses=_WRITING, openapi_extra=ADMINISTERS)
async def trust_workspace(trust: TrustInput, app: AppInUse) -> TrustView:
    """Set whether the messages of a workspace may go to Graphiti."""
    consents = app.memory.graphiti.consents
    await (consents.trust(trust.workspace, by=trust.by) if trust.trusted else consents.distrust(trust.workspace))
    return TrustView(trusted=await consents.trusted())


@router.post("/test", summary="Test the Graphiti server", responses=_ASKING, openapi_extra=ADMINISTERS)
async def check_server(how: CheckInput, app: AppInUse) -> CheckList:
    """Check the server without sending people's words; a smoke test writes its own message and deletes it."""
    checks = await app.memory.graphiti.test(smoke=how.smoke)
    return CheckList(ok=all_ok(checks), checks=[CheckView.model_validate(check) for check in checks])


@router.post("/promote", summary="Promote a fact", responses=_WRITING, openapi_extra=ADMINISTERS)
async def promote_fact(promotion: PromotionInput, app: AppInUse) -> PromotedView:
    """Store a fact here, and send it to the graph if that is allowed."""
    return PromotedView.of(await app.memory.graphiti.promote(promotion.record(), promotion.owner))


@router.post("/promote/undo", summary="Undo a promotion", responses=_ASKING, openapi_extra=ADMINISTERS)
async def undo_promotion(what: UndoInput, app: AppInUse) -> Retracted:
    """Retract a promoted fact here and in the graph, and check that its episode is gone."""
    return await app.memory.graphiti.undo_promotion(what.fact_id)


@router.post("/backfill", summary="Send earlier turns", responses=_WRITING, openapi_extra=ADMINISTERS)
async def backfill_turns(what: BackfillInput, app: AppInUse) -> Backfilled:
    """Queue earlier turns behind current ones. Repeat the request until no turns remain."""
    graphiti = app.memory.graphiti
    return await graphiti.backfill(what.session_ids, user_id=what.user_id, limit=what.limit)


@router.get("/deliveries", summary="List deliveries", responses=_READING)
async def list_deliveries(
    app: AppInUse,
    *,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries with this status.")] = None,
    after: Annotated[int, Query(ge=0, lt=2**53, description="Only deliveries with a higher number.")] = 0,
    limit: Limit = DEFAULT_LIMIT,
) -> DeliveryList:
    """List waiting, delivered and dead messages. Each dead message shows why it was given up."""
    found = await app.memory.graphiti.deliveries(status=status, after=after, limit=limit)
    following = found[-1].number if len(found) == limit else None
    return DeliveryList(deliveries=found, next_after=following)


@router.post("/deliveries/retry", summary="Send dead messages again", responses=_WRITING, openapi_extra=ADMINISTERS)
async def retry_deliveries(choice: DeliveryChoice, app: AppInUse) -> Changed:
    """Retry a dead message, or all dead messages that were not dropped."""
    return Changed(changed=await app.memory.graphiti.retry(choice.number))


@router.post("/deliveries/drop", summary="Drop messages", responses=_WRITING, openapi_extra=ADMINISTERS)
async def drop_deliveries(choice: DeliveryChoice, app: AppInUse) -> Changed:
    """Drop a waiting or dead message, or all of them, permanently."""
    return Changed(changed=await app.memory.graphiti.drop(choice.number, status=choice.status))


@router.post("/purge", summary="Delete a group", responses=_ASKING, openapi_extra=ADMINISTERS)
async def purge_group(what: PurgeInput, app: AppInUse) -> Purged:
    """Delete the server's data of a scope, and check that it is gone."""
    return await app.memory.graphiti.purge(Scope(what.scope, what.owner))
