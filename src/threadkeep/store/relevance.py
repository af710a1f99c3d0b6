"""How well a text answers a search: BM25 over the words as they stand in it, NULL for SQLite where one is missing.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, with the usual constants; the
average length is a fixed one, since only the order of the results counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from threadkeep.records import dump_json

RELEVANCE: Final = "threadkeep_relevance"
"""The name of the function in SQL: a text and what `relevance_words` gives."""

_SATURATION = 1.2
_LENGTH_SHARE = 0.75
_AVERAGE_CHARACTERS = 500


def relevance(text: str, words: str) -> float | None:
    """The score of a text for the words of `relevance_words`; None when it does not have them all, in any case."""
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
    """Words and what each weighs, as `relevance` takes them."""
    return dump_json([[word.casefold(), rarity] for word, rarity in zip(words, rarities, strict=True)])


def rarity(texts_with_word: int, texts: int) -> float:
    """What a word weighs that so many of the texts have; more than nothing, however common it is."""
    return math.log1p((texts - texts_with_word + 0.5) / (texts_with_word + 0.5))


@lru_cache(maxsize=16)
def _read(words: str) -> Sequence[tuple[str, float]]:
    """The same words come with every text of a search."""
    return [(word, float(weight)) for word, weight in json.loads(words)]
