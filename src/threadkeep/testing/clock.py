"""A clock that changes only if a test sets it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class SettableClock:
    """A clock that returns the time that was set last, in UTC; at first, noon on 1 January 2026."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._now = _in_utc(start)

    def __call__(self) -> datetime:
        """Return the current time."""
        return self._now

    def set(self, time: datetime) -> None:
        """Set the time, earlier or later.

        Raises:
            ValueError: the time has no time zone.
        """
        self._now = _in_utc(time)

    def advance(self, seconds: float) -> None:
        """Advance the time by this number of seconds; a negative number turns the clock back."""
        self._now += timedelta(seconds=seconds)


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError("A clock needs a time with a time zone; pass tzinfo=datetime.UTC.")
    return time.astimezone(UTC)
