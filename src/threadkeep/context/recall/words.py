"""The words of a text: stems of Latin words, single characters and pairs where a script puts no spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from threadkeep.context.recall.stems import stem
from threadkeep.context.recall.stop_words import STOP_CHARACTERS, STOP_WORDS

# Scripts that are written without spaces: Han, kana, Thai, Lao, Myanmar, Khmer; and hangul, whose endings vary.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUNS = re.compile(
    rf"[{_UNSPACED}\U00020000-\U0003ffff]+|(?:(?![{_UNSPACED}])[^\W_])+(?:['’](?![{_UNSPACED}])[^\W_]+)*"
)
_UNSPACED_FIRST = re.compile(rf"[{_UNSPACED}\U00020000-\U0003ffff]")


def words_of(text: str) -> list[str]:
    """The words in small letters, accents off, an unspaced run as one word, in the order of the text."""
    if not text.isascii():
        text = _plain(text)
    return [found.replace("’", "'") for found in _RUNS.findall(text.lower())]


def _plain(text: str) -> str:
    """Compatible forms made one, and the accents of Latin letters taken off."""
    text = unicodedata.normalize("NFKC", text)
    if all(character < "\u00c0" or character > "\u024f" for character in text):
        return text
    parts = (unicodedata.normalize("NFD", letter)[0] if "\u00c0" <= letter <= "\u024f" else letter for letter in text)
    return "".join(parts)


def is_stop_word(word: str) -> bool:
    """Whether this word is of those that are everywhere and tell nothing apart."""
    return word in STOP_WORDS


def terms_of(words: list[str]) -> Iterator[str]:
    """What is indexed of these words: stems of those that carry meaning, characters and pairs of unspaced runs."""
    for word in words:
        if _UNSPACED_FIRST.match(word):
            yield from _pairs(word)
        elif word not in STOP_WORDS:
            yield stem(word.removesuffix("'s").replace("'", ""))


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
