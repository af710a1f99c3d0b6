"""The signs of a turn: what its words tell before anybody asks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from threadkeep.context.recall.irregular import BASE_FORMS

_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|last|next|since|weekend|week|month|year|day|morning|evening|night|recently|"
    r"just|soon|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|june|july|august|september|october|"
    r"november|december|spring|summer|fall|winter|\d{1,2}(?::\d\d| ?[ap]m)|(?:19|20)\d\d)s?\b"
    r"|昨|明天|今天|前天|周|星期|月|年|天前",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|thirty|forty|fifty|hundred|thousand|"
    r"million|half|couple|once|twice|several)\b|[一二两三四五六七八九十百千万]",
    re.IGNORECASE,
)
# A capital within a sentence, or something in quotation marks.
_NAME = re.compile(r"(?<=[a-z0-9,;:'’)] )(?!I\b)[A-Z]\w|[\"“「《][^\"”」》]+[\"”」》]")
_CAUSE = re.compile(
    r"\b(?:because|since|so that|in order|due to|thanks to|helps?|wanted|why|makes? me|made me)\b|因为|所以|为了"
)
_PLACE = re.compile(
    r"\b(?:at|in|near|from|to|around|visit|visited|visiting) (?:the |a |my |our )?[A-Z]"
    r"|\b(?:city|town|country|park|beach|street|place|restaurant|store|home)\b|在|去|到"
)
_FIRST_PERSON = re.compile(r"\b(?:i|my|me|mine|we|our|us)\b|我", re.IGNORECASE)
_SECOND_PERSON = re.compile(r"\b(?:you|your|yours)\b|你|您", re.IGNORECASE)
_GREETING = re.compile(
    r"\W*(?:thanks?|thank you|hey|hi|hello|bye|wow|cool|awesome|great|nice|yeah|yep|ok|okay|sure|congrats"
    r"|sounds|no problem|谢谢|你好|好的|嗯)\b",
    re.IGNORECASE,
)
_MOST_NAMES = 3
# Signs are looked for in the beginning of a text only: a pasted file does not become more telling by its length.
_READ_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True)
class Signs:
    """What was found in a turn; flags are 0 or 1, so that they can be weighed."""

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
    """Read the signs of a text that has these words."""
    head = text[:_READ_CHARACTERS]
    return Signs(
        asks=int("?" in head or "？" in head),
        ends_asking=int(head.rstrip().endswith(("?", "？"))),
        time=int(_TIME.search(head) is not None),
        number=int(_NUMBER.search(head) is not None),
        names=min(_MOST_NAMES, len(_NAME.findall(head))),
        cause=int(_CAUSE.search(head) is not None),
        place=int(_PLACE.search(head) is not None),
        first_person=int(_FIRST_PERSON.search(head) is not None),
        second_person=int(_SECOND_PERSON.search(head) is not None),
        greeting=int(_GREETING.match(head) is not None),
        past=math.log1p(sum(map(_is_past, words[:200]))),
    )


def _is_past(word: str) -> bool:
    return (word.endswith("ed") and len(word) > 4) or (word in BASE_FORMS and not word.endswith("s"))
