"""Parameters shared by several routes."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Path, Query, Request

from threadkeep.app import App
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS
from threadkeep.web.callers import CallerInUse
from threadkeep.web.schemas import GivenId

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


async def app_of(
    request: Request,
) -> App:  # a sync function would run in a thread, out of order
    """Return the App of the service."""
    return cast("App", request.app.state.app)


async def _session_user(
    caller: CallerInUse,
    user_id: Annotated[
        GivenId | None,
        Query(description="See this user's sessions only; another's is not there.", examples=["user-456"]),
    ] = None,
) -> str | None:
    return caller.user(user_id)


async def _knowledge_user(
    caller: CallerInUse,
    user_id: Annotated[
        GivenId | None,
        Query(description="See what is this user's only: facts about that person and in that user's sessions."),
    ] = None,
) -> str | None:
    return caller.user(user_id)


type AppInUse = Annotated[App, Depends(app_of)]
type Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many at most.")]
type Cursor = Annotated[str | None, Query(max_length=1000, description="The `next_cursor` of the page before.")]
type SessionId = Annotated[str, Path(description="The session; a slash is %2F.", examples=["session-123"])]
type UserId = Annotated[str | None, Depends(_session_user)]
type KnowledgeUser = Annotated[str | None, Depends(_knowledge_user)]
type OwnerInQuery = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_OWNER_CHARACTERS,
        description="Only what is of this session, workspace or person, with `scope`.",
    ),
]
type RunId = Annotated[GivenId, Path(description="The run, as the answer to a message names it.")]
