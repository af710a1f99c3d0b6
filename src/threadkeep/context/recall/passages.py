"""The passage of a long text that answers a query best."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from threadkeep.context.recall.words import terms_of, words_of

# A line, or a sentence of one; a piece without an end is cut at this many characters.
_PIECES = re.compile(r"[^\n]{1,400}?(?:[.!?。！？]+(?=\s)|[。！？]|$)|\n|[^\n]{1,400}", re.MULTILINE)
_READ_CHARACTERS = 60_000
_MOST_PIECES = 3_000


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
    found = _PIECES.finditer(text[:_READ_CHARACTERS])
    pieces = list(islice(((one.start(), one.end()) for one in found if not one[0].isspace()), _MOST_PIECES))
    known = [{term for term in terms_of(words_of(text[a:b])) if term in terms} for a, b in pieces]
    inside = Counter[str]()
    best = first = 0
    weight = best_weight = 0.0
    for last in range(len(pieces)):
        weight += sum(terms[term] for term in known[last] if not inside[term])
        inside.update(known[last])
        while first < last and pieces[last][1] - pieces[first][0] > characters:
            inside.subtract(known[first])
            weight -= sum(terms[term] for term in known[first] if not inside[term])
            first += 1
        # Of equal passages the shortest beginning counts: the answer often follows the words of the question.
        if weight > best_weight + 1e-9:
            best, best_weight = first, weight
    begin = _without_space(text, pieces[best][0]) if pieces else 0
    end = max((b for a, b in pieces if b - begin <= characters), default=0)
    return Passage(begin, end if end > begin else min(len(text), begin + characters))


def _without_space(text: str, begin: int) -> int:
    while begin < len(text) and text[begin].isspace():
        begin += 1
    return begin
