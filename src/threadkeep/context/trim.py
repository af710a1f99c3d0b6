"""The plan of one model call: which messages fit. It is computed from the kinds and sizes of messages only.

Tokens are given to the messages in this order:

- the system messages, which are never cut
- the newest user message, which is cut if it does not fit, alone or together with the shortest form of the steps
- the newest step of the turn, which may be cut, but is only excluded with `whole_steps`
- the turn's earlier steps, which are cut before they are excluded
- history (earlier turns), newest first; if none of it fits as a whole, its newest message is cut

A tool call and its results form one group (a step), which is kept or excluded as a whole. A model would repeat a step
whose result is missing, so an older step is cut before it is excluded. Each model call divides the budget again from
the turn's first step on, so it repeats the cuts of earlier calls. If one more step does not fit, the older steps are
cut to half of the budget or less, which leaves room for further steps.

An anchor can fix the start of history, so that consecutive model calls share their leading messages. If the messages no
longer fit, the start moves by several messages at once (`Anchor`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from threadkeep.errors import BudgetTooSmall

_LEAST_TOKENS: Final = 16  # a message of history is cut only if it keeps this many tokens more than its shortest form
_SMALL: Final = 8  # a message of less than an eighth of the budget is cut only after all larger ones

type Kind = Literal["system", "user", "assistant", "tool"]
type Reason = Literal["over_budget", "over_limit", "before_anchor", "orphan_tool"]


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


@dataclass(frozen=True)
class Item:
    """A message of a model call. For a tool call and its results, `group` is the index of the calling message."""

    kind: Kind
    group: int | None = None


@dataclass(frozen=True)
class Anchor:
    """The message at which history (earlier turns) begins, and how far this beginning moves if history does not fit.

    begin: the index of this message; the messages before it are excluded.
    set: True if an earlier model call has set the anchor.
    overflowing: True if older messages of history were not passed in, so history counts as too large.
    fraction: if history is cut back, history and question together may use this part of the limits.

    If `set` is True or the turn has steps already, history that does not fit is cut back further than necessary, so
    that the next model calls begin with the same messages. History then begins with a user message.
    """

    begin: int = 0
    set: bool = False
    overflowing: bool = False
    fraction: float = 0.5


@dataclass(frozen=True)
class Plan:
    """The result of `plan`: the messages of one model call, by their indexes.

    kept: the messages to send, in order.
    cuts: maps a cut message to its new size.
    begin: the message at which history begins or, if there is no history, the turn.
    cut_back: True if history does not begin at the anchor.
    lasting: True if history was cut back, and begins at `begin` in later turns too. False if only the steps of this
        turn (tool calls and results) push messages out: later turns then send these messages again.
    opened: True if `tokens` includes the opening message (see `plan`).
    """

    kept: tuple[int, ...]
    tokens: int
    cuts: Mapping[int, int] = field(default_factory=dict)
    excluded: tuple[tuple[int, Reason], ...] = ()
    begin: int = 0
    cut_back: bool = False
    lasting: bool = False
    opened: bool = False


def plan(
    items: Sequence[Item],
    measure: Callable[[int], Size],
    budget: int,
    *,
    max_messages: int | None = None,
    turn: int | None = None,
    anchor: Anchor | None = None,
    whole_steps: bool = False,
    opening: int = 0,
) -> Plan:
    """Choose the messages of one model call.

    Args:
        items: the messages in order.
        measure: a function that returns the size of the message at an index; called only for messages that may be sent.
        budget: the maximum number of tokens of all messages in total.
        max_messages: the maximum number of messages before the turn, not counting tool calls and results.
        turn: the start of the current turn if its question has several messages; by default the newest user message.
        anchor: the start of history; if None, history is the newest messages that fit.
        whole_steps: True to exclude older steps of the turn instead of cutting them; the newest may be excluded too.
        opening: the size in tokens of a message to place before history if no user message begins it; 0 for none.

    Raises:
        BudgetTooSmall: the system messages exceed the budget, alone or together with the newest user message and the
            newest step of the turn, both in their shortest form.
    """
    return _Planner(items, measure, budget, whole_steps, opening).plan(max_messages, turn, anchor)


class _Planner:
    def __init__(
        self, items: Sequence[Item], measure: Callable[[int], Size], budget: int, whole_steps: bool, opening: int
    ) -> None:
        self._items = items
        self._measure = measure
        self._budget = budget
        self._whole_steps = whole_steps
        self._opening = opening
        self._opened = False
        self._left = budget
        self._kept: list[int] = []
        self._cuts: dict[int, int] = {}
        self._excluded: dict[int, Reason] = {}
        self._question = 0
        self._steps = 0
        self._pushed_out = False

    def plan(self, max_messages: int | None, turn: int | None, anchor: Anchor | None) -> Plan:
        system = [index for index, item in enumerate(self._items) if item.kind == "system"]
        self._pin(system)
        user = next((i for i in range(len(self._items) - 1, -1, -1) if self._items[i].kind == "user"), None)
        units = self._units(user)
        first = user if user is not None else units[-1][0] if units else 0
        first = first if turn is None else min(turn, first)
        current = [unit for unit in units if unit[0] >= first]
        history = [unit for unit in units if unit[0] < first]
        if user is None and units:
            self._open()
        squeezed = self._place_turn(user, current)
        older = [unit for unit in history if anchor is not None and unit[0] < anchor.begin]
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
        cut_back = bool(history) and (_overflows(anchor) or len(kept) < len(history))
        lasting = cut_back and not self._pushed_out
        tokens = self._budget - self._left
        return Plan((*system, *rest), tokens, self._cuts, excluded, begin, cut_back, lasting, self._opened)

    def _pin(self, system: Sequence[int]) -> None:
        tokens = sum(self._measure(index).tokens for index in system)
        if tokens > self._budget:
            raise BudgetTooSmall(
                f"The system messages alone have {tokens} tokens and the budget is {self._budget}: "
                "shorten the system prompt, or raise the budget."
            )
        self._left -= tokens

    def _units(self, user: int | None) -> list[list[int]]:
        """Group calls with their results; skip system messages and message `user`. Exclude results without a call."""
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
        """Add all messages of the turn to the plan. Return True if any of them is cut or excluded."""
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
        """Add the newest user message to the plan. Return True if the newest tool call fits too, perhaps shortened."""
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
                f"The newest tool call and its results need at least {newest} tokens in their shortest form, the rest "
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
        self, history: Sequence[list[int]], places: int | None, anchor: Anchor | None, reason: Reason
    ) -> Sequence[list[int]]:
        """Add the newest groups of history that fit (at most `places` messages) to the plan, and return them.

        Exclude the others, with the reason `over_budget` if the tokens ran out, otherwise with `reason`.
        """
        fitting, stopped = self._newest(history, self._left, places)
        if _overflows(anchor) or len(fitting) < len(history):
            self._pushed_out = bool(self._steps)
            if anchor is not None and (anchor.set or self._steps):
                fitting = self._stepped(fitting, places, anchor.fraction)
        fitting = self._opened_by_user(fitting)
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
        """Cut history back: return its newest groups that fit `fraction` of the limits, at least the last exchange."""
        # In the next turn, this turn's question and answer (2 messages) are part of history, so count them too.
        allowed = None if places is None else max(int(fraction * places) - 2, 0)
        # Compute the room without the turn's steps, so that history can begin at the same message in later turns. If
        # that is not possible, cut history for this turn only.
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

    def _opened_by_user(self, fitting: Sequence[list[int]]) -> Sequence[list[int]]:
        """If no user message begins history, reserve tokens for one (`opening`). Return the history that still fits."""
        needed = self._opening_of(fitting)
        left = self._left - sum(map(self._tokens, fitting)) if needed else 0
        while needed > left:
            self._pushed_out = self._pushed_out or bool(self._steps)
            left += self._tokens(fitting[0])
            fitting = fitting[1:]
            needed = self._opening_of(fitting)
        if needed:
            self._open()
        return fitting

    def _opening_of(self, history: Sequence[Sequence[int]]) -> int:
        """Return the tokens of the opening message, or 0 if it is reserved already or `history` does not need it."""
        asked = self._opened or not history or self._items[history[0][0]].kind == "user"
        return 0 if asked else self._opening

    def _open(self) -> None:
        self._opened = self._opening > 0
        self._left -= self._opening

    def _cut_newest(self, unit: Sequence[int]) -> bool:
        """Cut the newest message of history to the rest of the budget. Return False if too little of it would fit."""
        opening = self._opening_of([unit])
        if sum(self._measure(index).minimum for index in unit) + _LEAST_TOKENS + opening > self._left:
            return False
        if opening:
            self._open()
        self._place(unit, self._left)
        return True

    def _newest(
        self, history: Sequence[list[int]], room: int, places: int | None
    ) -> tuple[Sequence[list[int]], Reason | None]:
        """Return the newest groups of `history` that fit, and `over_budget` if the tokens ran out, else None."""
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
        """Add messages that belong together to the plan. If they exceed `tokens`, cut the largest to the same size."""
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


def _overflows(anchor: Anchor | None) -> bool:
    return anchor is not None and anchor.overflowing


def _reserved(wanted: int, room: int) -> int:
    """Return the room, in tokens, that a cut question leaves for tool calls: a 16th, an 8th or a 4th of `room`.

    Only these sizes are used. With the exact size of the steps, each model call would cut the question differently.
    """
    if not wanted:
        return 0
    return next((room // part for part in (16, 8) if wanted <= room // part), room // 4)
