"""The selection of facts that are relevant to a user's input, by words and by embeddings."""

from __future__ import annotations

import asyncio
import math
import re
import statistics
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Final

from threadkeep.boundary import ErrorBoundary
from threadkeep.context.recall.embedding import Embedder, unit_vector
from threadkeep.context.recall.query import Participants, Query, read
from threadkeep.context.recall.words import ASKS, COUNTS, FIRST_TOPIC, lines_of, stem, terms_of, words_of
from threadkeep.observe import ExtraNotFound, Observer
from threadkeep.records.knowledge import Fact, canonical_key

_READ_CHARACTERS = 2_000
_PARTS_OF_KEY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+")
_SPACES = re.compile(r"\s+")

# Weights of a match between a word of the query and a fact. `_KEY` and `_VALUE`: the fact has the same word there.
_KEY, _VALUE = 1.0, 0.9
# `_ATTRIBUTE`: the word asks for the fact's key. `_ALIKE`: a word of the fact has the same beginning.
_SYNONYM, _ATTRIBUTE, _TOPIC, _ALIKE = 0.7, 0.7, 0.45, 0.5
# A match with the kind of question, such as "where", counts for this fraction of a match with a word.
_KIND_SHARE = 0.5
_BEGINNING = 4
# The weight of one standard deviation of similarity; a matching word in the key has the weight 1. A fact with less than
# `_LEAST_SIMILAR` standard deviations is returned only if it matches a word of the query.
_SIMILAR_SHARE, _LEAST_SIMILAR = 0.5, 0.5

_MOST_VECTORS = 20_000
_EMBEDDED_AT_ONCE = 256
_EMBEDDING_SECONDS = 2.0


def _attributes() -> dict[str, frozenset[str]]:
    asked: dict[str, set[str]] = {}
    for line in lines_of("attributes.txt"):
        keys, _, questions = line.partition("|")
        terms = set(_stems(keys))
        for word in questions.split():
            for term in [word] if word.startswith("?") else _stems(word):
                asked.setdefault(term, set()).update(terms)
    return {term: frozenset(terms) for term, terms in asked.items()}


def _stems(words: str) -> list[str]:
    """Return one index term for each word: its stem or, in scripts without spaces, its longest part."""
    return [stem(word) if word.isascii() else max(terms_of([word]), key=len) for word in words.split()]


def _groups() -> dict[int, frozenset[str]]:
    members: dict[int, set[str]] = {}
    for term, groups in COUNTS.items():
        for group in groups:
            members.setdefault(group, set()).add(term)
    return {group: frozenset(terms) for group, terms in members.items()}


_ASKED: Final = _attributes()
"""Maps stems, and kinds of questions such as `?where`, to the stems of keys that they ask for."""
_MEMBERS: Final = _groups()
_MOST_OLD: Final = 500


class FactWords:
    """An index of the terms of some facts, extended as new facts are ranked.

    It is thread-safe: two threads may index the same fact twice, which changes no result.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._next = count()
        self._most = 0
        self.entries = 0
        """The number of pairs of a fact and a term."""
        # Maps each term to the facts that contain it: 2 * the fact's number, plus 1 if the term is in its key.
        self._terms: dict[str, array[int]] = {}
        self._beginnings: dict[str, list[str]] = {}

    @property
    def is_outdated(self) -> bool:
        """True if more than half of the indexed facts are no longer valid, so that a new index would be smaller."""
        return len(self._numbers) > 2 * self._most + _MOST_OLD

    def rank(
        self, query: str, facts: Sequence[Fact], *, recent: Sequence[str] = (), similar: Mapping[str, float]
    ) -> list[Fact]:
        """Return the facts that are relevant to a query, best first; ties keep their order.

        Args:
            query: the new input.
            facts: the facts of one scope.
            recent: the last messages before the query, oldest first, to resolve words such as "it".
            similar: maps fact ids to similarities with the query, in standard deviations from the mean; empty without a
                model.
        """
        self._most = max(self._most, len(facts))
        scores = self._scores(read(query, Participants({}), recent=recent), [self._number(fact) for fact in facts])
        if similar:
            for index, fact in enumerate(facts):
                deviation = similar.get(fact.id, 0.0)
                if scores[index] or deviation >= _LEAST_SIMILAR:
                    scores[index] = max(scores[index] + _SIMILAR_SHARE * deviation, 1e-6)
        order = sorted(range(len(facts)), key=lambda index: -scores[index])
        return [facts[index] for index in order if scores[index] > 0]

    def _number(self, fact: Fact) -> int:
        """Return the number of a fact in this index; if it is new, add it first."""
        value = fact.text[len(fact.key) + 2 :][:_READ_CHARACTERS]
        if (known := self._numbers.get((fact.key, value))) is not None:
            return known
        number = next(self._next)
        for in_key, part in ((1, _PARTS_OF_KEY.sub(" ", fact.key)), (0, value)):
            terms = set(terms_of(words_of(part)))
            self.entries += len(terms)
            for term in terms:
                if len(term) >= _BEGINNING and term not in self._terms:
                    self._beginnings.setdefault(term[:_BEGINNING], []).append(term)
                self._terms.setdefault(term, array("I")).append(2 * number + in_key)
        self._numbers[fact.key, value] = number
        return number

    def _scores(self, query: Query, numbers: Sequence[int]) -> list[float]:
        scores = dict.fromkeys(numbers, 0.0)
        terms = dict(query.terms)
        if query.kind not in ("other", "why"):
            terms[f"?{query.kind}"] = _KIND_SHARE
        for term, share in terms.items():
            worth = {number: part for number, part in self._worth(term).items() if number in scores}
            rarity = math.log(1 + (len(scores) - len(worth) + 0.5) / (len(worth) + 0.5))
            for number, part in worth.items():
                scores[number] += share * rarity * part
        return [scores[number] for number in numbers]

    def _worth(self, term: str) -> dict[int, float]:
        """Map the number of each matching fact to the weight of its best match with a term of the query."""
        alike = self._beginnings.get(term[:_BEGINNING], ()) if term.isascii() else ()
        worth: dict[int, float] = {}
        for terms, in_key, in_value in _matches(term, alike):
            for other in terms:
                for entry in self._terms.get(other, ()):
                    weight = in_key if entry % 2 else in_value
                    if weight > worth.get(entry // 2, 0.0):
                        worth[entry // 2] = weight
        return worth


def _matches(term: str, alike: Collection[str]) -> Iterator[tuple[Collection[str], float, float]]:
    """Yield terms of facts that match `term` of a query, with the weights of a match in a fact's key and value."""
    yield (term,), _KEY, _VALUE
    yield _ASKED.get(term, ()), _ATTRIBUTE, 0.0
    for group in ASKS.get(term, ()):
        weight = _SYNONYM if group < FIRST_TOPIC else _TOPIC
        yield _MEMBERS[group], weight, weight
    yield alike, _ALIKE, _ALIKE


