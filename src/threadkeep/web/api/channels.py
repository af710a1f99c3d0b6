"""Callbacks of platforms. Each bot verifies its own callbacks; they need no API key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from threadkeep.channels.contract import Callback
from threadkeep.errors import CallbackRefused, ChannelNotFound
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.problems import ProblemRaised, documented, make_problem

router = APIRouter(tags=["channels"])

_FAILURES = {
    403: {"description": "The callback is not from the platform, or too old."},
    **documented(404, 413, 422, 503),
}

type ChannelName = Annotated[
    str, Path(description="The name of a bot in the channels file.", pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
]


@router.get(
    "/channels/{name}",
    summary="Verify a callback's address",
    operation_id="check_callback",
    response_model=None,
    responses=_FAILURES,
)
@router.post("/channels/{name}", summary="Receive a platform's callback", response_model=None, responses=_FAILURES)
async def receive_callback(name: ChannelName, request: Request, app: AppInUse) -> Response:
    """Receive a platform's callback for a bot. The bot sends its answer later, in a separate call."""
    if app.channels is None:
        raise ChannelNotFound(name)
    callback = Callback(
        method="GET" if request.method == "GET" else "POST",
        received_at=app.memory.clock(),
        query=request.scope["query_string"].decode("latin-1"),
        headers=dict(request.headers),
        body=await request.body(),
    )
    try:
        response = await app.channels.receive(name, callback)
    except CallbackRefused:
        return Response(status_code=403)
    except TimeoutError:
        sentence = "The database does not answer; the platform will send the callback again."
        raise ProblemRaised(make_problem(503, "database-unavailable", sentence)) from None
    return Response(response.body, media_type=response.media_type)
