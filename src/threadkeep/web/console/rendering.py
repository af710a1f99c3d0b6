"""Rendering of the console's pages: templates, filters, headers, and errors as pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from threadkeep.agent.explanations import left_out_in_words, recall_in_words
from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import ThreadkeepError
from threadkeep.version import __version__
from threadkeep.web.api.parameters import EncodedPathRoute
from threadkeep.web.console import charts
from threadkeep.web.console.forms import COOKIE, csrf_token
from threadkeep.web.problems import ProblemRaised, log_failure, problem_of

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# With `no-referrer` browsers send forms with `Origin: null`, which `Access` takes for a page of another site.
_HEADERS = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Referrer-Policy": "same-origin"}


class ConsoleRoute(EncodedPathRoute):
    """A route of the console. Its errors are pages, not problem documents."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which renders errors."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            with ErrorBoundary() as attempt:
                return await handle(request)
            error = attempt.caught
            if not isinstance(error, ProblemRaised | RequestValidationError | HTTPException | ThreadkeepError):
                log_failure("a page failed", error)
            return error_page(request, error)

        return handled


def page(request: Request, template: str, status_code: int = 200, **values: object) -> HTMLResponse:
    """Return a page rendered from a template."""
    common = {
        "request": request,
        "csrf": csrf_token(request),
        "path": request.url.path,
        "version": __version__,
        "signed_in": COOKIE in request.cookies,
    }
    text = _environment.get_template(template).render({**common, **values})
    # Text of people may contain lone surrogates, which UTF-8 lacks.
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status_code, headers=_HEADERS)


def redirect(address: str) -> RedirectResponse:
    """Return a redirect after a form; the browser reads the address with GET."""
    return RedirectResponse(address, status_code=303)


def session_address(session_id: str, *rest: str, user_id: str | None = None, **query: object) -> str:
    """Return the address of a session's page, or of a page below it."""
    return _address("/console/sessions", session_id, *rest, user=user_id, **query)


def run_address(run_id: str, *rest: str, user_id: str | None = None, **query: object) -> str:
    """Return the address of a run's page, or of a page below it."""
    return _address("/console/runs", run_id, *rest, user=user_id, **query)


def _address(start: str, *segments: object, **query: object) -> str:
    path = "/".join([start, *(quote(str(segment), safe="", errors="surrogateescape") for segment in segments)])
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def _query(values: Mapping[str, object]) -> str:
    """Return a query string without empty values, with its question mark."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else "?"


def error_page(request: Request, error: Exception) -> Response:
    """Return the page of an error."""
    problem = problem_of(error)
    return page(request, "problem.html", status_code=problem.status, problem=problem)


def _moment(value: datetime | None) -> str:
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _iso(value: datetime) -> str:
    return value.astimezone(UTC).isoformat()


def _ago(value: datetime) -> str:
    """Return the age of a moment in words."""
    seconds = max((datetime.now(UTC) - value).total_seconds(), 0.0)
    for length, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _pretty(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)


_environment = Environment(
    loader=PackageLoader("threadkeep.web.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "ago": _ago,
    "counted": _counted,
    "iso": _iso,
    "moment": _moment,
    "number": _number,
    "pretty": _pretty,
    "query": _query,
    "seconds": _seconds,
}
_environment.globals |= {
    "bar": charts.bar,
    "in_words_of_recall": recall_in_words,
    "in_words_of_left_out": left_out_in_words,
    "run_address": run_address,
    "session_address": session_address,
    "stacked_columns": charts.stacked_columns,
    "columns": charts.columns,
}
