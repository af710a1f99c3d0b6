"""Where the turns of a talk are, with what ranking looks at; of their texts nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from threadkeep.context.recall.priors import Priors
from threadkeep.context.recall.query import KINDS

BESIDE: Final = 5
"""Turns are looked at with those up to so many places beside them."""

NOBODY: Final = -1
"""The voice and the episode of a place without a turn."""


@dataclass(frozen=True, slots=True)
class Place:
    """What is kept of a turn."""

    id: str
    speaker: str
    episode: int
    first_person: int
    asks: int
    topics: int
    priors: Priors


class Places:
    """The turns by place; what is read of hundreds of them for each query has a list of its own.

    Between episodes, and before the first, places are left free, so that what is beside a turn is of its own episode.
    """

    def __init__(self) -> None:
        self.turns: list[Place | None] = []
        self.priors: tuple[list[float], ...] = tuple([] for _ in KINDS)
        self.episodes: list[int] = []
        # One more than there are places, so that there is always a next one.
        self.topics: list[int] = [0]
        self.voices: list[int] = []
        self._speakers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.turns)

    @property
    def last(self) -> Place | None:
        """The turn at the last place."""
        return self.turns[-1] if self.turns else None

    def append(self, turn: Place) -> None:
        """Put a turn at the next place."""
        number = self._speakers.setdefault(turn.speaker, len(self._speakers))
        self._add(turn, turn.priors, turn.episode, turn.topics, 2 * number + turn.first_person)

    def leave(self) -> None:
        """Leave places free: an episode begins."""
        for _ in range(BESIDE + 1):
            self._add(None, (0.0,) * len(KINDS), NOBODY, 0, NOBODY)

    def _add(self, turn: Place | None, priors: Priors, episode: int, topics: int, voice: int) -> None:
        self.turns.append(turn)
        for column, prior in zip(self.priors, priors, strict=True):
            column.append(prior)
        self.episodes.append(episode)
        self.topics[-1] = topics
        self.topics.append(0)
        self.voices.append(voice)

    def voices_of(self, speaker: str) -> tuple[int, int]:
        """The voices of a speaker: who speaks of other things, and who speaks of themselves."""
        number = self._speakers.get(speaker, NOBODY)
        return (2 * number, 2 * number + 1) if number >= 0 else (NOBODY, NOBODY)
