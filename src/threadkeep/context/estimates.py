"""How many tokens a text has, estimated: counters that need nothing but the text."""

from __future__ import annotations

import math
from typing import Protocol

from threadkeep.context import script_weights as weights


class TokenCounter(Protocol):
    """Measures a text; any function from text to a whole number is one.

    Its laws: deterministic, 0 for an empty text, never negative. It need not grow with the text, nor be additive.
    """

    def __call__(self, text: str, /) -> int:
        """The tokens of this text."""
        ...


def chars4(text: str) -> int:
    """Four characters a token: the rule of thumb for English, far too low for Chinese (`len(text) // 4`)."""
    return len(text) // 4


def estimate(text: str) -> int:
    """The default: an offline estimate that is fair to languages, in one linear pass of counting.

    Calibrated against the tokenizer of OpenAI's current models; older ones (`cl100k_base`) need up to twice as many
    tokens for languages that are not written in Latin letters. Rather over than under; at least 1 for a text that is
    not empty.
    """
    if not text:
        return 0
    data = text.encode("utf-8", "surrogatepass")
    kinds = data.translate(weights.KINDS)
    tokens = _plain(data, kinds)
    if len(data) != len(text):
        tokens += sum(weight * kinds.count(pattern) for pattern, weight in weights.SCRIPT_KINDS)
        tokens += sum(weight * data.count(pattern) for pattern, weight in weights.SCRIPT_BYTES)
    return max(1, math.ceil(tokens))


def _plain(data: bytes, kinds: bytes) -> float:
    """What words, digits, punctuation and space cost, whatever the script."""
    counts = [kinds.count(pattern) for pattern, _ in weights.PLAIN_KINDS]
    tokens = sum(weight * count for (_, weight), count in zip(weights.PLAIN_KINDS, counts, strict=True))
    tokens += weights.WORD * (b" " + data.translate(weights.LETTERS)).count(b" a")
    tokens += weights.DIGIT_RUN * (b" " + data.translate(weights.DIGITS)).count(b" 0")
    small, fours, capitals, digits, marks = counts[0], counts[1], counts[3], counts[7], counts[8]
    words = kinds.count(b" a") + kinds.count(b" A") + 1
    english = sum(data.count(sign) for sign in weights.ENGLISH)
    # Prose in Latin letters without the signs of English is another language; dense digits and punctuation are code.
    foreign = max(0.0, 1 - 3.5 * english / words) * max(0.0, 1 - 3 * (digits + marks) / (small + capitals + 1))
    return tokens + foreign * (weights.FOREIGN_LETTER * small + weights.FOREIGN_FOUR_LETTERS * fours)


def estimate_cl100k(text: str) -> int:
    """The estimate for OpenAI's older models (gpt-4, gpt-3.5)."""
    return estimate(text)
