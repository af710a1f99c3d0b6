"""Retention rules: limits beyond which messages are archived or deleted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from threadkeep.errors import InvalidInput
from threadkeep.records.json_values import Json

_MOST_DAYS = 36_500
_MOST_MESSAGES = 2**53


@dataclass(frozen=True)
class RetentionLimits:
    """Limits of retention; None means no limit, and there are none by default.

    `max_age_days`: messages stored longer ago are removed. `max_messages`: only this many of the newest messages
    stay; the newest user message and everything after it always stay. `max_idle_days`: a session without a new
    message for longer is removed as a whole.
    """

    max_age_days: float | None = None
    max_messages: int | None = None
    max_idle_days: float | None = None

    def __post_init__(self) -> None:
        """Reject limits that keep nothing, or that are too large for dates.

        Raises:
            InvalidInput: names the limit.
        """
        for name in ("max_age_days", "max_idle_days"):
            days = getattr(self, name)
            if days is not None and not _is_days(days):
                raise InvalidInput(f"{name} is a number of days above 0 and up to {_MOST_DAYS}, or None for no limit.")
        count = self.max_messages
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or not 0 < count < _MOST_MESSAGES
        ):
            raise InvalidInput("max_messages is a whole number from 1, or None for no limit.")

    @property
    def nothing(self) -> bool:
        """True if there is no limit, so that everything stays."""
        return self.max_age_days is None and self.max_messages is None and self.max_idle_days is None


@dataclass(frozen=True)
class Retention:
    """Limits for archiving and for deleting messages. By default everything stays.

    Archived messages are left out of windows, recall and search; they can still be read by position and exported.
    Deleted messages are gone.
    """

    archive: RetentionLimits = RetentionLimits()
    delete: RetentionLimits = RetentionLimits()

    @property
    def nothing(self) -> bool:
        """True if everything stays."""
        return self.archive.nothing and self.delete.nothing

    def to_dict(self) -> dict[str, Json]:
        """Return the limits that are set, as JSON values."""
        return {
            action: {name: value for name, value in asdict(limits).items() if value is not None}
            for action, limits in (("archive", self.archive), ("delete", self.delete))
            if not limits.nothing
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Retention:
        """Return the retention that `to_dict` described.

        Raises:
            InvalidInput: a name or a value is not valid for a retention.
        """
        if not isinstance(values, Mapping) or set(values) - {"archive", "delete"}:
            raise InvalidInput("A retention has limits under archive, under delete, or under both.")
        return cls(**{action: _limits(given) for action, given in values.items()})


def _limits(values: Any) -> RetentionLimits:
    names = [field.name for field in fields(RetentionLimits)]
    if not isinstance(values, Mapping) or set(values) - set(names):
        raise InvalidInput(f"The limits of a retention are {', '.join(names)}.")
    return RetentionLimits(**values)


def _is_days(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 < value <= _MOST_DAYS
    )
