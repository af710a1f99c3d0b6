"""What a text is found by: its words and pairs of characters, their fingerprints and patterns, its trigrams."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from zlib import crc32

from threadkeep.store.codec import clean_text

TRIGRAM = 3
"""Words of fewer characters have no trigram."""

_MOST_TRIGRAMS = 64
_LONGEST_TERM = 256
# 2 ** 32 divided by the golden ratio: what follows each other, as numbers do, lies apart.
_SPREAD = 0x9E3779B1
# No script beyond has capitals.
_CASED = 0x20000

_WORDS = re.compile(r"\w+")
# Scripts without spaces between words: Thai, Lao, Khmer, Myanmar, kana, Han; and hangul, for its suffixes.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)


def search_terms(text: str) -> Sequence[str]:
    """The words of a text, and the pairs of characters of what is written without spaces; each once, in order."""
    return list(dict.fromkeys(_terms(clean_text(text).lower())))


def fingerprints(terms: Iterable[str]) -> list[int]:
    """Numbers of two bytes that stand for terms; of 65,536 terms two have the same, so a text may look like another."""
    return sorted({(crc32(term.encode()) * _SPREAD >> 16 & 0xFFFF) - 0x8000 for term in terms})


def term_pattern(term: str) -> str:
    """The regular expression of a term in any case, as `search_terms` sees it, in whatever locale a server has."""
    return "".join(f"[{char}{capitals}]" if (capitals := _capitals().get(char)) else char for char in term)


def trigram_expression(words: Iterable[str]) -> str:
    """What FTS5 is asked for: texts with the trigrams of all words, or with so many that few others have them."""
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
    # What is longer is no word, and no pattern that a server takes.
    return [term] if 0 < len(term) <= _LONGEST_TERM else []


@cache
def _capitals() -> Mapping[str, str]:
    """The other characters that are a character when a text is lowered: capitals, and signs such as that of Kelvin."""
    found: defaultdict[str, str] = defaultdict(str)
    for char in map(chr, range(_CASED)):
        for lowered in {*char.lower()} - {char}:
            found[lowered] += char
    # At the end of a word only, so that no single character shows it.
    found["ς"] += "Σ"
    return found
