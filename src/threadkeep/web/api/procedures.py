"""Procedures: instructions for kinds of tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from threadkeep.errors import KnowledgeNotFound
from threadkeep.knowledge.views import ForgetInput, Forgotten, ProcedureInput, ProcedureList, ProcedureView
from threadkeep.records.knowledge import ProcedureQuery, Scope, ScopeKind
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Cursor, KnowledgeUser, Limit, OwnerInQuery
from threadkeep.web.cursors import read_cursor, write_cursor
from threadkeep.web.problems import documented

router = APIRouter(prefix="/api/v1/procedures", tags=["knowledge"])

_FAILURES = documented(404, 422, 503)
_WRITING = {**_FAILURES, **documented(400, 413)}

type ProcedureId = Annotated[str, Path(min_length=1, max_length=64, description="The procedure's id.")]


@router.get("", summary="List procedures", responses=_FAILURES)
async def list_procedures(
    app: AppInUse,
    *,
    scope: Annotated[ScopeKind | None, Query(description="Only procedures of this kind of scope.")] = None,
    owner: OwnerInQuery = None,
    name: Annotated[str | None, Query(max_length=128, description="Only those of this name.")] = None,
    q: Annotated[str | None, Query(max_length=200, description="Only those with this in name or description.")] = None,
    active: Annotated[bool | None, Query(description="Only those that are active, or are not.")] = None,
    user_id: KnowledgeUser = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ProcedureList:
    """List procedures, most recently changed first; with a scope and an owner only theirs."""
    query = ProcedureQuery(
        Scope(scope, owner) if scope and owner else None,
        scope,
        name,
        q,
        active,
        user_id=user_id,
        limit=limit,
        cursor=read_cursor(cursor),
    )
    found, following = await app.memory.procedures.page(query)
    next_cursor = write_cursor(following)
    return ProcedureList(procedures=[ProcedureView.of(one) for one in found], next_cursor=next_cursor)


@router.put("", summary="Teach a procedure", responses=_WRITING)
async def teach_procedure(procedure: ProcedureInput, app: AppInUse, user_id: KnowledgeUser = None) -> ProcedureView:
    """Store a procedure; it replaces the one with its name. If the content differs, the counts restart."""
    return ProcedureView.of(await app.memory.procedures.teach(procedure.record(), user_id=user_id))


@router.post("/forget", summary="Forget procedures", responses=_WRITING)
async def forget_procedures(what: ForgetInput, app: AppInUse, user_id: KnowledgeUser = None) -> Forgotten:
    """Delete procedures by their ids, permanently."""
    gone, missing = await app.memory.procedures.forget(what.ids, user_id=user_id)
    return Forgotten(forgotten=gone, not_found=missing)


@router.get("/{procedure_id}", summary="See a procedure", responses=_FAILURES)
async def get_procedure(procedure_id: ProcedureId, app: AppInUse, user_id: KnowledgeUser = None) -> ProcedureView:
    """Return a procedure: its instructions, its conditions and its counts of use."""
    return ProcedureView.of(await app.memory.procedures.procedure(procedure_id, user_id=user_id))


@router.delete("/{procedure_id}", summary="Forget a procedure", status_code=204, responses=_FAILURES)
async def forget_procedure(procedure_id: ProcedureId, app: AppInUse, user_id: KnowledgeUser = None) -> None:
    """Delete a procedure permanently."""
    _, missing = await app.memory.procedures.forget([procedure_id], user_id=user_id)
    if missing:
        raise KnowledgeNotFound("procedure", procedure_id)
