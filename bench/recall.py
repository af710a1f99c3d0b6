"""Evidence recall: the share of turns with an answer that is selected within a token budget.

`Recall` is the adapter for the evaluation of the shared data set, which defines its two methods.
`python -m bench.recall --data FILE` measures it there, also with misspelt words, and on synthetic chats. `--meaning`
uses the word vectors of the extra, `--embed MODULE:FUNCTION` another embedding; `--long` shows how the time of a query
grows with the conversation. The weights were fitted to these conversations: `python -m bench.fit_recall` prints the
results on conversations that are left out of a fit.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import random
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bench import recall_hard
from bench.recall_chats import Asked, Chat, ChatTurn, chats
from threadkeep import Memory
from threadkeep.agent import recalled_turns
from threadkeep.context.recall import IndexedTurn, RecallIndex, select
from threadkeep.context.recall.embedding import Embedder, installed_word_vectors, unit_vector

BUDGETS = (500, 1_000, 2_000, 4_000)
_TOKEN = re.compile(r"\w+|[^\w\s]")
_FRAME_TOKENS = 4


type Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


class Spoken(Protocol):
    """A turn as the evaluation passes it."""

    @property
    def id(self) -> str:
        """The id of the turn."""

    @property
    def session(self) -> str:
        """The session of the turn."""

    @property
    def speaker(self) -> str:
        """The speaker of the turn."""

    @property
    def text(self) -> str:
        """The text of the turn."""

    @property
    def time(self) -> datetime:
        """The time of the turn."""


def cost(turn: Spoken) -> int:
    """Return the number of words and punctuation marks of `Speaker: text`, plus four for its frame."""
    return len(_TOKEN.findall(f"{turn.speaker}: {turn.text}")) + _FRAME_TOKENS


class Recall:
    """Threadkeep's selection of older turns, with the interface that the evaluation calls."""

    def __init__(self, embed: Embed | None = None) -> None:
        self._index = RecallIndex()
        self._costs: dict[str, int] = {}
        self._embed = embed
        self._vectors: dict[str, Sequence[float]] = {}

    def ingest(self, turns: Sequence[Spoken]) -> None:
        """Index all turns, in order."""
        for turn in turns:
            self._index.add(IndexedTurn(turn.id, turn.text, turn.speaker, turn.time, turn.session))
            self._costs[turn.id] = cost(turn)
        if self._embed is not None:
            vectors = self._embed([f"{turn.speaker}: {turn.text}" for turn in turns])
            self._vectors = dict(zip((turn.id for turn in turns), vectors, strict=True))

    def alike(self, query: str) -> dict[str, float] | None:
        """Return the similarity of the query to each turn; None without an embedding."""
        if self._embed is None:
            return None
        [asked] = self._embed([self._index.meaningful(query)])
        return {turn: math.sumprod(asked, vector) for turn, vector in self._vectors.items()}

    def select(self, query: str, token_budget: int) -> list[str]:
        """Return the ids of the turns selected within the budget, best first."""
        return self.take(query, token_budget, self.alike(query))

    def take(self, query: str, token_budget: int, alike: dict[str, float] | None) -> list[str]:
        """Select as `select` does, with similarities that are already known."""
        ranked = self._index.rank(query, limit=400, semantic=alike)
        return [entry.id for entry in select(ranked, self._costs.__getitem__, token_budget)]


def conversations(path: str) -> list[Chat]:
    """Read the argument `--data`: the conversations of the shared data set, without unanswerable questions.

    Raises:
        ArgumentTypeError: the file cannot be read, or has another form.
    """
    try:
        found = list(_conversations(json.loads(Path(path).read_bytes())))
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
    except (ValueError, LookupError, TypeError, AttributeError):
        problem = f"{path} is not the shared data set"
    else:
        if found:
            return found
        problem = f"{path} has no conversations"
    raise argparse.ArgumentTypeError(f"{problem}. Give the path of conversations.json of the shared data set.")


def _conversations(entries: Any) -> Iterator[Chat]:
    for entry in entries:
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


def misspelt(chat: Chat) -> Chat:
    """Return the chat with two letters swapped in about half of the questions' words of five letters or more."""
    chance = random.Random(chat.id)
    names = {word for turn in chat.turns for word in turn.speaker.split()}

    def swapped(found: re.Match[str]) -> str:
        word = found[0]
        if word in names or chance.random() < 0.5:
            return word
        place = chance.randint(1, len(word) - 2)
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]

    asked = [replace(one, text=re.sub(r"[^\W\d_]{5,}", swapped, one.text)) for one in chat.asked]
    return replace(chat, asked=asked)


def in_languages() -> Chat:
    """Return a chat in many languages; its questions have other forms of the words."""
    lines = Path(__file__).with_name("recall_languages.txt").read_text(encoding="utf-8").splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in lines if not line.startswith("#")]
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    turns = [
        ChatTurn(f"{place}", "s", place, "user", said, begin + timedelta(days=place))
        for place, (_, said, _) in enumerate(rows)
    ]
    asked = [
        Asked(f"{place}", question, language, frozenset((f"{place}",)))
        for place, (language, _, question) in enumerate(rows)
    ]
    return Chat("languages", turns, asked)


