"""How long messages stay, as it goes over the wire."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from threadkeep.records import Retention, RetentionLimits, SessionInfo

Days = Annotated[float, Field(gt=0, le=36_500, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, lt=2**53)]


class RetentionLimitsBody(BaseModel):
    """What may stay; a limit that is absent or null is none."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    max_age_days: Days | None = Field(None, description="Messages that were stored longer ago go.")
    max_messages: Count | None = Field(
        None, description="Only so many of the newest stay; the newest user message and what follows it always do."
    )
    max_idle_days: Days | None = Field(None, description="After so long without a word the session goes as a whole.")

    def limits(self) -> RetentionLimits:
        """The same as a record."""
        return RetentionLimits(self.max_age_days, self.max_messages, self.max_idle_days)


class RetentionBody(BaseModel):
    """Which messages are archived (out of windows and search, but stored) and which are deleted."""

    model_config = ConfigDict(
        extra="forbid",
        from_attributes=True,
        json_schema_extra={"examples": [{"archive": {"max_age_days": 30}, "delete": {"max_age_days": 365}}]},
    )

    archive: RetentionLimitsBody = RetentionLimitsBody()
    delete: RetentionLimitsBody = RetentionLimitsBody()

    def retention(self) -> Retention:
        """The same as a record."""
        return Retention(self.archive.limits(), self.delete.limits())


class SessionRetention(BaseModel):
    """How long the messages of a session stay, and what is gone by now."""

    session_id: str
    own: RetentionBody | None = Field(description="The session's own limits; null where the rules hold.")
    rules: RetentionBody = Field(description="The service's, for every session without limits of its own.")
    archived_seq: int = Field(description="Messages up to this place are archived; 0 for none.")
    deleted_seq: int = Field(description="Messages up to this place are deleted; 0 for none.")

    @classmethod
    def of(cls, info: SessionInfo, rules: Retention) -> Self:
        """What the memory knows of a session, beside the rules."""
        return cls(
            session_id=info.session_id,
            own=None if info.retention is None else RetentionBody.model_validate(info.retention),
            rules=RetentionBody.model_validate(rules),
            archived_seq=info.archived_seq,
            deleted_seq=info.deleted_seq,
        )
