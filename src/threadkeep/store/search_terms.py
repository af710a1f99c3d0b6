"""Functions for text search: terms, their fingerprints and patterns, and queries by trigrams."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise, product
from typing import Final
from unicodedata import normalize
from zlib import crc32

from threadkeep.records import dump_json
from threadkeep.store.codec import clean_text

TRIGRAM = 3
"""The number of characters in a trigram; a shorter word has no trigram."""

_MOST_TRIGRAMS = 64
_LONGEST_TERM = 256
# Multiplication by this prime (near 2 ** 32 / golden ratio) spreads similar numbers. Stored fingerprints depend on it.
_SPREAD = 0x9E3779B1
# No script beyond this code point has capital letters.
_CASED = 0x20000

_WORDS = re.compile(r"\w+")
# Replace σ at the end of a word by ς, because some texts have σ there, and `lower` returns σ for "Α.Σ.Δ".
_FINAL_SIGMA = re.compile(r"σ(?!\w)")
# Scripts without spaces between words; also hangul, because Korean words have suffixes.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)


def search_terms(text: str) -> Sequence[str]:
    """Return the distinct terms of a text: words, or pairs of characters in scripts without spaces."""
    terms = dict.fromkeys(_terms(_FINAL_SIGMA.sub("ς", clean_text(text).lower())))
    # Drop a very long term: it is not a word, and PostgreSQL rejects its pattern.
    return [term for term in terms if 0 < len(term) <= _LONGEST_TERM]


def is_indexed(term: str) -> bool:
    """Return False for signs such as emoji, and for a single character of a script whose texts are indexed in pairs."""
    return _WORDS.search(term) is not None and not (len(term) == 1 and _UNSPACED.match(term))


def indexed_terms(text: str) -> Sequence[str]:
    """Return the distinct terms by which a text is found: as it is written, and in the form NFC, with İ also as i."""
    forms = "\n".join(dict.fromkeys((text, normalize("NFC", text))))
    return search_terms(f"{forms}\n{forms.replace('İ', 'i')}" if "İ" in forms else forms)


def fold(text: str) -> str:
    """Fold a text for case-insensitive comparisons, in the same way on both databases. Its length stays the same."""
    return text.replace("İ", "i").lower().replace("ς", "σ")


def fold_fully(text: str) -> str:
    """Fold a text for case-insensitive comparisons, including ß to ss, in the form NFC. Its length may change."""
    return normalize("NFC", text).replace("İ", "i").casefold()


def folds_into(text: str) -> tuple[str, str]:
    """Return the characters that `fold` changes into characters of `text`, and their replacements in the same order."""
    pairs = [(char, folded) for folded in sorted(set(text)) for char in _unfolded().get(folded, "")]
    return "".join(char for char, _ in pairs), "".join(folded for _, folded in pairs)


def fingerprints(terms: Iterable[str]) -> list[int]:
    """Return two-byte fingerprints of terms. Two terms may share one, so matches must be checked in the texts."""
    return sorted({(crc32(term.encode()) * _SPREAD >> 16 & 0xFFFF) - 0x8000 for term in terms})


def term_pattern(term: str) -> str:
    """Return a regular expression that matches a term regardless of case, whatever the server's locale is.

    It also matches a letter whose accents are separate characters: for most scripts, any two to four characters.
    """
    patterns = []
    for char in fold(term):
        one = f"[{char}{more}]" if (more := _unfolded().get(char)) else re.escape(char)
        separate = normalize("NFD", char)
        patterns.append(one if separate == char else f"(?:{one}|{separate if _UNSPACED.match(char) else '.{2,4}'})")
    return "".join(patterns)


def short_pattern(word: str) -> str:
    """Return the GLOB pattern of texts that contain a word, ignoring case; SQLite's LIKE ignores it for ASCII only."""
    return f"*{''.join(char if char in '^]' else f'[{char}{_unfolded().get(char, "")}]' for char in fold(word))}*"


def trigram_expression(words: Iterable[str]) -> str:
    """Return the FTS5 query for texts that contain the trigrams of all words (only the first 64 are used)."""
    trigrams = dict.fromkeys(word[at : at + TRIGRAM] for word in words for at in range(len(word) - TRIGRAM + 1))
    alternatives = [_spellings(trigram) for trigram in list(trigrams)[:_MOST_TRIGRAMS]]
    plain = " ".join(quoted for quoted, *others in alternatives if not others)
    return " AND ".join(filter(None, (plain, *(f"({' OR '.join(each)})" for each in alternatives if len(each) > 1))))


def _spellings(trigram: str) -> list[str]:
    """Return a trigram, quoted, in all spellings with i or İ for each i, because FTS5 distinguishes the two."""
    spelled = product(*("iİ" if char in "iIİ" else char for char in trigram))
    return ['"' + "".join(letters).replace('"', '""') + '"' for letters in spelled]


def _terms(text: str) -> Iterator[str]:
    for word in _WORDS.findall(text):
        rest = 0
        for run in _UNSPACED.finditer(word):
            yield word[rest : run.start()]
            characters = run.group()
            yield from [characters] if len(characters) == 1 else (a + b for a, b in pairwise(characters))
            rest = run.end()
        yield word[rest:]


@cache
def _unfolded() -> Mapping[str, str]:
    """Map each folded character to the other characters that `fold` changes into it, before or after NFC."""
    found: defaultdict[str, str] = defaultdict(str)
    for char in map(chr, range(_CASED)):
        for folded in {fold(char), fold(normalize("NFC", char))} - {char}:
            found[folded] += char
    return found


RELEVANCE: Final = "threadkeep_relevance"
"""The name under which SQL statements call `relevance`."""

_SATURATION = 1.2
_LENGTH_SHARE = 0.75
_AVERAGE_CHARACTERS = 500


def relevance(text: str, words: str) -> float | None:
    """Return a text's score for the words of `relevance_words`, or None if a word is missing."""
    folded = fold_fully(text)
    damping = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * len(folded) / _AVERAGE_CHARACTERS)
    score = 0.0
    for word, rarity in _read(words):
        times = folded.count(word)
        if not times:
            return None
        score += rarity * times / (times + damping)
    return score


def relevance_words(words: Sequence[str], rarities: Sequence[float]) -> str:
    """Return words and their weights in the format that `relevance` reads."""
    return dump_json([[fold_fully(word), rarity] for word, rarity in zip(words, rarities, strict=True)])


def rarity(texts_with_word: int, texts: int) -> float:
    """Return the weight of a word, which is higher for words that fewer texts contain."""
    return math.log1p((texts - texts_with_word + 0.5) / (texts_with_word + 0.5))


@lru_cache(maxsize=16)
def _read(words: str) -> Sequence[tuple[str, float]]:
    """Parse words and their weights. The result is cached, because a search uses the same words for all texts."""
    return [(word, float(weight)) for word, weight in json.loads(words)]
