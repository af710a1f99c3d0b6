"""Manifests of model calls: the sent messages, the excluded messages, and the reasons."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from threadkeep.agent.context_view import recorded
from threadkeep.context.manifest import ContextManifest
from threadkeep.history.all_sessions import AllSessions
from threadkeep.records.json_values import example
from threadkeep.web.api.parameters import (
    DEFAULT_LIMIT,
    AppInUse,
    Cursor,
    EncodedPathRoute,
    Limit,
    RunId,
    SessionId,
    UserId,
    read_call_cursor,
    write_cursor,
)
from threadkeep.web.problems import ProblemRaised, documented, make_problem

_EXAMPLE = {
    "session_id": "session-123",
    "run_id": "0199f3a0-5d1c-7c52-9d51-6f8f1d0a8f10",
    "call": 1,
    "created_at": "2026-03-01T08:30:00.123456Z",
    "model": "gpt-5-mini",
    "counter": "estimate×1.12",
    "budget": 4000,
    "max_messages": 20,
    "anchor_seq": 3,
    "entries": [
        {"section": "window", "tokens": 6, "source": "transcript", "seq": 3, "id": "web-0002"},
        {"section": "input", "tokens": 7, "source": "transcript", "seq": 5, "id": "web-0003"},
    ],
    "excluded": [{"first_seq": 1, "last_seq": 2, "reason": "before_anchor"}],
    "dropped": 2,
    "tokens": 13,
    "sections": {"window": 6, "input": 7},
    "prefix": {"messages": 1, "tokens": 6, "digest": "9f86d081884c7d65…"},
    "digest": "60303ae22b998861…",
    "reported": {"input_tokens": 15, "output_tokens": 9},
}


class RunManifests(
    BaseModel, use_attribute_docstrings=True, json_schema_extra=example(run_id=_EXAMPLE["run_id"], manifests=[_EXAMPLE])
):
    """The model calls of a run, in order."""

    run_id: str
    manifests: list[ContextManifest]


class SessionManifests(BaseModel, use_attribute_docstrings=True):
    """A page of a session's model calls, newest first."""

    session_id: str
    manifests: list[ContextManifest]
    next_cursor: str | None = Field(description="Pass it as `cursor` for older calls; null at the end.")


router = APIRouter(prefix="/api/v1", tags=["contexts"], route_class=EncodedPathRoute)

_FAILURES = documented(404, 422, 503)


@router.get(
    "/runs/{run_id}/manifests",
    summary="See what the model calls of a run saw",
    responses=_FAILURES,
    response_model_exclude_defaults=True,
)
async def manifests_of_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunManifests:
    """Return the manifest of each model call of a run, in order: sent messages, excluded messages, tokens."""
    found = await app.memory.manifests.of_run(run_id, user_id=user_id)
    if not found:
        raise ProblemRaised(
            make_problem(
                404,
                "run-not-found",
                "No model call of this run is recorded, or the run belongs to another user; records are kept for "
                "THREADKEEP_MANIFEST_RETENTION_DAYS.",
            )
        )
    return RunManifests(run_id=run_id, manifests=[recorded(stored) for stored in found])


@router.get(
    "/sessions/{session_id}/manifests",
    summary="See what the model calls of a session saw",
    responses=_FAILURES,
    response_model_exclude_defaults=True,
)
async def manifests_of_session(
    session_id: SessionId, app: AppInUse, user_id: UserId = None, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> SessionManifests:
    """Return the manifests of a session's model calls, newest first."""
    position = read_call_cursor(cursor)
    found = await AllSessions(app.memory).calls(session_id, user_id=user_id, limit=limit + 1, before=position)
    page, more = found[:limit], len(found) > limit
    return SessionManifests(
        session_id=session_id,
        manifests=[recorded(stored) for stored in page],
        next_cursor=write_cursor(page[-1].cursor if more else None),
    )
