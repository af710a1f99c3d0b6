"""Relevance of a text for a search: BM25 over substrings; NULL for SQLite if a word is missing.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, with the usual constants. The
average length is fixed, because only the order of the results matters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from threadkeep.records import dump_json

RELEVANCE: Final = "threadkeep_relevance"
"""The name of the SQL function; its arguments are a text and the result of `relevance_words`."""

_SATURATION = 1.2
_LENGTH_SHARE = 0.75
_AVERAGE_CHARACTERS = 500


def relevance(text: str, words: str) -> float | None:
    """Return the score of a text for the words of `relevance_words`; None if one is missing (case-insensitive)."""
    folded = text.casefold()
    damping = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * len(folded) / _AVERAGE_CHARACTERS)
    score = 0.0
    for word, rarity in _read(words):
        times = folded.count(word)
        if not times:
            return None
        score += rarity * times / (times + damping)
    return score


def relevance_words(words: Sequence[str], rarities: Sequence[float]) -> str:
    """Return words and their weights in the format of `relevance`."""
    return dump_json([[word.casefold(), rarity] for word, rarity in zip(words, rarities, strict=True)])


def rarity(texts_with_word: int, texts: int) -> float:
    """Return the weight of a word from the number of texts that have it; it is always positive."""
    return math.log1p((texts - texts_with_word + 0.5) / (texts_with_word + 0.5))


@lru_cache(maxsize=16)
def _read(words: str) -> Sequence[tuple[str, float]]:
    """Return the parsed words; the same words come with every text of a search."""
    return [(word, float(weight)) for word, weight in json.loads(words)]
