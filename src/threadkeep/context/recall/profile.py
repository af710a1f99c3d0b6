"""What a query is about: its topics, compared with those of a turn even where no word of one asks for the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threadkeep.context.recall.postings import Postings
from threadkeep.context.recall.topics import ASKS, COUNTS

# A topic that a word asks for tells more than one that it belongs to.
_ASKED, _BELONGING = 1.5, 1.0


class Profile(dict[int, float]):
    """The share of a query's topics that a turn has, by the bits of the turn's topics; worked out once for each."""

    def __init__(self, postings: Postings, terms: Sequence[str], shares: Mapping[str, float]) -> None:
        super().__init__()
        wanted: dict[int, float] = {}
        for table, worth in ((COUNTS, _BELONGING), (ASKS, _ASKED)):
            for term in terms:
                for topic in table.get(term, ()):
                    wanted[topic] = max(wanted.get(topic, 0.0), worth * shares[term])
        places = {topic: len(postings.of_topic(topic)) for topic in wanted}
        weights = {
            1 << topic: postings.rarity(places[topic]) * worth for topic, worth in wanted.items() if places[topic]
        }
        total = sum(weights.values())
        self.topics = sum(weights)
        self._shares = {bit: weight / total for bit, weight in weights.items()}
        self[0] = 0.0

    def __missing__(self, topics: int) -> float:
        first = topics & -topics
        share = self[topics] = self._shares[first] + self[topics ^ first]
        return share
