"""Posting lists: the positions of each term, extended as turns arrive."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, reduce
from itertools import batched
from operator import or_
from typing import Self

from threadkeep.context.recall.packing import COPIED_AT_ONCE, Packed, divided, joined
from threadkeep.context.recall.words import ASKS, COUNTS

# The parameters of BM25. The average length is fixed, so that stored weights stay valid.
_SATURATION, _LENGTH_SHARE, _USUAL_TERMS = 1.2, 0.6, 22.0
_BEGINNING = 4
# The least similarity of a term and its misspelling: one of seven letters may differ.
_LEAST_ALIKE = 0.8
_ROUNDING = 1e-9
# Bytes that a term takes with its arrays, and that a position takes with its weight (measured averages).
_TERM_BYTES, _POSITION_BYTES = 550, 10
# Of a frequent term, read only the newest positions and those within this distance of the best hits.
_REACH = 2


class Postings:
    """An index of turns: their positions by terms and topics. Terms are also found by prefix or spelling.

    Positions and weights are in arrays, because lists take five times the memory. `size` is the approximate memory of
    the terms in bytes.
    """

    def __init__(self) -> None:
        self._terms: dict[str, tuple[array[int], array[float]]] = {}
        self._topics: defaultdict[int, array[int]] = defaultdict(partial(array, "I"))
        self._beginnings: dict[str, list[str]] = {}
        self._spellings: dict[tuple[str, int], tuple[list[str], array[int]]] = {}
        self._turns = 0
        self.size = 0

    def add(self, position: int, counts: Mapping[str, int]) -> tuple[float, int]:
        """Add a turn at `position`; `counts` has the count of each of its terms.

        Return how rare its terms are in the turns so far (about 0 to 1), and its topics as bits.
        """
        self._turns += 1
        self.size += _POSITION_BYTES * len(counts)
        pace = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * sum(counts.values()) / _USUAL_TERMS)
        once = (_SATURATION + 1) / (1 + pace)
        known, log, of_topics = self._terms, math.log, COUNTS.get
        topics: set[int] = set()
        usual = 0.0
        for term, count in counts.items():
            positions, weights = known.get(term) or self._new(term)
            positions.append(position)
            weights.append(once if count == 1 else count * (_SATURATION + 1) / (count + pace))
            if (of_term := of_topics(term)) is not None:
                topics.update(of_term)
            usual += log(len(positions) + 0.5)
        bits, by_topic = 0, self._topics
        for topic in topics:
            by_topic[topic].append(position)
            bits |= 1 << topic
        most = len(counts) * log(self._turns + 19)
        return ((most - usual) / most if counts else 0.0), bits

    def _new(self, term: str, found: tuple[array[int], array[float]] | None = None) -> tuple[array[int], array[float]]:
        found = self._terms[term] = found or (array("I"), array("f"))
        self.size += _TERM_BYTES + len(term)
        if len(term) >= _BEGINNING:
            self._beginnings.setdefault(term[:_BEGINNING], []).append(term)
            terms, letters = self._spellings.setdefault((term[0], len(term)), ([], array("Q")))
            terms.append(term)
            letters.append(_letters_of(term))
        return found

    def extend(self, other: Self, begin: int, turns: Sequence[int]) -> list[float]:
        """Append the turns of `other`. `turns` has their positions in `other`; `begin` is added to each position.

        The rarity of a turn's terms depends on all turns before it. Return how it changes, by position in `other`.
        """
        end = max(turns, default=-1) + 1
        counts, alone, behind = [0] * end, [0.0] * end, [0.0] * end
        usual = [math.log(number + 0.5) for number in range(self._turns + len(turns) + 1)]
        for term, (positions, weights) in other._terms.items():
            known, known_weights = self._terms.get(term) or self._new(term)
            earlier = len(known)
            for number, position in enumerate(positions, 1):
                counts[position] += 1
                alone[position] += usual[number]
                behind[position] += usual[earlier + number]
            known.extend(map(begin.__add__, positions))
            known_weights.extend(weights)
        for topic, positions in other._topics.items():
            self._topics[topic].extend(map(begin.__add__, positions))
        changes = [0.0] * end
        for number, position in enumerate(turns, 1):
            if count := counts[position]:
                most = count * math.log(self._turns + number + 19)
                changes[position] = alone[position] / (count * math.log(number + 19)) - behind[position] / most
        self._turns += len(turns)
        self.size += _POSITION_BYTES * sum(counts)
        return changes

    def dump(self) -> Iterator[Packed]:
        """Yield copies of the posting lists in parts, from which `load` restores them."""
        of_topics = array("I", map(len, self._topics.values()))
        yield Packed(
            {"turns": self._turns, "terms": list(self._terms), "topics": list(self._topics)},
            {"topic_lengths": of_topics, "topic_places": joined("I", self._topics.values())},
        )
        for some in batched(list(self._terms.values()), COPIED_AT_ONCE):
            arrays = {
                "term_lengths": array("I", [len(positions) for positions, _ in some]),
                "term_places": joined("I", (positions for positions, _ in some)),
                "term_weights": joined("f", (weights for _, weights in some)),
            }
            yield Packed({}, arrays)

    @classmethod
    def load(cls, state: Packed) -> Self:
        """Restore posting lists from a stored state, in which the parts that `dump` yields are joined."""
        found, values, arrays = cls(), state.values, state.arrays
        found._turns = values["turns"]
        if values["terms"]:
            found.size = _POSITION_BYTES * len(arrays["term_places"])
            positions = divided(arrays["term_places"], arrays["term_lengths"])
            weights = divided(arrays["term_weights"], arrays["term_lengths"])
            for term, lists in zip(values["terms"], zip(positions, weights, strict=True), strict=True):
                found._new(term, lists)
        of_topics = divided(arrays["topic_places"], arrays["topic_lengths"])
        found._topics.update(zip(values["topics"], of_topics, strict=True))
        return found

    def of_term(self, term: str) -> tuple[Sequence[int], Sequence[float]]:
        """Return the positions of a term, and its weight at each of them."""
        return self._terms.get(term, ((), ()))

    def of_topic(self, topic: int) -> Sequence[int]:
        """Return the positions of the turns about a topic, by its number."""
        return self._topics.get(topic, ())

    def alike(self, term: str, most: int) -> Iterator[Sequence[int]]:
        """Yield the positions of up to `most` terms with the same first four letters."""
        if len(term) >= _BEGINNING:
            for other in self._beginnings.get(term[:_BEGINNING], ())[:most]:
                if other != term:
                    yield self._terms[other][0]

    def misspelt(self, term: str, most: int) -> Iterator[Sequence[int]]:
        """Yield the positions of up to `most` terms that an unknown term may be a misspelling of."""
        if len(term) <= _BEGINNING or term in self._terms:
            return
        beginning, letters = set(term[:_BEGINNING]), _letters_of(term)
        near: list[str] = []
        for length in range(len(term) - 1, len(term) + 2):
            terms, others = self._spellings.get((term[0], length), ((), ()))
            # Comparing letters in order takes long, so first exclude terms with too different letters.
            apart = (1 - _LEAST_ALIKE) * (len(term) + length) + _ROUNDING
            near += [terms[number] for number, other in enumerate(others) if (letters ^ other).bit_count() <= apart]
        near = [other for other in near if len(beginning.intersection(other[:_BEGINNING])) > 1]
        for other in get_close_matches(term, near, most, _LEAST_ALIKE):
            yield self._terms[other][0]

    def rarity(self, positions: int) -> float:
        """Return the inverse document frequency of a term or topic with this number of positions."""
        return math.log(1 + (self._turns - positions + 0.5) / (positions + 0.5))


def _letters_of(term: str) -> int:
    """Return the set of a term's letters as bits; different letters may have the same bit."""
    return reduce(or_, (1 << (ord(letter) & 63) for letter in term))


