"""Routes of sessions: metadata, retention, search, changes to messages, and records (manifests) of model calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from threadkeep.agent.rebuilding import recorded
from threadkeep.app import App
from threadkeep.context.manifest import ContextManifest
from threadkeep.errors import InvalidInput
from threadkeep.history.all_sessions import AllRetention, AllSessions
from threadkeep.history.memory import damaged_sessions
from threadkeep.records import Retention
from threadkeep.records.json_values import example
from threadkeep.runs.chat import RegenerationRequest
from threadkeep.runs.chat_turns import ChatTurn
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import SessionQuery
from threadkeep.web.api.chat import STREAM, answer_of
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
    read_cursor,
    write_cursor,
)
from threadkeep.web.problems import TURN_FAILURES, ProblemRaised, documented, make_problem
from threadkeep.web.schemas import (
    BranchBody,
    ChatResponseBody,
    EditBody,
    Edited,
    HistoryMessage,
    RegenerateBody,
    SearchHitBody,
    SearchResult,
    SessionBody,
    SessionList,
    SessionPatch,
    TakeBackBody,
    TakenBack,
)
from threadkeep.web.streams import EventStream, TurnParts, open_stream

router = APIRouter(prefix="/api/v1/sessions", tags=["sessions"], route_class=EncodedPathRoute)

search_router = APIRouter(prefix="/api/v1/search", tags=["search"])

_FAILURES = documented(404, 409, 422, 503)


@router.get("", summary="List sessions", responses=documented(422, 503))
async def list_sessions(
    *,
    app: AppInUse,
    user_id: UserId = None,
    query: Annotated[
        str | None, Query(max_length=200, description="Only with this text in title, last message or id.")
    ] = None,
    active: Annotated[bool | None, Query(description="Only active sessions, or only inactive ones.")] = None,
    tag: Annotated[str | None, Query(max_length=200, description="Only sessions with this tag.")] = None,
    channel: Annotated[
        str | None, Query(max_length=200, description="Only sessions with ids that begin with this and a colon.")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> SessionList:
    """List sessions, newest activity first."""
    everything, text = AllSessions(app.memory), clean_text(query) if query else None
    chosen = SessionQuery(user_id, text, active, limit, read_cursor("sessions", cursor), tag, channel)
    found, following = await everything.page(chosen)
    return SessionList(
        sessions=[SessionBody.model_validate(info) for info in found],
        next_cursor=write_cursor("sessions", following),
        damaged=damaged_sessions(await everything.damaged(user_id)),
    )


@router.get("/{session_id}", summary="Get a session", responses=_FAILURES)
async def get_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Return a session's title, newest message, number of messages and owner."""
    _, info = await AllSessions(app.memory).find(session_id, user_id=user_id)
    return SessionBody.model_validate(info)


@router.patch("/{session_id}", summary="Update a session", responses={**_FAILURES, **documented(400, 413)})
async def change_session(
    session_id: SessionId, changes: SessionPatch, app: AppInUse, user_id: UserId = None
) -> SessionBody:
    """Set the title, the tags, the metadata, or the active flag. Messages never change."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    info = await session.update(
        title=changes.title, tags=changes.tags, metadata=changes.metadata, active=changes.active
    )
    return SessionBody.model_validate(replace(info, namespace=found.namespace))


@router.delete("/{session_id}", summary="Delete a session", status_code=204, responses=_FAILURES)
async def delete_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> None:
    """Delete a session with all its messages, permanently. A running turn of the session finishes first."""
    everything = AllSessions(app.memory)
    if await everything.where(session_id, user_id=user_id) is None:
        await app.chat.delete(session_id)
    await everything.erase_conversations(session_id, user_id=user_id)


@router.post("/{session_id}/reset", summary="Reset a session", responses=_FAILURES)
async def reset_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Hide all existing messages from the model, after earlier turns have finished. The transcript keeps them."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    if found.namespace:
        await session.reset()
    else:
        await app.chat.reset(session_id)
    return SessionBody.model_validate(replace(await session.info(), namespace=found.namespace))


@search_router.get("", summary="Search messages", responses=documented(422, 503))
async def search(
    app: AppInUse,
    q: Annotated[str, Query(min_length=1, max_length=1000, description="The words that a message must contain.")],
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
) -> SearchResult:
    """Return the messages that contain all words of the query, best first. `user_id` selects that user's sessions."""
    found = await AllSessions(app.memory).search(q, user_id=user_id, limit=limit)
    hits = [
        SearchHitBody(session_id=key, score=score, message=HistoryMessage.of(one)) for key, one, score in found.hits
    ]
    return SearchResult(hits=hits, count=len(hits), unindexed=found.unindexed, damaged=found.damaged)


