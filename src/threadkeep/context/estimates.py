"""How many tokens a text has, estimated: counters that need nothing but the text."""

from __future__ import annotations

import math
from typing import Protocol

from threadkeep.context.character_kinds import CAPITALS, KINDS, digit_groups, framed
from threadkeep.context.exact_tokens import Encoding
from threadkeep.context.token_costs import Counted, TokenCosts, token_costs


class TokenCounter(Protocol):
    """Measures a text; any function from text to a whole number is one.

    Its laws: deterministic, 0 for an empty text, never negative. It need not grow with the text, nor be additive.
    """

    def __call__(self, text: str, /) -> int:
        """The tokens of this text."""
        ...


_MOST_CHARACTERS = 10  # a token: hardly any writing has more, but repetitions may look as if they had


def chars4(text: str) -> int:
    """Four characters a token: the rule of thumb for English, far too low for Chinese (`len(text) // 4`)."""
    return len(text) // 4


def estimate(text: str) -> int:
    """The default: an offline estimate that is fair to languages, in linear passes.

    Calibrated against the tokenizer of OpenAI's current models. Rather over than under; at least 1 for a text that is
    not empty.
    """
    return _estimate(text, "o200k")


def estimate_cl100k(text: str) -> int:
    """The same for OpenAI's older models (gpt-4, gpt-3.5), which need up to three times as many tokens."""
    return _estimate(text, "cl100k")


def _estimate(text: str, encoding: Encoding) -> int:
    if not text:
        return 0
    costs = token_costs(encoding)
    data = framed(text)
    tokens = _cost_of_pairs(data, costs.pairs) + _cost_of(data, costs.text)
    kinds = data.translate(KINDS)
    tokens += _cost_of(kinds, costs.kinds)
    if b"0" in kinds:
        tokens += costs.digit_group * digit_groups(data)
    if not text.isascii():
        tokens += _cost_of_scripts(data, kinds, costs)
    return max(1, len(text) // _MOST_CHARACTERS, round(tokens))


def _cost_of_pairs(data: bytes, pairs: list[float]) -> float:
    """Each byte with its follower: those at even places, then those at odd ones, as numbers of two bytes."""
    view, size = memoryview(data), len(data)
    even, odd = view[: size & ~1].cast("H"), view[1 : size - 1 + size % 2].cast("H")
    return sum(map(pairs.__getitem__, even)) + sum(map(pairs.__getitem__, odd))


def _cost_of_scripts(data: bytes, kinds: bytes, costs: TokenCosts) -> float:
    tokens = 0.0
    for script in costs.scripts:
        if script.lead in kinds:
            tokens += _cost_of(kinds, script.kinds) + _cost_of(data, script.text)
            if script.capitals.patterns:
                tokens += _cost_of(data.translate(CAPITALS), script.capitals)
    return tokens


def _cost_of(data: bytes, counted: Counted) -> float:
    return math.sumprod(counted.costs, map(data.count, counted.patterns))
