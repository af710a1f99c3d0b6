"""What turns have in common with a query: terms of their own, beside them and in their episode, speakers and days."""

from __future__ import annotations

import math
from heapq import nlargest

from threadkeep.context.recall.candidates import Match, episodes_of, places_of
from threadkeep.context.recall.hits import Hits
from threadkeep.context.recall.places import Places
from threadkeep.context.recall.postings import Postings
from threadkeep.context.recall.profile import Profile
from threadkeep.context.recall.query import KINDS, Query
from threadkeep.context.recall.scoring import Found, Scoring
from threadkeep.context.recall.weights import MATCH

OF_MANY = "_of_many"
"""Ends the name of a signal that counts as far as many turns match about as well as the best does."""

_OF_MANY = [
    (name.removesuffix(OF_MANY), MATCH[name.removesuffix(OF_MANY)], weight)
    for name, weight in MATCH.items()
    if name.endswith(OF_MANY)
]
_NEARLY, _MANY_SCALE = 0.8, 0.2


class Matching:
    """A query matched with the turns: which may matter, how much, and why."""

    def __init__(self, postings: Postings, places: Places, match: Match, query: Query) -> None:
        hits = self._hits = Hits(postings, query)
        self._profile = Profile(postings, hits.terms, query.terms)
        self._places = places
        self._turns = places.turns
        self._dates = match.dates
        self._speakers = query.speakers if len(query.speakers) < match.everybody else frozenset[str]()
        self.kind = query.kind
        self._kind = KINDS.index(query.kind)
        self._is_when = (query.kind == "when") * hits.scale
        self._per_score = 1 / (max(hits.scores.values(), default=0.0) or 1.0)
        self._many = self._of_many()
        self.places = places_of(hits, match, places)
        self._episodes = episodes_of(hits, places)
        self._weights = {**MATCH, **{name: weight + self._many * of_many for name, weight, of_many in _OF_MANY}}

    def _of_many(self) -> float:
        """How many turns match about as well as the best: 0 for none, growing ever more slowly."""
        shares = list(map(self._hits.coverage.__getitem__, self._hits.masks.values()))
        nearly = _NEARLY * max(shares, default=0.0)
        return _MANY_SCALE * math.log1p(sum(map(nearly.__le__, shares)))

    def scores(self) -> list[tuple[float, int]]:
        """Each place that may matter with its score: the prior of the turn and what `signals` weighs by `MATCH`."""
        found = Found(
            hits=self._hits,
            profile=self._profile,
            kind=self._kind,
            episodes={episode: self._episode_share(episode) for episode in {*self._episodes, *self._dates}},
            speakers=self._speakers,
            per_score=self._per_score,
            per_when_score=self._is_when,
        )
        return list(Scoring(self._places, found, self._weights).scores(self.places))

    def _episode_share(self, episode: int) -> float:
        words, score = self._episodes.get(episode, (0.0, 0.0))
        date, in_date = self._dates.get(episode, (0.0, 0.0))
        weights = self._weights
        share = weights["episode_words"] * words + weights["episode_score"] * score
        return share + weights["date"] * date + weights["in_date"] * in_date

    def signals(self, place: int) -> dict[str, float]:
        """What the turn at this place has in common with the query: the signals that `MATCH` weighs."""
        turn = self._turns[place]
        if turn is None:
            return {}
        signals = {**self._signals_of_words(place), **self._signals_of_topics(place)}
        words, score = self._episodes.get(turn.episode, (0.0, 0.0))
        date, in_date = self._dates.get(turn.episode, (0.0, 0.0))
        speaker = float(turn.speaker in self._speakers)
        signals |= {
            "episode_words": words,
            "episode_score": score,
            "date": date,
            "in_date": in_date,
            "speaker": speaker,
            "speaker_of_self": speaker * turn.first_person,
            "speaker_words": speaker * signals["with_near"],
        }
        many = {name: self._many * signals[name.removesuffix(OF_MANY)] for name in MATCH if name.endswith(OF_MANY)}
        return signals | many

    def _signals_of_words(self, place: int) -> dict[str, float]:
        of, coverage, amount = self._hits.masks.get, self._hits.coverage.__getitem__, self._hits.scores.get
        masks = [0] * 6
        for reach in range(6):
            masks[reach] = masks[max(0, reach - 1)] | of(place - reach, 0) | of(place + reach, 0)
        here = amount(place, 0.0)
        near = here + (amount(place - 1, 0.0) + amount(place + 1, 0.0)) / 2
        near += (amount(place - 2, 0.0) + amount(place + 2, 0.0)) / 4
        return {
            "words": coverage(masks[0]),
            "with_next": coverage(masks[1]),
            "with_near": coverage(masks[2]),
            "around": coverage(masks[5]),
            "score": here * self._per_score,
            "near_score": near * self._per_score,
            "when_score": here * self._is_when,
        }

    def _signals_of_topics(self, place: int) -> dict[str, float]:
        topics = self._places.topics[place - 1 : place + 2]
        before, here, after = (self._profile[bits & self._profile.topics] for bits in topics)
        return {"topics": here, "topics_near": here + (before + after) / 2}

    def prior(self, place: int) -> float:
        """What the turn at this place brings along for the kind of answer that is wanted."""
        turn = self._turns[place]
        return 0.0 if turn is None else turn.priors[self._kind]

    def why(self, place: int) -> tuple[str, ...]:
        """The three signals that spoke most for the turn at this place, the strongest first."""
        shares = [(MATCH[name] * signal, name) for name, signal in self.signals(place).items()]
        return tuple(name for share, name in nlargest(3, shares) if share > 0)
