"""Which messages of one model call fit: planned over kinds and sizes, without knowing any message.

The order of what matters: system messages, whole and first; the newest user message, cut if it alone is too big; the
newest step of the current turn, its tool results cut in the middle if need be; the turn's earlier steps, newest first;
then history, newest first, up to a number of messages. A tool call and its results are one group: all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from threadkeep.errors import BudgetTooSmall

type Kind = Literal["system", "user", "assistant", "tool"]
type Reason = Literal["over_budget", "over_limit", "orphan_tool"]


@dataclass(frozen=True)
class Item:
    """One message of a call: its kind, and the index of the assistant message with whose tool calls it belongs."""

    kind: Kind
    group: int | None = None


@dataclass(frozen=True)
class Size:
    """The tokens of a message, and of the shortest form that it can be cut to (the same when it cannot be cut)."""

    tokens: int
    minimum: int


@dataclass(frozen=True)
class Plan:
    """What to send: indexes in sending order, the tokens to which some are to be cut, what is out and why."""

    kept: tuple[int, ...]
    tokens: int
    cuts: Mapping[int, int] = field(default_factory=dict)
    excluded: tuple[tuple[int, Reason], ...] = ()


def plan(
    items: Sequence[Item], measure: Callable[[int], Size], budget: int, *, max_messages: int | None = None
) -> Plan:
    """Choose the messages of one model call.

    Args:
        items: the messages in order.
        measure: the size of the message at an index; asked only for those that may be sent.
        budget: the most tokens that all of them together may have.
        max_messages: the most user messages and assistant messages without tool calls before the current turn.

    Raises:
        BudgetTooSmall: the system messages, or they and the newest user message cut to its mark, are over the budget.
    """
    return _Planner(items, measure, budget).plan(max_messages)


class _Planner:
    def __init__(self, items: Sequence[Item], measure: Callable[[int], Size], budget: int) -> None:
        self._items = items
        self._measure = measure
        self._budget = budget
        self._left = budget
        self._kept: list[int] = []
        self._cuts: dict[int, int] = {}
        self._excluded: dict[int, Reason] = {}

    def plan(self, max_messages: int | None) -> Plan:
        system = [index for index, item in enumerate(self._items) if item.kind == "system"]
        self._pin(system)
        user = next((i for i in range(len(self._items) - 1, -1, -1) if self._items[i].kind == "user"), None)
        units = self._units(user)
        border = user if user is not None else (units[-1][0] - 1 if units else 0)
        current = [unit for unit in units if unit[0] > border]
        history = [unit for unit in units if unit[0] <= border]
        full = not self._place_turn(user, current)
        self._place_history(history, 0 if full else max_messages, "over_budget" if full else "over_limit")
        rest = sorted(index for index in self._kept if self._items[index].kind != "system")
        excluded = tuple(sorted(self._excluded.items()))
        return Plan((*system, *rest), self._budget - self._left, self._cuts, excluded)

    def _pin(self, system: Sequence[int]) -> None:
        tokens = sum(self._measure(index).tokens for index in system)
        if tokens > self._budget:
            raise BudgetTooSmall(
                f"The system messages alone have {tokens} tokens and the budget is {self._budget}: "
                "shorten the system prompt, or raise the budget."
            )
        self._left -= tokens

    def _units(self, user: int | None) -> list[list[int]]:
        """What stays or goes together, in order, but for the newest user message; results without a call are out."""
        units: dict[int, list[int]] = {}
        for index, item in enumerate(self._items):
            if item.kind == "system" or index == user:
                continue
            leader = index if item.group is None else item.group
            if item.kind == "tool" and (leader not in units or leader == index):
                self._excluded[index] = "orphan_tool"
            else:
                units.setdefault(leader, []).append(index)
        return list(units.values())

    def _place_turn(self, user: int | None, current: Sequence[list[int]]) -> bool:
        """Place the newest user message and what came after it; whether everything of the turn is in."""
        newest = current[-1] if current else []
        smallest = sum(self._measure(index).minimum for index in newest)
        fits = self._place_user(user, newest, smallest) if user is not None else smallest <= self._left
        for unit in reversed(current):
            tokens = self._tokens(unit)
            if fits and unit is newest and tokens > self._left:
                self._cut(unit)
            elif fits and tokens <= self._left:
                self._keep(unit, tokens)
            else:
                fits = False
                self._excluded |= dict.fromkeys(unit, "over_budget")
        return fits

    def _place_user(self, user: int, newest: Sequence[int], smallest: int) -> bool:
        """Place the newest user message, cut if it must be; whether the newest step has room beside it."""
        size = self._measure(user)
        if size.minimum > self._left:
            raise BudgetTooSmall(
                f"The newest user message needs at least {size.minimum} tokens, the system messages have "
                f"{self._budget - self._left} and the budget is {self._budget}: raise the budget."
            )
        beside = size.minimum + smallest <= self._left
        reserved = smallest if beside else 0
        if beside and size.tokens > self._left:
            # Both are big: a step of the loop that lost all its results would only be done again.
            reserved = min(self._tokens(newest), max(smallest, self._left // 4))
        allowed = min(size.tokens, max(size.minimum, self._left - reserved))
        if allowed < size.tokens:
            self._cuts[user] = allowed
        self._keep([user], allowed)
        return beside

    def _place_history(self, history: Sequence[list[int]], places: int | None, reason: Reason) -> None:
        stopped: Reason | None = None
        for unit in reversed(history):
            if stopped is None and places is not None and places <= 0:
                stopped = reason
            if stopped is None and (tokens := self._tokens(unit)) > self._left:
                stopped = "over_budget"
            if stopped is not None:
                self._excluded |= dict.fromkeys(unit, stopped)
                continue
            self._keep(unit, tokens)
            if places is not None and self._items[unit[0]].group is None:
                places -= 1

    def _cut(self, unit: Sequence[int]) -> None:
        """Cut the biggest of the group to one level, such that the group takes what is left."""
        sizes = {index: self._measure(index) for index in unit}
        room = self._left
        low, high = 0, room
        while low <= high:
            level = (low + high) // 2
            if sum(_leveled(size, level) for size in sizes.values()) <= room:
                low = level + 1
            else:
                high = level - 1
        for index, size in sizes.items():
            tokens = _leveled(size, high)
            if tokens < size.tokens:
                self._cuts[index] = tokens
            self._keep([index], tokens)

    def _tokens(self, unit: Sequence[int]) -> int:
        return sum(self._measure(index).tokens for index in unit)

    def _keep(self, unit: Sequence[int], tokens: int) -> None:
        self._kept.extend(unit)
        self._left -= tokens


def _leveled(size: Size, level: int) -> int:
    return max(size.minimum, min(size.tokens, level))