def measure(chat: Chat, memory: Recall) -> tuple[dict[str, list[list[float]]], list[float]]:
    """Return recall by category and budget, and the milliseconds of CPU of each query without its embedding."""
    memory.ingest(chat.turns)
    recalls: dict[str, list[list[float]]] = {}
    spent: list[float] = []
    for asked in chat.asked:
        found, alike = [], memory.alike(asked.text)
        for budget in BUDGETS:
            start = time.process_time()
            ids = memory.take(asked.text, budget, alike)
            spent.append(1_000 * (time.process_time() - start))
            found.append(len(asked.evidence.intersection(ids)) / len(asked.evidence))
        recalls.setdefault(asked.category, []).append(found)
    return recalls, spent


def report(title: str, measured: Sequence[Chat], embed: Embed | None = None) -> None:
    """Measure these chats and print one line a category, and one for all."""
    recalls: dict[str, list[list[float]]] = {}
    spent: list[float] = []
    for chat in measured:
        by_category, milliseconds = measure(chat, Recall(embed))
        spent.extend(milliseconds)
        for category, found in by_category.items():
            recalls.setdefault(category, []).extend(found)
    rows = {**dict(sorted(recalls.items())), "all": [found for every in recalls.values() for found in every]}
    print(f"{title}: recall in % at {', '.join(f'{budget:,}' for budget in BUDGETS)} tokens")
    for category, found in rows.items():
        means = "  ".join(f"{100 * statistics.fmean(column):6.2f}" for column in zip(*found, strict=True))
        print(f"  {category:<12} {means}   n={len(found)}")
    print(f"  {_milliseconds(spent)}")


def _milliseconds(spent: Sequence[float]) -> str:
    p95 = statistics.quantiles(spent, n=20)[-1]
    return f"{statistics.median(spent):.2f} ms of CPU a query at the median, {p95:.2f} at p95"


def report_long(given: Sequence[Chat], lengths: Sequence[int] = (700, 7_000, 70_000)) -> None:
    """Print the time of a query in conversations of several lengths, made by repeating these chats."""
    asked = [one.text for chat in given for one in chat.asked][::20]
    for length in lengths:
        memory, left, year = Recall(), length, 0
        while left > 0:
            for chat in given:
                turns = [later(turn, f"{year}-{chat.id}", year) for turn in chat.turns[:left]]
                memory.ingest(turns)
                left -= len(turns)
            year += 1
        spent = []
        for text in asked:
            start = time.process_time()
            memory.take(text, 2_000, None)
            spent.append(1_000 * (time.process_time() - start))
        print(f"{length:>7,} turns: {_milliseconds(spent)}")


def later(turn: ChatTurn, name: str, years: int) -> ChatTurn:
    """Return a repetition of the turn with other ids, 400 days later for each of `years`."""
    time_then = turn.time + timedelta(days=400 * years)
    return replace(turn, id=f"{name}-{turn.id}", session=f"{name}-{turn.session}", time=time_then)


def use_meaning(*, wanted: bool) -> None:
    """Recall with the word vectors of the extra `meaning`, or with words alone even if it is installed.

    Raises SystemExit if the extra is wanted but not installed.
    """
    if not wanted:
        recalled_turns.installed_word_vectors = lambda: None  # type: ignore[assignment, attr-defined]
    elif installed_word_vectors() is None:
        raise SystemExit("--meaning needs the extra `meaning`: pip install 'threadkeep[meaning]'")


async def indexed(memory: Memory, session_id: str, query: Callable[[], Awaitable[object]]) -> None:
    """Repeat a query until the whole session is indexed and, if vectors are used, embedded."""
    last_seq = (await memory.session(session_id).info()).last_seq
    while (index := memory.older_turns.index("session", session_id)) is None or index.read.get(session_id) != last_seq:
        await query()
    for _ in range(2):  # the first of these tasks may have begun before all messages were indexed
        await query()
        if index.embedding is not None:
            await index.embedding


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.recall", description=main.__doc__)
    parser.add_argument(
        "--data",
        type=conversations,
        default=[],
        help="conversations.json of the shared data set; without it only made-up chats",
    )
    parser.add_argument(
        "--embed", metavar="MODULE:FUNCTION", help="a function that takes texts and gives a vector of length 1 for each"
    )
    parser.add_argument("--meaning", action="store_true", help="use the word vectors of the extra `meaning`")
    parser.add_argument("--long", action="store_true", help="also measure talks of up to 70,000 turns")
    given = parser.parse_args(arguments)
    embed = _embedding(given.embed) if given.embed else None
    if given.meaning and (vectors := installed_word_vectors()) is not None:
        embed = partial(_embed, vectors)
    people: list[Chat] = given.data
    if people:
        report("Conversations between people", people, embed)
        report("The same with misspelt words in the questions", [misspelt(chat) for chat in people], embed)
    chat = in_languages()
    memory = Recall(embed)
    memory.ingest(chat.turns)
    first = [memory.select(asked.text, 10_000)[:1] == [asked.id] for asked in chat.asked]
    print(f"Facts in many languages, found at the first place: {sum(first)} of {len(first)}")
    report("Made-up chats with an assistant", list(chats()), embed)
    for part in ("fitted", "held out"):
        report(f"Harder made-up chats, the {part} part", list(recall_hard.chats(part)), embed)
    if given.long:
        report_long(people or list(chats()))
    return 0


def _embed(embedder: Embedder, texts: Sequence[str]) -> Sequence[Sequence[float]]:
    return [unit_vector(vector) for vector in asyncio.run(embedder.embed(texts))]


def _embedding(name: str) -> Embed:
    module, _, function = name.partition(":")
    found: Embed = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(main())
