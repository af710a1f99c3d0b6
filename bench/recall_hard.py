"""Harder synthetic chats: short facts between assistant answers of hundreds of tokens about the same topics.

Answers are lists, code and tables with the words of the facts' topics, so that the surrounding text hides a fact.
Facts are mentioned, and some change later. They are needed for questions in the same words, questions in other words,
and remarks; in group chats these name the person. `chats("fitted")` and `chats("held out")` share neither facts nor
topics, so that a fit on one part can be checked on the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from bench.recall_chats import Asked, Chat, ChatTurn
from bench.recall_hard_facts import FITTED, HELD_OUT, HardFact, Topic

type Part = Literal["fitted", "held out"]

_PEOPLE = ("Nadia", "Tariq", "Wanda", "Oskar", "Mei")
_OPENINGS = ("Could you help me with {thing}?", "I need a plan for {thing}.", "Explain {thing} and {other} to me.",
             "What should I know about {thing}?", "Compare {thing} with {other}, please.")  # fmt: skip
_GO_ON = ("Go on.", "More detail on {thing}, please.", "Thanks. And {other}?", "Can you shorten that?", "Why {thing}?")
_LINES = (
    "Start with {a}: check the {b} first, because a weak {b} makes every later step on {c} harder than it has to be.",
    "**{a}** matters more than people think. Keep the {b} and the {c} apart, and write down what you change.",
    "If the {a} fails twice, look at the {b}; in most cases the {c} was the reason and nobody had looked there.",
    "Ask somebody with experience about {a}. A short talk about {b} saves a week, and the {c} can wait until then.",
    "Set a limit for {a}, for example two hours a week, and use what is left for {b} and {c}.",
    "When you are done with {a}, compare the {b} with last month's {c}; small differences are normal in spring.",
)
_CODE = (
    "def {a}_{b}(items):\n    total = 0\n    for {c} in items:\n        total += {c}.weight\n    return total\n",
    "SELECT {a}, count(*) AS {b}\nFROM {c}\nWHERE updated > '2024-01-01'\nGROUP BY {a};\n",
)
_BY_NAME = (
    ("Did I", "Did {name}"),
    ("did I", "did {name}"),
    ("my", "{name}'s"),
    ("am I", "is {name}"),
    ("I ", "{name} "),
)


def chats(part: Part, seeds: Sequence[int] = (1, 2), sessions: int = 30) -> Iterator[Chat]:
    """Yield two chats for each seed: a chat of one user, and a group chat, both with an assistant."""
    topics, facts = FITTED if part == "fitted" else HELD_OUT
    for seed in seeds:
        for group in (False, True):
            name = f"{part}-{'group' if group else 'chat'}-{seed}"
            yield _Writer(name, topics, random.Random(name), group=group).chat(facts, sessions)


@dataclass(frozen=True, slots=True)
class _Due:
    """A fact to mention in a session; `again` means that its change is mentioned."""

    fact: HardFact
    person: str
    again: bool


class _Writer:
    def __init__(self, name: str, topics: Sequence[Topic], chance: random.Random, *, group: bool) -> None:
        self._name, self._topics, self._chance, self._group = name, topics, chance, group
        self._turns: list[ChatTurn] = []
        self._asked: list[Asked] = []
        self._told: dict[tuple[str, str], str] = {}
        self._clock = datetime(2024, 3, 1, 9, tzinfo=UTC)

    def chat(self, facts: Sequence[HardFact], sessions: int) -> Chat:
        """Write a chat of several sessions."""
        due: list[list[_Due]] = [[] for _ in range(sessions)]
        for fact in facts:
            person = self._chance.choice(_PEOPLE) if self._group else "user"
            first = self._chance.randrange(sessions - 2)
            due[first].append(_Due(fact, person, again=False))
            if fact.changed:
                due[self._chance.randrange(first + 1, sessions)].append(_Due(fact, person, again=True))
        for number, facts_due in enumerate(due):
            self._clock += timedelta(days=self._chance.randint(1, 5), minutes=self._chance.randint(0, 400))
            self._session(number, facts_due)
        return Chat(self._name, self._turns, self._asked)

    def _session(self, number: int, due: Sequence[_Due]) -> None:
        for one in due:
            said = one.fact.changed if one.again else one.fact.told
            task = self._text(self._chance.choice(_OPENINGS), self._topic(one.fact.topic))
            text = f"{said} {task}" if self._chance.random() < 0.5 else f"{task} {said}"
            turn = self._say(number, one.person, text)
            self._ask(one, turn)
            self._answer(number, self._topic(one.fact.topic))
        for _ in range(self._chance.randint(1, 3)):
            topic = self._chance.choice(self._topics)
            for texts in (_OPENINGS, _GO_ON)[: self._chance.randint(1, 2)]:
                self._say(number, self._person(), self._text(self._chance.choice(texts), topic))
                self._answer(number, topic)

    def _ask(self, due: _Due, turn: str) -> None:
        """Record the questions about a fact, or, once it has changed, about its new state and about both states."""
        fact = due.fact
        key = (fact.told, due.person)
        if not due.again:
            self._told[key] = turn
        if fact.changed and not due.again:
            return
        evidence = frozenset((turn,))
        kinds = [("question", fact.question), ("paraphrase", fact.paraphrase), ("remark", fact.remark)]
        if fact.changed:
            kinds = [("update", fact.question)]
            both = frozenset((self._told[key], turn))
            self._note("contradiction", f"Has it changed: {fact.question[0].lower()}{fact.question[1:]}", due, both)
        for category, text in kinds:
            self._note(category, text, due, evidence)

    def _note(self, category: str, text: str, due: _Due, evidence: frozenset[str]) -> None:
        if self._group:
            for mine, theirs in _BY_NAME:
                text = text.replace(mine, theirs.format(name=due.person))
        self._asked.append(Asked(f"{self._name}-{len(self._asked)}", text, category, evidence))

    def _answer(self, number: int, topic: Topic) -> None:
        lines = [
            f"{n}. {self._text(self._chance.choice(_LINES), topic)}" for n in range(1, self._chance.randint(6, 20))
        ]
        shape = self._chance.random()
        if shape < 0.2:
            lines.insert(2, f"```\n{self._text(self._chance.choice(_CODE), topic)}```")
        elif shape < 0.4:
            lines += [self._text("| {a} | {b} | {c} |", topic) for _ in range(6)]
        elif shape < 0.5:
            lines.append(self._text('{{"tool": "look_up", "rows": ["{a}", "{b}", "{c}"]}}', topic))
        ending = self._text("Would you like me to go on with the {a}?", topic)
        self._say(
            number, "assistant", "\n".join((self._text("Here is a plan for {a} and {b}.", topic), *lines, ending))
        )

    def _text(self, template: str, topic: Topic) -> str:
        a, b, c = self._chance.sample(topic.words, 3)
        return template.format(a=a, b=b, c=c, thing=a, other=b)

    def _topic(self, name: str) -> Topic:
        return next(topic for topic in self._topics if topic.name == name)

    def _person(self) -> str:
        return self._chance.choice(_PEOPLE) if self._group else "user"

    def _say(self, number: int, speaker: str, text: str) -> str:
        index = len(self._turns)
        self._clock += timedelta(seconds=self._chance.randint(20, 200))
        self._turns.append(ChatTurn(f"t{index}", f"s{number}", index, speaker, text, self._clock))
        return f"t{index}"
