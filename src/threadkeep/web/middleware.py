"""Middleware of the service: access control, cross-origin requests, safe headers, and body limits.

`/healthz`, the API's description (`/docs`, `/openapi.json`), the sign-in page and the console's files are public: they
contain no data, and a browser opens them without a key. Bots verify their callbacks (`/channels/`) themselves. If keys
exist, all other paths need a key, including `/readyz` and `/metrics`. Without keys, the service binds to loopback. Then
a request must also name a loopback host, and must not come from the page of another site, unless the settings allow
that site. Otherwise any page in the user's browser could reach the service. `callers` checks the scope of each key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threadkeep.settings import is_loopback
from threadkeep.web.callers import Caller, Credentials
from threadkeep.web.console.rendering import is_page, key_in_cookie
from threadkeep.web.console.sign_in import ADDRESS, respond_to_browsers
from threadkeep.web.problems import SAFE_HEADERS, ProblemRaised, make_problem, problem_response

CALLBACKS = "/channels/"
DOCS = "/docs"
DOCS_FILES, CONSOLE_FILES = f"{DOCS}/files", "/console/files"
DOCS_PAGE = tuple(f"{DOCS_FILES}/{name}" for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"))
"""The script, the style and the icon of the documentation page."""
_CONSOLE_PAGE = tuple(f"{CONSOLE_FILES}/{name}" for name in ("console.css", "console.js", "icon.svg"))
OPEN_PATHS = frozenset({"/healthz", DOCS, *DOCS_PAGE, "/openapi.json", ADDRESS, *_CONSOLE_PAGE})
"""Paths that need no key. They show no data."""

_KEY_MISSING = "No valid API key was sent; send one as `Authorization: Bearer <key>` or as `X-API-Key: <key>`."
_FOREIGN_HOST = (
    "Without API keys the service accepts requests to loopback names only, and none from pages of other sites; "
    "call it as 127.0.0.1 or localhost, or set THREADKEEP_API_KEYS."
)
_STOPPED = "The service stopped before it had answered; send the request again."


@dataclass(frozen=True)
class Access:
    """Middleware that passes a request on with its caller, or rejects it.

    Before the body is read, the status is 401 without a valid key or token, 403 if the request is not from this machine
    or the key lacks the scope, 429 after too many requests, and 503 if the keys of the service or of a token's issuer
    cannot be read. It is 413 if the body has, or declares, more than `body_limit` bytes.
    """

    app: ASGIApp
    credentials: Credentials
    needed: bool
    routes: list[BaseRoute]
    body_limit: int
    origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while counting its body, or reject it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.body_limit:
                raise self._too_large()  # FastAPI passes on no other error than HTTPException while it reads a body
            return message

        with contextlib.ExitStack() as stack:
            try:
                # Platforms send callbacks without a key, so each bot verifies its own callbacks.
                path = scope["path"]
                if path not in OPEN_PATHS and not path.startswith(CALLBACKS):
                    caller = scope.setdefault("state", {})["caller"] = await self._caller(scope)
                    caller.check(self.routes, scope)
                    caller.count()
                    if caller.user_id is not None:
                        stack.enter_context(caller.limits.opened(caller.user_id))
                declared = dict(scope["headers"]).get(b"content-length", b"")
                if declared.isdigit() and len(declared) < 20 and int(declared) > self.body_limit:
                    raise self._too_large()
            except (ProblemRaised, HTTPException) as refused:
                refusal = await respond_to_browsers(Request(scope), refused)
                await refusal(scope, receive, send)
                return
            await self.app(scope, counted, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"The body has more than {self.body_limit} bytes; send less, or raise the limit.")

    async def _caller(self, scope: Scope) -> Caller:
        """Return a request's sender: the owner of its key or token, or a client on this machine if no keys exist."""
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = (token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode("latin-1")
        if not given and "cookie" in headers and is_page(scope["path"]):
            given = key_in_cookie(headers)
        caller = await self.credentials.caller(given)
        if caller is not None:
            return caller
        if self.needed or self.credentials.keys.in_use:
            raise ProblemRaised(make_problem(401, "api-key-needed", _KEY_MISSING), {"WWW-Authenticate": "Bearer"})
        origin = headers.get("origin")
        known = origin is None or origin in self.origins or _is_loopback_address(origin)
        if not known or not _is_loopback_address(f"//{headers.get('host', '')}"):
            raise ProblemRaised(make_problem(403, "foreign-host", _FOREIGN_HOST))
        return Caller("local", "admin", limits=self.credentials.limits)


@lru_cache(maxsize=64)
def _is_loopback_address(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return is_loopback(urlsplit(address).hostname or "")
    return False


@dataclass(frozen=True)
class SafeResponses:
    """Middleware that adds headers against caching, content sniffing and framing.

    For a HEAD request, it sends the headers of the GET response, but no body. For a request that the server cancels
    when it stops, it sends a problem document; uvicorn would send the status 500.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add `SAFE_HEADERS` to its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_body, has_started = scope["method"] != "HEAD", False

        async def send_safely(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
                await send(message)
                if not has_body:
                    await send({"type": "http.response.body"})
            elif has_body:
                await send(message)

        try:
            await self.app(scope if has_body else {**scope, "method": "GET"}, receive, send_safely)
        except asyncio.CancelledError:
            if has_started:
                raise
            stopped = problem_response(make_problem(503, "interrupted", _STOPPED), path=scope["path"])
            await stopped(scope, receive, send_safely)
