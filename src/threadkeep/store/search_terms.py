"""Search terms of a text: words and pairs of characters, their fingerprints and patterns, and trigrams."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final
from zlib import crc32

from threadkeep.records import dump_json
from threadkeep.store.codec import clean_text

TRIGRAM = 3
"""The number of characters in a trigram; shorter words have no trigram."""

_MOST_TRIGRAMS = 64
_LONGEST_TERM = 256
# 2 ** 32 divided by the golden ratio, which spreads consecutive values such as numbers.
_SPREAD = 0x9E3779B1
# No script beyond this code point has capitals.
_CASED = 0x20000

_WORDS = re.compile(r"\w+")
# Scripts without spaces between words: Thai, Lao, Khmer, Myanmar, kana, Han; and hangul, for its suffixes.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)


def search_terms(text: str) -> Sequence[str]:
    """Return the words of a text and the character pairs of scripts without spaces, each once, in order."""
    return list(dict.fromkeys(_terms(clean_text(text).lower())))


def fingerprints(terms: Iterable[str]) -> list[int]:
    """Return two-byte fingerprints of terms. Different terms may have the same one, so check matches in the texts."""
    return sorted({(crc32(term.encode()) * _SPREAD >> 16 & 0xFFFF) - 0x8000 for term in terms})


def term_pattern(term: str) -> str:
    """Return a case-insensitive regular expression for a term, independent of the server's locale."""
    return "".join(f"[{char}{capitals}]" if (capitals := _capitals().get(char)) else char for char in term)


def trigram_expression(words: Iterable[str]) -> str:
    """Return the FTS5 query for texts with the trigrams of all words, limited to the first 64 trigrams."""
    trigrams = (word[at : at + TRIGRAM] for word in words for at in range(len(word) - TRIGRAM + 1))
    quoted = ('"' + trigram.replace('"', '""') + '"' for trigram in list(dict.fromkeys(trigrams))[:_MOST_TRIGRAMS])
    return " ".join(quoted)


def _terms(text: str) -> Iterator[str]:
    for word in _WORDS.findall(text):
        rest = 0
        for run in _UNSPACED.finditer(word):
            yield from _short(word[rest : run.start()])
            characters = run.group()
            yield from [characters] if len(characters) == 1 else (a + b for a, b in pairwise(characters))
            rest = run.end()
        yield from _short(word[rest:])


def _short(term: str) -> list[str]:
    # A longer term is not a word, and servers reject its pattern.
    return [term] if 0 < len(term) <= _LONGEST_TERM else []


@cache
def _capitals() -> Mapping[str, str]:
    """Return, for each character, the other characters with the same lower case: capitals, and signs like Kelvin's."""
    found: defaultdict[str, str] = defaultdict(str)
    for char in map(chr, range(_CASED)):
        for lowered in {*char.lower()} - {char}:
            found[lowered] += char
    # A final sigma occurs only at the end of a word, so `lower` of a single character never returns it.
    found["ς"] += "Σ"
    return found


RELEVANCE: Final = "threadkeep_relevance"
"""The name of the SQL function; its arguments are a text and the result of `relevance_words`."""

_SATURATION = 1.2
_LENGTH_SHARE = 0.75
_AVERAGE_CHARACTERS = 500


def relevance(text: str, words: str) -> float | None:
    """Return the score of a text for the words of `relevance_words`; None if a word is missing (case-insensitive)."""
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
    """Return the parsed words; cached, because every text of a search comes with the same words."""
    return [(word, float(weight)) for word, weight in json.loads(words)]
