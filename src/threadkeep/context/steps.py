"""How what a turn has beside its question shares the room: the newest step first, the older ones cut to fit beside it.

A step whose result is not there any more would only be done again, so an older one is cut before it is left out. What
was cut stays as it is for the calls to come: the shares are those that each call of the turn had in its time, replayed
from its first step, and where one more step does not fit, the older ones are cut back to half of the room at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SMALL: Final = 8
"""A result of less than this part of the room is cut only where cutting the bigger ones is not enough."""


@dataclass(frozen=True)
class Size:
    """The tokens of a message, and of the shortest form that it can be cut to (the same when it cannot be cut)."""

    tokens: int
    minimum: int

    def at(self, level: int) -> int:
        """The tokens of the message when nothing may have more than the level."""
        return max(self.minimum, min(self.tokens, level))


type Step = Sequence[Size]
"""The messages that stay or go together: a tool call and its results, or a single message."""


def whole_of(step: Step) -> int:
    """The tokens of a step that is not cut."""
    return sum(size.tokens for size in step)


def least_of(step: Step) -> int:
    """The tokens of a step that is cut as short as can be."""
    return sum(size.minimum for size in step)


def level_of(step: Step, room: int) -> int:
    """The level to which the biggest messages of a step are cut, such that it takes at most the room."""
    low, high = 0, room
    while low <= high:
        level = (low + high) // 2
        if sum(size.at(level) for size in step) <= room:
            low = level + 1
        else:
            high = level - 1
    return high


def shares(parts: Sequence[Step], steps: Sequence[Step], room: int) -> list[int | None]:
    """The tokens that each may take, in order; None for one that has no room even cut to its mark.

    Args:
        parts: what else is of the question, the oldest first; it is cut after the older steps.
        steps: what came after the question, the oldest first. The shortest form of the newest has room.
        room: the tokens for all of them.
    """
    everything = [*parts, *steps]
    if not everything:
        return []
    newest = everything[-1]
    # A quarter of it is the newest one's before any older one is there as a mark.
    left = room - min(whole_of(newest), max(least_of(newest), room // 4))
    kept = {len(everything) - 1}
    for numbers in (range(len(parts)), range(len(parts), len(everything))):
        for number in reversed(numbers):
            if number in kept:
                continue
            if least_of(everything[number]) > left:
                break
            left -= least_of(everything[number])
            kept.add(number)
    ordered = sorted(kept)
    granted = _replayed([everything[number] for number in ordered], sum(n < len(parts) for n in ordered), room)
    found = dict(zip(ordered, granted, strict=True))
    return [found.get(number) for number in range(len(everything))]


def whole_shares(steps: Sequence[Step], room: int) -> list[int | None]:
    """The tokens of each, where the newest may be cut and the older ones are there whole, newest first, or not."""
    found: list[int | None] = [None] * len(steps)
    for number in range(len(steps) - 1, -1, -1):
        tokens = whole_of(steps[number])
        if number == len(steps) - 1 and least_of(steps[number]) <= room:
            tokens = min(tokens, room)
        if tokens > room:
            break
        found[number] = tokens
        room -= tokens
    return found


def _replayed(steps: Sequence[Step], parts: int, room: int) -> list[int]:
    """The tokens of each after the last one came; the first `parts` are of the question."""
    granted: list[int] = []
    older = 0
    for step in steps:
        whole, least = whole_of(step), least_of(step)
        claim = min(whole, max(least, room * 3 // 4))
        if older > room - claim:
            # To half, as a window is cut back: so the next steps find room, and what stands before them stays.
            _cut_back(steps, granted, parts, older - min(room // 2, room - claim), room // _SMALL)
            older = sum(granted)
        granted.append(max(least, min(whole, room - older)))
        older += granted[-1]
    return granted


def _cut_back(steps: Sequence[Step], granted: list[int], parts: int, excess: int, small: int) -> None:
    """Take so many tokens from what was granted, from the oldest steps first, and from small results last."""
    for floor in (small, 0):
        for number in (*range(parts, len(granted)), *range(min(parts, len(granted)))):
            least = sum(size.at(floor) for size in steps[number])
            taken = max(min(granted[number] - least, excess), 0)
            granted[number] -= taken
            excess -= taken
