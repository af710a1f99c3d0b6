"""Words that go together: names of topics with what belongs to them, and words that stand for one another.

Who asks for "hobbies" or "pets" seldom gets a turn that says so, but one that says "guitar" or "puppy".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from threadkeep.context.recall.broad_topics import BROAD_TOPICS
from threadkeep.context.recall.chinese_topics import CHINESE_TOPICS
from threadkeep.context.recall.narrow_topics import NARROW_TOPICS
from threadkeep.context.recall.stems import stem
from threadkeep.context.recall.synonyms import SYNONYMS
from threadkeep.context.recall.words import terms_of

type _Table = dict[str, tuple[int, ...]]


def _groups() -> Iterator[tuple[list[str], list[str]]]:
    """Of each group the words that ask for it, and all words that belong to it; synonyms ask for one another."""
    for group in SYNONYMS.split(";"):
        yield group.split(), group.split()
    for topics in (BROAD_TOPICS, NARROW_TOPICS, CHINESE_TOPICS):
        for topic in topics.split(";"):
            heads, _, members = topic.partition("|")
            yield heads.split(), [*heads.split(), *members.split()]


def _terms(word: str) -> list[str]:
    """What is indexed of a word: its stem; its first pair of characters where a script puts no spaces."""
    if word.isascii():
        return [stem(word)]
    return [term for term in terms_of([word]) if len(term) == min(len(word), 2)][:1]


def _tables() -> tuple[_Table, _Table]:
    asks: dict[str, set[int]] = {}
    counts: dict[str, set[int]] = {}
    for number, (heads, members) in enumerate(_groups()):
        for table, words in ((asks, heads), (counts, members)):
            for word in words:
                for term in _terms(word):
                    table.setdefault(term, set()).add(number)
    return ({k: tuple(sorted(v)) for k, v in asks.items()}, {k: tuple(sorted(v)) for k, v in counts.items()})


ASKS, COUNTS = _tables()
"""Stem of a query's word -> the topics it asks for; stem of a turn's word -> the topics it belongs to."""

FIRST_TOPIC: Final = SYNONYMS.count(";") + 1
"""Groups of a lower number are synonyms."""
