"""The texts that every contender stores: of realistic length, no two the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from bench.contenders import TurnTexts

_QUESTION = "Question {}: my parcel was due on Tuesday and has not come; where is it, and when will it be here?"
_ANSWER = "Answer {}: thank you for asking. Your parcel left our warehouse on Monday, and the carrier has it now. "
_DETAIL = "It is expected within two working days; you get a message as soon as it is out for delivery. "


def turns() -> Iterator[TurnTexts]:
    """Yield turns without end: a question of about 100 characters, an answer of about 600."""
    for number in count(1):
        yield TurnTexts(_QUESTION.format(number), _ANSWER.format(number) + _DETAIL * 5 + "Anything else?")