_CHANGES = documented(400, 404, 413, 422, 503)


@router.post("/{session_id}/take-back", summary="Take the newest messages back", responses=_CHANGES)
async def take_back(
    session_id: SessionId, app: AppInUse, body: TakeBackBody | None = None, user_id: UserId = None
) -> TakenBack:
    """Supersede the newest messages and return them. They stay in the history, hidden from the model.

    Concurrent requests supersede different messages.
    """
    session, _ = await AllSessions(app.memory).find(session_id, user_id=user_id)
    taken = await session.take_back(body.n if body is not None else 1)
    messages = [HistoryMessage.of(message) for message in taken]
    return TakenBack(session_id=session_id, messages=messages, count=len(messages))


@router.post("/{session_id}/edit", summary="Replace a message", responses={**_CHANGES, **documented(409)})
async def edit(session_id: SessionId, body: EditBody, app: AppInUse, user_id: UserId = None) -> Edited:
    """Supersede a message and all later ones, and store the new version. Use `regenerate` to answer the new version."""
    session, _ = await AllSessions(app.memory).find(session_id, user_id=user_id)
    message = await session.edit(body.message_id, body.message, new_id=body.new_message_id)
    return Edited(session_id=session_id, message=HistoryMessage.of(message))


@router.post("/{session_id}/branch", summary="Branch a session", status_code=201, responses=_CHANGES)
async def branch(
    session_id: SessionId, app: AppInUse, body: BranchBody | None = None, user_id: UserId = None
) -> SessionBody:
    """Create a session with copies of this session's messages up to a `seq`. Both sessions continue independently."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    wanted = BranchBody() if body is None else body
    branched = await session.branch(wanted.at, session_id=wanted.session_id)
    return SessionBody.model_validate(replace(await branched.info(), namespace=found.namespace))


@router.post("/{session_id}/regenerate", summary="Regenerate an answer", responses=TURN_FAILURES)
async def regenerate(
    session_id: SessionId, app: AppInUse, body: RegenerateBody | None = None, user_id: UserId = None
) -> ChatResponseBody:
    """Supersede all messages after a question, and answer it again. The response has the fields of POST /api/v1/chat.

    The question keeps its `message_id`: a chat request with this id returns the new answer. If a turn is already
    answering the question, the response is the answer of that turn.
    """
    return await answer_of(await _begin_again(app, session_id, user_id, body, stream=False))


@router.post("/{session_id}/regenerate/stream", summary="Regenerate an answer and stream it", **STREAM)
async def stream_regenerated(
    session_id: SessionId, app: AppInUse, request: Request, body: RegenerateBody | None = None, user_id: UserId = None
) -> EventStream:
    """Regenerate an answer and stream it, with the events of POST /api/v1/chat/stream."""
    turn = await _begin_again(app, session_id, user_id, body, stream=True)
    return await open_stream(turn, TurnParts(), request)


async def _begin_again(
    app: App, session_id: str, user_id: str | None, body: RegenerateBody | None, *, stream: bool
) -> ChatTurn:
    """Start the turn that answers a question again.

    Raises:
        InvalidInput: an agent stores the conversation in a LangGraph store, or the body names both a run and a message.
    """
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    if found.namespace:
        raise InvalidInput("An agent stores this conversation itself, so the chat cannot answer in it.")
    wanted = RegenerateBody() if body is None else body
    asked = RegenerationRequest(wanted.run_id, wanted.message_id, wanted.workflow)
    return await app.chat.regenerate(session, asked, stream=stream)


Days = Annotated[float, Field(gt=0, le=36_500, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, lt=2**53)]


class RetentionLimitsBody(BaseModel, extra="forbid", from_attributes=True):
    """Limits on the age and number of a session's messages, and on its idle time. Absent or null means no limit."""

    max_age_days: Days | None = Field(None, description="Messages stored longer ago expire.")
    max_messages: Count | None = Field(
        None, description="The number of newest messages to keep; the last user message and those after it always stay."
    )
    max_idle_days: Days | None = Field(None, description="Days without a message until the whole session expires.")


class RetentionBody(
    BaseModel,
    extra="forbid",
    from_attributes=True,
    json_schema_extra=example(archive={"max_age_days": 30}, delete={"max_age_days": 365}),
):
    """The limits for archiving and for deletion. Archived messages stay stored; models and searches do not get them."""

    archive: RetentionLimitsBody = RetentionLimitsBody()
    delete: RetentionLimitsBody = RetentionLimitsBody()


