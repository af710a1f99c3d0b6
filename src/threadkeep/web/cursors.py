"""List positions as opaque cursors, which clients pass back."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from threadkeep.errors import InvalidInput
from threadkeep.store.codec import clean_text

_MOST_CALLS = 2**31 - 1


def write_cursor(position: tuple[datetime, str] | tuple[datetime, str, int] | None) -> str | None:
    """Return the cursor of a position in a list that is sorted by time first; None stays None."""
    if position is None:
        return None
    moment, *rest = position
    text = json.dumps([moment.astimezone(UTC).isoformat(), *rest])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> tuple[datetime, str] | None:
    """Return the position that a cursor names: a time and an id; None without a cursor.

    Raises:
        InvalidInput: the service never issued this cursor.
    """
    if not cursor:
        return None
    moment, name = _parts(cursor, 2)
    return moment, name


def read_call_cursor(cursor: str | None) -> tuple[datetime, str, int] | None:
    """Return the position in the list of a session's model calls that a cursor names; None without a cursor.

    Raises:
        InvalidInput: the service never issued this cursor.
    """
    if not cursor:
        return None
    moment, run_id, call = _parts(cursor, 3)
    if type(call) is not int or not 0 <= call <= _MOST_CALLS:
        raise _refusal()
    return moment, run_id, call


def _parts(cursor: str, count: int) -> list[Any]:
    """Return the time, the id and the other values of a cursor; the id is valid in a database."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        moment, name, *rest = json.loads(text)
        parts = [datetime.fromisoformat(moment).astimezone(UTC), name, *rest]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _refusal() from error
    if len(parts) != count or not isinstance(name, str) or not name or clean_text(name) != name:
        raise _refusal()
    return parts


def _refusal() -> InvalidInput:
    return InvalidInput("This is no cursor; pass the `next_cursor` of the page before, as it is.")
