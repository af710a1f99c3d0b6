"""Where a list goes on, as one opaque word for callers to pass back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from threadkeep.errors import InvalidInput
from threadkeep.history.keys import check_key

_MOST_CALLS = 2**31 - 1


def write_cursor(moment: datetime, *rest: str | int) -> str:
    """The cursor of a place in a list that is ordered by times first."""
    text = json.dumps([moment.astimezone(UTC).isoformat(), *rest])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def session_place(cursor: str) -> tuple[datetime, str]:
    """The place in the list of sessions that a cursor names.

    Raises:
        InvalidInput: nobody ever got this cursor.
    """
    with _refusing():
        updated_at, session_id = _parts(cursor)
        check_key(session_id)
        return _moment(updated_at), session_id


def manifest_place(cursor: str) -> tuple[datetime, str, int]:
    """The place in the list of a session's model calls that a cursor names.

    Raises:
        InvalidInput: nobody ever got this cursor.
    """
    with _refusing():
        created_at, run_id, call = _parts(cursor)
        if not isinstance(run_id, str) or not run_id.isprintable() or type(call) is not int:
            raise ValueError("no run and call")
        if not 0 <= call <= _MOST_CALLS:
            raise ValueError("no call has this number")
        return _moment(created_at), run_id, call


def run_place(cursor: str) -> tuple[datetime, str]:
    """The place in the list of runs that a cursor names.

    Raises:
        InvalidInput: nobody ever got this cursor.
    """
    with _refusing():
        created_at, run_id = _parts(cursor)
        if not isinstance(run_id, str) or not run_id.isprintable():
            raise ValueError("no run")
        return _moment(created_at), run_id


def _parts(cursor: str) -> list[Any]:
    text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    return list(json.loads(text))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput("This is no cursor; pass the `next_cursor` of the page before, as it is.") from error
