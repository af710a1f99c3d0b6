"""How long messages stay: limits beyond which they are archived, or deleted."""

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
    """What may stay as it is; None for no such limit, and none at all by default.

    `max_age_days`: messages that were stored longer ago go. `max_messages`: only so many of the newest stay, but the
    newest user message and what follows it always do. `max_idle_days`: a session in which nothing was said for longer
    goes as a whole.
    """

    max_age_days: float | None = None
    max_messages: int | None = None
    max_idle_days: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that leave nothing, or that cannot be reckoned with.

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
        """Whether there is no limit, so that everything stays."""
        return self.max_age_days is None and self.max_messages is None and self.max_idle_days is None


@dataclass(frozen=True)
class Retention:
    """Which messages are archived and which are deleted: those beyond the limits. By default all stay as they are.

    What is archived is out of windows, recall and search; it can still be read by its place and exported. What is
    deleted is gone.
    """

    archive: RetentionLimits = RetentionLimits()
    delete: RetentionLimits = RetentionLimits()

    @property
    def nothing(self) -> bool:
        """Whether everything stays."""
        return self.archive.nothing and self.delete.nothing

    def to_dict(self) -> dict[str, Json]:
        """The limits that are set, as JSON values."""
        return {
            action: {name: value for name, value in asdict(limits).items() if value is not None}
            for action, limits in (("archive", self.archive), ("delete", self.delete))
            if not limits.nothing
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Retention:
        """The retention that `to_dict` described.

        Raises:
            InvalidInput: a name or a value is not one of a retention's.
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
