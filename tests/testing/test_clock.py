"""Tests of the clock that tests can set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from threadkeep.testing import SettableClock


def test_the_clock_stands_still_until_it_is_moved() -> None:
    clock = SettableClock()
    before = clock()
    assert clock() == before
    clock.advance(1.5)
    clock.advance(-0.5)
    assert clock() - before == timedelta(seconds=1)


def test_the_clock_returns_utc() -> None:
    clock = SettableClock(datetime(2026, 5, 1, 2, tzinfo=timezone(timedelta(hours=8))))
    assert clock().isoformat() == "2026-04-30T18:00:00+00:00"
    clock.set(datetime(2020, 1, 1, tzinfo=UTC))
    assert clock() == datetime(2020, 1, 1, tzinfo=UTC)


def test_a_time_without_a_zone_is_refused() -> None:
    """A naive time would be another moment on each machine."""
    with pytest.raises(ValueError, match="time zone"):
        SettableClock().set(datetime(2026, 1, 1))  # noqa: DTZ001 - a naive time is refused
