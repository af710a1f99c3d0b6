"""A breaker: after failures nothing is tried for a while, and then one call tells whether the server is back."""

from __future__ import annotations

import random
from collections.abc import Callable


class Breaker:
    """Opens after some failures in a row, and lets one call through when its pause is over.

    The pause doubles with each failure up to the longest, with full jitter, so that processes do not come together.
    """

    def __init__(
        self,
        *,
        failures: int,
        first_seconds: float,
        longest_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._most = failures
        self._first = first_seconds
        self._longest = longest_seconds
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Return whether calls are held back."""
        return self._failures >= self._most

    def allows(self) -> bool:
        """Return whether a call may be made now; of those that an open one lets through there is one at a time."""
        if not self.is_open:
            return True
        if self._probing or self._clock() < self._open_until:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """Close: the server answered."""
        self._failures, self._probing = 0, False

    def give_back(self) -> None:
        """Note that a call which was let through was not made."""
        self._probing = False

    def failed(self, *, at_least_seconds: float = 0.0) -> None:
        """Count a failure; `at_least_seconds` is a pause that the server asked for."""
        self._failures += 1
        self._probing = False
        most = min(self._first * 2.0 ** min(self._failures - self._most, 30), self._longest)
        self._open_until = self._clock() + max(most * random.uniform(0.5, 1.0), at_least_seconds)
