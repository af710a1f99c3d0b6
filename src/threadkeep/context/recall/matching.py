"""Signals that relate a turn to a query: terms in and near the turn, speakers, and days."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import repeat

from threadkeep.context.recall.hits import BESIDE, NOBODY, Hits, Match, TurnColumns, episodes_of, positions_of
from threadkeep.context.recall.postings import Postings, Profile
from threadkeep.context.recall.query import KINDS, Query
from threadkeep.context.recall.weights import LIKENESS, MATCH

# Up to about this number of turns, a list is faster than a dict, although it has an element for every position.
_SHORT = 4_000


@dataclass(frozen=True, slots=True)
class Found:
    """The values of one query from which `Scoring` computes the scores of turns.

    `episodes` maps an episode to the amount that it adds to the score of each of its turns. `per_score` scales BM25
    scores. `per_when_score` scales them in addition for questions about a time; for other questions it is 0.
    """

    hits: Hits
    profile: Profile
    kind: int
    episodes: Mapping[int, float]
    speakers: frozenset[str]
    per_score: float
    per_when_score: float


class Scoring:
    """The scores of turns: the weighted sum of `Matching.signals`, plus the turn's prior (how informative it is).

    The sum is written out instead of a loop over the signals, because each query computes hundreds of sums.
    """

    def __init__(self, columns: TurnColumns, found: Found, weights: Mapping[str, float]) -> None:
        self._columns, self._found, self._weights = columns, found, weights
        self._voices = {
            voice: weights["speaker"] + of_self
            for speaker in found.speakers
            for voice, of_self in zip(columns.voices_of(speaker), (0.0, weights["speaker_of_self"]), strict=True)
        }

    def scores(self, chosen: Sequence[int]) -> list[tuple[float, int]]:
        """Return a pair (score, position) for each of the `chosen` positions."""
        columns, found = self._columns, self._found
        priors, voices, episodes, shares = columns.priors[found.kind], columns.voices, columns.episodes, found.episodes
        named, amounts = self._voices, self._amounts()
        topics, profile, asked = columns.topics, found.profile, found.profile.topics
        covered, weights = found.hits.coverage, self._weights
        words, with_next, with_near = weights["words"], weights["with_next"], weights["with_near"]
        around, speaker_words = weights["around"], weights["speaker_words"]
        topics_beside = weights["topics_near"] / 2
        topics_here = weights["topics"] + 2 * topics_beside
        following, before, here, after = NOBODY, 0.0, 0.0, 0.0
        scores: list[tuple[float, int]] = []
        for position, (a, b, c, d, e, own, f, g, h, i, j) in zip(chosen, self._windows(chosen), strict=True):
            score = priors[position] + amounts[position] + shares.get(episodes[position], 0.0)
            if asked:
                # Add the topics of the turn and its neighbours. Reuse values if the position before was just scored.
                if position == following:
                    before, here = here, after
                else:
                    before, here = profile[topics[position - 1] & asked], profile[topics[position] & asked]
                following = position + 1
                after = profile[topics[following] & asked]
                score += topics_here * here
                score += topics_beside * (before + after)
            one = e | own | f
            two = d | one | g
            wide = a | b | c | two | h | i | j
            if wide:
                score += around * covered[wide]
                if two:
                    score += words * covered[own] + with_next * covered[one] + with_near * covered[two]
            if (voice := voices[position]) in named:
                score += named[voice] + speaker_words * covered[two]
            scores.append((score, position))
        return scores

    def _windows(self, chosen: Sequence[int]) -> list[Sequence[int]]:
        """Return the entries of `Hits.masks` at each chosen position, and up to `BESIDE` positions before and after."""
        found = self._found.hits.masks
        if len(self._columns) > _SHORT:
            get, none = found.get, repeat(0)
            return [tuple(map(get, range(position - BESIDE, position + BESIDE + 1), none)) for position in chosen]
        masks = [0] * (len(self._columns) + BESIDE)
        for position, bits in found.items():
            masks[position] = bits
        return [masks[position - BESIDE : position + BESIDE + 1] for position in chosen]

    def _amounts(self) -> list[float] | defaultdict[int, float]:
        """Return, by position, the part of a turn's score that comes from its own and its neighbours' BM25 scores."""
        weights, found = self._weights, self._found
        beside = weights["near_score"] * found.per_score
        here = beside + weights["score"] * found.per_score + weights["when_score"] * found.per_when_score
        end = len(self._columns) + BESIDE
        counted = [0.0] * end if end <= _SHORT else defaultdict[int, float](float)
        for position, amount in found.hits.scores.items():
            one = beside * amount / 2
            two = one / 2
            counted[position] += here * amount
            counted[position - 1] += one
            counted[position + 1] += one
            counted[position - 2] += two
            counted[position + 2] += two
        return counted


OF_MANY = "_of_many"
"""The suffix of weights that are added if many turns match about as well as the best one."""

_OF_MANY = [name.removesuffix(OF_MANY) for name in MATCH if name.endswith(OF_MANY)]
_NEARLY, _MANY_SCALE = 0.8, 0.2


class Matching:
    """The match of a query with the turns: the candidate turns, their scores, and the reasons for the scores."""

    def __init__(self, postings: Postings, columns: TurnColumns, match: Match, query: Query) -> None:
        hits = self._hits = Hits(postings, query)
        self._profile = Profile(postings, hits.terms, query.terms)
        self._columns = columns
        self._dates = match.dates
        self._speakers = query.speakers if len(query.speakers) < match.everybody else frozenset[str]()
        self.kind = query.kind
        self._kind = KINDS.index(query.kind)
        self._is_when = (query.kind == "when") * hits.scale
        self._per_score = 1 / (max(hits.scores.values(), default=0.0) or 1.0)
        self._many = self._of_many()
        self.positions = positions_of(hits, match, columns)
        self._episodes = episodes_of(hits, columns)
        self._weights = {**MATCH, **{name: MATCH[name] + self._many * MATCH[name + OF_MANY] for name in _OF_MANY}}

    def _of_many(self) -> float:
        """Return the factor of `OF_MANY` weights. It grows with the number of turns about as good as the best match."""
        shares = self._hits.shares
        nearly = _NEARLY * max(shares, default=0.0)
        return _MANY_SCALE * math.log1p(sum([share >= nearly for share in shares]))

    def scores(self) -> list[tuple[float, int]]:
        """Return a pair (score, position) for each candidate."""
        found = Found(
            hits=self._hits,
            profile=self._profile,
            kind=self._kind,
            episodes=self._episode_shares(),
            speakers=self._speakers,
            per_score=self._per_score,
            per_when_score=self._is_when,
        )
        return Scoring(self._columns, found, self._weights).scores(self.positions)

    def _episode_shares(self) -> dict[int, float]:
        """Map an episode (turns without a long pause) to the amount that it adds to the score of each of its turns."""
        weights = self._weights
        of_words, of_score = weights["episode_words"], weights["episode_score"]
        shares = {episode: of_words * words + of_score * score for episode, (words, score) in self._episodes.items()}
        for episode, (date, in_date) in self._dates.items():
            share = shares.get(episode, 0.0)
            shares[episode] = share + weights["date"] * date + weights["in_date"] * in_date
        return shares

    def signals(self, position: int) -> dict[str, float]:
        """Return the numbers (signals) that relate a turn to the query, by name; `MATCH` has their weights."""
        if not self._columns.ids[position]:
            return {}
        episode, voice = self._columns.episodes[position], self._columns.voices[position]
        signals = {**self._signals_of_words(position), **self._signals_of_topics(position)}
        words, score = self._episodes.get(episode, (0.0, 0.0))
        date, in_date = self._dates.get(episode, (0.0, 0.0))
        speaker = float(any(voice in self._columns.voices_of(name) for name in self._speakers))
        signals |= {
            "episode_words": words,
            "episode_score": score,
            "date": date,
            "in_date": in_date,
            "speaker": speaker,
            "speaker_of_self": speaker * (voice & 1),
            "speaker_words": speaker * signals["with_near"],
        }
        many = {name: self._many * signals[name.removesuffix(OF_MANY)] for name in MATCH if name.endswith(OF_MANY)}
        return signals | many

    def _signals_of_words(self, position: int) -> dict[str, float]:
        of, coverage, amount = self._hits.masks.get, self._hits.coverage.__getitem__, self._hits.scores.get
        masks = [0] * 6
        for reach in range(6):
            masks[reach] = masks[max(0, reach - 1)] | of(position - reach, 0) | of(position + reach, 0)
        here = amount(position, 0.0)
        near = here + (amount(position - 1, 0.0) + amount(position + 1, 0.0)) / 2
        near += (amount(position - 2, 0.0) + amount(position + 2, 0.0)) / 4
        return {
            "words": coverage(masks[0]),
            "with_next": coverage(masks[1]),
            "with_near": coverage(masks[2]),
            "around": coverage(masks[5]),
            "score": here * self._per_score,
            "near_score": near * self._per_score,
            "when_score": here * self._is_when,
        }

    def _signals_of_topics(self, position: int) -> dict[str, float]:
        topics = self._columns.topics[position - 1 : position + 2]
        before, here, after = (self._profile[bits & self._profile.topics] for bits in topics)
        return {"topics": here, "topics_near": here + (before + after) / 2}

    def prior(self, position: int) -> float:
        """Return a turn's prior: how informative it is for the kind of answer that the query asks for."""
        return self._columns.priors[self._kind][position]

    def why(self, position: int) -> tuple[str, ...]:
        """Return the names of up to three signals that add most to the score of this turn, strongest first."""
        shares = [(MATCH[name] * signal, name) for name, signal in self.signals(position).items()]
        return tuple(name for share, name in nlargest(3, shares) if share > 0)


