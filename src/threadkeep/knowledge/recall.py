"""The selection of facts for an input, by words and by an embedding model if there is one."""

from __future__ import annotations

import asyncio
import math
import re
import statistics
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from threadkeep.boundary import ErrorBoundary
from threadkeep.context.recall.embedding import Embedder, unit_vector
from threadkeep.context.recall.query import Participants, Query, read
from threadkeep.context.recall.words import ASKS, COUNTS, FIRST_TOPIC, lines_of, stem, terms_of, words_of
from threadkeep.observe import ExtraNotFound, Observer
from threadkeep.records.knowledge import Fact, canonical_key

_READ_CHARACTERS = 2_000
_PARTS_OF_KEY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+")
_SPACES = re.compile(r"\s+")

# The weights of a match: the word itself in the key or in the value, a synonym, a word that asks for an attribute or a
# topic, and a word with the same beginning. The kind of a question (where, when) has little weight.
_KEY, _VALUE, _SYNONYM, _ATTRIBUTE, _TOPIC, _ALIKE = 1.0, 0.9, 0.7, 0.7, 0.45, 0.5
_KIND_SHARE = 0.5
_BEGINNING = 4
# The weight of one standard deviation of similarity; a word in the key has the weight 1. A fact whose similarity is
# below `_LEAST_SIMILAR` is returned only if it matches a word of the query.
_SIMILAR_SHARE, _LEAST_SIMILAR = 0.5, 0.5

_MOST_VECTORS = 20_000
_EMBEDDED_AT_ONCE = 256
_EMBEDDING_SECONDS = 2.0


class _FactWords(NamedTuple):
    """The index terms of a fact, separately for key and value, and the first four letters of all terms."""

    key: frozenset[str]
    value: frozenset[str]
    beginnings: frozenset[str]


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
    """Return the index terms of words: the stem, or the longest part of a word in a script without spaces."""
    return [stem(word) if word.isascii() else max(terms_of([word]), key=len) for word in words.split()]


def _groups() -> dict[int, frozenset[str]]:
    members: dict[int, set[str]] = {}
    for term, groups in COUNTS.items():
        for group in groups:
            members.setdefault(group, set()).add(term)
    return {group: frozenset(terms) for group, terms in members.items()}


_ASKED: Final = _attributes()
"""The stems of the keys that a question asks for, by a stem of the question or by its kind, such as `?where`."""
_MEMBERS: Final = _groups()


def rank_facts(
    query: str, facts: Sequence[Fact], *, recent: Sequence[str] = (), similar: Mapping[str, float] | None = None
) -> list[Fact]:
    """Return the facts that are relevant to a query, best first; facts with equal scores keep their order.

    Args:
        query: the new input.
        facts: the facts of one scope.
        recent: the last messages before the query, oldest first, to resolve words such as "it".
        similar: by fact id, the similarity to the query in standard deviations from the mean, if there is a model.
    """
    words = [words_of_fact(fact.key, fact.text[len(fact.key) + 2 :]) for fact in facts]
    scores = _scores(read(query, Participants({}), recent=recent), words)
    if similar:
        for index, fact in enumerate(facts):
            deviation = similar.get(fact.id, 0.0)
            if scores[index] or deviation >= _LEAST_SIMILAR:
                scores[index] = max(scores[index] + _SIMILAR_SHARE * deviation, 1e-6)
    order = sorted(range(len(facts)), key=lambda index: -scores[index])
    return [facts[index] for index in order if scores[index] > 0]


def _scores(query: Query, facts: Sequence[_FactWords]) -> list[float]:
    scores = [0.0] * len(facts)
    terms = dict(query.terms)
    if query.kind not in ("other", "why"):
        terms[f"?{query.kind}"] = _KIND_SHARE
    for term, share in terms.items():
        others = _others(term)
        worth = [_worth(term, others, fact) for fact in facts]
        found = sum(map(bool, worth))
        rarity = math.log(1 + (len(facts) - found + 0.5) / (found + 0.5)) if found else 0.0
        for index, part in enumerate(worth):
            scores[index] += share * rarity * part
    return scores


def _others(term: str) -> list[tuple[float, frozenset[str], bool]]:
    """Return the groups of terms that also match a term of the query.

    For each group: its weight, its terms, and True if they may match the value of a fact and not only its key.
    """
    others = [(_ATTRIBUTE, _ASKED.get(term, frozenset()), False)]
    groups = [(_SYNONYM if group < FIRST_TOPIC else _TOPIC, _MEMBERS[group], True) for group in ASKS.get(term, ())]
    return others + groups


def _worth(term: str, others: Sequence[tuple[float, frozenset[str], bool]], fact: _FactWords) -> float:
    """Return the weight of the best match between a term of the query and a fact; 0 if they do not match."""
    if term in fact.key:
        return _KEY
    if term in fact.value:
        return _VALUE
    found = [
        worth
        for worth, terms, in_value in others
        if not terms.isdisjoint(fact.key) or (in_value and not terms.isdisjoint(fact.value))
    ]
    if len(term) >= _BEGINNING and term.isascii() and term[:_BEGINNING] in fact.beginnings:
        found.append(_ALIKE)
    return max(found, default=0.0)


@lru_cache(maxsize=20_000)
def words_of_fact(key: str, value: str) -> _FactWords:
    """Return the index terms of a fact; the key `editor.fontSize` is indexed like `editor font Size`."""
    keys = frozenset(terms_of(words_of(_PARTS_OF_KEY.sub(" ", key))))
    values = frozenset(terms_of(words_of(value[:_READ_CHARACTERS])))
    return _FactWords(keys, values, frozenset(term[:_BEGINNING] for term in keys | values))


class FactVectors:
    """A cache of the vectors of facts in this process, per model; the least recently used vectors are dropped."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._vectors: OrderedDict[tuple[str, str], array[float]] = OrderedDict()

    async def similar(self, query: str, facts: Sequence[Fact], embedder: Embedder) -> dict[str, float]:
        """Return the similarity of a query and each fact, in standard deviations from the mean, by the fact's id.

        One call embeds at most 256 new facts; later calls embed the rest. If the model fails or takes more than two
        seconds, the result is empty, and an event reports it.
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

    The facts must be sorted by scope, most specific first, and within a scope by their last change, newest first. So
    for merged persons, the last changed fact of a key is kept.
    """
    by_key: dict[str, Fact] = {}
    for fact in facts:
        by_key.setdefault(canonical_key(fact.key), fact)
    return list(by_key.values())


def take_of_each[T](found: Sequence[Sequence[T]], limit: int, names: Callable[[T], Collection[str]]) -> list[T]:
    """Take entries from each list in turn, at most `limit`; return them in the order of the lists.

    Args:
        found: the results of each scope, best first.
        limit: the maximum number of entries.
        names: returns the names of an entry; an entry is skipped if one of its names was already taken.
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
    """Normalise case, spaces and the final punctuation of a text, to recognise equal statements."""
    return _SPACES.sub(" ", text.casefold()).strip().rstrip(".!?。")
