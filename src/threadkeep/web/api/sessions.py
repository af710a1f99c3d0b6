"""The sessions there are, and what is known of each."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from threadkeep.errors import InvalidInput, SessionNotFound
from threadkeep.history.keys import check_key
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import SessionQuery
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Limit, SessionId, UserId
from threadkeep.web.problems import documented
from threadkeep.web.schemas import SessionBody, SessionList, SessionPatch

router = APIRouter(prefix="/api/v1/sessions", tags=["sessions"])

_FAILURES = documented(404, 422, 503)


@router.get("", summary="List sessions", responses=documented(422, 503))
async def list_sessions(
    app: AppInUse,
    user_id: UserId = None,
    query: Annotated[
        str | None, Query(max_length=200, description="Only those with this text in title, last message or id.")
    ] = None,
    active: Annotated[bool | None, Query(description="Only those that are active, or are not.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Annotated[str | None, Query(max_length=1000, description="The `next_cursor` of the page before.")] = None,
) -> SessionList:
    """Sessions, newest activity first."""
    place = read_cursor(cursor) if cursor else None
    text = clean_text(query) if query else None
    found, following = await app.memory.sessions_page(SessionQuery(user_id, text, active, limit, place))
    next_cursor = None if following is None else write_cursor(following)
    return SessionList(sessions=[SessionBody.of(info) for info in found], next_cursor=next_cursor)


@router.get("/{session_id}", summary="See what is known of a session", responses=_FAILURES)
async def get_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Title, newest message, how many there are, whose it is."""
    return SessionBody.of(await app.memory.session(session_id, user_id=user_id).info())


@router.patch(
    "/{session_id}", summary="Change what is known of a session", responses={**_FAILURES, **documented(400, 413)}
)
async def change_session(
    session_id: SessionId, changes: SessionPatch, app: AppInUse, user_id: UserId = None
) -> SessionBody:
    """Set the title, the tags, the metadata, or whether it is active. The messages never change."""
    session = app.memory.session(session_id, user_id=user_id)
    info = await session.update(
        title=changes.title, tags=changes.tags, metadata=changes.metadata, active=changes.active
    )
    return SessionBody.of(info)


@router.delete("/{session_id}", summary="Delete a session", status_code=204, responses=_FAILURES)
async def delete_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> None:
    """Delete a session with all its messages, for good. A turn that runs in it comes to its end before."""
    session = app.memory.session(session_id, user_id=user_id)
    await session.info()
    async with app.chat.in_turn(session_id):
        if not await session.delete():
            raise SessionNotFound(session_id)


@router.post("/{session_id}/reset", summary="Begin anew", responses=_FAILURES)
async def reset_session(session_id: SessionId, app: AppInUse, user_id: UserId = None) -> SessionBody:
    """Let the model see only what comes after this. The transcript stays as it is. It has its turn as messages have."""
    session = app.memory.session(session_id, user_id=user_id)
    await session.info()
    async with app.chat.in_turn(session_id):
        await session.reset()
        return SessionBody.of(await session.info())


def write_cursor(place: tuple[datetime, str]) -> str:
    """The cursor of a place in the list, for callers to pass back as it is."""
    updated_at, session_id = place
    text = json.dumps([updated_at.astimezone(UTC).isoformat(), session_id])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """The place that a cursor names.

    Raises:
        InvalidInput: nobody ever got this cursor.
    """
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        updated_at, session_id = json.loads(text)
        check_key(session_id)
        place = datetime.fromisoformat(updated_at).astimezone(UTC)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput("This is no cursor; pass the `next_cursor` of the page before, as it is.") from error
    return place, session_id
