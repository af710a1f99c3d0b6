"""The sessions there are, and what is known of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from threadkeep.history.all_sessions import AllSessions
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import SessionQuery
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Cursor, Limit, SessionId, UserId
from threadkeep.web.cursors import session_place, write_cursor
from threadkeep.web.problems import documented
from threadkeep.web.schemas import SessionBody, SessionList, SessionPatch

router = APIRouter(prefix="/api/v1/sessions", tags=["sessions"])

_FAILURES = documented(404, 422, 503)


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
    """Sessions, newest activity first."""
    place = session_place(cursor) if cursor else None
    text = clean_text(query) if query else None
    found, following = await AllSessions(app.memory).page(SessionQuery(user_id, text, active, limit, place))
    next_cursor = None if following is None else write_cursor(*following)
    return SessionList(sessions=[SessionBody.of(info) for info in found], next_cursor=next_cursor)


@router.get(
    "/{session_id}",
    summary="See what is known of a session",
    responses=_FAILURES,
    response_model_exclude_defaults=True,
)
async def get_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Title, newest message, how many there are, whose it is."""
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
    """Set the title, the tags, the metadata, or whether it is active. The messages never change."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    info = await session.update(
        title=changes.title, tags=changes.tags, metadata=changes.metadata, active=changes.active
    )
    return SessionBody.of(replace(info, namespace=found.namespace))


@router.delete("/{session_id}", summary="Delete a session", status_code=204, responses=_FAILURES)
async def delete_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> None:
    """Delete a session with all its messages, for good. A turn that runs in it comes to its end before."""
    everything = AllSessions(app.memory)
    _, found = await everything.find(session_id, user_id=user_id)
    if not found.namespace:
        await app.chat.delete(session_id)
    await everything.erase_beside(session_id, user_id=user_id)


@router.post("/{session_id}/reset", summary="Begin anew", responses=_FAILURES, response_model_exclude_defaults=True)
async def reset_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Let the model see only what comes after this. The transcript stays as it is. It has its turn as messages have."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    if found.namespace:
        await session.reset()
    else:
        await app.chat.reset(session_id)
    return SessionBody.of(replace(await session.info(), namespace=found.namespace))
