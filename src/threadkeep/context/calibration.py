"""How far an estimate is from what a model's provider counts, learned from what the provider reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from threadkeep.context.estimates import TokenCounter
from threadkeep.context.exact_tokens import ExactCounter

LEAST_FACTOR, GREATEST_FACTOR = 0.5, 3.0
"""What is learned stays between these, whatever is reported."""

MIN_TOKENS = 200
"""Smaller prompts teach nothing: what a provider puts around messages and tools is too much of them."""

_LONGEST_STEP = 0.15  # of the logarithm: one report raises or lowers the factor by 16 % at most
_LEAST_WEIGHT = 0.1  # of the newest report: about twenty reports are remembered


@dataclass(frozen=True, slots=True)
class TokenFactor:
    """What an estimate is multiplied by for a model: 1 before anything was reported."""

    model: str
    value: float = 1.0
    samples: int = 0

    def learn(self, estimated: int, reported: int) -> TokenFactor:
        """The factor after one more model call; the same one when the call is too small to teach anything.

        The first reports weigh most. A report moves the factor by a bounded step, so an absurd one does little, and
        many that agree bring it to their ratio.

        Args:
            estimated: the tokens of all that was sent, tools included, by the counter as it is without a factor.
            reported: the input tokens that the provider counted for it, cached ones included.
        """
        if estimated < MIN_TOKENS or reported < MIN_TOKENS:
            return self
        here = math.log(_bounded(self.value))
        there = math.log(_bounded(reported / estimated))
        weight = max(_LEAST_WEIGHT, 2 / (self.samples + 2))
        step = max(-_LONGEST_STEP, min(_LONGEST_STEP, weight * (there - here)))
        return replace(self, value=_bounded(math.exp(here + step)), samples=self.samples + 1)


@dataclass(frozen=True, slots=True)
class ScaledCounter:
    """An estimate times a factor in hundredths, rounded up."""

    counter: TokenCounter
    base: str
    hundredths: int

    @property
    def name(self) -> str:
        """Such as `estimate×1.12`."""
        return f"{self.base}×{self.hundredths / 100:.2f}"

    def __call__(self, text: str, /) -> int:
        """The tokens of this text."""
        return -(-self.counter(text) * self.hundredths // 100)


def scaled(counter: TokenCounter, factor: TokenFactor) -> TokenCounter:
    """The counter with its counts multiplied by the factor, to the nearest hundredth of it, and rounded up.

    An exact counter is never scaled: what a provider adds to it is framing, not text.
    """
    if isinstance(counter, ExactCounter):
        return counter
    unscaled, base = (counter.counter, counter.base) if isinstance(counter, ScaledCounter) else (counter, None)
    hundredths = round(100 * _bounded(factor.value))
    return unscaled if hundredths == 100 else ScaledCounter(unscaled, base or plain_name(unscaled), hundredths)


def plain_name(counter: TokenCounter) -> str:
    """The name that a counter carries, or its type's."""
    for attribute in ("name", "__name__"):
        name = getattr(counter, attribute, None)
        if isinstance(name, str) and name:
            return name
    return type(counter).__name__


def _bounded(value: float) -> float:
    return min(GREATEST_FACTOR, max(LEAST_FACTOR, value)) if math.isfinite(value) else 1.0
