"""Access to values in a platform's JSON: a field of an unexpected type counts as missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from threadkeep.records import Json


def read_json(text: str | bytes) -> Json:
    """Return the JSON value of a text; None if it is not JSON."""
    try:
        value: Json = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return value


def object_in(value: Json, *names: str) -> Mapping[str, Json]:
    """Return the object at a path of names; an empty one if it is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def list_in(fields: Mapping[str, Json], name: str) -> Sequence[Json]:
    """Return a list; an empty one if it is missing."""
    value = fields.get(name)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def text_in(fields: Mapping[str, Json], name: str) -> str:
    """Return a text; empty if it is missing."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def number_in(fields: Mapping[str, Json], name: str) -> int | None:
    """Return an integer of at most 64 bits; None if it is missing."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def id_in(fields: Mapping[str, Json], name: str) -> str:
    """Return an id as text, from a printable text or an integer; empty if it is missing."""
    number = number_in(fields, name)
    text = text_in(fields, name) if number is None else str(number)
    return text if text.isprintable() and len(text) <= 256 else ""


def time_in(fields: Mapping[str, Json], name: str) -> datetime | None:
    """Return a time from seconds since 1970; None if it is missing or 0."""
    seconds = number_in(fields, name)
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None and 0 < seconds < 253_402_300_800 else None
