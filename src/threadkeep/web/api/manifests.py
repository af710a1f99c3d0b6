"""Manifests of model calls: the messages sent, the messages left out, and the reasons."""

from __future__ import annotations

from datetime import date, datetime
from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from threadkeep.context.manifest import ExclusionReason, FactExclusion, FactSource, GraphOutcome, Section, Source
from threadkeep.context.plan import WindowKind
from threadkeep.history.all_sessions import AllSessions
from threadkeep.records.json_values import example
from threadkeep.records.knowledge import ScopeKind
from threadkeep.store.manifests import StoredManifest
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


class TurnReferenceBody(BaseModel):
    """A message of a transcript that is quoted."""

    session_id: str
    seq: int


class QuotedTurnBody(TurnReferenceBody):
    """A message of a transcript that is quoted, whole or in part."""

    part: tuple[int, int] | None = Field(None, description="The quoted range of characters of a long message.")


class FactReferenceBody(BaseModel):
    """A quoted fact with its origin."""

    id: str
    scope: ScopeKind
    source: FactSource = Field("memory", description="Absent for `memory`, the facts of this database.")
    since: date | None = Field(None, description="The first day on which it is valid, in UTC.")
    evidence: list[TurnReferenceBody] = Field([], description="The messages that it comes from.")
    rank: int | None = Field(None, description="The position of a fact of Graphiti among the recalled ones, from 1.")


class ScopeRecallBody(BaseModel):
    """The outcome of a Graphiti query for one scope."""

    scope: ScopeKind
    outcome: GraphOutcome = Field("ok", description="Absent for `ok`.")
    found: int = Field(0, description="Facts that the query returned.")
    shown: int = Field(0, description="Facts in the context.")
    superseded: int = Field(0, description="Facts left out because they are no longer valid.")
    duplicate: int = Field(0, description="Facts left out because another scope has them.")
    over_quota: int = Field(0, description="Facts left out because of the limit of facts.")
    no_room: int = Field(0, description="Facts left out because of the section's tokens.")
    queued: int = Field(0, description="Messages of the scope that are queued to be sent.")
    unconfirmed: int = Field(0, description="Messages that were sent, but are not confirmed yet.")
    dead: int = Field(0, description="Messages that were given up.")


class FactsLeftOutBody(BaseModel):
    """Known facts of a scope that were not sent."""

    scope: ScopeKind
    reason: FactExclusion = Field(description="`over_limit`: not relevant to the input; not counted.")
    count: int = 0
    ids: list[str] = Field([], description="The first 20 ids.")


class ConversationBody(BaseModel):
    """A conversation that an agent stores in the graph store itself."""

    key: str
    namespace: list[str]
    meta_key_suffix: str = Field("__meta__", description="Absent for `__meta__`.")
    value_field: str = Field("content", description="Absent for `content`.")


class EntryBody(BaseModel):
    """A message that was sent: its section, its tokens, and the source of its text."""

    section: Section
    tokens: int = Field(description="By the manifest's counter.")
    source: Source = Field(
        "text",
        description="The source of its text: the message of the `transcript` at `seq` (or with the `id`), `summaries`, "
        "quoted `turns`, or a `text` in no transcript, which is stored under its `digest`. Absent for `text`.",
    )
    seq: int | None = Field(None, description="The position in the session's transcript.")
    id: str | None = Field(None, description="The id of the message.")
    digest: str | None = Field(None, description="SHA-256 of the stored text.")
    summaries: list[str] = Field([], description="Ids of the summaries in it.")
    turns: list[QuotedTurnBody] = Field([], description="The quoted messages.")
    snippets: list[str] = Field([], description="Ids of the passages in it.")
    facts: list[FactReferenceBody] = Field([], description="The quoted facts.")
    tokens_before: int | None = Field(None, description="Its tokens before it was cut; absent if it was not.")


class ExclusionBody(BaseModel):
    """A range of the transcript, both ends included, that was not sent, and the reason."""

    first_seq: int
    last_seq: int
    reason: ExclusionReason


class LeftOutBody(BaseModel):
    """A message of the run itself, or a range of them, that was not sent, and the reason."""

    id: str | None = Field(None, description="The message, or the first one of a range; absent if it has no id.")
    reason: ExclusionReason
    last_id: str | None = Field(None, description="The id of the last message of a range; absent for one message.")
    count: int = Field(1, description="The number of messages; absent for one.")


