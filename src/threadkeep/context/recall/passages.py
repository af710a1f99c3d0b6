"""The passage of a long text that answers a query best."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from threadkeep.context.recall.words import terms_of, words_of

# A line, or a sentence of one; a piece without an end is cut at this many characters.
_PIECES = re.compile(r"[^\n]{1,400}?(?:[.!?。！？]+(?=\s)|[。！？]|$)|\n|[^\n]{1,400}", re.MULTILINE)
_READ_CHARACTERS = 60_000


class Passage(NamedTuple):
    """A range of characters of a text: the first, and the one after the last."""

    first: int
    last: int


def passage_of(text: str, terms: Mapping[str, float], characters: int) -> Passage:
    """Return the sentences in a row that have the most weight of these terms.

    Args:
        text: The text to quote from.
        terms: The weight of each term of the query.
        characters: The length of the passage. A single longer sentence is cut.
    """
    pieces = [(found.start(), found.end()) for found in _PIECES.finditer(text[:_READ_CHARACTERS])]
    weights = [{term: terms[term] for term in terms_of(words_of(text[a:b])) if term in terms} for a, b in pieces]
    best, best_weight, first = (0, 0), 0.0, 0
    for last in range(len(pieces)):
        while first < last and pieces[last][1] - pieces[first][0] > characters:
            first += 1
        inside: dict[str, float] = {}
        for found in weights[first : last + 1]:
            inside |= found
        # Of equal passages the shortest beginning counts: the answer often follows the words of the question.
        if (weight := sum(inside.values())) > best_weight:
            best, best_weight = (first, last), weight
    begin = _without_space(text, pieces[best[0]][0]) if pieces else 0
    end = max((b for a, b in pieces if b - begin <= characters), default=0)
    return Passage(begin, end if end > begin else min(len(text), begin + characters))


def _without_space(text: str, begin: int) -> int:
    while begin < len(text) and text[begin].isspace():
        begin += 1
    return begin
