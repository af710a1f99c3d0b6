"""The selection of facts for an input, and of scopes, computed without I/O."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from threadkeep.context.recall import IndexedTurn, RecallIndex
from threadkeep.records.knowledge import Fact, Scope

_MOST_INDEXES = 200
_MOST_RANKED = 200
_ADDED_AT_ONCE = 25
_PARTS_OF_KEY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+")
_SPACES = re.compile(r"\s+")


class FactRecall:
    """The indexes of the scopes that were asked for last, kept by this process.

    A fact never changes its key and its value, so an index only grows; one that holds more facts of the past than valid
    ones is built again.
    """

    def __init__(self) -> None:
        self._indexes: OrderedDict[Scope, tuple[RecallIndex, set[str]]] = OrderedDict()

    async def rank(
        self, query: str, known: Sequence[Sequence[Fact]], *, recent: Sequence[str], limit: int, now: datetime
    ) -> list[Fact]:
        """Return the facts that bear on a query, at most `limit`; `known` are those of each scope, in order."""
        found: list[list[Fact]] = []
        for facts in known:
            index, indexed = await self._index(facts)
            by_id = {fact.id: fact for fact in facts}
            past = indexed - by_id.keys()
            ranked = index.rank(query, recent=recent, now=now, exclude=past, limit=_MOST_RANKED)
            # What has nothing in common with the query is ranked by what it is alone, and says no reason.
            found.append([by_id[entry.id] for entry in ranked if entry.why])
        return take_of_each(found, limit, lambda fact: (fact.id, normalised(fact.text)))

    async def _index(self, facts: Sequence[Fact]) -> tuple[RecallIndex, set[str]]:
        if not facts:
            return RecallIndex(), set()
        # Merged persons have one index, under the id of whoever is first; another first one begins another index.
        scope = facts[0].scope
        index, indexed = self._indexes.pop(scope, (RecallIndex(), set()))
        if len(indexed) > 2 * len(facts) + _ADDED_AT_ONCE:
            index, indexed = RecallIndex(), set()
        added = 0
        for fact in facts:
            if fact.id not in indexed:
                indexed.add(fact.id)
                # A session of its own: facts are no neighbours of each other, as the turns of a talk are.
                index.add(IndexedTurn(fact.id, words_of_fact(fact), time=fact.valid_from, session=fact.id))
                added += 1
                if added % _ADDED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        self._indexes[scope] = (index, indexed)
        while len(self._indexes) > _MOST_INDEXES:
            self._indexes.popitem(last=False)
        return index, indexed


def without_shadowed(known: Sequence[Sequence[Fact]]) -> list[list[Fact]]:
    """Return the facts of each scope without those of which a scope before has the key.

    Of merged persons the fact of a key that changed last stays: the facts of a scope are in that order.
    """
    keys: set[str] = set()
    kept: list[list[Fact]] = []
    for facts in known:
        kept.append([])
        for fact in facts:
            key = fact.key.casefold()
            if key not in keys:
                keys.add(key)
                kept[-1].append(fact)
    return kept


def take_of_each[T](found: Sequence[Sequence[T]], limit: int, names: Callable[[T], Collection[str]]) -> list[T]:
    """Return at most `limit` of the lists, in the order of the lists, each in turn giving its next.

    Args:
        found: what each scope found, its best first.
        limit: at most so many.
        names: the names of an entry; an entry with a name that was taken already is passed over.
    """
    taken: list[list[T]] = [[] for _ in found]
    seen: set[str] = set()
    rest = [iter(entries) for entries in found]
    left = limit
    waiting = list(range(len(found)))
    while waiting and left > 0:
        for number in list(waiting):
            if left <= 0:
                break
            entry = next((one for one in rest[number] if seen.isdisjoint(names(one))), None)
            if entry is None:
                waiting.remove(number)
                continue
            seen.update(names(entry))
            taken[number].append(entry)
            left -= 1
    return [entry for entries in taken for entry in entries]


def normalised(text: str) -> str:
    """Return a text by which the same statement is known again: case, spaces and the last full stop do not count."""
    return _SPACES.sub(" ", text.casefold()).strip().rstrip(".!?。")


def words_of_fact(fact: Fact) -> str:
    """Return a fact as words: `editor.fontSize` is `editor font Size`."""
    key, _, value = fact.text.partition(": ")
    return f"{_PARTS_OF_KEY.sub(' ', key)} {value}"
