"""Times as columns have them: most as text, those of the longest tables on SQLite as microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from threadkeep.store.driver import Backend

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT = timedelta(microseconds=1)


def time_of(value: Any) -> Any:
    """A time as either engine gives it: a datetime, its text, or microseconds; None stays None."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return _EPOCH + value * _UNIT if isinstance(value, int) else value


def time_text(moment: datetime) -> str:
    """A time as both engines take it: UTC, fixed width, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def time_microseconds(moment: datetime) -> int:
    """A time in microseconds since 1970."""
    return (moment - _EPOCH) // _UNIT


def short_time(moment: datetime, backend: Backend) -> int | str:
    """A time as a column takes it that has few bytes for it: on PostgreSQL its own eight are."""
    return time_microseconds(moment) if backend == "sqlite" else time_text(moment)
