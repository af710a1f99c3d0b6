"""Which turns hold a term: lists of places in the order of the talk, kept as turns come in."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from threadkeep.context.recall.topics import COUNTS

# BM25 with a fixed usual length instead of the mean, so that what was stored stays true when turns are added.
_SATURATION, _LENGTH_SHARE, _USUAL_TERMS = 1.2, 0.6, 22.0
_BEGINNING = 4
# How far from a known place a frequent term is looked for.
_REACH = 2


class Postings:
    """Terms, topics and beginnings of terms, each with the places of the turns that hold them."""

    def __init__(self) -> None:
        self._terms: dict[str, tuple[list[int], list[float]]] = {}
        self._topics: dict[int, list[int]] = {}
        self._beginnings: dict[str, list[str]] = {}
        self._turns = 0

    def add(self, place: int, terms: Sequence[str]) -> tuple[float, int]:
        """Add the terms of a turn at its place; answers how rare they were up to now, about 0 to 1, and its topics."""
        self._turns += 1
        pace = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * len(terms) / _USUAL_TERMS)
        topics: set[int] = set()
        rarity, usual, counted = 0.0, math.log(self._turns + 19), Counter(terms)
        for term, count in counted.items():
            places, weights = self._terms.get(term) or self._new(term)
            places.append(place)
            weights.append(count * (_SATURATION + 1) / (count + pace))
            topics.update(COUNTS.get(term, ()))
            rarity += usual - math.log(len(places) + 0.5)
        for topic in sorted(topics):
            self._topics.setdefault(topic, []).append(place)
        return (rarity / (usual * len(counted)) if counted else 0.0), sum(1 << topic for topic in topics)

    def _new(self, term: str) -> tuple[list[int], list[float]]:
        found: tuple[list[int], list[float]] = ([], [])
        self._terms[term] = found
        if len(term) > _BEGINNING and term.isascii():
            self._beginnings.setdefault(term[:_BEGINNING], []).append(term)
        return found

    def of_term(self, term: str) -> tuple[Sequence[int], Sequence[float]]:
        """The places of a term, and how much of it is there."""
        return self._terms.get(term, ((), ()))

    def of_topic(self, topic: int) -> Sequence[int]:
        """The places of a topic."""
        return self._topics.get(topic, ())

    def alike(self, term: str, most: int) -> Iterator[Sequence[int]]:
        """The places of other terms that begin as this one does."""
        if len(term) >= _BEGINNING and term.isascii():
            for other in self._beginnings.get(term[:_BEGINNING], ())[:most]:
                if other != term:
                    yield self._terms[other][0]

    def rarity(self, places: int) -> float:
        """The inverse document frequency of what is in so many turns."""
        return math.log(1 + (self._turns - places + 0.5) / (places + 0.5))


def beside(places: Sequence[int], known: Iterable[int], first: int) -> Iterator[int]:
    """Indexes into a long list of places: from `first` on, and before it those beside known places, given in order."""
    last = -1
    for place in known:
        index = max(bisect_left(places, place - _REACH, 0, first), last + 1)
        while index < first and places[index] <= place + _REACH:
            yield index
            last = index
            index += 1
    yield from range(first, len(places))
