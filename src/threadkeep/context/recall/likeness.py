"""How alike a query and the turns are by an embedding, as the caller knows it, made ready to be added to the scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import nlargest

from threadkeep.context.recall.places import NOBODY, Places
from threadkeep.context.recall.weights import LIKENESS

_MOST_ALIKE = 120
_BEST_TURNS = 3
# Where few turns are known, those would stand out without bounds.
_MOST_SPREADS = 5.0


class Likeness:
    """The likeness of turns, told in spreads from the mean, since each embedding has a scale of its own.

    Turns beside one that is alike, and its whole episode, have a part in it. A turn of which nothing is known counts as
    unlike.
    """

    def __init__(self, by_place: Mapping[int, float], turns: int, places: Places) -> None:
        unlike = min(0.0, *by_place.values()) if by_place else 0.0
        unknown = max(0, turns - len(by_place))
        mean = (math.fsum(by_place.values()) + unlike * unknown) / max(1, turns)
        squares = math.fsum((alike - mean) ** 2 for alike in by_place.values()) + (unlike - mean) ** 2 * unknown
        self._mean, self._spread = mean, math.sqrt(squares / max(1, turns)) or 1.0
        self._alike = {place: self._spreads(alike) for place, alike in by_place.items()}
        self._unlike = self._spreads(unlike)
        self._episodes = places.episodes
        self._of_episode = self._best_of_episodes()

    def _spreads(self, alike: float) -> float:
        return max(-_MOST_SPREADS, min(_MOST_SPREADS, (alike - self._mean) / self._spread))

    def best(self) -> list[int]:
        """The places of the turns that are most alike, and those beside them."""
        best = nlargest(_MOST_ALIKE, self._alike, key=self._alike.__getitem__)
        return sorted({place + beside for place in best for beside in (-1, 0, 1)})

    def share(self, place: int) -> float:
        """What the likeness of a turn, of those beside it and of its episode adds to its score."""
        return sum(LIKENESS[name] * signal for name, signal in self.signals(place).items())

    def signals(self, place: int) -> dict[str, float]:
        """The signals that `LIKENESS` weighs."""
        one = self._at(place - 1) + self._at(place + 1)
        two = self._at(place - 2) + self._at(place + 2)
        return {
            "alike": self._at(place),
            "alike_beside": one / 2 + two / 4,
            "alike_episode": self._of_episode.get(self._episodes[place], self._unlike),
        }

    def _at(self, place: int) -> float:
        if place >= len(self._episodes) or self._episodes[place] == NOBODY:
            return 0.0
        return self._alike.get(place, self._unlike)

    def _best_of_episodes(self) -> dict[int, float]:
        """The mean of the best turns of each episode."""
        best: dict[int, list[float]] = {}
        for place, alike in self._alike.items():
            best.setdefault(self._episodes[place], []).append(alike)
        means: dict[int, float] = {}
        for episode, found in best.items():
            kept = nlargest(_BEST_TURNS, found)
            means[episode] = sum(kept) / len(kept)
        return means
