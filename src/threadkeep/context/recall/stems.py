"""The stem of an English word: endings taken off, irregular forms brought home, so that words that mean one meet."""

from __future__ import annotations

from functools import lru_cache

from threadkeep.context.recall.irregular import BASE_FORMS

_NO_PLURALS = frozenset(("athletics", "lens", "mathematics", "news", "physics", "series", "species"))
_VOWELS = frozenset("aeiouy")
_DOUBLED = frozenset(("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt"))

# Endings that make one word of another, longest first, with what takes their place and how many letters must be left.
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


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The stem of a word in small letters; what is not of a to z is left alone."""
    if len(word) <= 2 or not (word.isascii() and word.isalpha()):
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
    """What a verb was before -ed or -ing: a doubled letter made single, a lost e put back where it shows."""
    if rest[-2:] in _DOUBLED:
        return rest[:-1]
    return rest + "e" if rest.endswith(("at", "bl", "iz")) else rest


def _without_derivation(word: str) -> str:
    for ending, kept, least in _DERIVED:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            return word[: len(word) - len(ending)] + kept
    return word


def _without_end(word: str) -> str:
    """The last letters made alike: no silent e, i for y, a doubled consonant single."""
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 2 and word.endswith("y") and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    if len(word) > 4 and word[-2:] in _DOUBLED:
        word = word[:-1]
    return word
