"""Rendering of the console: templates, filters, charts, headers, and forms."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from langchain_core.utils.uuid import uuid7
from markupsafe import Markup, escape
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from threadkeep.agent.explanations import describe_left_out, recall_in_words
from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import InvalidInput
from threadkeep.records import Message
from threadkeep.runs.requests import text_of_input
from threadkeep.runs.views import RUN_ERRORS
from threadkeep.version import __version__
from threadkeep.web.api.parameters import EncodedPathRoute
from threadkeep.web.callers import Caller, CallerInUse
from threadkeep.web.problems import ProblemRaised, headers_of, log_failure, make_problem, problem_of

COOKIE: Final = "threadkeep_console"
HOME = "/"
_BELOW = "/console/"


def is_page(path: str) -> bool:
    """Return whether a path belongs to the console. The API key in the sign-in cookie is valid only for these paths."""
    return path == HOME or path.startswith(_BELOW)


def as_cookie(key: str) -> str:
    """Return the value of the sign-in cookie for an API key."""
    return base64.urlsafe_b64encode(key.encode()).decode()


def key_in_cookie(headers: Headers) -> bytes:
    """Return the API key in the sign-in cookie, or an empty key if there is no valid cookie."""
    value = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
    try:
        return base64.b64decode(value, altchars=b"-_", validate=True)
    except ValueError:
        return b""


FIELD = "csrf"
_MOST_FIELDS = 1_000
_STALE_FORM = "The form is older than the service or your sign-in; reload the page and send the form again."

# A random secret is enough for a service without API keys, which is a single process. With keys, a form's token is
# derived from the sign-in cookie instead, so that every process accepts the form, even after a restart.
_SECRET = secrets.token_bytes(32)


def csrf_token(request: Request) -> str:
    """Return the CSRF token for the forms of a page; `read_form` checks it."""
    cookie = request.cookies.get(COOKIE)
    secret = _SECRET if cookie is None else cookie.encode()
    return hmac.new(secret, b"threadkeep console form", hashlib.sha256).hexdigest()


async def read_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        InvalidInput: the form has more than 1,000 fields.
    """
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qsl(body, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidInput(f"A form has at most {_MOST_FIELDS:,} fields; send fewer.") from None
    # Convert CR LF, because browsers send all line breaks of text areas as CR LF.
    return {name: value.replace("\r\n", "\n") for name, value in fields}


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


_GAP = 0.25
_FAR_BELOW = 4


@dataclass(frozen=True)
class Column:
    """A column of a chart: a label, its parts from the bottom up, and the address that it links to."""

    label: str
    parts: Mapping[str, float]
    address: str | None = None

    @property
    def total(self) -> float:
        """The height of the column, which is the sum of its parts."""
        return sum(self.parts.values())


def bar(parts: Sequence[tuple[str, int]], total: int, title: str) -> Markup:
    """Return a horizontal bar for the amount `total`. Each part has a CSS class and its own amount."""
    drawn, left = [], 0.0
    for name, amount in parts:
        width = 100 * amount / max(total, 1)
        if width > 0:
            words = escape(f"{name.replace('_', ' ')}: {amount:,}")
            drawn.append(
                f'<rect class="part {escape(name)}" x="{left:.3f}" width="{width:.3f}" height="10">'
                f"<title>{words}</title></rect>"
            )
        left += width
    body = "".join(drawn)
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg class="bar" role="img" aria-label="{escape(title)}" viewBox="0 0 100 10" '
        f'preserveAspectRatio="none">{body}</svg>'
    )


def stacked_columns(drawn: Sequence[Column], title: str, unit: str, *, limit: int | None = None) -> Markup:
    """Return a chart of stacked columns. If a column reaches a quarter of `limit`, draw a line at the limit.

    Labels are HTML, because text in the stretched SVG would be distorted.
    """
    if not drawn:
        return Markup("")
    tallest = max(1e-9, *(column.total for column in drawn))
    # If the limit is far above all columns, omit its line, so that the columns are drawn larger.
    line = limit if limit is not None and limit <= tallest * _FAR_BELOW else None
    highest = max(tallest, line or 0)
    top = _amount(highest, unit) if line == limit else f"{_amount(tallest, unit)} of {limit:,}"
    step = 100 / max(len(drawn), 12)
    shapes = [_column(column, index * step, step, highest, unit) for index, column in enumerate(drawn)]
    if line is not None:
        y = _y(line, highest)
        shapes.append(f'<line class="limit" x1="0" x2="100" y1="{y:.2f}" y2="{y:.2f}"/>')
    ends = " – ".join(dict.fromkeys([drawn[0].label, drawn[-1].label]))
    # The role `img` would hide the links of the chart from screen readers.
    role = "group" if any(column.address for column in drawn) else "img"
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<div class="chart"><p>{escape(top)}</p>'
        f'<svg role="{role}" aria-label="{escape(title)}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        f'<line class="floor" x1="0" x2="100" y1="100" y2="100"/>{"".join(shapes)}</svg><p>{escape(ends)}</p></div>'
    )


