"""The address that OpenAI's chat page ChatKit calls."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from threadkeep.web.api.parameters import AppInUse, UserId
from threadkeep.web.problems import ProblemRaised, documented, make_problem

router = APIRouter(tags=["chat"])

_MISSING = "ChatKit's server is not installed; install it with: pip install 'threadkeep[chatkit]'"


@router.post("/chatkit", summary="Serve ChatKit", response_class=Response, responses=documented(404, 413, 422, 503))
async def serve_chatkit(
    request: Request,
    app: AppInUse,
    user_id: UserId = None,
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="The same key again is the same thread and message.")
    ] = None,
) -> Response:
    """Serve a request of ChatKit's page: threads are sessions, and answers are runs of the chat.

    The thread's metadata may name another `workflow`. With a key that speaks for a user, or a `user_id`, another user's
    threads are not found. The answer continues if the client disconnects.
    """
    if find_spec("chatkit") is None:
        raise ProblemRaised(make_problem(404, "chatkit-missing", _MISSING))
    from threadkeep.web.chatkit_server import ChatKitRequest, serve  # it needs the extra `chatkit`

    body = await request.body()
    context = ChatKitRequest(user_id, idempotency_key, _kind(body) == "threads.retry_after_item")
    return await serve(app, body, context)


def _kind(body: bytes) -> object:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value.get("type") if isinstance(value, dict) else None
