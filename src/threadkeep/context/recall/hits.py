"""Hits: the turns of a conversation that contain terms of a query, or substitutes such as synonyms."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import nlargest
from itertools import batched, repeat
from operator import add, mul, or_
from typing import Final, Self

from threadkeep.context.recall.packing import COPIED_AT_ONCE, Packed
from threadkeep.context.recall.postings import Postings, beside
from threadkeep.context.recall.priors import Priors
from threadkeep.context.recall.query import KINDS, Query
from threadkeep.context.recall.words import ASKS, FIRST_TOPIC

BESIDE: Final = 5
"""The number of positions on each side that count as neighbours."""

NOBODY: Final = -1
"""The value of empty positions in `voices` and `episodes`."""


class TurnColumns:
    """The data of all turns as columns, one list per field. A query reads columns faster than hundreds of objects.

    A turn's position is its index. Empty positions (id "") keep turns of two episodes from being neighbours.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.priors: tuple[array[float], ...] = tuple(array("f") for _ in KINDS)
        self.episodes = array("i")
        # One element more than there are positions, because `Scoring` reads the element after each position.
        self.topics: list[int] = [0]
        self.voices = array("i")
        self.speakers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def append(
        self, turn_id: str, priors: Priors, *, speaker: str, first_person: int, episode: int, topics: int
    ) -> None:
        """Add a turn at the next position."""
        number = self.speakers.setdefault(speaker, len(self.speakers))
        self._add(turn_id, priors, episode, topics, 2 * number + first_person)

    def add_gap(self) -> None:
        """Add empty positions, before the turns of a new episode."""
        for _ in range(BESIDE + 1):
            self._add("", (0.0,) * len(KINDS), NOBODY, 0, NOBODY)

    def _add(self, turn_id: str, priors: Priors, episode: int, topics: int, voice: int) -> None:
        self.ids.append(turn_id)
        for column, prior in zip(self.priors, priors, strict=True):
            column.append(prior)
        self.episodes.append(episode)
        self.topics[-1] = topics
        self.topics.append(0)
        self.voices.append(voice)

    def extend(self, other: Self, episodes: int, changes: Sequence[float]) -> None:
        """Append the turns of `other`. Add `episodes` to their episode numbers, and `changes` to their priors."""
        self.ids += other.ids
        for column, priors in zip(self.priors, other.priors, strict=True):
            column.extend(map(add, priors, changes))
        self.episodes.extend(NOBODY if number == NOBODY else episodes + number for number in other.episodes)
        self.topics[-1:] = other.topics
        numbers = [self.speakers.setdefault(speaker, len(self.speakers)) for speaker in other.speakers]
        voices = [2 * number + first_person for number in numbers for first_person in (0, 1)]
        self.voices.extend(NOBODY if voice == NOBODY else voices[voice] for voice in other.voices)

    def negated_priors(self, begin: int) -> dict[str, list[tuple[float, int]]]:
        """Map each speaker to their turns from `begin` on, as pairs (negated prior of kind `other`, position)."""
        names, priors = list(self.speakers), self.priors[-1]
        found: dict[str, list[tuple[float, int]]] = {}
        for index in range(begin, len(self)):
            if (voice := self.voices[index]) != NOBODY:
                found.setdefault(names[voice // 2], []).append((-priors[index], index))
        return found

    def dump(self) -> Iterator[Packed]:
        """Yield copies of the columns in parts, from which `load` restores them."""
        width = max(1, (reduce(or_, self.topics).bit_length() + 7) // 8)
        priors = {f"priors_{number}": column[:] for number, column in enumerate(self.priors)}
        values = {"ids": list(self.ids), "speakers": list(self.speakers), "topic_bytes": width}
        yield Packed(values, {"episodes": self.episodes[:], "voices": self.voices[:], **priors})
        for some in batched(list(self.topics), COPIED_AT_ONCE):
            yield Packed({}, {"topic_bits": array("B", b"".join(map(int.to_bytes, some, repeat(width))))})

    @classmethod
    def load(cls, state: Packed) -> Self:
        """Restore the columns from a stored state, in which the parts that `dump` yields are joined."""
        found, values, arrays = cls(), state.values, state.arrays
        found.ids = values["ids"]
        found.speakers = {speaker: number for number, speaker in enumerate(values["speakers"])}
        width, topics = values["topic_bytes"], arrays["topic_bits"].tobytes()
        found.topics = [int.from_bytes(topics[index : index + width]) for index in range(0, len(topics), width)]
        found.priors = tuple(arrays[f"priors_{number}"] for number in range(len(KINDS)))
        found.episodes, found.voices = arrays["episodes"], arrays["voices"]
        return found

    def voices_of(self, speaker: str) -> tuple[int, int]:
        """Return the two numbers of a speaker in the column `voices`: for turns without and with words such as "I"."""
        number = self.speakers.get(speaker, NOBODY)
        return (2 * number, 2 * number + 1) if number >= 0 else (NOBODY, NOBODY)


# The weights of substitutes; a term of the query counts 1. `_SAME`: a synonym. `_ALIKE`: a word with an equal prefix.
_MISSPELT, _SAME, _TOPIC, _ALIKE = 0.9, 0.7, 0.6, 0.4
_MOST_MISSPELT = 3
_MOST_TERMS = 16
_MOST_ALIKE = 6
# The number of positions that a query reads for its own terms, and for substitutes. In a long conversation, these are
# the newest positions, and those near the best hits so far.
_OWN_POSITIONS, _OTHER_POSITIONS = 350, 300
_LEAST_POSITIONS = 30
_BEST_POSITIONS = 24


class Coverage(dict[int, float]):
    """A cache that maps a set of sources, as bits, to the share of the query (0 to 1) that these sources cover.

    A source is a term of the query, or a substitute for a term, such as a synonym. If a set has several sources for
    one term, only the best of them counts: it has the lowest bit.
    """

    def __init__(self) -> None:
        super().__init__({0: 0.0})
        self._sources: list[tuple[int, float]] = []
        self._counts: dict[int, tuple[float, int]] = {}

    def bit(self, term: int, part: float) -> int:
        """Return the bit of a source for term number `term`. The source has `part` (0 to 1) of the term's weight."""
        if (term, part) not in self._sources:
            self._sources.append((term, part))
        return 1 << self._sources.index((term, part))

    def weigh(self, weights: Sequence[float]) -> None:
        """Set the weights of the query's terms. Call this after `bit` was called for all sources."""
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
    """The turns that contain a term of a query, or a substitute for a term, such as a synonym.

    masks: maps each turn's position to a bit mask of the terms and substitutes in the turn (see `Coverage`).
    scores: maps positions to BM25 scores. Multiplied by `scale`, the scores of different queries are comparable.
    shares: the share of the query (0 to 1) that each mask covers, in the order of `masks`.
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
        self._add_substitutes(postings, terms)
        total = sum(weight for (weight, _), found in zip(terms, self._found, strict=True) if found) or 1.0
        self.coverage.weigh([weight / total for weight, _ in terms])
        self.scale = 1 / total
        self.shares = list(map(self.coverage.__getitem__, self.masks.values()))

    def _add_terms(self, postings: Postings, terms: Sequence[tuple[float, str]]) -> None:
        left, masks, scores = _OWN_POSITIONS, self.masks, self.scores
        for number, (weight, term) in enumerate(terms):
            positions, amounts = postings.of_term(term)
            bit = self.coverage.bit(number, 1.0)
            for position, amount in self._read(positions, amounts, left):
                masks[position] = masks.get(position, 0) | bit
                scores[position] = scores.get(position, 0.0) + weight * amount
            left -= min(left, len(positions))
            self._found[number] = bool(positions)

    def _add_substitutes(self, postings: Postings, terms: Sequence[tuple[float, str]]) -> None:
        found = sorted(_substitutes(postings, terms), key=lambda substitute: -substitute[1])
        read = [
            (len(positions), self.coverage.bit(number, part), number, positions) for number, part, positions in found
        ]
        left, masks = _OTHER_POSITIONS, self.masks
        for count, bit, number, positions in sorted(read, key=lambda other: other[0]):
            for position, _ in self._read(positions, positions, left):
                masks[position] = masks.get(position, 0) | bit
            left -= min(left, count)
            self._found[number] = self._found[number] or bool(positions)

    def _read[Value](self, positions: Sequence[int], values: Sequence[Value], left: int) -> Iterable[tuple[int, Value]]:
        """Return positions with their values: all or, if more than `left`, the newest and those near the best hits."""
        count = len(positions)
        if count <= left:
            return zip(positions, values, strict=True)
        if self._best is None:
            self._best = sorted(nlargest(_BEST_POSITIONS, self.scores, key=self.scores.__getitem__))
        read = beside(positions, self._best, max(0, count - max(_LEAST_POSITIONS, left)))
        return [(positions[index], values[index]) for index in read]


def _substitutes(postings: Postings, terms: Sequence[tuple[float, str]]) -> Iterator[tuple[int, float, Sequence[int]]]:
    """Yield a triple for each substitute, such as a synonym: its term's number, a share of the weight, positions."""
    for number, (weight, term) in enumerate(terms):
        for topic in ASKS.get(term, ()):
            positions = postings.of_topic(topic)
            part = _SAME if topic < FIRST_TOPIC else _TOPIC
            yield number, part * min(1.0, postings.rarity(len(positions)) / max(weight, 0.1)), positions
        for positions in postings.misspelt(term, _MOST_MISSPELT):
            yield number, _MISSPELT, positions
        for positions in postings.alike(term, _MOST_ALIKE):
            yield number, _ALIKE, positions


# Score at most `_MOST_HITS` hits with their neighbours, then informative turns up to `_LEAST_CANDIDATES`.
_MOST_HITS, _LEAST_CANDIDATES = 72, 320
_BEST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Match:
    """The values that the index computes for a query, so that `Matching` can score turns.

    dates: the episodes near a day in the query, each with a pair of numbers (see `RecallIndex._dates`).
    certain: positions that are always scored: turns near these days, and turns with a similar embedding.
    telling: positions of informative turns, which are scored if there are few others to score.
    everybody: the number of speakers.
    left_out: ids of turns that are never scored.
    """

    dates: Mapping[int, tuple[float, float]]
    certain: Sequence[int]
    telling: Sequence[int]
    everybody: int
    left_out: Collection[str] = frozenset()


def positions_of(hits: Hits, match: Match, columns: TurnColumns) -> list[int]:
    """Return the positions to score: `match.certain`, the best hits with their neighbours, then informative turns."""
    if not hits.masks and not match.certain:
        return []
    best: Sequence[int] = list(hits.masks)
    if len(best) > _MOST_HITS:
        scores = map(hits.scores.get, best, repeat(0.0))
        values = dict(zip(best, map(add, hits.shares, map(mul, scores, repeat(hits.scale))), strict=True))
        best = sorted(best, key=values.__getitem__, reverse=True)[:_MOST_HITS]
    chosen = set(match.certain)
    for distance in (-2, -1, 0, 1, 2):
        chosen.update([position + distance for position in best])
    for position in match.telling:
        if len(chosen) >= _LEAST_CANDIDATES:
            break
        chosen.add(position)
    found = sorted(chosen)
    ids, left_out, end = columns.ids, {"", *match.left_out}, bisect_left(found, len(columns))
    return [position for position in found[bisect_left(found, 0) : end] if ids[position] not in left_out]


def episodes_of(hits: Hits, columns: TurnColumns) -> dict[int, tuple[float, float]]:
    """Map each episode with hits to a pair: the share of the query that the hits cover, and a score of up to 1.0."""
    masks: defaultdict[int, int] = defaultdict(int)
    scores: defaultdict[int, list[float]] = defaultdict(list)
    for position, mask in hits.masks.items():
        masks[columns.episodes[position]] |= mask
    for position, score in hits.scores.items():
        scores[columns.episodes[position]].append(score)
    best = {episode: sum(sorted(found, reverse=True)[:_BEST_TURNS]) for episode, found in scores.items()}
    most = max(best.values(), default=0.0) or 1.0
    return {episode: (hits.coverage[mask], best.get(episode, 0.0) / most) for episode, mask in masks.items()}