_MOST_ALIKE = 120
_BEST_TURNS = 3
_ASSUMED_DISSIMILAR = 8
# An outlier among few similarities may be many standard deviations away; limit its distance to this number.
_MOST_SPREADS = 5.0


class Likeness:
    """The similarity of turns in standard deviations, because every embedding has its own scale.

    The neighbours and the episode of a similar turn get a part of its similarity. A turn that is not embedded yet
    counts as average, so only its words decide.

    Args:
        by_position: The known similarities, by the position of the turn; at least one.
        turns: The number of all turns.
        columns: The columns of the turns.
    """

    def __init__(self, by_position: Mapping[int, float], turns: int, columns: TurnColumns) -> None:
        # The mean of only a few similarities is not reliable, so add the similarity of some assumed dissimilar turns.
        assumed = min(_ASSUMED_DISSIMILAR, turns - len(by_position))
        known = [*by_position.values(), *[min(0.0, *by_position.values())] * assumed]
        mean = self._mean = math.fsum(known) / len(known)
        self._spread = math.sqrt(math.fsum((alike - mean) ** 2 for alike in known) / len(known)) or 1.0
        self._alike = {position: self._deviations(alike) for position, alike in by_position.items()}
        self._episodes = columns.episodes
        self._of_episode = self._best_of_episodes()

    def _deviations(self, alike: float) -> float:
        return max(-_MOST_SPREADS, min(_MOST_SPREADS, (alike - self._mean) / self._spread))

    def best(self) -> list[int]:
        """Return the positions of the most similar turns and of their neighbours."""
        best = nlargest(_MOST_ALIKE, self._alike, key=self._alike.__getitem__)
        return sorted({position + beside for position in best for beside in (-1, 0, 1)})

    def share(self, position: int) -> float:
        """Return the part of the score that comes from the similarity of the turn, its neighbours and its episode."""
        return sum(LIKENESS[name] * signal for name, signal in self.signals(position).items())

    def signals(self, position: int) -> dict[str, float]:
        """Return the similarity of a turn, its neighbours and its episode, as signals that `LIKENESS` weighs."""
        one = self._at(position - 1) + self._at(position + 1)
        two = self._at(position - 2) + self._at(position + 2)
        return {
            "alike": self._at(position),
            "alike_beside": one / 2 + two / 4,
            "alike_episode": self._of_episode.get(self._episodes[position], 0.0),
        }

    def _at(self, position: int) -> float:
        if position >= len(self._episodes) or self._episodes[position] == NOBODY:
            return 0.0
        return self._alike.get(position, 0.0)

    def _best_of_episodes(self) -> dict[int, float]:
        """Map each episode to the mean similarity of its three most similar turns."""
        best: dict[int, list[float]] = {}
        for position, alike in self._alike.items():
            best.setdefault(self._episodes[position], []).append(alike)
        means: dict[int, float] = {}
        for episode, found in best.items():
            kept = nlargest(_BEST_TURNS, found)
            means[episode] = sum(kept) / len(kept)
        return means