class ReportedUsageBody(BaseModel):
    """Tokens as the provider counted them."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = Field(0, description="Input tokens from the provider's prompt cache.")


class StablePrefixBody(BaseModel):
    """The leading messages that do not depend on the new input, so that the next call may share them."""

    messages: int
    tokens: int
    digest: str = Field(description="SHA-256 of these messages.")


class ManifestBody(
    BaseModel,
    json_schema_extra=example(
        session_id="session-123",
        run_id="0199f3a0-5d1c-7c52-9d51-6f8f1d0a8f10",
        call=1,
        created_at="2026-03-01T08:30:00.123456Z",
        model="gpt-5-mini",
        counter="estimate×1.12",
        budget=4000,
        max_messages=20,
        anchor_seq=3,
        entries=[
            {"section": "window", "tokens": 6, "source": "transcript", "seq": 3, "id": "web-0002"},
            {"section": "input", "tokens": 7, "source": "transcript", "seq": 5, "id": "web-0003"},
        ],
        excluded=[{"first_seq": 1, "last_seq": 2, "reason": "before_anchor"}],
        dropped=2,
        tokens=13,
        sections={"window": 6, "input": 7},
        prefix={"messages": 1, "tokens": 6, "digest": "9f86d081884c7d65…"},
        digest="60303ae22b998861…",
        reported={"input_tokens": 15, "output_tokens": 9},
    ),
):
    """The record of one model call: the messages sent, in order, and the excluded ones with reasons; no message text.

    Fields with default values are absent.
    """

    session_id: str | None = Field(None, description="Absent for a call in a run that belongs to no session.")
    run_id: str
    call: int = Field(description="The number of the call in its run: 1, 2, 3, …")
    node: str | None = Field(None, description="The node of a workflow that made the call.")
    conversation: ConversationBody | None = Field(
        None, description="The conversation that the positions refer to, if it is not the session's transcript."
    )
    created_at: datetime
    model: str | None = None
    counter: str = Field(description="The token counter, with the learned factor of the model, if there is one.")
    budget: int | None = Field(None, description="The token limit, by the counter.")
    max_messages: int | None = Field(None, description="The limit of messages of earlier turns.")
    window: WindowKind = Field("anchored", description="How the window begins; absent for `anchored`.")
    anchor_seq: int = Field(0, description="The `seq` where the window begins; absent while nothing was cut.")
    entries: list[EntryBody] = Field([], description="The messages that were sent, in order.")
    excluded: list[ExclusionBody] = Field([], description="Messages of the transcript that were not sent.")
    left_out: list[LeftOutBody] = Field([], description="Messages of the run itself that were not sent.")
    dropped: int = Field(0, description="The number of earlier messages that were left out and have no summary.")
    tokens: int = Field(0, description="Tokens of all messages that were sent, by the counter.")
    tools: int = Field(0, description="Tokens of the tool definitions, in addition; absent without tools.")
    sections: dict[Section, int] = Field(description="Tokens of each section, in sending order.")
    prefix: StablePrefixBody | None = None
    digest: str = Field("", description="SHA-256 of all messages that were sent.")
    reported: ReportedUsageBody | None = Field(None, description="Absent if the provider reported nothing.")
    notes: list[str] = Field([], description="Missing parts: `history_unavailable`.")
    graph: list[ScopeRecallBody] = Field([], description="The outcomes of Graphiti queries; absent if there were none.")
    facts_left_out: list[FactsLeftOutBody] = Field([], description="Known facts that were not sent; absent if none.")

    @classmethod
    def of(cls, stored: StoredManifest) -> Self:
        """Return the schema of a stored record; unset fields are not sent."""
        return cls.model_validate({"created_at": stored.created_at, **stored.manifest, "call": stored.call})


class RunManifests(BaseModel):
    """The model calls of a run, in order."""

    run_id: str
    manifests: list[ManifestBody]


class SessionManifests(BaseModel):
    """A page of a session's model calls, newest first."""

    session_id: str
    manifests: list[ManifestBody]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the older ones; null at the end.")


router = APIRouter(prefix="/api/v1", tags=["contexts"], route_class=EncodedPathRoute)

_FAILURES = documented(404, 422, 503)


@router.get(
    "/runs/{run_id}/manifests",
    summary="See what the model calls of a run saw",
    responses=_FAILURES,
    response_model_exclude_unset=True,
)
async def manifests_of_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunManifests:
    """Return the manifest of each model call of a run, in order: messages sent, messages left out, tokens."""
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
    """Return the manifests of a session's model calls, newest first."""
    position = read_call_cursor(cursor)
    found = await AllSessions(app.memory).calls(session_id, user_id=user_id, limit=limit + 1, before=position)
    page, more = found[:limit], len(found) > limit
    return SessionManifests(
        session_id=session_id,
        manifests=[ManifestBody.of(stored) for stored in page],
        next_cursor=write_cursor(page[-1].cursor if more else None),
    )
