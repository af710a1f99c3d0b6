"""Parameters that several routes share."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Path, Query, Request

from threadkeep.app import App
from threadkeep.web.schemas import GivenId

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


async def app_of(request: Request) -> App:  # not async, it would go through a thread, and requests overtake each other
    """The App that the service was made over."""
    return cast("App", request.app.state.app)


type AppInUse = Annotated[App, Depends(app_of)]
type Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many at most.")]
type Cursor = Annotated[str | None, Query(max_length=1000, description="The `next_cursor` of the page before.")]
type SessionId = Annotated[str, Path(description="The session.", examples=["session-123"])]
type UserId = Annotated[
    GivenId | None, Query(description="See this user's sessions only; another's is not there.", examples=["user-456"])
]
type RunId = Annotated[GivenId, Path(description="The run, as the answer to a message names it.")]
