r"""The sections of a context, their order and limits, and the order in which they shrink.

::

    system    always first and never cut
    summary   replaces messages before the window; at most its share
    facts     stored facts about the user; changes when a fact is stored; at most its share
    window    earlier turns, from an anchor that moves in steps; after each question the tool calls and
              results of the newest turns (`earlier_steps`), at most their share
    snippets  results of a knowledge base         \ change with each input, so they come after stable parts;
    selected  older turns relevant to the input   /  each at most its share
    input     the newest user message, the last thing that the model reads; cut only if it does not fit, alone or
              together with the shortest form of the steps
    steps     the tool calls and results of the turn so far

If the budget is exceeded, the extras (facts, snippets, selected) shrink first, in the order of `yields`. Then the
following shrink in this order: the beginning of the window, large results in the steps (older steps first, which are
cut before they are excluded), the end of the input, and all summaries. Summaries that exceed their share are excluded
as a whole, oldest first. The system message never shrinks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from threadkeep.context.manifest import Section, WindowKind
from threadkeep.errors import InvalidInput

EXTRAS: Final[tuple[Section, ...]] = ("facts", "snippets", "selected")
"""The sections whose contents are searched for each input."""

_ORDER: Final[tuple[Section, ...]] = ("system", "summary", "facts", "window", "snippets", "selected", "input")
_SHARES: Final[Mapping[Section, float]] = MappingProxyType(
    {"summary": 0.25, "window": 0.25, "earlier_steps": 0.35, "facts": 0.1, "snippets": 0.2, "selected": 0.75}
)
_MOST_OF_NEWEST = 0.5
_QUOTED_OF_SHARED = 0.25
"""The part of `shared` that quoted older turns may use at most. They change in each turn, so no cache helps."""


@dataclass(frozen=True)
class ContextPlan:
    """The division of a model call's token budget among the sections of its context; see the module's table.

    order: the order of the sections, without the turn's steps, which are always last.
    shares: fractions of the budget: a minimum for the window, and a maximum for each other section.
    yields: the extras (facts, snippets, selected) in the order in which they shrink.
    window: `sliding` has the newest messages that fit; `anchored` begins at the same message while it fits.
    step: when an anchored window is full, it is cut to this part of its capacity.
    fold_repeats: True to send repeated exchanges only once, with a count.
    """

    order: tuple[Section, ...] = _ORDER
    shares: Mapping[Section, float] = field(default_factory=lambda: _SHARES)
    yields: tuple[Section, ...] = ("selected", "snippets", "facts")
    window: WindowKind = "anchored"
    step: float = 0.4
    fold_repeats: bool = False

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if a field is not valid. The error names the field and its valid values."""
        object.__setattr__(self, "shares", MappingProxyType({**_SHARES, **self.shares}))
        if sorted(self.order) != sorted(_ORDER) or self.order[0] != "system":
            raise InvalidInput(f"order must name each of these sections once, system first: {', '.join(_ORDER)}.")
        if not self.order.index("summary") < self.order.index("window") < self.order.index("input"):
            raise InvalidInput("In order, the summary must come before the window, and the window before the input.")
        if sorted(self.yields) != sorted(EXTRAS):
            raise InvalidInput(f"yields must name each of these sections once: {', '.join(EXTRAS)}.")
        if unknown := set(self.shares) - set(_SHARES):
            raise InvalidInput(f"{', '.join(sorted(unknown))} has no share; these have: {', '.join(_SHARES)}.")
        if not all(_is_part(share) for share in self.shares.values()):
            raise InvalidInput("A share must be a part of the budget, from 0 to 1.")
        if self.window not in ("anchored", "sliding"):
            raise InvalidInput("window must be 'anchored' or 'sliding'.")
        if not _is_part(self.step) or self.step in (0, 1):
            raise InvalidInput("step must be between 0 and 1: the part of its capacity that the window is cut back to.")

    def rooms(
        self, budget: int, fixed: int, wanted: Collection[Section], *, shared: int | None = None, newest: int = 0
    ) -> dict[Section, int]:
        """Return how many tokens each of the `wanted` extras may use, after the window's share is reserved.

        Args:
            budget: the tokens of the whole call.
            fixed: the tokens of the system message, the summary and the turn.
            wanted: the extras (facts, snippets, selected) that the call may have.
            shared: if below `budget`, shares are parts of this number instead. Quotes get a quarter of it at most.
            newest: the tokens of the newest messages. If they exceed the window's share, at least half of the budget is
                reserved for the window.
        """
        whole = min(budget, shared or budget)
        window = self.shares["window"]
        if newest > window * budget:
            window = max(window, _MOST_OF_NEWEST)
        left = budget - fixed - int(window * budget)
        rooms: dict[Section, int] = {}
        for section in reversed(self.yields):
            if section in wanted:
                most = self.shares[section] * whole
                if section == "selected" and shared is not None:
                    most = min(most, _QUOTED_OF_SHARED * shared)
                rooms[section] = max(min(int(most), left), 0)
                left -= rooms[section]
        return rooms

    def most(self, section: Section, budget: int) -> int:
        """Return the maximum number of tokens of a budget that a section may use."""
        return int(self.shares[section] * budget)

    @property
    def extras_before_window(self) -> tuple[Section, ...]:
        """The extras (facts, snippets, selected) that are sent before earlier turns (the window), in order."""
        return tuple(section for section in self.order[: self.order.index("window")] if section in EXTRAS)

    @property
    def extras_before_input(self) -> tuple[Section, ...]:
        """The extras (facts, snippets, selected) that are sent between earlier turns and the input, in order."""
        window, input_ = self.order.index("window"), self.order.index("input")
        return tuple(section for section in self.order[window:input_] if section in EXTRAS)

    @property
    def extras_after_input(self) -> tuple[Section, ...]:
        """The extras (facts, snippets, selected) that are sent after the input, in order."""
        return tuple(section for section in self.order[self.order.index("input") :] if section in EXTRAS)


def _is_part(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
