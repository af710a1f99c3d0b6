"""Forms of the console: their fields, and the tokens that other sites' pages cannot know."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from threadkeep.web.problems import ProblemRaised, make_problem

FIELD = "csrf"
_STALE_FORM = "The form is older than the service or your sign-in: load the page again, and send it once more."

# Without keys the service is one process on loopback. With keys the token also depends on the signed-in cookie.
_SECRET = secrets.token_bytes(32)


def csrf_token(request: Request) -> str:
    """Return the token that the forms of a page contain."""
    secret: bytes = getattr(request.state, "console_secret", _SECRET)
    return hmac.new(secret, b"threadkeep console form", hashlib.sha256).hexdigest()


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form.

    Raises:
        ProblemRaised: the token is missing or wrong.
    """
    body = (await request.body()).decode("utf-8", "replace")
    fields = dict(parse_qsl(body, keep_blank_values=True))
    if not hmac.compare_digest(fields.pop(FIELD, "").encode(), csrf_token(request).encode()):
        raise ProblemRaised(make_problem(403, "stale-form", _STALE_FORM))
    # Browsers send line breaks of text areas as CR LF.
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


type Form = Annotated[Mapping[str, str], Depends(read_form)]