def beside(positions: Sequence[int], known: Iterable[int], first: int) -> Iterator[int]:
    """Yield the indexes of `positions` that are near one of `known` (both sorted), then all indexes from `first` on."""
    last = -1
    for position in known:
        index = max(bisect_left(positions, position - _REACH, 0, first), last + 1)
        while index < first and positions[index] <= position + _REACH:
            yield index
            last = index
            index += 1
    yield from range(first, len(positions))


# The weight of a topic that a word of the query asks for (see `ASKS`), and of a topic that only contains the word.
_ASKED, _BELONGING = 1.5, 1.0


class Profile(dict[int, float]):
    """A cache that maps a set of topics, as bits, to the share of the query's topics (0 to 1) that the set covers."""

    def __init__(self, postings: Postings, terms: Sequence[str], shares: Mapping[str, float]) -> None:
        super().__init__()
        wanted: dict[int, float] = {}
        for table, worth in ((COUNTS, _BELONGING), (ASKS, _ASKED)):
            for term in terms:
                for topic in table.get(term, ()):
                    wanted[topic] = max(wanted.get(topic, 0.0), worth * shares[term])
        positions = {topic: len(postings.of_topic(topic)) for topic in wanted}
        weights = {
            1 << topic: postings.rarity(positions[topic]) * worth for topic, worth in wanted.items() if positions[topic]
        }
        total = sum(weights.values())
        self.topics = sum(weights)
        self._shares = {bit: weight / total for bit, weight in weights.items()}
        self[0] = 0.0

    def __missing__(self, topics: int) -> float:
        first = topics & -topics
        share = self[topics] = self._shares[first] + self[topics ^ first]
        return share
