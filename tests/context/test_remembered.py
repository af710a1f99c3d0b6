"""Tests of counters that cache their counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.tokens import (
    RememberedCounts,
    RememberingCounter,
    ScaledCounter,
    TokenFactor,
    chars4,
    estimate,
    name_of,
    plain_counter,
    scaled,
)

COUNTS = RememberedCounts()


@given(st.lists(st.text(max_size=30)))
def test_the_counts_are_the_counters_own(texts: list[str]) -> None:
    counter = scaled(estimate, TokenFactor("m", 1.25))
    remembering = COUNTS.remembering(counter)
    assert [remembering(text) for text in texts * 2] == [counter(text) for text in texts * 2]
    assert name_of(remembering) == name_of(counter)
    assert name_of(COUNTS.remembering(estimate)) == "estimate"
    assert isinstance(remembering, ScaledCounter)
    two = scaled(estimate, TokenFactor("m", 1.25, other=3.5))
    assert [COUNTS.remembering(two)(text) for text in texts * 2] == [two(text) for text in texts * 2]
    assert plain_counter(remembering) is estimate


def test_cached_texts_are_not_counted_again() -> None:
    counted: list[str] = []

    def counting(text: str) -> int:
        counted.append(text)
        return chars4(text)

    remembering = RememberingCounter(counting, most=2)
    texts = ("aaaa", "bbbbbbbb", "aaaa", "bbbbbbbb", "cccc", "cccc", "aaaa")
    assert [remembering(text) for text in texts] == [chars4(text) for text in texts]
    assert counted == ["aaaa", "bbbbbbbb", "cccc", "aaaa"]


def test_scaled_counters_share_one_cache() -> None:
    counts = RememberedCounts()
    assert counts.remembering(estimate) is counts.remembering(estimate)
    one, other = (counts.remembering(scaled(estimate, TokenFactor("m", value))) for value in (1.1, 1.2))
    assert isinstance(one, ScaledCounter)
    assert isinstance(other, ScaledCounter)
    assert one.counter is other.counter
