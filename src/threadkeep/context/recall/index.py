"""An index of the turns of a conversation, which ranks them for a new input."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from heapq import heapify, heappop, heappush, nsmallest
from operator import itemgetter
from typing import Final, NamedTuple, Self

from threadkeep.context.recall.hits import Match, TurnColumns
from threadkeep.context.recall.matching import Likeness, Matching
from threadkeep.context.recall.packing import Packed
from threadkeep.context.recall.postings import Postings
from threadkeep.context.recall.priors import Signs, Surroundings, answer_signals, prior_signals, priors_of, signs_of
from threadkeep.context.recall.query import ROLES, Kind, Participants, nicknames_of, read
from threadkeep.context.recall.spans import Span, spans_of
from threadkeep.context.recall.weights import PRIOR
from threadkeep.context.recall.words import meaningful, terms_of, words_of

_READ_CHARACTERS = 20_000
_MOST_TERMS = 10_000
_EPISODE_TURNS = 60
_EPISODE_PAUSE_SECONDS = 4 * 3_600
_TELLING_TURNS = 60


class IndexedTurn(NamedTuple):
    """A turn of the index: its text, speaker, time, session and role.

    The speaker is the name of a person or an agent. Without a name, the role is used as the speaker.
    """

    id: str
    text: str
    speaker: str = ""
    time: datetime | None = None
    session: str = ""
    role: str = ""


class Ranked(NamedTuple):
    """A turn of a ranking; a higher score means more relevant."""

    id: str
    score: float
    position: int
    matching: Matching

    @property
    def why(self) -> tuple[str, ...]:
        """The names of the signals that add most to the score, strongest first."""
        return self.matching.why(self.position)


@dataclass(slots=True)
class _Episode:
    """Consecutive turns of one session, without a long pause. `asks` is 1 if the last turn asks a question."""

    session: str
    last_time: datetime | None
    first_position: int
    turns: int = 0
    asks: int = 0


class Analysis(NamedTuple):
    """The words of a text, the count of each index term, and features of the text, such as a question or a time."""

    words: Sequence[str]
    counts: Mapping[str, int]
    signs: Signs


def analysis_of(text: str) -> Analysis:
    """Analyse a text. This is the slow part of `RecallIndex.add`, so a caller may do it in an OS thread."""
    words = words_of(text[:_READ_CHARACTERS])
    return Analysis(words, _counted(terms_of(words)[:_MOST_TERMS]), signs_of(text, words))


class RecallIndex:
    """An index that grows with the conversation; the time of a ranking hardly depends on its size.

    Adding a turn takes time proportional to its length. The same turns and input give the same ranking. No turn is
    ranked higher only because of its position. An input that shares nothing with the turns gets an empty ranking.
    """

    def __init__(self) -> None:
        self._postings = Postings()
        self._columns = TurnColumns()
        self._by_id: dict[str, int] = {}
        self._episodes: list[_Episode] = []
        self._episode_days: list[tuple[int, int]] = []
        self._names: dict[str, str] = {}
        self._nicknames: dict[str, str] = {}
        self._speakers: dict[str, list[tuple[float, int]]] = {}
        self._of_role: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def size(self) -> int:
        """The approximate size of the indexed terms in bytes, which is most of the index."""
        return self._postings.size

    def add(self, turn: IndexedTurn, analysis: Analysis | None = None) -> None:
        """Add the next turn unless its id exists. Pass the `analysis` of its text if it was computed before."""
        if turn.id in self._by_id:
            return
        number = self._episode_of(turn)
        episode = self._episodes[number]
        position = len(self._columns)
        words, counts, signs = analysis or analysis_of(turn.text)
        rarity, topics = self._postings.add(position, counts)
        surroundings = Surroundings(episode.turns, episode.asks, _is_agent(turn))
        signals = prior_signals(signs, len(counts), len(words), rarity, surroundings)
        priors = priors_of(signals, answer_signals(signs))
        speaker, first_person = turn.speaker, signs.first_person
        self._columns.append(turn.id, priors, speaker=speaker, first_person=first_person, episode=number, topics=topics)
        self._by_id[turn.id] = position
        episode.turns += 1
        episode.asks = signs.asks
        self._know_speaker(turn, priors[-1], position)

    def extend(self, other: Self) -> None:
        """Add the turns of another index, of other sessions. The result is as if each of them had been added here."""
        begin, episodes = len(self._columns), len(self._episodes)
        changes = self._postings.extend(other._postings, begin, list(other._by_id.values()))
        self._columns.extend(other._columns, episodes, [PRIOR["rarity"] * change for change in changes])
        self._by_id.update((turn_id, begin + position) for turn_id, position in other._by_id.items())
        self._episodes += [replace(one, first_position=begin + one.first_position) for one in other._episodes]
        days = [(day, episodes + number) for day, number in other._episode_days]
        self._episode_days = sorted([*self._episode_days, *days])
        self._names = other._names | self._names
        self._nicknames = other._nicknames | self._nicknames
        for speaker, found in self._columns.negated_priors(begin).items():
            self._speakers[speaker] = nsmallest(_TELLING_TURNS, [*self._speakers.get(speaker, ()), *found])
        for role, speakers in other._of_role.items():
            self._of_role.setdefault(role, set()).update(speakers)

    def dump(self) -> Iterator[Packed]:
        """Yield copies of the state's parts, to store them. No turns may be added meanwhile."""
        yield from self._postings.dump()
        yield from self._columns.dump()
        episodes = [
            (one.session, one.last_time and one.last_time.isoformat(), one.first_position, one.turns, one.asks)
            for one in self._episodes
        ]
        values = {
            "sittings": episodes,
            "sitting_days": list(self._episode_days),
            "names": dict(self._names),
            "nicknames": dict(self._nicknames),
            "telling": {speaker: list(best) for speaker, best in self._speakers.items()},
            "of_role": {role: sorted(speakers) for role, speakers in self._of_role.items()},
        }
        yield Packed(values, {})

    @classmethod
    def load(cls, state: Packed) -> Self:
        """Restore an index from a stored state, in which the parts that `dump` yields are joined."""
        found, values = cls(), state.values
        found._postings, found._columns = Postings.load(state), TurnColumns.load(state)
        found._by_id = {turn_id: position for position, turn_id in enumerate(found._columns.ids) if turn_id}
        found._episodes = [
            _Episode(session, last_time and datetime.fromisoformat(last_time), *others)
            for session, last_time, *others in values["sittings"]
        ]
        found._episode_days = [(day, number) for day, number in values["sitting_days"]]
        found._names, found._nicknames = values["names"], values["nicknames"]
        found._speakers = {
            speaker: [(prior, position) for prior, position in best] for speaker, best in values["telling"].items()
        }
        found._of_role = {role: set(speakers) for role, speakers in values["of_role"].items()}
        return found

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
        """Return the turns that may be relevant for a new input, best first.

        Args:
            query: The new input: a question or a remark.
            recent: The last turns, oldest first, to resolve words such as "it" and "that".
            asker: The speaker of the input; by default any speaker with the role `user`.
            now: The time of the input; by default the time of the last turn.
            exclude: Ids of turns to leave out, such as the turns in the window.
            limit: The maximum number of turns.
            semantic: The embedding similarity to the input, by turn id. A missing turn counts as average.
        """
        likeness = self._likeness(semantic) if semantic else None
        matching = self._matching(query, recent, asker, now, likeness.best() if likeness else (), exclude)
        scores = matching.scores()
        if likeness is not None:
            scores = [(score + likeness.share(position), position) for score, position in scores]
        # Use a stable sort, so that equal scores stay in the order of positions.
        scores.sort(key=itemgetter(0), reverse=True)
        # The constructor of the named tuple would take twice as long for the hundreds of entries.
        ids, new = self._columns.ids, tuple.__new__
        return [new(Ranked, (ids[position], score, position, matching)) for score, position in scores[:limit]]

    def weights_of(self, query: str) -> dict[str, float]:
        """Map each term of an input to its weight for `passage_of`; rare terms weigh more."""
        terms = dict.fromkeys(terms_of(words_of(query[:_READ_CHARACTERS])))
        return {term: self._postings.rarity(len(self._postings.of_term(term)[0])) for term in terms}

    def meaningful(self, query: str) -> str:
        """Return an input without stop words and names of speakers, for an embedding.

        With a name, every question about a speaker would resemble all turns of the speaker.
        """
        return meaningful(query[:_READ_CHARACTERS], self._names)

    def candidates(self, query: str) -> Iterator[tuple[str, Kind, dict[str, float]]]:
        """Yield each scored turn's id, the kind of answer asked for, and the turn's signals, for `bench.fit_recall`."""
        matching = self._matching(query, (), None, None)
        for position in matching.positions:
            yield self._columns.ids[position], matching.kind, matching.signals(position)

    def _matching(
        self,
        query: str,
        recent: Sequence[str],
        asker: str | None,
        now: datetime | None,
        alike: Sequence[int] = (),
        left_out: Collection[str] = frozenset(),
    ) -> Matching:
        spans = self._spans(query, now)
        participants = Participants(self._names, self._askers(asker), self._others(asker), self._nicknames)
        read_query = read(query, participants, recent=recent, dated=bool(spans))
        dates = self._dates(spans)
        telling = [position for speaker in sorted(read_query.speakers) for position in self._informative(speaker)]
        if not telling:
            telling = [position for speaker in sorted(self._speakers)[:8] for position in self._informative(speaker)]
        dated = [
            position
            for episode in sorted(dates, key=lambda number: (-dates[number][0], -number))[:3]
            for position in self._of_episode(episode)
        ]
        certain, everybody = [*dated, *alike], len(self._speakers)
        match = Match(dates=dates, certain=certain, telling=telling, everybody=everybody, left_out=left_out)
        return Matching(self._postings, self._columns, match, read_query)

    def _of_episode(self, number: int) -> range:
        episode = self._episodes[number]
        return range(episode.first_position, episode.first_position + episode.turns)

    def _informative(self, speaker: str) -> list[int]:
        return [position for _, position in self._speakers.get(speaker, ())]

    def _spans(self, query: str, now: datetime | None) -> list[Span]:
        if not self._episode_days:
            return []
        known = Span(self._episode_days[0][0], self._episode_days[-1][0])
        return spans_of(query[:2_000], known, now.toordinal() if now else known.last)[:12]

    def _dates(self, spans: Sequence[Span]) -> dict[int, tuple[float, float]]:
        """Map each episode that began near `spans` to a pair: the nearness (0 to 1), and 1.0 if inside, else 0.0."""
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
        return Likeness(known, len(self._by_id), self._columns) if known else None

    def _askers(self, asker: str | None) -> frozenset[str]:
        """Return the possible speakers of an input: `asker` or, if `asker` is not a known speaker, all users."""
        return frozenset((asker,)) if asker in self._speakers else frozenset(self._of_role.get("user", ()))

    def _others(self, asker: str | None) -> frozenset[str]:
        """Return the speakers that "you" means: the assistants or, if there are none, everybody but the asker."""
        return frozenset(self._of_role.get("assistant", ())) or frozenset(self._speakers) - self._askers(asker)

    def _know_speaker(self, turn: IndexedTurn, prior: float, position: int) -> None:
        speaker = turn.speaker
        if speaker not in self._speakers:
            self._speakers[speaker] = []
            # In questions, the name of an agent such as `researcher` is usually an ordinary word.
            if not _is_agent(turn):
                for word in words_of(speaker):
                    self._names.setdefault(word, speaker)
                    for beginning in nicknames_of(word):
                        self._nicknames.setdefault(beginning, speaker)
        self._of_role.setdefault(_role_of(turn), set()).add(speaker)
        best = self._speakers[speaker]
        if len(best) < _TELLING_TURNS or -prior < best[-1][0]:
            insort(best, (-prior, position))
            del best[_TELLING_TURNS:]

    def _episode_of(self, turn: IndexedTurn) -> int:
        """Return the number of the episode that this turn continues or begins."""
        last = self._episodes[-1] if self._episodes else None
        if last is not None and last.turns < _EPISODE_TURNS and last.session == turn.session:
            pause = (turn.time - last.last_time).total_seconds() if turn.time and last.last_time else 0.0
            if pause <= _EPISODE_PAUSE_SECONDS:
                last.last_time = turn.time or last.last_time
                return len(self._episodes) - 1
        self._columns.add_gap()
        day = date.toordinal(turn.time) if turn.time else None
        self._episodes.append(_Episode(turn.session, turn.time, len(self._columns)))
        if day is not None:
            insort(self._episode_days, (day, len(self._episodes) - 1))
        return len(self._episodes) - 1


