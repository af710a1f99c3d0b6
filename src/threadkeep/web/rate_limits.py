"""Limits on the requests of a key and of a user: token buckets in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from threadkeep.web.problems import ProblemRaised, make_problem

_MOST_BUCKETS = 10_000


class Buckets:
    """Token buckets by name. Each holds the requests of a minute, and is refilled evenly; 0 limits nothing."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        if not self._per_minute:
            return 0.0
        now, rate = self._clock(), self._per_minute / 60
        tokens, since = self._buckets.pop(name, (float(self._per_minute), now))
        tokens = min(tokens + (now - since) * rate, float(self._per_minute))
        allowed = tokens >= 1
        self._buckets[name] = (tokens - 1 if allowed else tokens, now)  # the last used one is the last of the dict
        if len(self._buckets) > _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return 0.0 if allowed else (1 - tokens) / rate


@dataclass(frozen=True)
class RateLimits:
    """The limits of a service. Each process counts for itself."""

    keys: Buckets = field(default_factory=lambda: Buckets(0))
    users: Buckets = field(default_factory=lambda: Buckets(0))

    def count_key(self, name: str) -> None:
        """Count a request of a key.

        Raises:
            ProblemRaised: there were too many (429).
        """
        _raise_after(self.keys.take(name), "This key")

    def count_user(self, user_id: str) -> None:
        """Count a request of a user.

        Raises:
            ProblemRaised: there were too many (429).
        """
        _raise_after(self.users.take(user_id), "This user")


def _raise_after(seconds: float, who: str) -> None:
    if seconds > 0:
        wait = math.ceil(seconds)
        sentence = f"{who} has sent too many requests; try again in {wait} seconds."
        raise ProblemRaised(make_problem(429, "too-many-requests", sentence), {"Retry-After": str(wait)})
