"""Tests of prices: the user's table is looked up by the name of a model."""

from __future__ import annotations

import pytest

from threadkeep import InvalidInput
from threadkeep.runs.options import Price, read_prices


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-5-mini", Price(0.25, 2)),
        ("gpt-5-mini-2025-08-07", Price(0.25, 2)),
        ("openai:gpt-5-mini", Price(0.25, 2)),
        ("GPT-5", Price(1.25, 10)),
        ("gpt-5.1", None),
        ("anthropic/claude-sonnet-4-5", Price(3, 15, 0.3)),
        ("somebody-elses", None),
        ("", None),
    ],
)
def test_a_price_is_found_by_the_longest_name(model: str, expected: Price | None) -> None:
    """A provider before the name and a version after it are ignored."""
    prices = read_prices(["gpt-5=1.25/10", "gpt-5-mini=0.25/2", "claude-sonnet-4=3/15/0.3"])
    assert prices.of(model) == expected


def test_cached_tokens_have_their_own_price() -> None:
    """Cached tokens have their own price, or that of the input if none is given."""
    assert Price(3, 15, 0.3).cost(2_000_000, 1_000_000, 1_000_000) == pytest.approx(18.3)
    assert Price(3, 15).cost(2_000_000, 1_000_000, 1_000_000) == pytest.approx(21)


@pytest.mark.parametrize("entry", ["gpt-5", "gpt-5=1", "=1/2", "m=1/2/3/4", "m=a/b", "m=-1/2", "m=nan/2"])
def test_an_invalid_price_is_refused(entry: str) -> None:
    """The error shows an entry of the right form."""
    with pytest.raises(InvalidInput, match=r"gpt-5-mini=0\.25/2"):
        read_prices([entry])
