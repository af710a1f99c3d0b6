"""Who may call: those with an API key, or, where no key is set, those on this machine.

`/healthz` and the API's description (`/docs`, `/openapi.json`, which hold no data and which a browser cannot ask for
with a header) are open to all. With keys, everything else needs one, `/readyz` and `/metrics` too. Without keys the
service is bound to loopback; then a request must also name a loopback host, and must not come from a foreign web page:
otherwise any page that the machine's user opens could reach the service through the browser.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from threadkeep.settings import is_loopback
from threadkeep.web import description
from threadkeep.web.problems import Problem, make_problem, problem_response

OPEN_PATHS = frozenset({"/healthz", description.ADDRESS, *description.FILES, "/openapi.json"})

_KEY_MISSING = "Send an API key, as `Authorization: Bearer <key>` or as `X-API-Key: <key>`."
_FOREIGN_HOST = (
    "Without API keys the service answers on loopback names only, and no pages of other sites; "
    "call it as 127.0.0.1 or localhost, or set THREADKEEP_API_KEYS."
)


class Access:
    """Middleware that lets a request pass or answers it with 401 (no valid key) or 403 (not from this machine)."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        # Digests have one length, so that comparing tells nothing of the keys'.
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it before its body is read."""
        problem = self._refusal(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else None
        await problem_response(problem, headers)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        if scope["path"] in OPEN_PATHS:
            return None
        headers = Headers(scope=scope)
        if self._digests:
            return None if self._has_key(headers) else make_problem(401, "api-key-needed", _KEY_MISSING)
        return None if _is_local(headers) else make_problem(403, "foreign-host", _FOREIGN_HOST)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(given.encode("latin-1"))
        # All keys are compared, and each in constant time: how long it takes tells nothing of them.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _is_local(headers: Headers) -> bool:
    """Whether a request names a loopback host, and comes from no page of another one."""
    origin = headers.get("origin")
    return _is_loopback_address(f"//{headers.get('host', '')}") and (origin is None or _is_loopback_address(origin))


def _is_loopback_address(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
