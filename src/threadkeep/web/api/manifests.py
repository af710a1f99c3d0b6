"""What each model call saw, and why."""

from __future__ import annotations

from fastapi import APIRouter

from threadkeep.history.all_sessions import AllSessions
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Cursor, Limit, RunId, SessionId, UserId
from threadkeep.web.cursors import manifest_place, write_cursor
from threadkeep.web.manifest_schemas import ManifestBody, RunManifests, SessionManifests
from threadkeep.web.problems import ProblemRaised, documented, make_problem

router = APIRouter(prefix="/api/v1", tags=["contexts"])

_FAILURES = documented(404, 422, 503)


@router.get(
    "/runs/{run_id}/manifests",
    summary="See what the model calls of a run saw",
    responses=_FAILURES,
    response_model_exclude_unset=True,
)
async def manifests_of_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunManifests:
    """The record of each model call of a run, in order: what was sent, what was not and why, tokens."""
    found = await app.memory.manifests.of_run(run_id, user_id=user_id)
    if not found:
        raise ProblemRaised(
            make_problem(
                404,
                "run-not-found",
                "No model call of such a run is on record, or not for this user; records are kept for "
                "THREADKEEP_MANIFEST_RETENTION_DAYS.",
            )
        )
    return RunManifests(run_id=run_id, manifests=[ManifestBody.of(stored) for stored in found])


@router.get(
    "/sessions/{session_id}/manifests",
    summary="See what the model calls of a session saw",
    responses=_FAILURES,
    response_model_exclude_unset=True,
)
async def manifests_of_session(
    session_id: SessionId, app: AppInUse, user_id: UserId = None, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> SessionManifests:
    """The record of each model call of a session, the newest first."""
    place = manifest_place(cursor) if cursor else None
    found = await AllSessions(app.memory).calls(session_id, user_id=user_id, limit=limit + 1, before=place)
    page, more = found[:limit], len(found) > limit
    return SessionManifests(
        session_id=session_id,
        manifests=[ManifestBody.of(stored) for stored in page],
        next_cursor=write_cursor(*page[-1].cursor) if more else None,
    )
