"""Query-independent scores of a turn: its informativeness, and the kinds of answers that it may give."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threadkeep.context.recall.query import KINDS, Kind
from threadkeep.context.recall.weights import ANSWER, PRIOR
from threadkeep.context.recall.words import BASE_FORMS

# Times, numbers and the first person are found in lower-case text: patterns without case take three times as long.
_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|last|next|since|weekend|week|month|year|day|morning|evening|night|recently|"
    r"just|soon|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|june|july|august|september|october|"
    r"november|december|spring|summer|fall|winter|\d{1,2}(?::\d\d| ?[ap]m)|(?:19|20)\d\d)s?\b"
    r"|昨|明天|今天|前天|周|星期|月|年|天前",
)
_NUMBER = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|thirty|forty|fifty|hundred|thousand|"
    r"million|half|couple|once|twice|several)\b|[一二两三四五六七八九十百千万]",
)
# A capital within a sentence, or text in quotation marks.
_NAME = re.compile(r"(?<=[a-z0-9,;:'’)] )(?!I\b)[A-Z]\w|[\"“「《][^\"”」》]+[\"”」》]")
_CAUSE = re.compile(
    r"\b(?:because|since|so that|in order|due to|thanks to|helps?|wanted|why|makes? me|made me)\b|因为|所以|为了"
)
_PLACE = re.compile(
    r"\b(?:at|in|near|from|to|around|visit|visited|visiting) (?:the |a |my |our )?[A-Z]"
    r"|\b(?:city|town|country|park|beach|street|place|restaurant|store|home)\b|在|去|到"
)
_FIRST_PERSON = re.compile(r"\b(?:i|my|me|mine|we|our|us)\b|我")
_SECOND_PERSON = re.compile(r"\b(?:you|your|yours)\b|你|您", re.IGNORECASE)
_GREETING = re.compile(
    r"\W*(?:thanks?|thank you|hey|hi|hello|bye|wow|cool|awesome|great|nice|yeah|yep|ok|okay|sure|congrats"
    r"|sounds|no problem|谢谢|你好|好的|嗯)\b",
    re.IGNORECASE,
)
_MOST_NAMES = 3
# Only the beginning of a text is scanned: a pasted file does not become more informative by its length.
_READ_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs found in a turn; flags are 0 or 1, so that they can be weighed."""

    asks: int
    ends_asking: int
    time: int
    number: int
    names: int
    cause: int
    place: int
    first_person: int
    second_person: int
    greeting: int
    past: float


def signs_of(text: str, words: Sequence[str]) -> Signs:
    """Return the signs of a text with these words."""
    head = text[:_READ_CHARACTERS]
    lowered = head.lower()
    return Signs(
        asks=int("?" in head or "？" in head),
        ends_asking=int(head.rstrip().endswith(("?", "？"))),
        time=int(_TIME.search(lowered) is not None),
        number=int(_NUMBER.search(lowered) is not None),
        names=min(_MOST_NAMES, len(_NAME.findall(head))),
        cause=int(_CAUSE.search(head) is not None),
        place=int(_PLACE.search(head) is not None),
        first_person=int(_FIRST_PERSON.search(lowered) is not None),
        second_person=int(_SECOND_PERSON.search(head) is not None),
        greeting=int(_GREETING.match(head) is not None),
        past=math.log1p(sum(map(_is_past, words[:200]))),
    )


def _is_past(word: str) -> bool:
    return (word.endswith("ed") and len(word) > 4) or (word in BASE_FORMS and not word.endswith("s"))


type Priors = tuple[float, ...]
"""A prior for each kind of answer, in the order of `KINDS`."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The number of earlier turns in the episode; whether the previous turn asks; whether a program speaks."""

    turns_before: int
    after_question: int
    by_agent: bool


def prior_signals(signs: Signs, terms: int, words: int, rarity: float, surroundings: Surroundings) -> dict[str, float]:
    """Return the signals of a turn, by the names that `PRIOR` weighs.

    Args:
        signs: The signs found in its text.
        terms: The number of distinct meaningful terms.
        words: The number of words.
        rarity: The rarity of its terms before it, about 0 to 1.
        surroundings: Facts about its speaker and the turns before it.
    """
    return {
        "terms": math.log1p(terms),
        "density": terms / (words + 1),
        "rarity": rarity,
        "opening": math.exp(-surroundings.turns_before / 2),
        "asks": signs.asks,
        "ends_asking": signs.ends_asking,
        "after_question": surroundings.after_question,
        "names": signs.names,
        "time": signs.time,
        "second_person": signs.second_person,
        "greeting": signs.greeting,
        "past": signs.past,
        "by_agent": float(surroundings.by_agent),
    }


def answer_signals(signs: Signs) -> dict[Kind, float]:
    """Return a turn's signals for each kind of answer, by the kinds that `ANSWER` weighs."""
    return {"when": signs.time, "number": signs.number, "who": signs.names, "where": signs.place, "why": signs.cause}


def priors_of(signals: Mapping[str, float], signs: Signs) -> Priors:
    """Return the prior of a turn with these signals, for each kind of answer."""
    base = sum(weight * signals[name] for name, weight in PRIOR.items())
    answers = answer_signals(signs)
    return tuple(base + ANSWER.get(kind, 0.0) * answers.get(kind, 0.0) for kind in KINDS)
