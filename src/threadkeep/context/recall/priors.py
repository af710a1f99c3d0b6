"""Priors: scores of how informative a turn is for each kind of answer, whatever the query is."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import NamedTuple

from threadkeep.context.recall.weights import ANSWER, PRIOR
from threadkeep.context.recall.words import BASE_FORMS, WordTable, is_unspaced, words_of

# A sign is a feature of a text, such as a time or a place. It has one bit and one pattern, which is matched with each
# lower-case word or, in scripts without spaces, with the whole lower-case text.
_TIME, _NUMBER, _CAUSE, _PLACE, _FIRST_PERSON, _SECOND_PERSON, _CLOCK_WORD = (1 << number for number in range(7))
_PATTERNS = {
    _TIME: re.compile(
        r"\b(?:yesterday|today|tonight|tomorrow|ago|last|next|since|weekend|week|month|year|day|morning|evening|night"
        r"|recently|just|soon|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|june|july|august"
        r"|september|october|november|december|spring|summer|fall|winter|\d{1,2}[ap]m|(?:19|20)\d\d)s?\b"
        r"|昨|明天|今天|前天|周|星期|月|年|天前"
    ),
    _NUMBER: re.compile(
        r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|thirty|forty|fifty|hundred"
        r"|thousand|million|half|couple|once|twice|several)\b|[一二两三四五六七八九十百千万]"
    ),
    _PLACE: re.compile(
        r"\b(?:at|in|near|from|to|around|visit|visited|visiting|city|town|country|park|beach|street|place|restaurant"
        r"|store|home)\b|在|去|到"
    ),
    _FIRST_PERSON: re.compile(r"\b(?:i|my|me|mine|we|our|us)\b|我"),
    _SECOND_PERSON: re.compile(r"\b(?:you|your|yours)\b|你|您"),
    _CLOCK_WORD: re.compile(r"\b\d{1,2}\b"),
    _CAUSE: re.compile(r"\b(?:because|since|so|order|due|thanks|helps?|wanted|why|makes?|made)\b|因为|所以|为了"),
}
_CLOCK = re.compile(r"\b\d{1,2}(?::\d\d| [ap]m)s?\b")
# Words such as "so" and "at" do not always mean a cause or a place, so these patterns check the phrase. A capitalised
# "Why" or "Because" does not match: it starts a question or an answer.
_CAUSE_PHRASE = re.compile(
    r"\b(?:because|since|so that|in order|due to|thanks to|helps?|wanted|why|makes? me|made me)\b|因为|所以|为了"
)
_PLACE_PHRASE = re.compile(
    r"\b(?:at|in|near|from|to|around|visit|visited|visiting) (?:the |a |my |our )?[A-Z]"
    r"|\b(?:city|town|country|park|beach|street|place|restaurant|store|home)\b|在|去|到"
)
# `_CAPITAL` finds capitalised words in a sentence. `_NAME` also finds quoted text, but is slower.
_CAPITAL = re.compile(r" (?!I\b)[A-Z](?<=[a-z0-9,;:'’)] [A-Z])\w")
_NAME = re.compile(r"(?<=[a-z0-9,;:'’)] )(?!I\b)[A-Z]\w|[\"“「《][^\"“”「」《》]+[\"”」》]")
_QUOTED = re.compile('["“「《]')
_GREETING = re.compile(
    r"\W*(?:thanks?|thank you|hey|hi|hello|bye|wow|cool|awesome|great|nice|yeah|yep|ok|okay|sure|congrats"
    r"|sounds|no problem|谢谢|你好|好的|嗯)\b",
    re.IGNORECASE,
)
_MOST_NAMES = 3
# Scan only the beginning: the rest of a pasted file does not make a text more informative.
_READ_CHARACTERS = 4_000


class Signs(NamedTuple):
    """Features of a turn's text, such as a question or a time. Flags are 0 or 1, so that they can be weighed."""

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
    """Return the features of a text, such as a question, a time or a name; `words` are the words of the text."""
    head = text[:_READ_CHARACTERS]
    if is_unspaced(head):
        found = _signs_in(head.lower())
    else:
        found = reduce(or_, map(_SIGNS.__getitem__, words if len(text) <= _READ_CHARACTERS else words_of(head)), 0)
    time = found & _TIME or (found & _CLOCK_WORD and _CLOCK.search(head.lower()))
    cause = found & _CAUSE and _CAUSE_PHRASE.search(head)
    place = found & _PLACE and _PLACE_PHRASE.search(head)
    names = (_NAME if _QUOTED.search(head) else _CAPITAL).finditer(head)
    return Signs(
        int("?" in head or "？" in head),
        int(head.rstrip().endswith(("?", "？"))),
        int(bool(time)),
        int(found & _NUMBER > 0),
        sum(1 for _ in islice(names, _MOST_NAMES)),
        int(bool(cause)),
        int(bool(place)),
        int(found & _FIRST_PERSON > 0),
        int(found & _SECOND_PERSON > 0),
        int(_GREETING.match(head) is not None),
        math.log1p(sum(map(_PAST.__getitem__, words[:200]))),
    )


def _signs_in(text: str) -> int:
    return sum(sign for sign, pattern in _PATTERNS.items() if pattern.search(text))


def _is_past(word: str) -> bool:
    return (word.endswith("ed") and len(word) > 4) or (word in BASE_FORMS and not word.endswith("s"))


_SIGNS, _PAST = WordTable(_signs_in), WordTable(_is_past)


type Priors = tuple[float, ...]
"""A turn's score for each kind of answer, before a query is known, in the order of `KINDS`."""


class Surroundings(NamedTuple):
    """Facts about a turn's speaker and episode so far. `after_question` is 1 if the turn follows a question, else 0."""

    turns_before: int
    after_question: int
    by_agent: bool


def prior_signals(signs: Signs, terms: int, words: int, rarity: float, surroundings: Surroundings) -> Sequence[float]:
    """Return numbers that show how informative a turn is, in the order of their weights in `PRIOR`.

    Args:
        signs: The features of its text.
        terms: The number of distinct meaningful terms.
        words: The number of words.
        rarity: The rarity of its terms in the turns so far, about 0 to 1.
        surroundings: Facts about its speaker and the turns before it.
    """
    return (
        math.log1p(terms),
        terms / (words + 1),
        rarity,
        math.exp(-surroundings.turns_before / 2),
        signs.asks,
        signs.ends_asking,
        surroundings.after_question,
        signs.names,
        signs.time,
        signs.second_person,
        signs.greeting,
        signs.past,
        float(surroundings.by_agent),
    )


def answer_signals(signs: Signs) -> Sequence[float]:
    """Return a number for each kind of answer that a turn may give, such as a time, in the order of `ANSWER`."""
    return signs.time, signs.number, signs.names, signs.place, signs.cause


def priors_of(signals: Sequence[float], answers: Sequence[float]) -> Priors:
    """Return a turn's score for each kind of answer in `KINDS`, from its `prior_signals` and its `answer_signals`."""
    base = math.sumprod(PRIOR.values(), signals)
    return (*(base + weight * answer for weight, answer in zip(ANSWER.values(), answers, strict=True)), base)
