"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class SettableClock:
    """Called, it gives the time that was set last, aware and in UTC; it begins at noon of 1 January 2026."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._now = _in_utc(start)

    def __call__(self) -> datetime:
        """The time now."""
        return self._now

    def set(self, time: datetime) -> None:
        """Make it this time, earlier or later.

        Raises:
            ValueError: the time has no time zone.
        """
        self._now = _in_utc(time)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass; a negative number turns the clock back."""
        self._now += timedelta(seconds=seconds)


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError("A clock needs a time with a time zone; pass tzinfo=datetime.UTC.")
    return time.astimezone(UTC)
