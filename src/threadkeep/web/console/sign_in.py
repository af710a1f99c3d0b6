"""Sign-in to the console with an API key, and pages for requests that `Access` rejects."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Query, Request, Response

from threadkeep.web.callers import PUBLIC, KeyRing, RateLimits
from threadkeep.web.console.rendering import (
    COOKIE,
    HOME,
    ConsoleRoute,
    Form,
    as_cookie,
    error_page,
    is_page,
    page,
    read_fields,
    redirect,
)
from threadkeep.web.problems import ProblemRaised, make_problem, problem_of, respond

ADDRESS: Final = "/console/sign-in"
_WRONG_KEY = "This key is not valid; enter an API key of the service, or ask for a new one."
_OTHER_SITE = "The form was sent from another site; open the sign-in page of this service."

router = APIRouter(route_class=ConsoleRoute, include_in_schema=False)


@router.get(ADDRESS)
async def ask_for_key(request: Request, to: Annotated[str, Query(alias="next", max_length=2000)] = HOME) -> Response:
    """Show the form for an API key."""
    return page(request, "sign_in.html", next=_within(to), wrong=None)


@router.post(ADDRESS)
async def sign_in(request: Request) -> Response:
    """Store a valid key in a cookie. Scripts cannot read the cookie, and it lasts until the browser is closed."""
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise ProblemRaised(make_problem(403, "stale-form", _OTHER_SITE))
    fields = await read_fields(request)
    keys: KeyRing = request.app.state.keys
    given, to = fields.get("key", "").strip(), _within(fields.get("next", HOME))
    await keys.refresh()
    if keys.caller(given.encode(), RateLimits()) is None:
        return page(request, "sign_in.html", status_code=401, next=to, wrong=_WRONG_KEY)
    response = redirect(to)
    # Behind a proxy, only the proxy knows whether the browser uses TLS, so read the proxy's header, too.
    secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
    response.set_cookie(COOKIE, as_cookie(given), httponly=True, samesite="lax", secure=secure)
    return response


@router.post("/console/sign-out", openapi_extra=PUBLIC)
async def sign_out(form: Form) -> Response:
    """Delete the cookie with the key."""
    response = redirect(ADDRESS)
    response.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return response


async def respond_to_browsers(request: Request, error: Exception) -> Response:
    """Respond to an HTTP error. A browser gets a page (sign-in or error), any other client a problem document."""
    if not is_page(request.url.path) or "text/html" not in request.headers.get("accept", ""):
        return await respond(request, error)
    if problem_of(error).status == 401:
        query = f"?{request.url.query}" if request.url.query else ""
        to = f"{request.url.path}{query}" if request.method == "GET" else HOME
        return redirect(f"{ADDRESS}?next={quote(to, safe='')}")
    return error_page(request, error)


def _within(address: str) -> str:
    """Return the address if it is in the console, else the home page: sign-in must not lead to other sites."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return HOME
    inside = not parts.scheme and not parts.netloc and "\\" not in address and is_page(parts.path)
    return address if inside and not address.startswith("//") else HOME