class FactVectors:
    """A cache of the embedding vectors of facts, in this process and per model."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._vectors: OrderedDict[tuple[str, str], array[float]] = OrderedDict()

    async def similar(self, query: str, facts: Sequence[Fact], embedder: Embedder) -> dict[str, float]:
        """Return the similarity of each fact to the query by fact id, in standard deviations from the mean.

        One call embeds at most 256 new facts; the others are missing until later calls. If the model fails or takes
        more than two seconds, the result is empty, and an event reports it.
        """
        texts = {
            fact.id: (embedder.name, _PARTS_OF_KEY.sub(" ", fact.key) + fact.text[len(fact.key) :]) for fact in facts
        }
        missing = [name for name in dict.fromkeys(texts.values()) if name not in self._vectors][:_EMBEDDED_AT_ONCE]
        with ErrorBoundary() as attempt:
            async with asyncio.timeout(_EMBEDDING_SECONDS):
                wanted = unit_vector(await embedder.embed_query(query))
                vectors = await embedder.embed([text for _, text in missing]) if missing else []
                made = dict(zip(missing, map(unit_vector, vectors), strict=True))
        if attempt.error is not None:
            self._observer.notify(ExtraNotFound(section="facts", error=type(attempt.error).__name__))
            return {}
        self._vectors |= made
        alike = {}
        for fact_id, name in texts.items():
            vector = self._vectors.get(name)
            if vector is not None and len(vector) == len(wanted):
                self._vectors.move_to_end(name)
                alike[fact_id] = math.sumprod(wanted, vector)
        while len(self._vectors) > _MOST_VECTORS:
            self._vectors.popitem(last=False)
        spread = statistics.pstdev(alike.values()) if alike else 0.0
        mean = statistics.fmean(alike.values()) if spread else 0.0
        return {fact_id: (value - mean) / spread for fact_id, value in alike.items()} if spread else {}


def without_shadowed(facts: Iterable[Fact]) -> list[Fact]:
    """Keep only the first fact of each key.

    The facts must be sorted by scope, most specific first, and within a scope by their last change, newest first,
    because merged persons can have several facts with a key.
    """
    by_key: dict[str, Fact] = {}
    for fact in facts:
        by_key.setdefault(canonical_key(fact.key), fact)
    return list(by_key.values())


def take_of_each[T](found: Sequence[Sequence[T]], limit: int, names: Callable[[T], Collection[str]]) -> list[T]:
    """Take one entry from each list in turn, up to `limit`; return them in the order of the lists.

    Args:
        found: the results of each scope, best first.
        limit: the maximum number of entries.
        names: returns the names of an entry, such as its id and its text. If an entry that was taken before has one of
            these names, the new entry is skipped.
    """
    taken: list[list[T]] = [[] for _ in found]
    rest = {number: ((entry, names(entry)) for entry in entries) for number, entries in enumerate(found)}
    seen: set[str] = set()
    left = limit
    while rest and left > 0:
        for number, entries in list(rest.items()):
            following = next((one for one in entries if seen.isdisjoint(one[1])), None)
            if following is None:
                del rest[number]
            elif left > 0:
                taken[number].append(following[0])
                seen.update(following[1])
                left -= 1
    return [entry for entries in taken for entry in entries]


@lru_cache(maxsize=2_000)
def normalised(text: str) -> str:
    """Normalise case, spaces and final punctuation, to recognise equal statements."""
    return _SPACES.sub(" ", text.casefold()).strip().rstrip(".!?。")
