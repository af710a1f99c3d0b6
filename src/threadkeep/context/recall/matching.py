"""What turns have in common with a query: terms of their own, beside them and in their episode, speakers and days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Protocol

from threadkeep.context.recall.hits import Hits
from threadkeep.context.recall.postings import Postings
from threadkeep.context.recall.query import KINDS, Query
from threadkeep.context.recall.weights import MATCH

_WORDS, _WITH_NEXT, _WITH_NEAR, _AROUND = (MATCH[name] for name in ("words", "with_next", "with_near", "around"))
_SCORE, _NEAR_SCORE, _WHEN_SCORE = (MATCH[name] for name in ("score", "near_score", "when_score"))
_EPISODE_WORDS, _EPISODE_SCORE, _DATE, _IN_DATE = (
    MATCH[name] for name in ("episode_words", "episode_score", "date", "in_date")
)
_SPEAKER, _SPEAKER_OF_SELF, _SPEAKER_WORDS = (MATCH[name] for name in ("speaker", "speaker_of_self", "speaker_words"))

# Places looked at closely: the best hits with what is beside them, and telling turns if there are few of those.
_MOST_CANDIDATES, _LEAST_CANDIDATES = 360, 240

_BEST_TURNS = 3


class Spoken(Protocol):
    """What is known of the turn at a place."""

    @property
    def speaker(self) -> str:
        """Who said it."""

    @property
    def episode(self) -> int:
        """The number of the sitting in which it was said."""

    @property
    def first_person(self) -> int:
        """1 if its speaker speaks of themselves."""

    @property
    def priors(self) -> tuple[float, ...]:
        """How telling it is for each kind of answer."""


@dataclass(frozen=True, slots=True)
class Match:
    """What the index knows of a query beside its terms: near days by episode, and turns to look at in any case."""

    dates: Mapping[int, tuple[float, float]]
    dated: Sequence[int]
    telling: Sequence[int]
    everybody: int


class Matching:
    """A query matched with the turns: which may matter, how much, and why."""

    def __init__(self, postings: Postings, turns: Sequence[Spoken | None], match: Match, query: Query) -> None:
        self._hits = Hits(postings, query)
        self._turns = turns
        self._dates = match.dates
        self._speakers = query.speakers if len(query.speakers) < match.everybody else frozenset[str]()
        self.kind = query.kind
        self._kind = KINDS.index(query.kind)
        self._is_when = (query.kind == "when") * self._hits.scale()
        self._per_score = 1 / (max(self._hits.scores.values(), default=0.0) or 1.0)
        self.places = _places(self._hits, turns, match)
        self._episodes = _episodes(self._hits, turns, self.places)

    def scores(self) -> list[tuple[float, int]]:
        """The score of each place that may matter, negative, so that sorting puts the best first.

        It is the prior of the turn and what `signals` weighs by `MATCH`, spelt out because it is counted hundreds of
        times for each query.
        """
        of, known, coverage = self._hits.masks.get, self._hits.known, self._hits.coverage
        amount, turns, kind = self._hits.scores.get, self._turns, self._kind
        for_score = _SCORE * self._per_score + _WHEN_SCORE * self._is_when
        for_near = _NEAR_SCORE * self._per_score
        for_speaker = self._speakers
        episodes: dict[int, float] = {}
        scores: list[tuple[float, int]] = []
        for place in self.places:
            turn = turns[place]
            if turn is None:
                continue
            own = of(place, 0)
            one = own | of(place - 1, 0) | of(place + 1, 0)
            two = one | of(place - 2, 0) | of(place + 2, 0)
            five = two | of(place - 3, 0) | of(place + 3, 0) | of(place - 4, 0) | of(place + 4, 0)
            five |= of(place - 5, 0) | of(place + 5, 0)
            score = turn.priors[kind]
            episode = turn.episode
            if episode not in episodes:
                episodes[episode] = self._episode_share(episode)
            score += episodes[episode]
            if five:
                near = known[two] if two in known else coverage(two)
                score += _AROUND * (known[five] if five in known else coverage(five)) + _WITH_NEAR * near
                if one:
                    score += _WITH_NEXT * (known[one] if one in known else coverage(one))
                if own:
                    score += _WORDS * (known[own] if own in known else coverage(own))
                if two:
                    here = amount(place, 0.0)
                    beside = 0.5 * (amount(place - 1, 0.0) + amount(place + 1, 0.0))
                    beside += 0.25 * (amount(place - 2, 0.0) + amount(place + 2, 0.0))
                    score += for_score * here + for_near * (here + beside)
                if turn.speaker in for_speaker:
                    score += _SPEAKER_WORDS * near
            if turn.speaker in for_speaker:
                score += _SPEAKER + _SPEAKER_OF_SELF * turn.first_person
            scores.append((-score, place))
        return scores

    def _episode_share(self, episode: int) -> float:
        words, score = self._episodes.get(episode, (0.0, 0.0))
        date, in_date = self._dates.get(episode, (0.0, 0.0))
        return _EPISODE_WORDS * words + _EPISODE_SCORE * score + _DATE * date + _IN_DATE * in_date

    def signals(self, place: int) -> dict[str, float]:
        """What the turn at this place has in common with the query: the signals that `MATCH` weighs."""
        turn = self._turns[place]
        if turn is None:
            return {}
        of, coverage, amount = self._hits.masks.get, self._hits.coverage, self._hits.scores.get
        masks = [0] * 6
        for reach in range(6):
            masks[reach] = masks[max(0, reach - 1)] | of(place - reach, 0) | of(place + reach, 0)
        here = amount(place, 0.0)
        near = here + (amount(place - 1, 0.0) + amount(place + 1, 0.0)) / 2
        near += (amount(place - 2, 0.0) + amount(place + 2, 0.0)) / 4
        words, score = self._episodes.get(turn.episode, (0.0, 0.0))
        date, in_date = self._dates.get(turn.episode, (0.0, 0.0))
        speaker = float(turn.speaker in self._speakers)
        return {
            "words": coverage(masks[0]),
            "with_next": coverage(masks[1]),
            "with_near": coverage(masks[2]),
            "around": coverage(masks[5]),
            "score": here * self._per_score,
            "near_score": near * self._per_score,
            "when_score": here * self._is_when,
            "episode_words": words,
            "episode_score": score,
            "date": date,
            "in_date": in_date,
            "speaker": speaker,
            "speaker_of_self": speaker * turn.first_person,
            "speaker_words": speaker * coverage(masks[2]),
        }

    def prior(self, place: int) -> float:
        """What the turn at this place brings along for the kind of answer that is wanted."""
        turn = self._turns[place]
        return 0.0 if turn is None else turn.priors[self._kind]

    def why(self, place: int) -> tuple[str, ...]:
        """The three signals that spoke most for the turn at this place, the strongest first."""
        shares = [(MATCH[name] * signal, name) for name, signal in self.signals(place).items()]
        return tuple(name for share, name in nlargest(3, shares) if share > 0)


def _places(hits: Hits, turns: Sequence[Spoken | None], match: Match) -> list[int]:
    """The places that are looked at closely: the best hits and what is beside them, then days, then telling turns."""
    if not hits.masks and not match.dated:
        return []
    scale, amount, coverage = hits.scale(), hits.scores.get, hits.coverage
    values = {place: coverage(mask) + amount(place, 0.0) * scale for place, mask in hits.masks.items()}
    chosen: set[int] = set()
    for place in sorted(values, key=values.__getitem__, reverse=True):
        chosen.update((place - 2, place - 1, place, place + 1, place + 2))
        if len(chosen) >= _MOST_CANDIDATES:
            break
    chosen.update(match.dated)
    for place in match.telling:
        if len(chosen) >= _LEAST_CANDIDATES:
            break
        chosen.add(place)
    last = len(turns)
    return [place for place in chosen if 0 <= place < last]


def _episodes(hits: Hits, turns: Sequence[Spoken | None], places: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Of the episodes of these places, the share of the query that each covers, and how good its best turns are."""
    masks = {turn.episode: 0 for place in places if (turn := turns[place]) is not None}
    scores: dict[int, list[float]] = {episode: [] for episode in masks}
    amount = hits.scores.get
    for place, mask in hits.masks.items():
        turn = turns[place]
        if turn is not None and turn.episode in masks:
            masks[turn.episode] |= mask
            scores[turn.episode].append(amount(place, 0.0))
    best = {episode: sum(sorted(found, reverse=True)[:_BEST_TURNS]) for episode, found in scores.items()}
    most = max(best.values(), default=0.0) or 1.0
    return {episode: (hits.coverage(mask), best[episode] / most) for episode, mask in masks.items()}
