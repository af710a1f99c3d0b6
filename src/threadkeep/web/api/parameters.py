"""Parameters and route classes that several routers share, and the opaque cursors of lists."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, cast
from urllib.parse import unquote

from fastapi import Depends, Header, Path, Query, Request
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope as RequestScope

from threadkeep.app import App
from threadkeep.errors import InvalidInput
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, Scope, ScopeKind
from threadkeep.store.codec import clean_text
from threadkeep.web.callers import CallerInUse
from threadkeep.web.schemas import GivenId


class EncodedPathRoute(APIRoute):
    """A route matched against the encoded path: `/sessions/a%2Fb` names the session `a/b`.

    Servers decode the path before matching, which would turn an encoded slash into a path separator.
    """

    def matches(self, scope: RequestScope) -> tuple[Match, RequestScope]:
        """Match the encoded path, then decode the parameters."""
        raw: bytes | None = scope.get("raw_path")
        if raw is not None and b"%" not in raw:
            return super().matches(scope)
        path = scope["path"].replace("%", "%25")
        if raw is not None:
            # Decode the segments, except slashes and percent signs in a segment.
            segments = [_decoded(segment) for segment in raw.decode("latin-1").split("/")]
            path = "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in segments)
        match, child_scope = super().matches({**scope, "path": path})
        if match is not Match.NONE:
            parameters = child_scope["path_params"]
            child_scope["path_params"] = {name: _decoded(value) for name, value in parameters.items()}
        return match, child_scope


def _decoded(text: str) -> str:
    # Decode invalid UTF-8 to lone surrogates: with replacement characters, different ids could become equal.
    return unquote(text, errors="surrogateescape")


DEFAULT_LIMIT = 50
MAX_LIMIT = 200
_MOST_CALLS = 2**31 - 1


async def app_of(request: Request) -> App:
    """Return the `App` that the service was created for."""
    # Async, because FastAPI would run a sync function in an OS thread, and requests could overtake each other.
    return cast("App", request.app.state.app)


async def _user(
    caller: CallerInUse,
    user_id: Annotated[
        GivenId | None,
        Query(
            description="Only this user's data: the sessions with their runs and facts, and the facts about the user.",
            examples=["user-456"],
        ),
    ] = None,
) -> str | None:
    return caller.user(user_id)


type AppInUse = Annotated[App, Depends(app_of)]
type Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="The maximum number of results.")]
type Cursor = Annotated[str | None, Query(max_length=1000, description="The `next_cursor` of the previous page.")]
type SessionId = Annotated[str, Path(description="The session. Encode a slash as %2F.", examples=["session-123"])]
type UserId = Annotated[str | None, Depends(_user)]
type OwnerInQuery = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_OWNER_CHARACTERS,
        description="Only data of this session, workspace or person; needs `scope`.",
    ),
]
type LastEventId = Annotated[
    str | None, Header(max_length=32, description="The id of the newest event that the reader has.")
]
type RunId = Annotated[GivenId, Path(description="The id of the run, as in the answer to a message.")]


def scope_in_query(scope: ScopeKind | None, owner: str | None) -> Scope | None:
    """Return the scope with this kind and this owner, or None if no owner is given.

    Raises:
        InvalidInput: an owner is given without a kind.
    """
    if owner is None:
        return None
    if scope is None:
        raise InvalidInput("An `owner` needs its `scope`, such as scope=user&owner=ann.")
    return Scope(scope, owner)


def number_in(last_event_id: str | None) -> int:
    """Return the event number in the header `Last-Event-ID`, or 0 if the header is missing or is not a number."""
    known = last_event_id or ""
    return int(known) if known.isascii() and known.isdigit() and len(known) < 19 else 0


type ListName = Literal["calls", "facts", "persons", "procedures", "proposals", "runs", "sessions"]
type CursorPosition = tuple[datetime, str] | tuple[datetime, str, int]


def write_cursor(of: ListName, position: CursorPosition | None) -> str | None:
    """Return the cursor for a position in a list that is sorted by time and then id, or None without a position."""
    if position is None:
        return None
    moment, *rest = position
    text = json.dumps([of, moment.astimezone(UTC).isoformat(), *rest])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(of: ListName, cursor: str | None) -> tuple[datetime, str] | None:
    """Return the time and the id in a cursor, or None without a cursor.

    Raises:
        InvalidInput: the text is not a cursor of this list.
    """
    if not cursor:
        return None
    moment, name = _parts(of, cursor, 2)
    return moment, name


def read_call_cursor(cursor: str | None) -> tuple[datetime, str, int] | None:
    """Return the time, the run's id and the number of the model call in a cursor, or None without a cursor.

    Raises:
        InvalidInput: the text is not a cursor of a list of model calls.
    """
    if not cursor:
        return None
    moment, run_id, call = _parts("calls", cursor, 3)
    if type(call) is not int or not 0 <= call <= _MOST_CALLS:
        raise _refusal()
    return moment, run_id, call


def _parts(of: ListName, cursor: str, count: int) -> list[Any]:
    """Return the `count` values of a cursor. Reject a cursor of another list, or with invalid characters in an id."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        listed, moment, name, *rest = json.loads(text)
        parts = [datetime.fromisoformat(moment).astimezone(UTC), name, *rest]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _refusal() from error
    if listed != of or len(parts) != count or not isinstance(name, str) or not name or clean_text(name) != name:
        raise _refusal()
    return parts


def _refusal() -> InvalidInput:
    return InvalidInput("This is not a cursor of this list; pass the `next_cursor` of its previous page unchanged.")
