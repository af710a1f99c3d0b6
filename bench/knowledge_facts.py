"""Made-up facts of fifty persons, and a question about each in other words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

type Part = Literal["fitted", "held out"]
PARTS: tuple[Part, ...] = get_args(Part.__value__)

PERSONS = tuple(f"person-{number:02}" for number in range(1, 51))
_EACH = 4


@dataclass(frozen=True)
class Kind:
    """A kind of fact: its key, four values, and a question for each of them in other words."""

    part: Part
    key: str
    values: tuple[str, ...]
    wordings: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A question of a person, and the key of the fact that answers it."""

    part: Part
    person: str
    key: str
    text: str


def _read() -> tuple[Kind, ...]:
    kinds: list[Kind] = []
    part: Part = "fitted"
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            part = next(name for name in PARTS if line == f"[{name}]")
        elif not line.startswith("#"):
            key, values, *wordings = line.split("|")
            kinds.append(Kind(part, key, tuple(values.split(";")), tuple(wordings)))
    return tuple(kinds)


KINDS = _read()


def facts_of_everybody() -> dict[str, dict[str, str]]:
    """Return four facts of each person, each kind with four persons."""
    return {
        person: {kind.key: kind.values[at] for at, kind in enumerate(_kinds_of(number))}
        for number, person in enumerate(PERSONS)
    }


def questions() -> list[Asked]:
    """Return a question about each of the two hundred facts, each in a wording of its own."""
    return [
        Asked(kind.part, person, kind.key, kind.wordings[at])
        for number, person in enumerate(PERSONS)
        for at, kind in enumerate(_kinds_of(number))
    ]


def _kinds_of(number: int) -> list[Kind]:
    """Return the four kinds of a person. The step 13 has no common factor with 50, so each kind has four persons."""
    return [KINDS[(number + 13 * at) % len(KINDS)] for at in range(_EACH)]