class SessionRetention(BaseModel):
    """The limits of a session, and the positions (`seq`) of its last archived and its last deleted message."""

    session_id: str
    own: RetentionBody | None = Field(description="The session's own limits; null if the rules apply.")
    rules: RetentionBody = Field(description="The service's limits, for sessions without own limits.")
    archived_seq: int = Field(description="Messages up to this position are archived; 0 for none.")
    deleted_seq: int = Field(description="Messages up to this position are deleted; 0 for none.")


@router.get("/{session_id}/retention", summary="Get the retention of a session", responses=_FAILURES)
async def get_retention(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionRetention:
    """Return a session's own limits, the limits in the settings, and the last archived and last deleted `seq`."""
    _, info = await AllSessions(app.memory).find(session_id, user_id=user_id)
    return SessionRetention(
        session_id=info.session_id,
        own=None if info.retention is None else RetentionBody.model_validate(info.retention),
        rules=RetentionBody.model_validate(app.memory.retention.rules),
        archived_seq=info.archived_seq,
        deleted_seq=info.deleted_seq,
    )


@router.put(
    "/{session_id}/retention",
    summary="Set retention limits for a session",
    responses={**_FAILURES, **documented(400, 413)},
)
async def put_retention(
    session_id: SessionId, limits: RetentionBody, app: AppInUse, user_id: UserId = None
) -> SessionRetention:
    """Set a session's own limits. They replace the limits in the settings; `{}` keeps all messages permanently.

    Messages beyond the limits are archived or deleted in the service's next retention pass, not by this request.
    """
    return await _set_limits(app, session_id, Retention.from_dict(limits.model_dump()), user_id)


@router.delete("/{session_id}/retention", summary="Remove a session's own limits", responses=_FAILURES)
async def delete_retention(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionRetention:
    """Remove a session's own limits, so that the limits in the service's settings apply again."""
    return await _set_limits(app, session_id, None, user_id)


async def _set_limits(app: App, session_id: str, retention: Retention | None, user_id: str | None) -> SessionRetention:
    await AllRetention(app.memory).change(session_id, retention, user_id=user_id)
    return await get_retention(session_id, app, user_id)


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
    """The records (manifests) of a run's model calls, in order."""

    run_id: str
    manifests: list[ContextManifest]


class SessionManifests(BaseModel, use_attribute_docstrings=True):
    """A page of the records (manifests) of a session's model calls, newest first."""

    session_id: str
    manifests: list[ContextManifest]
    next_cursor: str | None = Field(description="Pass it as `cursor` for older calls; null at the end.")


contexts_router = APIRouter(prefix="/api/v1", tags=["contexts"], route_class=EncodedPathRoute)

_CONTEXT_FAILURES = documented(404, 422, 503)


@contexts_router.get(
    "/runs/{run_id}/manifests",
    summary="See what the model calls of a run saw",
    responses=_CONTEXT_FAILURES,
    response_model_exclude_defaults=True,
)
async def manifests_of_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunManifests:
    """Return the manifests of a run's model calls, in order: the sent and the excluded messages, and the tokens."""
    found = await app.memory.manifests.of_run(run_id, user_id=user_id)
    if not found:
        sentence = "No model call of this run is recorded, or the run belongs to another user; records are kept for "
        sentence += "THREADKEEP_MANIFEST_RETENTION_DAYS."
        raise ProblemRaised(make_problem(404, "run-not-found", sentence))
    return RunManifests(run_id=run_id, manifests=[recorded(stored) for stored in found])


@contexts_router.get(
    "/sessions/{session_id}/manifests",
    summary="See what the model calls of a session saw",
    responses=_CONTEXT_FAILURES,
    response_model_exclude_defaults=True,
)
async def manifests_of_session(
    session_id: SessionId, app: AppInUse, user_id: UserId = None, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> SessionManifests:
    """Return the manifests of a session's model calls, newest first: sent and excluded messages, and tokens."""
    everything, before = AllSessions(app.memory), read_call_cursor(cursor)
    found = await everything.calls(session_id, user_id=user_id, limit=limit + 1, before=before)
    page, more = found[:limit], len(found) > limit
    return SessionManifests(
        session_id=session_id,
        manifests=[recorded(stored) for stored in page],
        next_cursor=write_cursor("calls", page[-1].cursor if more else None),
    )
