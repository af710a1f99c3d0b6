"""The cookie of a browser that signed in to the console: its API key, for the console's pages alone."""

from __future__ import annotations

import base64
import binascii
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers

COOKIE: Final = "threadkeep_console"
_HOME = "/"
_BELOW = "/console/"


def is_page(path: str) -> bool:
    """Return whether an address belongs to the console. The cookie is no key for any other address."""
    return path == _HOME or path.startswith(_BELOW)


def as_cookie(key: str) -> str:
    """Return a key as the value of the cookie."""
    return base64.urlsafe_b64encode(key.encode()).decode()


def key_in_cookie(headers: Headers) -> bytes:
    """Return the key in the cookie; empty without one."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        return base64.b64decode(found.value, altchars=b"-_", validate=True) if found else b""
    except (CookieError, binascii.Error):
        return b""
