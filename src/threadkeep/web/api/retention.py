"""How long the messages of a session stay."""

from __future__ import annotations

from fastapi import APIRouter

from threadkeep.app import App
from threadkeep.history.all_retention import AllRetention
from threadkeep.history.all_sessions import AllSessions
from threadkeep.records import Retention
from threadkeep.web.api.parameters import AppInUse, SessionId, UserId
from threadkeep.web.problems import documented
from threadkeep.web.retention_schemas import RetentionBody, SessionRetention

router = APIRouter(prefix="/api/v1/sessions/{session_id}/retention", tags=["sessions"])

_FAILURES = documented(404, 422, 503)


@router.get("", summary="See how long the messages of a session stay", responses=_FAILURES)
async def get_retention(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionRetention:
    """The session's own limits, the service's rules, and what they have archived and deleted by now."""
    return await _told(app, session_id, user_id)


@router.put("", summary="Give a session limits of its own", responses={**_FAILURES, **documented(400, 413)})
async def put_retention(
    session_id: SessionId, limits: RetentionBody, app: AppInUse, user_id: UserId = None
) -> SessionRetention:
    """They stand in the place of the service's rules, all of them; `{}` keeps everything of the session for good.

    What is beyond them goes at the next round.
    """
    return await _changed(app, session_id, limits.retention(), user_id)


@router.delete("", summary="Take a session's own limits away", responses=_FAILURES)
async def delete_retention(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionRetention:
    """The service's rules hold again."""
    return await _changed(app, session_id, None, user_id)


async def _changed(app: App, session_id: str, retention: Retention | None, user_id: str | None) -> SessionRetention:
    await AllRetention(app.memory).change(session_id, retention, user_id=user_id)
    return await _told(app, session_id, user_id)


async def _told(app: App, session_id: str, user_id: str | None) -> SessionRetention:
    _, info = await AllSessions(app.memory).find(session_id, user_id=user_id)
    return SessionRetention.of(info, app.memory.retention.rules)
