"""Sessions, their metadata, and the search in their messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.memory import damaged_sessions
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import SessionQuery
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Cursor, Limit, SessionId, UserId
from threadkeep.web.cursors import read_cursor, write_cursor
from threadkeep.web.problems import documented
from threadkeep.web.routing import EncodedPathRoute
from threadkeep.web.schemas import SearchHitBody, SearchResult, SessionBody, SessionList, SessionPatch

router = APIRouter(prefix="/api/v1/sessions", tags=["sessions"], route_class=EncodedPathRoute)

search_router = APIRouter(prefix="/api/v1/search", tags=["search"])

_FAILURES = documented(404, 409, 422, 503)


@router.get("", summary="List sessions", responses=documented(422, 503), response_model_exclude_defaults=True)
async def list_sessions(
    app: AppInUse,
    user_id: UserId = None,
    query: Annotated[
        str | None, Query(max_length=200, description="Only those with this text in title, last message or id.")
    ] = None,
    active: Annotated[bool | None, Query(description="Only those that are active, or are not.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> SessionList:
    """List sessions, newest activity first."""
    place = read_cursor(cursor)
    text = clean_text(query) if query else None
    everything = AllSessions(app.memory)
    found, following = await everything.page(SessionQuery(user_id, text, active, limit, place))
    next_cursor = write_cursor(following)
    damaged = damaged_sessions(await everything.damaged(user_id))
    return SessionList(sessions=[SessionBody.of(info) for info in found], next_cursor=next_cursor, damaged=damaged)


@router.get(
    "/{session_id}",
    summary="See what is known of a session",
    responses=_FAILURES,
    response_model_exclude_defaults=True,
)
async def get_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Return a session's title, newest message, number of messages and owner."""
    _, info = await AllSessions(app.memory).find(session_id, user_id=user_id)
    return SessionBody.of(info)


@router.patch(
    "/{session_id}",
    summary="Change what is known of a session",
    responses={**_FAILURES, **documented(400, 413)},
    response_model_exclude_defaults=True,
)
async def change_session(
    session_id: SessionId, changes: SessionPatch, app: AppInUse, user_id: UserId = None
) -> SessionBody:
    """Set the title, the tags, the metadata, or the active flag. Messages never change."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    info = await session.update(
        title=changes.title, tags=changes.tags, metadata=changes.metadata, active=changes.active
    )
    return SessionBody.of(replace(info, namespace=found.namespace))


@router.delete("/{session_id}", summary="Delete a session", status_code=204, responses=_FAILURES)
async def delete_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> None:
    """Delete a session with all its messages, permanently. A running turn of the session finishes first."""
    everything = AllSessions(app.memory)
    if await everything.where(session_id, user_id=user_id) is None:
        await app.chat.delete(session_id)
    await everything.erase_conversations(session_id, user_id=user_id)


@router.post("/{session_id}/reset", summary="Begin anew", responses=_FAILURES, response_model_exclude_defaults=True)
async def reset_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Hide all earlier messages from the model. The transcript stays. The reset is ordered among the turns."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    if found.namespace:
        await session.reset()
    else:
        await app.chat.reset(session_id)
    return SessionBody.of(replace(await session.info(), namespace=found.namespace))


@search_router.get("", summary="Search messages", responses=documented(422, 503), response_model_exclude_unset=True)
async def search(
    app: AppInUse,
    q: Annotated[str, Query(min_length=1, max_length=1000, description="Words; all of them must be there.")],
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
) -> SearchResult:
    """Return messages that contain all words of a query, best first, of one user or of all."""
    found = await AllSessions(app.memory).search(q, user_id=user_id, limit=limit)
    hits = [SearchHitBody.of(hit) for hit in found.hits]
    damaged = {"damaged": found.damaged} if found.damaged else {}
    return SearchResult(hits=hits, count=len(hits), unindexed=found.unindexed, **damaged)
