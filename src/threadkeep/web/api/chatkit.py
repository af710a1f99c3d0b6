"""The address that OpenAI's chat page ChatKit calls."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from importlib.util import find_spec
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from pydantic import ValidationError

from threadkeep.web.api.parameters import AppInUse, UserId
from threadkeep.web.problems import ProblemRaised, documented, make_problem
from threadkeep.web.streams import EventStream

router = APIRouter(tags=["chat"])

_NOT_FOUND = "There is no such thread, item or attachment, or not for this user."
_INVALID = "This is no request of ChatKit; send what its page sends, and the attachments with their ids alone."
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
    from chatkit.server import StreamingResult
    from chatkit.store import NotFoundError

    from threadkeep.web.chatkit_server import ChatKitRequest, ChatServer

    body = await request.body()
    context = ChatKitRequest(user_id, idempotency_key, _kind(body) == "threads.retry_after_item")
    try:
        result = await ChatServer(app).process(body, context)
        if isinstance(result, StreamingResult):
            pieces = aiter(result)
            return EventStream(_after(await anext(pieces, b""), pieces))
    except NotFoundError:
        raise ProblemRaised(make_problem(404, "thread-not-found", _NOT_FOUND)) from None
    except (ValidationError, ValueError, RuntimeError, NotImplementedError):
        # From None: these errors quote the request.
        raise ProblemRaised(make_problem(422, "invalid-request", _INVALID)) from None
    return Response(result.json, media_type="application/json")


def _kind(body: bytes) -> object:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value.get("type") if isinstance(value, dict) else None


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for piece in rest:
        yield piece
