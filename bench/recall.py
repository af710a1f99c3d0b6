"""Evidence recall: which share of the turns that hold an answer is selected within a budget of tokens.

`Recall` is the adapter for the evaluation of the shared data set, which says what its two methods have to do;
`python -m bench.recall --data FILE` measures it there and on made-up chats.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from bench.recall_chats import Asked, Chat, ChatTurn, chats
from threadkeep.context.recall import IndexedTurn, RecallIndex, select

BUDGETS = (500, 1_000, 2_000, 4_000)
_TOKEN = re.compile(r"\w+|[^\w\s]")
_FRAME_TOKENS = 4


class Spoken(Protocol):
    """A turn as the evaluation gives it."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def session(self) -> str:
        """The session it was said in."""

    @property
    def speaker(self) -> str:
        """Who said it."""

    @property
    def text(self) -> str:
        """What was said."""

    @property
    def time(self) -> datetime:
        """When it was said."""


def cost(turn: Spoken) -> int:
    """Words and marks of `Speaker: text`, and what frames it."""
    return len(_TOKEN.findall(f"{turn.speaker}: {turn.text}")) + _FRAME_TOKENS


class Recall:
    """Threadkeep's selection of older turns, as the evaluation calls it."""

    def __init__(self) -> None:
        self._index = RecallIndex()
        self._costs: dict[str, int] = {}

    def ingest(self, turns: Sequence[Spoken]) -> None:
        """Take in all turns, in order."""
        for turn in turns:
            self._index.add(IndexedTurn(turn.id, turn.text, turn.speaker, turn.time, turn.session))
            self._costs[turn.id] = cost(turn)

    def select(self, query: str, token_budget: int) -> list[str]:
        """Ids of turns, best first."""
        ranked = self._index.rank(query, limit=400)
        return [entry.id for entry in select(ranked, self._costs.__getitem__, token_budget)]


def conversations(path: Path) -> Iterator[Chat]:
    """The conversations of the shared data set, without the questions that cannot be answered."""
    for entry in json.loads(path.read_text()):
        turns = [
            ChatTurn(t["id"], t["session"], t["index"], t["speaker"], t["text"], datetime.fromisoformat(t["time"]))
            for t in entry["turns"]
        ]
        asked = [
            Asked(q["id"], q["text"], q["category"], frozenset(q["evidence"]))
            for q in entry["questions"]
            if q["evidence"] and q["category"] != "adversarial"
        ]
        yield Chat(entry["id"], turns, asked)


def measure(chat: Chat, memory: Recall) -> tuple[dict[str, list[list[float]]], list[float]]:
    """Recall by category and budget, and the milliseconds of each query."""
    memory.ingest(chat.turns)
    recalls: dict[str, list[list[float]]] = {}
    spent: list[float] = []
    for asked in chat.asked:
        found = []
        for budget in BUDGETS:
            start = time.perf_counter()
            ids = memory.select(asked.text, budget)
            spent.append(1_000 * (time.perf_counter() - start))
            found.append(len(asked.evidence.intersection(ids)) / len(asked.evidence))
        recalls.setdefault(asked.category, []).append(found)
    return recalls, spent


def report(title: str, measured: Sequence[Chat]) -> None:
    """Measure these chats and print one line a category, and one for all."""
    recalls: dict[str, list[list[float]]] = {}
    spent: list[float] = []
    for chat in measured:
        by_category, milliseconds = measure(chat, Recall())
        spent.extend(milliseconds)
        for category, found in by_category.items():
            recalls.setdefault(category, []).extend(found)
    rows = {**dict(sorted(recalls.items())), "all": [found for every in recalls.values() for found in every]}
    print(f"{title}: recall in % at {', '.join(f'{budget:,}' for budget in BUDGETS)} tokens")
    for category, found in rows.items():
        means = "  ".join(f"{100 * statistics.fmean(column):6.2f}" for column in zip(*found, strict=True))
        print(f"  {category:<12} {means}   n={len(found)}")
    print(
        f"  {statistics.median(spent):.2f} ms a query at the median, {statistics.quantiles(spent, n=20)[-1]:.2f} at p95"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.recall", description=main.__doc__)
    parser.add_argument(
        "--data", type=Path, help="conversations.json of the shared data set; without it only made-up chats"
    )
    given = parser.parse_args(arguments)
    if given.data is not None:
        report("Conversations between people", list(conversations(given.data)))
    report("Made-up chats with an assistant", list(chats()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
