"""Retention of the messages of a session."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from threadkeep.app import App
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.retention_rounds import AllRetention
from threadkeep.records import Retention, RetentionLimits, SessionInfo
from threadkeep.web.api.parameters import AppInUse, SessionId, UserId
from threadkeep.web.problems import documented
from threadkeep.web.routing import EncodedPathRoute

Days = Annotated[float, Field(gt=0, le=36_500, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, lt=2**53)]


class RetentionLimitsBody(BaseModel):
    """Retention limits; an absent or null limit means no limit."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    max_age_days: Days | None = Field(None, description="Messages that were stored longer ago go.")
    max_messages: Count | None = Field(
        None, description="Only so many of the newest stay; the newest user message and what follows it always do."
    )
    max_idle_days: Days | None = Field(None, description="After so long without a word the session goes as a whole.")

    def limits(self) -> RetentionLimits:
        """Return the limits as a record."""
        return RetentionLimits(self.max_age_days, self.max_messages, self.max_idle_days)


class RetentionBody(BaseModel):
    """The limits for archiving (excluded from windows and search, but stored) and for deletion."""

    model_config = ConfigDict(
        extra="forbid",
        from_attributes=True,
        json_schema_extra={"examples": [{"archive": {"max_age_days": 30}, "delete": {"max_age_days": 365}}]},
    )

    archive: RetentionLimitsBody = RetentionLimitsBody()
    delete: RetentionLimitsBody = RetentionLimitsBody()

    def retention(self) -> Retention:
        """Return the retention as a record."""
        return Retention(self.archive.limits(), self.delete.limits())


class SessionRetention(BaseModel):
    """The retention of a session, and the positions up to which messages are gone."""

    session_id: str
    own: RetentionBody | None = Field(description="The session's own limits; null where the rules hold.")
    rules: RetentionBody = Field(description="The service's, for every session without limits of its own.")
    archived_seq: int = Field(description="Messages up to this place are archived; 0 for none.")
    deleted_seq: int = Field(description="Messages up to this place are deleted; 0 for none.")

    @classmethod
    def of(cls, info: SessionInfo, rules: Retention) -> Self:
        """Return the schema for a session's metadata and the service's rules."""
        return cls(
            session_id=info.session_id,
            own=None if info.retention is None else RetentionBody.model_validate(info.retention),
            rules=RetentionBody.model_validate(rules),
            archived_seq=info.archived_seq,
            deleted_seq=info.deleted_seq,
        )


router = APIRouter(prefix="/api/v1/sessions/{session_id}/retention", tags=["sessions"], route_class=EncodedPathRoute)

_FAILURES = documented(404, 422, 503)


@router.get("", summary="See how long the messages of a session stay", responses=_FAILURES)
async def get_retention(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionRetention:
    """Return the session's own limits, the service's rules, and the archived and deleted positions."""
    return await _told(app, session_id, user_id)


@router.put("", summary="Give a session limits of its own", responses={**_FAILURES, **documented(400, 413)})
async def put_retention(
    session_id: SessionId, limits: RetentionBody, app: AppInUse, user_id: UserId = None
) -> SessionRetention:
    """Set limits that replace all of the service's rules; `{}` keeps all messages of the session permanently.

    Messages beyond the limits are removed in the next retention pass.
    """
    return await _changed(app, session_id, limits.retention(), user_id)


@router.delete("", summary="Take a session's own limits away", responses=_FAILURES)
async def delete_retention(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionRetention:
    """Remove the session's limits, so that the service's rules apply again."""
    return await _changed(app, session_id, None, user_id)


async def _changed(app: App, session_id: str, retention: Retention | None, user_id: str | None) -> SessionRetention:
    await AllRetention(app.memory).change(session_id, retention, user_id=user_id)
    return await _told(app, session_id, user_id)


async def _told(app: App, session_id: str, user_id: str | None) -> SessionRetention:
    _, info = await AllSessions(app.memory).find(session_id, user_id=user_id)
    return SessionRetention.of(info, app.memory.retention.rules)
