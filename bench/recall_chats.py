"""Synthetic chats of a user and an assistant, in English and Chinese, to check that recall is not fitted to one set.

Facts are mentioned between long answers about other topics, and needed later for a question or a remark. Everything is
drawn from templates with a seeded generator, so that a chat is the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bench.recall_phrases import ENGLISH, Fact, Phrases
from bench.recall_phrases_chinese import CHINESE


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One turn of a synthetic chat."""

    id: str
    session: str
    index: int
    speaker: str
    text: str
    time: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    """A question or a remark at the end, and the turns that are relevant to it."""

    id: str
    text: str
    category: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat of many sessions with the questions about it."""

    id: str
    turns: Sequence[ChatTurn]
    asked: Sequence[Asked]


def chats(seeds: Sequence[int] = (1, 2, 3), sessions: int = 40) -> Iterator[Chat]:
    """Yield an English and a Chinese chat for each seed."""
    for seed in seeds:
        yield _Writer(f"english-{seed}", ENGLISH, random.Random(seed)).chat(sessions)
        yield _Writer(f"chinese-{seed}", CHINESE, random.Random(seed)).chat(sessions)


class _Writer:
    """A writer of one chat, turn by turn."""

    def __init__(self, name: str, phrases: Phrases, chance: random.Random) -> None:
        self._name = name
        self._phrases = phrases
        self._chance = chance
        self._turns: list[ChatTurn] = []
        self._asked: list[Asked] = []
        self._clock = datetime(2024, 2, 1, 9, tzinfo=UTC)

    def chat(self, sessions: int) -> Chat:
        facts = [fact for fact in self._phrases.facts for _ in range(2)]
        self._chance.shuffle(facts)
        used: dict[str, set[str]] = {}
        for number in range(sessions):
            self._clock += timedelta(days=self._chance.randint(1, 6), minutes=self._chance.randint(0, 500))
            self._session(number, facts[number::sessions], used)
        return Chat(self._name, self._turns, self._asked)

    def _session(self, number: int, facts: Sequence[Fact], used: dict[str, set[str]]) -> None:
        waiting = list(facts)
        for _ in range(self._chance.randint(3, 5)):
            task, subject = self._chance.choice(self._phrases.tasks), self._subject()
            opening = task.format(subject=subject)
            if waiting:
                self._drop(number, waiting.pop(), subject, opening, used)
            else:
                self._say(number, "user", opening)
                self._say(number, "assistant", self._answer(subject))
            if self._chance.random() < 0.5:
                self._say(number, "user", self._chance.choice(self._phrases.follow_ups))
                self._say(number, "assistant", self._answer(subject))

    def _drop(self, number: int, fact: Fact, subject: str, opening: str, used: dict[str, set[str]]) -> None:
        """Mention a fact, and record the questions about it."""
        values = {**self._values(fact, used), "subject": subject}
        told = fact.told.format(**values)
        if fact.by_assistant:
            self._say(number, "user", fact.cue.format(**values))
            evidence = self._say(number, "assistant", f"{told} {self._answer(values['subject'])}")
        else:
            before = self._chance.random() < 0.5
            evidence = self._say(number, "user", f"{told} {opening}" if before else f"{opening} {told}")
            self._say(number, "assistant", self._answer(values["subject"]))
        for category, texts in (("question", fact.questions), ("remark", fact.remarks)):
            for text in texts:
                name = f"{self._name}-{len(self._asked)}"
                self._asked.append(Asked(name, text.format(**values), category, frozenset((evidence,))))

    def _values(self, fact: Fact, used: dict[str, set[str]]) -> dict[str, str]:
        """Return values for the fact's slots. The value of its key differs each time, so that only one turn answers."""
        values = {slot: self._chance.choice(choices) for slot, choices in self._phrases.values.items()}
        taken = used.setdefault(fact.told, set())
        free = [choice for choice in self._phrases.values[fact.key] if choice not in taken]
        values[fact.key] = self._chance.choice(free)
        taken.add(values[fact.key])
        return values

    def _subject(self) -> str:
        """Return the subject of a task. Facts often have the same subject, so that long answers compete with them."""
        if self._chance.random() < 0.5:
            return self._chance.choice(self._phrases.subjects)
        return self._chance.choice(self._phrases.values[self._chance.choice(self._phrases.facts).key])

    def _answer(self, subject: str) -> str:
        count = self._chance.randint(4, 11)
        lines = self._chance.sample(self._phrases.advice, count)
        return self._phrases.joint.join(line.format(subject=subject) for line in lines)

    def _say(self, number: int, speaker: str, text: str) -> str:
        index = len(self._turns)
        self._clock += timedelta(seconds=self._chance.randint(20, 200))
        self._turns.append(ChatTurn(f"t{index}", f"s{number}", index, speaker, text, self._clock))
        return f"t{index}"
