"""The turns of a talk, indexed one by one, and ranked for a new input."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from operator import itemgetter
from typing import NamedTuple

from threadkeep.context.recall.candidates import Match
from threadkeep.context.recall.likeness import Likeness
from threadkeep.context.recall.matching import Matching
from threadkeep.context.recall.places import Place, Places
from threadkeep.context.recall.postings import Postings
from threadkeep.context.recall.priors import Priors, answer_signals, prior_signals, priors_of
from threadkeep.context.recall.query import Kind, read
from threadkeep.context.recall.signs import signs_of
from threadkeep.context.recall.spans import Span, spans_of
from threadkeep.context.recall.words import terms_of, words_of

_READ_CHARACTERS = 20_000
_EPISODE_TURNS = 60
_EPISODE_PAUSE_SECONDS = 4 * 3_600
_TELLING_TURNS = 60


@dataclass(frozen=True, slots=True)
class IndexedTurn:
    """A turn to be found again: what was said, by whom, when, and in which session."""

    id: str
    text: str
    speaker: str = ""
    time: datetime | None = None
    session: str = ""


class Ranked(NamedTuple):
    """A turn that may matter now: the higher the score the more."""

    id: str
    score: float
    place: int
    matching: Matching

    @property
    def why(self) -> tuple[str, ...]:
        """The signals that spoke most for it, the strongest first; none if only an embedding did."""
        return self.matching.why(self.place)


@dataclass(slots=True)
class _Episode:
    """Turns of one sitting: of one session, without a long pause, not too many."""

    session: str
    day: int | None
    last_time: datetime | None
    first_place: int
    turns: int = 0


type Notice = Callable[[str, Mapping[str, float], Mapping[Kind, float]], None]


class RecallIndex:
    """An index that grows with the talk; adding a turn costs its length, ranking hardly more when the talk is long.

    Its laws: the same turns and the same input give the same ranking; a turn is never ranked above another for its
    place in the list alone; an input that has nothing in common with the talk ranks nothing.
    """

    def __init__(self, notice: Notice | None = None) -> None:
        """An empty index; `notice` is told the signals of each turn as it is added, for who fits the weights."""
        self._notice = notice
        self._postings = Postings()
        self._places = Places()
        self._by_id: dict[str, int] = {}
        self._episodes: list[_Episode] = []
        self._episode_days: list[tuple[int, int]] = []
        self._names: dict[str, str] = {}
        self._speakers: dict[str, list[tuple[float, int]]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, turn: IndexedTurn) -> None:
        """Add the next turn; one whose id is there already is left as it is."""
        if turn.id in self._by_id:
            return
        number = self._episode_of(turn)
        episode = self._episodes[number]
        place = len(self._places)
        words = words_of(turn.text[:_READ_CHARACTERS])
        terms = list(terms_of(words))
        signs = signs_of(turn.text, words)
        rarity, topics = self._postings.add(place, terms)
        before = self._places.last
        signals = prior_signals(signs, len(set(terms)), len(words), rarity, episode.turns, before.asks if before else 0)
        priors = priors_of(signals, signs)
        self._places.append(Place(turn.id, turn.speaker, number, signs.first_person, signs.asks, topics, priors))
        if self._notice is not None:
            self._notice(turn.id, signals, answer_signals(signs))
        self._by_id[turn.id] = place
        episode.turns += 1
        self._know_speaker(turn.speaker, priors, place)

    def rank(
        self,
        query: str,
        *,
        recent: Sequence[str] = (),
        asker: str | None = None,
        now: datetime | None = None,
        exclude: Collection[str] = frozenset(),
        limit: int = 200,
        semantic: Mapping[str, float] | None = None,
    ) -> list[Ranked]:
        """The turns that may matter for a new input, best first.

        Args:
            query: The new input: a question or a remark.
            recent: The last turns, oldest first, for inputs that point back with "it" and "that".
            asker: The speaker who says it; without one, `user` if the talk has one.
            now: When it is said; without it, when the last turn was.
            exclude: Ids that are not wanted, of the window for instance.
            limit: The most turns that are given back.
            semantic: How alike the input and a turn are by an embedding, by id; turns without one count as unlike.
        """
        likeness = self._likeness(semantic) if semantic else None
        matching = self._matching(query, recent, asker, now, likeness.best() if likeness else ())
        scores = matching.scores()
        if likeness is not None:
            scores = [(score + likeness.share(place), place) for score, place in scores]
        # Of equal scores the place that comes first stays first.
        scores.sort(key=itemgetter(0), reverse=True)
        turns, ranked = self._places.turns, list[Ranked]()
        for score, place in scores:
            turn = turns[place]
            if turn is not None and turn.id not in exclude:
                # Made by hundreds: what a named tuple's own constructor does costs twice as much.
                ranked.append(tuple.__new__(Ranked, (turn.id, score, place, matching)))
                if len(ranked) >= limit:
                    break
        return ranked

    def candidates(self, query: str) -> Iterator[tuple[Place, Kind, dict[str, float]]]:
        """Every turn that is looked at for this input, with its signals: what the weights are fitted to."""
        matching = self._matching(query, (), None, None)
        for number in matching.places:
            place = self._places.turns[number]
            if place is not None:
                yield place, matching.kind, matching.signals(number)

    def _matching(
        self,
        query: str,
        recent: Sequence[str],
        asker: str | None,
        now: datetime | None,
        alike: Sequence[int] = (),
    ) -> Matching:
        spans = self._spans(query, now)
        if asker is None and "user" in self._speakers:
            asker = "user"
        read_query = read(query, names=self._names, asker=asker, recent=recent, dated=bool(spans))
        dates = self._dates(spans)
        telling = [place for speaker in sorted(read_query.speakers) for place in self._telling(speaker)]
        if not telling:
            telling = [place for speaker in sorted(self._speakers)[:8] for place in self._telling(speaker)]
        dated = [
            place
            for episode in sorted(dates, key=lambda number: (-dates[number][0], -number))[:3]
            for place in self._of_episode(episode)
        ]
        match = Match(dates=dates, certain=[*dated, *alike], telling=telling, everybody=len(self._speakers))
        return Matching(self._postings, self._places, match, read_query)

    def _of_episode(self, number: int) -> range:
        episode = self._episodes[number]
        return range(episode.first_place, episode.first_place + episode.turns)

    def _telling(self, speaker: str) -> list[int]:
        return [place for _, place in self._speakers.get(speaker, ())]

    def _spans(self, query: str, now: datetime | None) -> list[Span]:
        if not self._episode_days:
            return []
        known = Span(self._episode_days[0][0], self._episode_days[-1][0])
        return spans_of(query[:2_000], known, now.toordinal() if now else known.last)[:12]

    def _dates(self, spans: Sequence[Span]) -> dict[int, tuple[float, float]]:
        """Episodes near these days: how near, and whether within them."""
        near: dict[int, tuple[float, float]] = {}
        for span in spans:
            reach = 4 + (span.last - span.first) / 4
            begin = bisect_left(self._episode_days, (int(span.first - 3 * reach), -1))
            end = bisect_left(self._episode_days, (int(span.last + 3 * reach) + 1, -1))
            for day, number in self._episode_days[max(begin, end - 200) : end]:
                away = max(0, day - span.last, span.first - day)
                found = (math.exp(-away / reach), float(away == 0))
                near[number] = max(near.get(number, found), found)
        return near

    def _likeness(self, semantic: Mapping[str, float]) -> Likeness | None:
        known = {self._by_id[turn_id]: alike for turn_id, alike in semantic.items() if turn_id in self._by_id}
        return Likeness(known, len(self._by_id), self._places) if known else None

    def _know_speaker(self, speaker: str, priors: Priors, place: int) -> None:
        if speaker not in self._speakers:
            self._speakers[speaker] = []
            for word in words_of(speaker):
                self._names.setdefault(word, speaker)
        best = self._speakers[speaker]
        insort(best, (-priors[-1], place))
        del best[_TELLING_TURNS:]

    def _episode_of(self, turn: IndexedTurn) -> int:
        """The episode that this turn goes on with, or a new one."""
        last = self._episodes[-1] if self._episodes else None
        if last is not None and last.turns < _EPISODE_TURNS and last.session == turn.session:
            pause = (turn.time - last.last_time).total_seconds() if turn.time and last.last_time else 0.0
            if pause <= _EPISODE_PAUSE_SECONDS:
                last.last_time = turn.time or last.last_time
                return len(self._episodes) - 1
        self._places.leave()
        day = date.toordinal(turn.time) if turn.time else None
        self._episodes.append(_Episode(turn.session, day, turn.time, len(self._places)))
        if day is not None:
            insort(self._episode_days, (day, len(self._episodes) - 1))
        return len(self._episodes) - 1