def _column(column: Column, x: float, step: float, highest: float, unit: str) -> str:
    below, shapes = 0.0, []
    for name, amount in column.parts.items():
        y, bottom = _y(below + amount, highest), _y(below, highest)
        shapes.append(
            f'<rect class="part {escape(name)}" x="{x + step * _GAP / 2:.2f}" y="{y:.2f}" '
            f'width="{step * (1 - _GAP):.2f}" height="{max(bottom - y, 0):.2f}"/>'
        )
        below += amount
    words = escape(f"{column.label}: {_amount(column.total, unit)}")
    group = f"<g><title>{words}</title>{''.join(shapes)}</g>"
    if column.address is None:
        return group
    return f'<a href="{escape(column.address)}" aria-label="{words}">{group}</a>'


def _y(amount: float, highest: float) -> float:
    return 100 - 98 * amount / highest


def _amount(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"
    return f"{number} {unit}"


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# With `no-referrer`, browsers would send forms with `Origin: null`, which `Access` rejects.
_HEADERS = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Referrer-Policy": "same-origin"}


class ConsoleRoute(EncodedPathRoute):
    """A route of the console. Its errors are pages, not problem documents."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that renders errors as pages."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            with ErrorBoundary() as attempt:
                return await handle(request)
            error = attempt.caught
            if problem_of(error).status == 500:
                log_failure("a page failed", error)
            return error_page(request, error)

        return handled


def page(request: Request, template: str, status_code: int = 200, **values: object) -> HTMLResponse:
    """Return a page rendered from a template."""
    caller: Caller | None = getattr(request.state, "caller", None)
    common = {
        "writes": caller is None or caller.scope != "read",
        "only_user": caller and caller.user_id,
        "csrf": csrf_token(request),
        "form_id": str(uuid7()),
        "path": request.url.path,
        "version": __version__,
        "signed_in": COOKIE in request.cookies,
    }
    text = _environment.get_template(template).render({**common, **values})
    # Replace lone surrogates in messages, because UTF-8 cannot encode them.
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status_code, headers=_HEADERS)


def redirect(address: str) -> RedirectResponse:
    """Return a redirect after a form. The browser requests the address with GET."""
    return RedirectResponse(address, status_code=303)


def _address(start: str, *segments: object, user_id: str | None = None, **query: object) -> str:
    """Return the address of a page, with a query string that omits empty values."""
    path = "/".join([start, *(quote(str(segment), safe="", errors="surrogateescape") for segment in segments)])
    return path + _query({"user": user_id, **query}).removesuffix("?")


session_address = partial(_address, "/console/sessions")
run_address = partial(_address, "/console/runs")
knowledge_address = partial(_address, "/console/knowledge")


def _query(values: Mapping[str, object]) -> str:
    """Return a query string with a leading question mark. Omit empty values."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else "?"


def error_page(request: Request, error: Exception) -> Response:
    """Return the page of an error."""
    problem = problem_of(error)
    response = page(request, "problem.html", status_code=problem.status, problem=problem)
    response.headers.update(headers_of(request, error))
    return response


def _ago(value: datetime) -> str:
    """Return a time in words, such as "2 hours ago". If it is more than a day ago, return its date and time."""
    seconds = max((datetime.now(UTC) - value).total_seconds(), 0.0)
    if seconds >= 86_400:
        return f"{value.astimezone(UTC):%d %b %Y, %H:%M} UTC"
    if seconds < 60:
        return "just now"
    count, unit = (seconds // 3_600, "hour") if seconds >= 3_600 else (seconds // 60, "minute")
    return f"{count:.0f} {unit}{'' if count == 1 else 's'} ago"


def _seconds(value: float | None) -> str:
    if value is None or value >= 120:
        return "–" if value is None else f"{value // 60:,.0f} min {value % 60 // 1:.0f} s"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _speaker(message: Message, owner: str | None = None) -> str:
    """Return a message's speaker for a page: the author of a user message (by default `owner`), otherwise the role."""
    if message.role != "user":
        return {"system": "note"}.get(message.role, message.role)
    metadata = message.metadata
    return str(message.author or metadata.get("sender_name") or metadata.get("sender_id") or owner or "user")


_environment = Environment(
    loader=PackageLoader("threadkeep.web.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "ago": _ago,
    "counted": lambda count, noun: f"{count:,} {noun}{'' if count == 1 else 's'}",
    "moment": lambda value: "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
    "number": lambda value: "–" if value is None else f"{value:,}",
    "pretty": lambda value: (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    ),
    "query": _query,
    "seconds": _seconds,
    "speaker": _speaker,
    "text_of_input": text_of_input,
    # Text between backticks becomes code.
    "with_code": lambda text: Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))),  # noqa: S704 - escaped
}
_environment.globals |= {
    "bar": bar,
    "in_words_of_recall": recall_in_words,
    "in_words_of_left_out": describe_left_out,
    "run_address": run_address,
    "run_errors": RUN_ERRORS,
    "knowledge_address": knowledge_address,
    "session_address": session_address,
    "stacked_columns": stacked_columns,
}
