"""What of a ranking is taken: the turns that tell most for what they cost, as long as the budget lasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from threadkeep.context.recall.index import Ranked

COST_SHARE: Final = 0.6
"""A turn that costs e times as much needs a score that is higher by this."""


def select(ranked: Sequence[Ranked], cost_of: Callable[[str], int], budget: int) -> list[Ranked]:
    """The turns to take, in the order of what they are worth; a turn that is too long for what is left is passed over.

    Args:
        ranked: Turns with their scores, as `RecallIndex.rank` gives them.
        cost_of: The tokens that the turn of an id takes, with all that frames it.
        budget: The most tokens that all of them take together.
    """
    costs = [max(1, cost_of(entry.id)) for entry in ranked]
    worth = [entry.score - COST_SHARE * math.log(cost) for entry, cost in zip(ranked, costs, strict=True)]
    taken: list[Ranked] = []
    left, least = budget, min(costs, default=0)
    for number in sorted(range(len(costs)), key=worth.__getitem__, reverse=True):
        if left < least:
            break
        if costs[number] <= left:
            taken.append(ranked[number])
            left -= costs[number]
    return taken
