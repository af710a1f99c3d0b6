"""Made-up facts of fifty persons, and a question about each in other words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PERSONS = tuple(f"person-{number:02}" for number in range(1, 51))

# Sixteen kinds of facts: a key, values, and questions that ask for it in other words than the key and the values.
_KINDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("home_city", ("Lisbon", "Oslo", "Kyoto", "Quito"), ("Where do I live?", "Which town am I from?")),
    ("diet", ("vegan", "vegetarian", "no gluten", "halal"), ("What can I eat?", "Which food should you order for me?")),
    ("dog_name", ("Rex", "Luna", "Bello", "Kira"), ("What is my pet called?", "Who do I walk in the park?")),
    ("employer", ("a bank", "a hospital", "a school", "a bakery"), ("Where do I work?", "Who pays my salary?")),
    ("birthday", ("3 May", "12 June", "1 April", "30 July"), ("When was I born?", "When do I turn a year older?")),
    (
        "favourite_colour",
        ("teal", "red", "ochre", "grey"),
        ("Which color do I like?", "What shade should it have?"),
    ),
    ("car", ("a blue van", "an old taxi", "none", "a tram pass"), ("What do I drive?", "Which vehicle is mine?")),
    ("partner", ("Kim", "Alex", "Sam", "Noa"), ("Who am I married to?", "What is the name of my spouse?")),
    ("allergy", ("peanuts", "pollen", "cats", "latex"), ("What makes me sneeze?", "What am I allergic to?")),
    (
        "preferred_language",
        ("Python", "Rust", "Go", "Haskell"),
        ("In what do I program?", "I code in what?"),
    ),
    ("editor", ("vim", "emacs", "nano", "helix"), ("Which tool do I write code with?", "In what do I edit files?")),
    (
        "phone",
        ("a small one", "two of them", "a flip phone", "none"),
        ("Which mobile is mine?", "How can I be called?"),
    ),
    ("instrument", ("cello", "drums", "piano", "flute"), ("What music do I play?", "Which instrument do I practise?")),
    ("sport", ("rowing", "chess boxing", "judo", "curling"), ("How do I keep fit?", "What do I train for?")),
    ("timezone", ("UTC+1", "UTC+9", "UTC-5", "UTC+5:30"), ("What time is it where I am?", "Which clock do I live by?")),
    ("meeting_day", ("Monday", "Thursday", "Friday", "Tuesday"), ("When do we meet?", "On which weekday do we talk?")),
)
_EACH = 4


@dataclass(frozen=True)
class Asked:
    """A question of a person, and the key of the fact that answers it."""

    person: str
    key: str
    text: str


def facts_of_everybody() -> dict[str, dict[str, str]]:
    """Four facts of each person."""
    return {
        person: {key: values[(number + at) % len(values)] for at, (key, values, _) in enumerate(_kinds_of(number))}
        for number, person in enumerate(PERSONS)
    }


def questions() -> Iterator[Asked]:
    """A question about each fact, in one of its two wordings."""
    for number, person in enumerate(PERSONS):
        for at, (key, _, wordings) in enumerate(_kinds_of(number)):
            yield Asked(person, key, wordings[(number + at) % len(wordings)])


def _kinds_of(number: int) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [_KINDS[(number * 3 + at * 5) % len(_KINDS)] for at in range(_EACH)]
