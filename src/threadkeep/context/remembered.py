"""Counters that remember what they counted lately: the same messages are in call after call."""

from __future__ import annotations

from threadkeep.context.calibration import ScaledCounter, plain_name
from threadkeep.context.exact_tokens import ExactCounter
from threadkeep.context.tokens import TokenCounter

_MOST = 16_384


class RememberingCounter:
    """A counter with the counts of the texts that it saw lately, by their hash and length. It keeps no text."""

    def __init__(self, counter: TokenCounter, *, most: int = _MOST) -> None:
        self.counter = counter
        self.name = plain_name(counter)
        self._most = most
        self._counts: dict[tuple[int, int], int] = {}

    def __call__(self, text: str, /) -> int:
        """The tokens of this text."""
        key = (hash(text), len(text))
        if (known := self._counts.get(key)) is not None:
            return known
        if len(self._counts) >= self._most:
            self._counts.clear()
        self._counts[key] = tokens = self.counter(text)
        return tokens


class RememberedCounts:
    """The counters of one memory that remember, one for each estimate; exact ones are quick without."""

    def __init__(self) -> None:
        self._counters: dict[TokenCounter, RememberingCounter] = {}

    def remembering(self, counter: TokenCounter) -> TokenCounter:
        """A counter that gives the same counts, sooner."""
        if isinstance(counter, ExactCounter | RememberingCounter):
            return counter
        if isinstance(counter, ScaledCounter):
            return ScaledCounter(self.remembering(counter.counter), counter.base, counter.hundredths)
        return self._counters.setdefault(counter, RememberingCounter(counter))


def plain_counter(counter: TokenCounter) -> TokenCounter:
    """The counter without what it remembers and what was learned."""
    while isinstance(counter, ScaledCounter | RememberingCounter):
        counter = counter.counter
    return counter
