"""What a turn brings along before anybody asks: how telling it is, and for which kinds of answer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from threadkeep.context.recall.query import KINDS, Kind
from threadkeep.context.recall.signs import Signs
from threadkeep.context.recall.weights import ANSWER, PRIOR

type Priors = tuple[float, ...]
"""A prior for each kind of answer, in the order of `KINDS`."""


def prior_signals(
    signs: Signs, terms: int, words: int, rarity: float, turns_before: int, after_question: int
) -> dict[str, float]:
    """The signals of a turn, by the names that `PRIOR` weighs.

    Args:
        signs: What its text shows.
        terms: How many terms it has that carry meaning, each counted once.
        words: How many words it has.
        rarity: How rare its terms were before it, about 0 to 1.
        turns_before: How many turns of its episode come before it.
        after_question: 1 if the turn before it asks.
    """
    return {
        "terms": math.log1p(terms),
        "density": terms / (words + 1),
        "rarity": rarity,
        "opening": math.exp(-turns_before / 2),
        "asks": signs.asks,
        "ends_asking": signs.ends_asking,
        "after_question": after_question,
        "names": signs.names,
        "time": signs.time,
        "second_person": signs.second_person,
        "greeting": signs.greeting,
        "past": signs.past,
    }


def answer_signals(signs: Signs) -> dict[Kind, float]:
    """What a turn has of each kind of answer, by the kinds that `ANSWER` weighs."""
    return {"when": signs.time, "number": signs.number, "who": signs.names, "where": signs.place, "why": signs.cause}


def priors_of(signals: Mapping[str, float], signs: Signs) -> Priors:
    """The prior of a turn with these signals, for each kind of answer."""
    base = sum(weight * signals[name] for name, weight in PRIOR.items())
    answers = answer_signals(signs)
    return tuple(base + ANSWER.get(kind, 0.0) * answers.get(kind, 0.0) for kind in KINDS)
