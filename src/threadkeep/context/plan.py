r"""The sections of a context: in which order they are sent, what each may take, which yields first when it is tight.

::

    system    pinned, whole, first
    summary   what stands for messages before the window; pinned, at most its share
    window    earlier turns, from an anchor that moves in steps
    input     the newest user message; cut only when it alone is too big
    facts     what is known of the user         \
    snippets  what a knowledge base says         > change with each input, so they come after what does not;
    selected  older turns that matter now       /  each at most its share
    steps     the tool calls and results of the turn so far

When it is tight the extras yield first, in the order of `yields`; then the beginning of the window, what is big in the
steps (in the older ones first, which are cut before they are left out), the end of the input, and all summaries. Of
summaries that are more than their share the oldest yield, each as a whole. The system message never does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from threadkeep.context.manifest import Section
from threadkeep.errors import InvalidInput

type WindowKind = Literal["anchored", "sliding"]

EXTRAS: Final[tuple[Section, ...]] = ("facts", "snippets", "selected")
"""The sections that are found anew for each input."""

_ORDER: Final[tuple[Section, ...]] = ("system", "summary", "window", "input", "facts", "snippets", "selected")
_SHARES: Final[Mapping[Section, float]] = MappingProxyType(
    {"summary": 0.25, "window": 0.25, "facts": 0.1, "snippets": 0.2, "selected": 0.25}
)


@dataclass(frozen=True)
class ContextPlan:
    """How a budget is laid out; see the picture above.

    `order` is that of the sections, the turn's steps always being last. `shares` are parts of the budget: the most that
    the summary and each extra may take, and what the window keeps before extras get anything. `yields` are the extras,
    the first to go first. An `anchored` window begins where it did at the call before until it does not fit, and is
    then cut back to `step` of its room; a `sliding` one is always the newest that fits. With `fold_repeats` an exchange
    that repeats word for word, several times in a row, is shown once with its count.
    """

    order: tuple[Section, ...] = _ORDER
    shares: Mapping[Section, float] = field(default_factory=lambda: _SHARES)
    yields: tuple[Section, ...] = ("selected", "snippets", "facts")
    window: WindowKind = "anchored"
    step: float = 0.5
    fold_repeats: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be laid out.

        Raises:
            InvalidInput: says which field, and what it may be.
        """
        object.__setattr__(self, "shares", MappingProxyType({**_SHARES, **self.shares}))
        if sorted(self.order) != sorted(_ORDER) or self.order[0] != "system":
            raise InvalidInput(f"order names each of these sections once, system first: {', '.join(_ORDER)}.")
        if not self.order.index("summary") < self.order.index("window") < self.order.index("input"):
            raise InvalidInput("In order the summary comes before the window, and the window before the input.")
        if sorted(self.yields) != sorted(EXTRAS):
            raise InvalidInput(f"yields names each of these sections once: {', '.join(EXTRAS)}.")
        if unknown := set(self.shares) - set(_SHARES):
            raise InvalidInput(f"{', '.join(sorted(unknown))} has no share; those that do: {', '.join(_SHARES)}.")
        if not all(_is_part(share) for share in self.shares.values()):
            raise InvalidInput("A share is a part of the budget, from 0 to 1.")
        if self.window not in ("anchored", "sliding"):
            raise InvalidInput("window is 'anchored' or 'sliding'.")
        if not _is_part(self.step) or self.step in (0, 1):
            raise InvalidInput("step is the part of its room that the window is cut back to, between 0 and 1.")

    def rooms(self, budget: int, fixed: int, wanted: Collection[Section]) -> dict[Section, int]:
        """The tokens that each wanted extra may take.

        Args:
            budget: the tokens of the whole call.
            fixed: what the system message, the summary and the turn take of them.
            wanted: the extras that there could be.
        """
        left = budget - fixed - int(self.shares["window"] * budget)
        rooms: dict[Section, int] = {}
        for section in reversed(self.yields):
            if section in wanted:
                rooms[section] = max(min(int(self.shares[section] * budget), left), 0)
                left -= rooms[section]
        return rooms

    def most(self, section: Section, budget: int) -> int:
        """The tokens that a section may take of a budget."""
        return int(self.shares[section] * budget)

    @property
    def extras_before_input(self) -> tuple[Section, ...]:
        """The extras that are sent before the input, in order."""
        return tuple(section for section in self.order[: self.order.index("input")] if section in EXTRAS)

    @property
    def extras_after_input(self) -> tuple[Section, ...]:
        """The extras that are sent after the input, in order."""
        return tuple(section for section in self.order[self.order.index("input") :] if section in EXTRAS)


def _is_part(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