def _counted(terms: Sequence[str]) -> dict[str, int]:
    """Return the count of each term. Usually no term is repeated, so that case is handled faster."""
    counts = dict.fromkeys(terms, 1)
    return counts if len(counts) == len(terms) else Counter(terms)


def _role_of(turn: IndexedTurn) -> str:
    return turn.role or (turn.speaker if turn.speaker in ROLES else "")


def _is_agent(turn: IndexedTurn) -> bool:
    """Return True if the turn is an assistant's, and the speaker has a lower-case name such as `researcher`."""
    return _role_of(turn) == "assistant" and not turn.speaker[:1].isupper()


COST_SHARE: Final = 1.3
"""A turn's value is its score, less this number times the logarithm of its tokens."""


def select(
    ranked: Sequence[Ranked],
    cost_of: Callable[[str], int],
    budget: int,
    *,
    group_of: Callable[[str], Hashable] | None = None,
    group_cost: int = 0,
) -> list[Ranked]:
    """Return the turns to quote, as many as fit, best first. Each turn's tokens reduce its score (`COST_SHARE`).

    Args:
        ranked: Turns with their scores, from `RecallIndex.rank`.
        cost_of: A function that returns the cost of quoting a turn, in tokens, for the turn's id.
        budget: The maximum number of tokens of all turns in total.
        group_of: A function that returns the group of a turn, such as its day, for the turn's id.
        group_cost: The number of tokens that the first turn of each group costs in addition.
    """
    costs = [max(1, cost) for cost in map(cost_of, map(itemgetter(0), ranked))]
    groups: Sequence[Hashable] = [group_of(entry.id) for entry in ranked] if group_of else ()
    first_cost, log = group_cost if group_of else 0, math.log
    waiting = [
        (COST_SHARE * log(cost + first_cost) - entry[1], number, cost + first_cost)
        for number, (entry, cost) in enumerate(zip(ranked, costs, strict=True))
    ]
    heapify(waiting)
    opened: set[Hashable] = set()
    taken: list[Ranked] = []
    left, least = budget, min(costs, default=0)
    while waiting and left >= least:
        _, number, cost = heappop(waiting)
        if cost > costs[number] and groups[number] in opened:
            cost = costs[number]
            heappush(waiting, (COST_SHARE * log(cost) - ranked[number].score, number, cost))
        elif cost <= left:
            taken.append(ranked[number])
            left -= cost
            if groups:
                opened.add(groups[number])
    return taken
