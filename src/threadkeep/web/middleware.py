"""Middleware of the service: access by API keys or from this machine, safe headers, and the size limit of bodies.

`/healthz` and the API's description (`/docs`, `/openapi.json`) are public: they contain no data, and a browser
cannot request them with a header. With keys, everything else needs one, including `/readyz` and `/metrics`. Without
keys the service binds to loopback; then a request must also name a loopback host, and must not come from a foreign
web page. Otherwise any page in the user's browser could reach the service.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threadkeep.settings import is_loopback
from threadkeep.web import description
from threadkeep.web.problems import Problem, make_problem, problem_of, problem_response

CALLBACKS = "/channels/"
OPEN_PATHS = frozenset({"/healthz", description.ADDRESS, *description.FILES, "/openapi.json"})

_KEY_MISSING = "Send an API key, as `Authorization: Bearer <key>` or as `X-API-Key: <key>`."
_FOREIGN_HOST = (
    "Without API keys the service answers on loopback names only, and no pages of other sites; "
    "call it as 127.0.0.1 or localhost, or set THREADKEEP_API_KEYS."
)


class Access:
    """Middleware that passes a request on, or rejects it with 401 (no valid key) or 403 (not from this machine)."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        # Digests have equal lengths, so that a comparison reveals nothing about the keys.
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it before its body is read."""
        problem = self._refusal(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else None
        await problem_response(problem, headers)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        # Callbacks of platforms come from anywhere, without a key: each bot verifies its own.
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(CALLBACKS):
            return None
        headers = Headers(scope=scope)
        if self._digests:
            return None if self._has_key(headers) else make_problem(401, "api-key-needed", _KEY_MISSING)
        return None if _is_local(headers) else make_problem(403, "foreign-host", _FOREIGN_HOST)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(given.encode("latin-1"))
        # Compare all keys, each in constant time, so that the duration reveals nothing about them.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _is_local(headers: Headers) -> bool:
    """Return True if a request names a loopback host and does not come from a page of another host."""
    origin = headers.get("origin")
    return _is_loopback_address(f"//{headers.get('host', '')}") and (origin is None or _is_loopback_address(origin))


def _is_loopback_address(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class SafeHeaders:
    """Middleware against caching, content sniffing and framing. It keeps headers that a response already has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers to its response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


class BodyLimit:
    """Middleware that rejects larger bodies: at once by their Content-Length, else by counting the received bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while counting its body."""
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
                raise self._too_large()  # FastAPI only passes HTTPException through while it reads
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"The body has more than {self._limit} bytes; send less, or raise the limit.")


def _declared_length(scope: Scope) -> int:
    """Return the Content-Length; 0 if it is missing or not a number."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return 0
