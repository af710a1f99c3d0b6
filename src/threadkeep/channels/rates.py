"""Limit of messages of one sender, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

_WINDOW_SECONDS = 60.0
_MAX_SENDERS = 10_000

type Rate = Literal["within", "first_beyond", "beyond"]


class SenderRates:
    """The messages of each sender within the last minute; no limit if `per_minute` is 0.

    A message that the platform repeats counts once. Each process counts its own messages.
    """

    def __init__(self, per_minute: int = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        # Message ids by sender, with their times; None marks that the sender was told.
        self._seen: dict[str, dict[str | None, float]] = {}

    def count(self, sender: str, message_id: str) -> Rate:
        """Count a message; return whether it is within the limit."""
        if not self._per_minute:
            return "within"
        now = self._clock()
        self._forget_old(now)
        seen = self._seen.setdefault(sender, {})
        if message_id in seen:
            return "within"
        for old in [known for known, at in seen.items() if now - at >= _WINDOW_SECONDS]:
            del seen[old]
        if len(seen.keys() - {None}) < self._per_minute:
            seen[message_id] = now
            return "within"
        told = None in seen
        seen.setdefault(None, now)
        return "beyond" if told else "first_beyond"

    def _forget_old(self, now: float) -> None:
        if len(self._seen) <= _MAX_SENDERS:
            return
        self._seen = {
            sender: seen
            for sender, seen in self._seen.items()
            if now - max(seen.values(), default=0.0) < _WINDOW_SECONDS
        }
