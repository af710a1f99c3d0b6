"""The index terms of a text: stems or, in scripts without spaces, characters and pairs of them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Final, Protocol


def lines_of(name: str) -> list[str]:
    """Return the lines of a file in `data`, without its comments."""
    text = files("threadkeep.context.recall").joinpath("data", name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def _base_forms() -> dict[str, str]:
    forms: dict[str, str] = {}
    for line in lines_of("irregular_en.txt"):
        base, *others = line.split()
        for other in others:
            forms.setdefault(other, base)
    return forms


BASE_FORMS = _base_forms()
"""The base form of each irregular form of an English word, in lower case."""


_MOST_WORDS, _LONGEST_KEPT = 65_536, 64
_NO_PLURALS = frozenset(("athletics", "lens", "mathematics", "news", "physics", "series", "species"))
_VOWELS = frozenset("aeiouy")
_DOUBLED = frozenset(("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt"))

# Derivational endings, longest first, with their replacement and the least number of letters before them.
_DERIVED: tuple[tuple[str, str, int], ...] = (
    ("ization", "ize", 3), ("isation", "ize", 3), ("ational", "ate", 3),
    ("fulness", "ful", 3), ("iveness", "ive", 3), ("ousness", "ous", 3),
    ("ication", "ic", 3), ("ability", "able", 3), ("ibility", "ible", 3),
    ("tional", "tion", 3), ("ation", "ate", 3), ("ition", "it", 3),
    ("fully", "ful", 3), ("ously", "ous", 3), ("ively", "ive", 3), ("ement", "e", 4),
    ("ment", "", 4), ("ness", "", 3), ("ance", "", 4), ("ence", "", 4),  # codespell:ignore ment
    ("tion", "t", 3), ("sion", "s", 4), ("ship", "", 4), ("ian", "", 4),
    ("ical", "ic", 3), ("ally", "al", 3), ("ful", "", 3), ("ist", "", 3),  # codespell:ignore ist
    ("ism", "", 4), ("ity", "", 4), ("ive", "", 4), ("ous", "", 4), ("ant", "", 5),
    ("ent", "", 5), ("ate", "", 4), ("ize", "", 4), ("ise", "", 5), ("ly", "", 3),
    ("er", "", 4), ("or", "", 4), ("al", "", 4), ("ic", "", 4),
)  # fmt: skip
_DERIVED_ENDINGS = tuple(ending for ending, _, _ in _DERIVED)


class _Stemmer(Protocol):
    def stemWord(self, word: str) -> str: ...  # noqa: N802 - the name of the package


# Scripts that mostly one language uses: the first and the last letter, and the stemmer.
_STEMMED_SCRIPTS = (
    ("\u0370", "\u03ff", "greek"), ("\u0400", "\u052f", "russian"), ("\u0530", "\u058f", "armenian"),
    ("\u0600", "\u06ff", "arabic"), ("\u0900", "\u097f", "hindi"), ("\u0b80", "\u0bff", "tamil"),
)  # fmt: skip


@cache
def _stemmer(language: str) -> _Stemmer:
    # Import the package at the first use, because it loads all of its languages.
    found: _Stemmer = import_module("snowballstemmer").stemmer(language)
    return found


def stem(word: str) -> str:
    """Return the stem of a lower-case word.

    ASCII words are stemmed by English rules, and words of a script in `_STEMMED_SCRIPTS` by those of its main language.
    """
    if len(word) <= 2:
        return word
    for first, last, language in _STEMMED_SCRIPTS:
        if first <= word[0] <= last:
            return _stemmer(language).stemWord(word)
    if not (word.isascii() and word.isalpha()):
        return word
    word = BASE_FORMS.get(word, word)
    word = _without_inflection(word)
    return _without_end(_without_derivation(_without_derivation(word)))


def _without_inflection(word: str) -> str:
    word = BASE_FORMS.get(_without_plural(word), _without_plural(word))
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            rest = word[: -len(ending)]
            if not _VOWELS.isdisjoint(rest):
                return BASE_FORMS.get(rest, _mended(rest))
    return word


def _without_plural(word: str) -> str:
    if len(word) <= 3 or word in _NO_PLURALS or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + ("y" if len(word) > 4 else "ie")
    if word.endswith(("sses", "shes", "ches", "xes", "zzes")):
        return word[:-2]
    return word[:-1]


def _mended(rest: str) -> str:
    """Repair a verb that lost its -ed or -ing: "plann" becomes "plan", and "relat" becomes "relate"."""
    if rest[-2:] in _DOUBLED:
        return rest[:-1]
    return rest + "e" if rest.endswith(("at", "bl", "iz")) else rest


def _without_derivation(word: str) -> str:
    # Check all endings at once first, because most words have none of them.
    if not word.endswith(_DERIVED_ENDINGS):
        return word
    for ending, kept, least in _DERIVED:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            return word[: len(word) - len(ending)] + kept
    return word


def _without_end(word: str) -> str:
    """Normalise the end of a word: a silent e, a final y, and a double consonant."""
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 2 and word.endswith("y") and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    if len(word) > 4 and word[-2:] in _DOUBLED:
        word = word[:-1]
    return word


_WORDS = " ".join(lines_of("stop_words.txt")).split()

STOP_WORDS: Final = frozenset(word for word in _WORDS if word.isascii())
"""English words in lower case that are too common to distinguish turns."""

STOP_CHARACTERS: Final = frozenset("".join(word for word in _WORDS if not word.isascii()))
"""Common Chinese characters, and endings in Japanese and Korean."""


# Scripts without spaces: Han, kana, Thai, Lao, Myanmar, Khmer. Hangul is included, because its words have many endings.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_SPACED_RUNS = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_RUNS = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}])[^\W_])+(?:'(?![{_UNSPACED}])[^\W_]+)*")
_ACCENTED = re.compile("[\u00c0-\u024f]")
_MARKS = re.compile("[\u0300-\u036f]+")
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")


def is_unspaced(text: str) -> bool:
    """Return True if a text has characters of a script without spaces between words."""
    return not text.isascii() and _UNSPACED_CHARACTER.search(text) is not None


def words_of(text: str) -> list[str]:
    """Return the words of a text in order, in lower case and without accents."""
    if not text.isascii():
        text = _plain(text.replace("’", "'"))
    runs: list[str] = (_RUNS if is_unspaced(text) else _SPACED_RUNS).findall(text.lower())
    return runs


def _plain(text: str) -> str:
    """Normalise compatibility characters; remove accents of Latin letters, and accents that are separate characters."""
    text = unicodedata.normalize("NFKC", text)
    return _MARKS.sub("", _ACCENTED.sub(lambda letter: unicodedata.normalize("NFD", letter[0])[0], text))


def is_stop_word(word: str) -> bool:
    """Return True if this word is too common to distinguish turns."""
    return word in STOP_WORDS


def meaningful(text: str, names: Collection[str]) -> str:
    """Return the text without stop words and `names`, for an embedding. If no words are left, return the whole text."""
    words = [(word, word.lower()) for word in _RUNS.findall(text.replace("’", "'"))]
    left = [word for word, lower in words if not (lower in STOP_WORDS or lower.removesuffix("'s") in names)]
    return " ".join(left) or text


def terms_of(words: list[str]) -> list[str]:
    """Return the index terms of words, without stop words."""
    if all(map(str.isascii, words)):
        return list(filter(None, map(_TERMS.__getitem__, words)))
    terms: list[str] = []
    for word in words:
        if is_unspaced(word):
            terms += _pairs(word)
        elif term := _TERMS[word]:
            terms.append(term)
    return terms


class WordTable[Value](dict[str, Value]):
    """A cache that maps words to values. It leaves out long words, and is cleared when it is full."""

    def __init__(self, value_of: Callable[[str], Value]) -> None:
        super().__init__()
        self._value_of = value_of

    def __missing__(self, word: str) -> Value:
        value = self._value_of(word)
        if len(word) <= _LONGEST_KEPT:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = value
        return value


def _term_of(word: str) -> str:
    """Return the stem of a word in a script with spaces, or "" if it is a stop word."""
    if word in STOP_WORDS:
        return ""
    return stem(word.removesuffix("'s").replace("'", "") if "'" in word else word)


_TERMS = WordTable(_term_of)


def _pairs(run: str) -> Iterator[str]:
    previous = ""
    for character in run:
        if character in STOP_CHARACTERS:
            previous = ""
            continue
        yield character
        if previous:
            yield previous + character
        previous = character


type _Table = dict[str, tuple[int, ...]]

_SYNONYMS = lines_of("synonyms_en.txt")


def _groups() -> Iterator[tuple[list[str], list[str]]]:
    """Yield each group of synonyms and each topic: the words that ask for it, and all words that belong to it."""
    for group in _SYNONYMS:
        yield group.split(), group.split()
    for topic in (*lines_of("topics_en.txt"), *lines_of("topics_zh.txt")):
        heads, _, members = topic.partition("|")
        yield heads.split(), [*heads.split(), *members.split()]


def _terms(word: str) -> list[str]:
    """Return the term under which a word is indexed, as a list of one; an empty list if there is none."""
    if word.isascii():
        return [stem(word)]
    return [term for term in terms_of([word]) if len(term) == min(len(word), 2)][:1]


def _tables() -> tuple[_Table, _Table]:
    asks: dict[str, set[int]] = {}
    counts: dict[str, set[int]] = {}
    for number, (heads, members) in enumerate(_groups()):
        for table, words in ((asks, heads), (counts, members)):
            for word in words:
                for term in _terms(word):
                    table.setdefault(term, set()).add(number)
    return ({k: tuple(sorted(v)) for k, v in asks.items()}, {k: tuple(sorted(v)) for k, v in counts.items()})


ASKS, COUNTS = _tables()
"""`ASKS` maps a term of a query to the topics it asks for; `COUNTS` maps a term of a turn to the topics it is in."""

FIRST_TOPIC: Final = len(_SYNONYMS)
"""The number of the first topic; lower numbers are groups of synonyms."""
