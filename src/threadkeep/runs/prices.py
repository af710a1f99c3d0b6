"""Prices of models: a table that the settings give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from threadkeep.context.budget import continues, names_of
from threadkeep.errors import InvalidInput

_MILLION = 1_000_000
_FORM = "A price is model=input/output or model=input/output/cached, each for a million tokens: gpt-5-mini=0.25/2."


@dataclass(frozen=True)
class Price:
    """The price of a million tokens of a model, in the unit of the table; `cached` applies to cached input tokens."""

    input: float
    output: float
    cached: float | None = None

    def cost(self, input_tokens: int, output_tokens: int, cache_read_tokens: int = 0) -> float:
        """Return the cost of a call. The input tokens include the cached ones."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(input_tokens - cache_read_tokens, 0)
        return (fresh * self.input + cache_read_tokens * cached + output_tokens * self.output) / _MILLION


class Prices:
    """A table of prices; a model's full name matches first, then the longest known prefix."""

    def __init__(self, table: Mapping[str, Price]) -> None:
        self._table = {name.strip().lower(): price for name, price in table.items()}

    def __bool__(self) -> bool:
        """Return whether any model has a price."""
        return bool(self._table)

    def of(self, model: str) -> Price | None:
        """Return the price of a model; None if the table has none."""
        names = names_of(model)
        for name in names:
            if name in self._table:
                return self._table[name]
        for name in names:
            if known := [known for known in self._table if continues(name, known)]:
                return self._table[max(known, key=len)]
        return None


def read_prices(entries: Iterable[str]) -> Prices:
    """Return the table for such entries: `gpt-5-mini=0.25/2`, `claude-sonnet-4=3/15/0.3`.

    Raises:
        InvalidInput: an entry is not a price; the message quotes it.
    """
    return Prices(dict(map(_entry, entries)))


def _entry(text: str) -> tuple[str, Price]:
    model, equals, numbers = text.partition("=")
    try:
        price = Price(*map(_amount, numbers.split("/")))
    except (TypeError, ValueError):
        raise InvalidInput(f"{text!r} is no price. {_FORM}") from None
    if not model.strip() or not equals:
        raise InvalidInput(f"{text!r} names no model. {_FORM}")
    return model, price


def _amount(text: str) -> float:
    amount = float(text)
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(text)
    return amount
