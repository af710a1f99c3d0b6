"""Which messages of one model call fit: planned over kinds and sizes, without knowing any message.

The order of what matters: system messages, whole and first; the newest user message, cut if it alone is too big; the
newest step of the current turn, its tool results cut in the middle if need be; the turn's earlier steps, newest first;
then history, newest first, up to a number of messages; its newest message is cut if nothing else of it would be there.
A tool call and its results are one group: all of it or nothing.

Where history begins can be an anchor that stays from call to call, so that calls share their leading messages: what
does not fit any more moves it by a whole step (`Anchor`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from threadkeep.errors import BudgetTooSmall

_LEAST_TOKENS: Final = 16
"""What is left of a message of history that is cut says something from here on."""

type Kind = Literal["system", "user", "assistant", "tool"]
type Reason = Literal["over_budget", "over_limit", "before_anchor", "orphan_tool"]


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
class Anchor:
    """Where history begins, and how far that moves when it does not fit.

    Nothing before the index `begin` is kept. When an earlier call `set` it and what follows is too much (by itself, or
    `overflowing`: there was more than was handed in), history is cut back to `fraction` of its room and of its number
    of messages, the question counted, and begins with a user message; the last exchange stays if it fits at all. Where
    no call has set it yet, history is the newest that fits.
    """

    begin: int = 0
    set: bool = False
    overflowing: bool = False
    fraction: float = 0.5


@dataclass(frozen=True)
class Plan:
    """What to send: indexes in sending order, the tokens to which some are to be cut, what is out and why.

    `begin` is where history begins (where the turn does if there is none); `cut_back` whether that is another place
    than the anchor said; `lasting` whether it is so for the turns to come, too: what only this turn's own steps have
    pushed out is there again after it.
    """

    kept: tuple[int, ...]
    tokens: int
    cuts: Mapping[int, int] = field(default_factory=dict)
    excluded: tuple[tuple[int, Reason], ...] = ()
    begin: int = 0
    cut_back: bool = False
    lasting: bool = False


def plan(
    items: Sequence[Item],
    measure: Callable[[int], Size],
    budget: int,
    *,
    max_messages: int | None = None,
    turn: int | None = None,
    anchor: Anchor | None = None,
) -> Plan:
    """Choose the messages of one model call.

    Args:
        items: the messages in order.
        measure: the size of the message at an index; asked only for those that may be sent.
        budget: the most tokens that all of them together may have.
        max_messages: the most user messages and assistant messages without tool calls before the current turn.
        turn: where the current turn begins, if it is asked in several messages; else with the newest user message.
        anchor: where history begins; without one it is the newest that fits.

    Raises:
        BudgetTooSmall: the system messages, or they and the newest user message cut to its mark, are over the budget.
    """
    return _Planner(items, measure, budget).plan(max_messages, turn, anchor or Anchor())


class _Planner:
    def __init__(self, items: Sequence[Item], measure: Callable[[int], Size], budget: int) -> None:
        self._items = items
        self._measure = measure
        self._budget = budget
        self._left = budget
        self._kept: list[int] = []
        self._cuts: dict[int, int] = {}
        self._excluded: dict[int, Reason] = {}
        self._question = 0
        self._steps = 0
        self._pushed_out = False

    def plan(self, max_messages: int | None, turn: int | None, anchor: Anchor) -> Plan:
        system = [index for index, item in enumerate(self._items) if item.kind == "system"]
        self._pin(system)
        user = next((i for i in range(len(self._items) - 1, -1, -1) if self._items[i].kind == "user"), None)
        units = self._units(user)
        first = user if user is not None else units[-1][0] if units else 0
        first = first if turn is None else min(turn, first)
        current = [unit for unit in units if unit[0] >= first]
        history = [unit for unit in units if unit[0] < first]
        full = not self._place_turn(user, current)
        older = [unit for unit in history if unit[0] < anchor.begin]
        for unit in older:
            self._excluded |= dict.fromkeys(unit, "before_anchor")
        history = history[len(older) :]
        places = 0 if full else max_messages
        reason: Reason = "over_budget" if full or max_messages is None else "over_limit"
        kept = self._place_history(history, places, anchor, reason)
        rest = sorted(index for index in self._kept if self._items[index].kind != "system")
        excluded = tuple(sorted(self._excluded.items()))
        begin = kept[0][0] if kept else first
        cut_back = bool(history) and (anchor.overflowing or len(kept) < len(history))
        lasting = cut_back and not self._pushed_out
        return Plan((*system, *rest), self._budget - self._left, self._cuts, excluded, begin, cut_back, lasting)

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
        """Place the newest user message and what else is of the turn; whether everything of it is in."""
        newest = current[-1] if current else []
        smallest = sum(self._measure(index).minimum for index in newest)
        fits = self._place_user(user, newest, smallest) if user is not None else smallest <= self._left
        for unit in reversed(current):
            tokens, room = self._tokens(unit), self._left
            if fits and unit is newest and tokens > self._left:
                self._cut(unit)
            elif fits and tokens <= self._left:
                self._keep(unit, tokens)
            else:
                fits = False
                self._excluded |= dict.fromkeys(unit, "over_budget")
            if user is not None and unit[0] < user:
                self._question += room - self._left
            else:
                self._steps += room - self._left
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
        self._question += allowed
        return beside

    def _place_history(
        self, history: Sequence[list[int]], places: int | None, anchor: Anchor, reason: Reason
    ) -> Sequence[list[int]]:
        """Place the newest of history that fits, or a step less where it does not fit as the anchor would have it."""
        fitting, stopped = self._newest(history, self._left, places)
        if anchor.overflowing or len(fitting) < len(history):
            self._pushed_out = bool(self._steps)
            if anchor.set or self._steps:
                fitting = self._stepped(fitting, places, anchor.fraction)
        out = history[: len(history) - len(fitting)]
        if out and not fitting and stopped and self._cut_newest(out[-1]):
            fitting, out = out[-1:], out[:-1]
        else:
            for unit in fitting:
                self._keep(unit, self._tokens(unit))
        for unit in out:
            self._excluded |= dict.fromkeys(unit, stopped or reason)
        return fitting

    def _stepped(self, fitting: Sequence[list[int]], places: int | None, fraction: float) -> Sequence[list[int]]:
        """Of what fits the newest that leaves room to grow, from a user message on, and at least the last exchange."""
        # The question and the answer to come count as well: after this turn the window is at the fraction.
        allowed = None if places is None else max(int(fraction * places) - 2, 0)
        # As if the turn had no steps yet, so that the next turn can begin there as well; else for this turn only.
        room = int(fraction * (self._left + self._question + self._steps)) - self._question
        if room > self._left or room <= 0:
            room = int(fraction * self._left)
        else:
            self._pushed_out = False
        fewer, _ = self._newest(fitting, room, allowed)
        users = [number for number, unit in enumerate(fitting) if self._items[unit[0]].kind == "user"]
        start = len(fitting) - len(fewer)
        if users:
            return fitting[next((number for number in users if number >= start), users[-1]) :]
        return fewer or fitting

    def _cut_newest(self, unit: Sequence[int]) -> bool:
        """Place the newest of history, cut to what is left, unless next to nothing of it would be there."""
        if sum(self._measure(index).minimum for index in unit) + _LEAST_TOKENS > self._left:
            return False
        self._cut(unit)
        return True

    def _newest(
        self, history: Sequence[list[int]], room: int, places: int | None
    ) -> tuple[Sequence[list[int]], Reason | None]:
        """The newest units within a number of tokens and of messages, and what stopped them."""
        number = len(history)
        while number:
            unit = history[number - 1]
            if places is not None and places <= 0:
                return history[number:], None
            if (tokens := self._tokens(unit)) > room:
                return history[number:], "over_budget"
            room -= tokens
            if places is not None and self._items[unit[0]].group is None:
                places -= 1
            number -= 1
        return history, None

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
        if len(unit) == 1:
            return self._measure(unit[0]).tokens
        return sum(self._measure(index).tokens for index in unit)

    def _keep(self, unit: Sequence[int], tokens: int) -> None:
        self._kept.extend(unit)
        self._left -= tokens


def _leveled(size: Size, level: int) -> int:
    return max(size.minimum, min(size.tokens, level))
