"""The size that a request's body may have, whatever its headers say."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threadkeep.web.problems import problem_of, problem_response


class BodyLimit:
    """Middleware that refuses bodies above a limit: at once by their Content-Length, else by counting what comes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _declared_length(scope) > self._limit:
            await problem_response(problem_of(self._too_large()))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise self._too_large()  # an HTTPException: the only kind that FastAPI lets through while it reads
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"The body has more than {self._limit} bytes; send less, or raise the limit.")


def _declared_length(scope: Scope) -> int:
    """The Content-Length, 0 without one that is a number."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return 0
