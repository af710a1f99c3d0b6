"""Which messages of one model call fit: planned over kinds and sizes, without knowing any message.

The order of what matters: system messages, whole and first; the newest user message, cut if it alone is too big; the
newest step of the current turn, cut if need be and never left out; the turn's earlier steps, cut before they are left
out (`steps`); then history, newest first, up to a number of messages; its newest message is cut if nothing else of it
would be there. A tool call and its results are one group: all of it or nothing.

Where history begins can be an anchor that stays from call to call, so that calls share their leading messages: what
does not fit any more moves it by a whole step (`Anchor`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from threadkeep.context.steps import Size, least_of, level_of, shares, whole_of, whole_shares
from threadkeep.errors import BudgetTooSmall

__all__ = ["Anchor", "Item", "Kind", "Plan", "Reason", "Size", "plan"]

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
    whole_steps: bool = False,
) -> Plan:
    """Choose the messages of one model call.

    Args:
        items: the messages in order.
        measure: the size of the message at an index; asked only for those that may be sent.
        budget: the most tokens that all of them together may have.
        max_messages: the most user messages and assistant messages without tool calls before the current turn.
        turn: where the current turn begins, if it is asked in several messages; else with the newest user message.
        anchor: where history begins; without one it is the newest that fits.
        whole_steps: the turn's older steps are there whole or not at all, and the newest not if it has no room.

    Raises:
        BudgetTooSmall: the system messages are over the budget, or they with the newest user message and the newest
            step of the turn, both cut as short as can be.
    """
    return _Planner(items, measure, budget, whole_steps).plan(max_messages, turn, anchor or Anchor())


class _Planner:
    def __init__(self, items: Sequence[Item], measure: Callable[[int], Size], budget: int, whole_steps: bool) -> None:
        self._items = items
        self._measure = measure
        self._budget = budget
        self._whole_steps = whole_steps
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
        squeezed = self._place_turn(user, current)
        older = [unit for unit in history if unit[0] < anchor.begin]
        for unit in older:
            self._excluded |= dict.fromkeys(unit, "before_anchor")
        history = history[len(older) :]
        reason: Reason = "over_budget" if squeezed or max_messages is None else "over_limit"
        kept: Sequence[list[int]] = ()
        if squeezed:
            self._pushed_out = bool(self._steps)
            self._excluded |= {index: reason for unit in history for index in unit}
        else:
            kept = self._place_history(history, max_messages, anchor, reason)
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
        """Place the newest user message and what else is of the turn; whether something of it is cut or out."""
        parts = [unit for unit in current if user is not None and unit[0] < user]
        steps = current[len(parts) :]
        fits = self._place_user(user, current, bool(steps) and not self._whole_steps)
        if self._whole_steps:
            granted = whole_shares(self._sizes(current), self._left) if fits else [None] * len(current)
        else:
            granted = shares(self._sizes(parts), self._sizes(steps), self._left)
        for number, (unit, tokens) in enumerate(zip(current, granted, strict=True)):
            if tokens is None:
                self._excluded |= dict.fromkeys(unit, "over_budget")
                continue
            room = self._left
            self._place(unit, tokens)
            if number < len(parts):
                self._question += room - self._left
            else:
                self._steps += room - self._left
        return bool(self._cuts) or None in granted

    def _place_user(self, user: int | None, current: Sequence[list[int]], needs_newest: bool) -> bool:
        """Place the newest user message, cut if it must be; whether the newest of the others has room beside it."""
        size = self._measure(user) if user is not None else Size(0, 0)
        if size.minimum > self._left:
            raise BudgetTooSmall(
                f"The newest user message needs at least {size.minimum} tokens, the system messages have "
                f"{self._budget - self._left} and the budget is {self._budget}: raise the budget."
            )
        others = self._sizes(current)
        newest = least_of(others[-1]) if others else 0
        beside = size.minimum + newest <= self._left
        if needs_newest and not beside:
            raise BudgetTooSmall(
                f"The newest tool call and its results need at least {newest} tokens cut as short as can be, the rest "
                f"at least {self._budget - self._left + size.minimum}, and the budget is {self._budget}: raise it."
            )
        if user is not None:
            least = max(newest, min(sum(map(least_of, others)), self._left // 4)) if beside else 0
            allowed = size.tokens
            if size.tokens + least > self._left:
                reserved = _reserved(sum(map(whole_of, others)), self._left) if beside else 0
                allowed = min(size.tokens, max(size.minimum, self._left - max(newest if beside else 0, reserved)))
            self._place([user], allowed)
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
        self._place(unit, self._left)
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

    def _place(self, unit: Sequence[int], tokens: int) -> None:
        """Keep a group in so many tokens; where it has more, its biggest messages are cut to one level."""
        sizes = [self._measure(index) for index in unit]
        level = level_of(sizes, tokens) if whole_of(sizes) > tokens else tokens
        for index, size in zip(unit, sizes, strict=True):
            if size.at(level) < size.tokens:
                self._cuts[index] = size.at(level)
            self._keep([index], size.at(level))

    def _sizes(self, units: Sequence[Sequence[int]]) -> list[list[Size]]:
        return [[self._measure(index) for index in unit] for unit in units]

    def _tokens(self, unit: Sequence[int]) -> int:
        if len(unit) == 1:
            return self._measure(unit[0]).tokens
        return sum(self._measure(index).tokens for index in unit)

    def _keep(self, unit: Sequence[int], tokens: int) -> None:
        self._kept.extend(unit)
        self._left -= tokens


def _reserved(wanted: int, room: int) -> int:
    """What a question that is cut leaves to the turn's steps: a sixteenth, an eighth or a quarter of the room.

    It is not as much as they have just now, or the question would be cut anew at each call.
    """
    if not wanted:
        return 0
    return next((room // part for part in (16, 8) if wanted <= room // part), room // 4)
