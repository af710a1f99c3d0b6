"""The scores of runs of places, counted for a whole run at once: hundreds of turns are scored for each query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from threadkeep.context.recall.hits import Hits
from threadkeep.context.recall.places import BESIDE, Places
from threadkeep.context.recall.profile import Profile

# Up to so many places a list of them all is made for a query: it is read faster, and costs its length.
_SHORT = 4_000


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for a query: hits and topics, what episodes and speakers count for, and scales of the scores."""

    hits: Hits
    profile: Profile
    kind: int
    episodes: Mapping[int, float]
    speakers: frozenset[str]
    per_score: float
    per_when_score: float


class Scoring:
    """What `Matching.signals` gives by name, weighed and summed, with the prior of each turn.

    It is spelt out because it is counted for hundreds of turns for each query.
    """

    def __init__(self, places: Places, found: Found, weights: Mapping[str, float]) -> None:
        self._places, self._found, self._weights = places, found, weights
        self._voices = {
            voice: weights["speaker"] + of_self
            for speaker in found.speakers
            for voice, of_self in zip(places.voices_of(speaker), (0.0, weights["speaker_of_self"]), strict=True)
        }

    def scores(self, chosen: Sequence[int]) -> Iterator[tuple[float, int]]:
        """The scores of the turns at these places, each with its place."""
        places, found = self._places, self._found
        priors, voices, episodes, shares = places.priors[found.kind], places.voices, places.episodes, found.episodes
        named, amounts = self._voices, self._amounts()
        columns, profile, asked = places.topics, found.profile, found.profile.topics
        covered, weights = found.hits.coverage, self._weights
        words, with_next, with_near = weights["words"], weights["with_next"], weights["with_near"]
        around, speaker_words = weights["around"], weights["speaker_words"]
        topics_beside = weights["topics_near"] / 2
        topics_here = weights["topics"] + 2 * topics_beside
        for place, (a, b, c, d, e, own, f, g, h, i, j) in zip(chosen, self._windows(chosen), strict=True):
            before, here, after = columns[place - 1 : place + 2]
            score = priors[place] + amounts.get(place, 0.0) + shares.get(episodes[place], 0.0)
            score += topics_here * profile[here & asked]
            score += topics_beside * (profile[before & asked] + profile[after & asked])
            one = e | own | f
            two = d | one | g
            wide = a | b | c | two | h | i | j
            if own:
                score += words * covered[own]
            if wide:
                score += with_next * covered[one] + with_near * covered[two] + around * covered[wide]
            if (voice := voices[place]) in named:
                score += named[voice] + speaker_words * covered[two]
            yield score, place

    def _windows(self, chosen: Sequence[int]) -> Iterator[Sequence[int]]:
        """The bits of what was found at each of these places and at the five before and after it."""
        found = self._found.hits.masks
        if len(self._places) > _SHORT:
            for place in chosen:
                yield tuple(map(found.get, range(place - BESIDE, place + BESIDE + 1), repeat(0)))
            return
        masks = [0] * (len(self._places) + BESIDE)
        for place, bits in found.items():
            masks[place] = bits
        for place in chosen:
            yield masks[place - BESIDE : place + BESIDE + 1]

    def _amounts(self) -> dict[int, float]:
        """What the amounts of terms, of a turn and of two beside it on each side, count for, by place."""
        weights, found = self._weights, self._found
        beside = weights["near_score"] * found.per_score
        here = beside + weights["score"] * found.per_score + weights["when_score"] * found.per_when_score
        counted: dict[int, float] = {}
        get = counted.get
        for place, amount in found.hits.scores.items():
            one = beside * amount / 2
            two = one / 2
            counted[place] = get(place, 0.0) + here * amount
            counted[place - 1] = get(place - 1, 0.0) + one
            counted[place + 1] = get(place + 1, 0.0) + one
            counted[place - 2] = get(place - 2, 0.0) + two
            counted[place + 2] = get(place + 2, 0.0) + two
        return counted
