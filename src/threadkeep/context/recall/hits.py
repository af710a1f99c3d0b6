"""Where the terms of a query are, and what stands for them: places found, with bits for what was found there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest

from threadkeep.context.recall.postings import Postings, beside
from threadkeep.context.recall.query import Query
from threadkeep.context.recall.topics import ASKS

# A word counts in full, one that means the same in part, one of the topic asked for or spelt alike less.
_SAME, _TOPIC, _ALIKE = 0.7, 0.6, 0.4
_MOST_TERMS = 16
_MOST_ALIKE = 6
# What bounds a query, however long the talk: places read for its own terms and for what stands for them. Of a list that
# is too long the newest places are read, and those beside the best that are known by then.
_OWN_PLACES, _OTHER_PLACES = 500, 400
_LEAST_PLACES = 30
_BEST_PLACES = 24


@dataclass(frozen=True, slots=True)
class _Source:
    """Something that stands for a term of the query, and how well it does."""

    term: int
    part: float


class Hits:
    """Which sources are at which place, as bits, and the BM25 score of the place."""

    def __init__(self, postings: Postings, query: Query) -> None:
        self.masks: dict[int, int] = {}
        self.scores: dict[int, float] = {}
        self.known: dict[int, float] = {0: 0.0}
        self._sources: list[_Source] = []
        self._best: list[int] | None = None
        weighed = (
            (postings.rarity(len(postings.of_term(term)[0])) * share, term) for term, share in query.terms.items()
        )
        terms = nlargest(_MOST_TERMS, weighed)
        self._weights = [weight for weight, _ in terms]
        self._found = [False] * len(terms)
        self._add_terms(postings, terms)
        self._add_others(postings, terms)
        self._total = sum(weight for weight, found in zip(self._weights, self._found, strict=True) if found) or 1.0

    def _add_terms(self, postings: Postings, terms: Sequence[tuple[float, str]]) -> None:
        left, masks, scores = _OWN_PLACES, self.masks, self.scores
        for number, (weight, term) in enumerate(terms):
            places, amounts = postings.of_term(term)
            bit = self._bit(number, 1.0)
            for index in self._read(places, left):
                place = places[index]
                masks[place] = masks.get(place, 0) | bit
                scores[place] = scores.get(place, 0.0) + weight * amounts[index]
            left -= min(left, len(places))
            self._found[number] = bool(places)

    def _add_others(self, postings: Postings, terms: Sequence[tuple[float, str]]) -> None:
        others = sorted(_others(postings, terms), key=lambda other: len(other[2]))
        left, masks = _OTHER_PLACES, self.masks
        for number, part, places in others:
            bit = self._bit(number, part)
            for index in self._read(places, left):
                masks[places[index]] = masks.get(places[index], 0) | bit
            left -= min(left, len(places))
            self._found[number] = self._found[number] or bool(places)

    def _bit(self, term: int, part: float) -> int:
        self._sources.append(_Source(term, part))
        return 1 << (len(self._sources) - 1)

    def _read(self, places: Sequence[int], left: int) -> Iterator[int]:
        """Indexes of the places to read when so many may still be read."""
        count = len(places)
        if count <= left:
            return iter(range(count))
        if self._best is None:
            self._best = sorted(nlargest(_BEST_PLACES, self.scores, key=self.scores.__getitem__))
        return beside(places, self._best, max(0, count - max(_LEAST_PLACES, left)))

    def coverage(self, mask: int) -> float:
        """The share of the query, by weight, that these sources cover."""
        if mask in self.known:
            return self.known[mask]
        best: dict[int, float] = {}
        left = mask
        while left:
            source = self._sources[(left & -left).bit_length() - 1]
            best[source.term] = max(best.get(source.term, 0.0), source.part)
            left &= left - 1
        share = sum(part * self._weights[term] for term, part in best.items()) / self._total
        self.known[mask] = share
        return share

    def scale(self) -> float:
        """What makes scores of short and of long queries alike."""
        return 1 / self._total


def _others(postings: Postings, terms: Sequence[tuple[float, str]]) -> Iterator[tuple[int, float, Sequence[int]]]:
    """What stands for the terms: the number of the term, how well it is stood for, and where."""
    for number, (weight, term) in enumerate(terms):
        for topic in ASKS.get(term, ()):
            places = postings.of_topic(topic)
            part = _SAME if topic.startswith("=") else _TOPIC
            yield number, part * min(1.0, postings.rarity(len(places)) / max(weight, 0.1)), places
        for places in postings.alike(term, _MOST_ALIKE):
            yield number, _ALIKE, places
