"""Topics and facts of the harder synthetic chats; the held-out part differs from the fitted one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Topic:
    """The words of a topic, of which long answers are made."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HardFact:
    """A fact, a question in its words, one in other words, and a related remark. `changed` states its new value."""

    topic: str
    told: str
    question: str
    paraphrase: str = ""
    remark: str = ""
    changed: str = ""


def _read(part: str) -> tuple[tuple[Topic, ...], tuple[HardFact, ...]]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    lines = text.partition(f"[{part}]\n")[2].partition("\n[")[0].splitlines()
    topics = (line.partition(":") for line in lines if "|" not in line)
    facts = (line.split("|") for line in lines if "|" in line)
    return (
        tuple(Topic(name, tuple(words.split())) for name, _, words in topics),
        tuple(HardFact(*map(str.strip, fact)) for fact in facts),
    )


FITTED, HELD_OUT = _read("fitted"), _read("held out")
