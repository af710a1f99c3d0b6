"""Division of a model call's token budget among the steps of a turn (tool calls with their results).

A model would repeat a step whose result is missing, so an older step is cut before it is excluded. Each model call
divides the budget again from the turn's first step on, so it repeats the cuts of earlier calls. If one more step does
not fit, the older steps are cut to half of the budget or less, which leaves room for further steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SMALL: Final = 8  # a message of less than an eighth of the budget is cut only after all larger ones


@dataclass(frozen=True)
class Size:
    """The tokens of a message and of its shortest form."""

    tokens: int
    minimum: int

    def at(self, level: int) -> int:
        """Return the number of tokens of the message after it is cut to `level` tokens, or to its shortest form."""
        return max(self.minimum, min(self.tokens, level))


type Step = Sequence[Size]
"""Messages that are sent or excluded together: a tool call with its results, or one message."""


def whole_of(step: Step) -> int:
    """Return the number of tokens of a step (a tool call with its results) if no message in it is cut."""
    return sum(size.tokens for size in step)


def least_of(step: Step) -> int:
    """Return the number of tokens of a step (a tool call with its results) if its messages have their shortest form."""
    return sum(size.minimum for size in step)


def level_of(step: Step, room: int) -> int:
    """Return the greatest length, in tokens, to which each message is cut so that the step fits into `room` tokens."""
    low, high = 0, room
    while low <= high:
        level = (low + high) // 2
        if sum(size.at(level) for size in step) <= room:
            low = level + 1
        else:
            high = level - 1
    return high


def shares(parts: Sequence[Step], steps: Sequence[Step], room: int) -> list[int | None]:
    """Return the number of tokens for each message of a question (`parts`), then for each step; None if excluded.

    Args:
        parts: the question's messages except the last one, oldest first. They are cut only after the older steps.
        steps: the messages after the question, oldest first. The newest step must fit in its shortest form.
        room: the tokens for all parts and steps.
    """
    everything = [*parts, *steps]
    if not everything:
        return []
    newest = everything[-1]
    # Reserve up to a quarter for the newest step, before any older step gets even its shortest form.
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
    """Return the number of tokens for each step, or None for an excluded step. Only the newest step may be cut."""
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
    """Return the tokens for each step. Compute them in order, to repeat the cuts of the turn's earlier model calls."""
    granted: list[int] = []
    older = 0
    for step in steps:
        whole, least = whole_of(step), least_of(step)
        claim = min(whole, max(least, room * 3 // 4))
        if older > room - claim:
            # Cut back to half, so that the next steps fit while earlier messages stay the same.
            _cut_back(steps, granted, parts, older - min(room // 2, room - claim), room // _SMALL)
            older = sum(granted)
        granted.append(max(least, min(whole, room - older)))
        older += granted[-1]
    return granted


def _cut_back(steps: Sequence[Step], granted: list[int], parts: int, excess: int, small: int) -> None:
    """Subtract `excess` tokens from `granted`, first from the oldest steps and last from the question.

    Messages of at most `small` tokens are cut only if cuts of larger ones are not enough.
    """
    for floor in (small, 0):
        for number in (*range(parts, len(granted)), *range(min(parts, len(granted)))):
            least = sum(size.at(floor) for size in steps[number])
            taken = max(min(granted[number] - least, excess), 0)
            granted[number] -= taken
            excess -= taken
