"""Conversion of times for columns: text, or microseconds since 1970 in SQLite's longest tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from threadkeep.store.driver import Backend

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT = timedelta(microseconds=1)


def time_of(value: Any) -> Any:
    """Return the datetime of a value from either engine: a datetime, text, or microseconds; None stays None."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return _EPOCH + value * _UNIT if isinstance(value, int) else value


def time_text(moment: datetime) -> str:
    """Return a time as text for both engines: UTC, fixed width, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def time_microseconds(moment: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (moment - _EPOCH) // _UNIT


def short_time(moment: datetime, backend: Backend) -> int | str:
    """Return a time for a compact column: microseconds on SQLite, a timestamp on PostgreSQL."""
    return time_microseconds(moment) if backend == "sqlite" else time_text(moment)
