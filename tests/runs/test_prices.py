"""Prices: a table that the user gives, looked up by a model's name."""

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
    """A version behind the name and a provider before it change nothing; another model has no price."""
    prices = read_prices(["gpt-5=1.25/10", "gpt-5-mini=0.25/2", "claude-sonnet-4=3/15/0.3"])
    assert prices.of(model) == expected


def test_what_a_cache_served_has_its_own_price() -> None:
    """A million fresh ones, a million from the cache, a million out."""
    assert Price(3, 15, 0.3).cost(2_000_000, 1_000_000, 1_000_000) == pytest.approx(18.3)
    assert Price(3, 15).cost(2_000_000, 1_000_000, 1_000_000) == pytest.approx(21)


@pytest.mark.parametrize("entry", ["gpt-5", "gpt-5=1", "=1/2", "m=1/2/3/4", "m=a/b", "m=-1/2", "m=nan/2"])
def test_what_is_no_price_is_refused(entry: str) -> None:
    """It is quoted, with the form of one that is."""
    with pytest.raises(InvalidInput, match=r"gpt-5-mini=0\.25/2"):
        read_prices([entry])
