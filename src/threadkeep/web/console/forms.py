"""Requests to the console: fields of forms, tokens against forged requests (CSRF), and the chosen user."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import Depends, Query, Request
from starlette.datastructures import Headers

from threadkeep.web.callers import CallerInUse
from threadkeep.web.problems import ProblemRaised, make_problem

COOKIE: Final = "threadkeep_console"
_HOME = "/"
_BELOW = "/console/"


def is_page(path: str) -> bool:
    """Return whether a path belongs to the console. The cookie is not accepted for other paths."""
    return path == _HOME or path.startswith(_BELOW)


def as_cookie(key: str) -> str:
    """Return the value of the cookie for a key."""
    return base64.urlsafe_b64encode(key.encode()).decode()


def key_in_cookie(headers: Headers) -> bytes:
    """Return the key in the cookie; empty without a valid cookie."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        return base64.b64decode(found.value, altchars=b"-_", validate=True) if found else b""
    except (CookieError, ValueError):
        return b""


FIELD = "csrf"
_STALE_FORM = "The form is older than the service or your sign-in; reload the page and send the form again."

# The secret of CSRF tokens if there are no keys, because then the service is one process on loopback. With keys, a
# token is derived from the sign-in cookie, so that every process accepts it, also after a restart.
_SECRET = secrets.token_bytes(32)


def csrf_token(request: Request) -> str:
    """Return the token that the forms of a page contain."""
    cookie = request.cookies.get(COOKIE)
    secret = _SECRET if cookie is None else cookie.encode()
    return hmac.new(secret, b"threadkeep console form", hashlib.sha256).hexdigest()


async def read_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form."""
    body = (await request.body()).decode("utf-8", "replace")
    # Browsers send line breaks of text areas as CR LF.
    return {name: value.replace("\r\n", "\n") for name, value in parse_qsl(body, keep_blank_values=True)}


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form after checking that a page of the console sent it.

    Raises:
        ProblemRaised: the token is missing or wrong.
    """
    fields = await read_fields(request)
    if not hmac.compare_digest(fields.pop(FIELD, "").encode(), csrf_token(request).encode()):
        raise ProblemRaised(make_problem(403, "stale-form", _STALE_FORM))
    return fields


type Form = Annotated[Mapping[str, str], Depends(read_form)]


async def _seen_as(caller: CallerInUse, user: Annotated[str | None, Query(max_length=512)] = None) -> str | None:
    return caller.user(user or None)


type SeenAs = Annotated[str | None, Depends(_seen_as)]
"""The user whose sessions, runs and knowledge a page of the console shows; None shows all."""
