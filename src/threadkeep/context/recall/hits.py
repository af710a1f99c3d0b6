"""Where the terms of a query are, and what stands for them: places found, with bits for what was found there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest

from threadkeep.context.recall.postings import Postings, beside
from threadkeep.context.recall.query import Query
from threadkeep.context.recall.topics import ASKS, FIRST_TOPIC

# A word counts in full, one that means the same in part, one of the topic asked for or spelt alike less.
_SAME, _TOPIC, _ALIKE = 0.7, 0.6, 0.4
_MOST_TERMS = 16
_MOST_ALIKE = 6
# What bounds a query, however long the talk: places read for its own terms and for what stands for them. Of a list that
# is too long the newest places are read, and those beside the best that are known by then.
_OWN_PLACES, _OTHER_PLACES = 350, 300
_LEAST_PLACES = 30
_BEST_PLACES = 24


class Coverage(dict[int, float]):
    """The share of the query, by weight, that sources cover, by their bits; worked out once for each.

    A source stands for a term of the query and has one bit. Of the sources of a term the one that stands for it best
    has the lowest bit, and only that one counts.
    """

    def __init__(self) -> None:
        super().__init__({0: 0.0})
        self._sources: list[tuple[int, float]] = []
        self._counts: dict[int, tuple[float, int]] = {}

    def bit(self, term: int, part: float) -> int:
        """A bit for a source that stands for this term so well."""
        if (term, part) not in self._sources:
            self._sources.append((term, part))
        return 1 << self._sources.index((term, part))

    def weigh(self, weights: Sequence[float]) -> None:
        """Say what each term weighs, when all sources have their bits."""
        others = [0] * len(weights)
        for number, (term, _) in enumerate(self._sources):
            others[term] |= 1 << number
        for number, (term, part) in enumerate(self._sources):
            self._counts[1 << number] = (part * weights[term], ~others[term])

    def __missing__(self, bits: int) -> float:
        weight, others = self._counts[bits & -bits]
        share = self[bits] = weight + self[bits & others]
        return share


class Hits:
    """Which sources are at which place, as bits, what they cover, and the BM25 score of the place.

    `scale` makes the scores of short and of long queries alike.
    """

    def __init__(self, postings: Postings, query: Query) -> None:
        self.masks: dict[int, int] = {}
        self.scores: dict[int, float] = {}
        self.coverage = Coverage()
        self._best: list[int] | None = None
        weighed = (
            (postings.rarity(len(postings.of_term(term)[0])) * share, term) for term, share in query.terms.items()
        )
        terms = nlargest(_MOST_TERMS, weighed)
        self.terms = [term for _, term in terms]
        self._found = [False] * len(terms)
        self._add_terms(postings, terms)
        self._add_others(postings, terms)
        total = self._total(terms)
        self.coverage.weigh([weight / total for weight, _ in terms])
        self.scale = 1 / total

    def _total(self, terms: Sequence[tuple[float, str]]) -> float:
        return sum(weight for (weight, _), found in zip(terms, self._found, strict=True) if found) or 1.0

    def _add_terms(self, postings: Postings, terms: Sequence[tuple[float, str]]) -> None:
        left, masks, scores = _OWN_PLACES, self.masks, self.scores
        for number, (weight, term) in enumerate(terms):
            places, amounts = postings.of_term(term)
            bit = self.coverage.bit(number, 1.0)
            for index in self._read(places, left):
                place = places[index]
                masks[place] = masks.get(place, 0) | bit
                scores[place] = scores.get(place, 0.0) + weight * amounts[index]
            left -= min(left, len(places))
            self._found[number] = bool(places)

    def _add_others(self, postings: Postings, terms: Sequence[tuple[float, str]]) -> None:
        others = sorted(_others(postings, terms), key=lambda other: -other[1])
        read = [(len(places), self.coverage.bit(number, part), number, places) for number, part, places in others]
        left, masks = _OTHER_PLACES, self.masks
        for count, bit, number, places in sorted(read, key=lambda other: other[0]):
            for index in self._read(places, left):
                masks[places[index]] = masks.get(places[index], 0) | bit
            left -= min(left, count)
            self._found[number] = self._found[number] or bool(places)

    def _read(self, places: Sequence[int], left: int) -> Iterator[int]:
        """Indexes of the places to read when so many may still be read."""
        count = len(places)
        if count <= left:
            return iter(range(count))
        if self._best is None:
            self._best = sorted(nlargest(_BEST_PLACES, self.scores, key=self.scores.__getitem__))
        return beside(places, self._best, max(0, count - max(_LEAST_PLACES, left)))


def _others(postings: Postings, terms: Sequence[tuple[float, str]]) -> Iterator[tuple[int, float, Sequence[int]]]:
    """What stands for the terms: the number of the term, how well it is stood for, and where."""
    for number, (weight, term) in enumerate(terms):
        for topic in ASKS.get(term, ()):
            places = postings.of_topic(topic)
            part = _SAME if topic < FIRST_TOPIC else _TOPIC
            yield number, part * min(1.0, postings.rarity(len(places)) / max(weight, 0.1)), places
        for places in postings.alike(term, _MOST_ALIKE):
            yield number, _ALIKE, places
