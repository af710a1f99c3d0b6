"""The factor of a model: what it learns, what it does not, and what it does to counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.estimates import ExactCounter
from threadkeep.context.tokens import (
    GREATEST_FACTOR,
    LEAST_FACTOR,
    MIN_TOKENS,
    TokenFactor,
    chars4,
    counter_for,
    counter_named,
    estimate,
    name_of,
    scaled,
)
from threadkeep.errors import InvalidInput

counts = st.integers(-10, 10**9)
factors = st.builds(TokenFactor, st.just("m"), st.floats(LEAST_FACTOR, GREATEST_FACTOR), st.integers(0, 1000))


def taught(*reports: tuple[int, int]) -> TokenFactor:
    """The factor after reports of estimated and reported tokens."""
    factor = TokenFactor("m")
    for estimated, reported in reports:
        factor = factor.learn(estimated, reported)
    return factor


@given(st.lists(st.tuples(counts, counts), max_size=60))
def test_a_factor_stays_within_its_bounds(reports: list[tuple[int, int]]) -> None:
    """Whatever a provider reports."""
    assert LEAST_FACTOR <= taught(*reports).value <= GREATEST_FACTOR


@given(factors, counts, counts)
def test_one_report_moves_it_by_a_bounded_step(factor: TokenFactor, estimated: int, reported: int) -> None:
    """An absurd figure spoils nothing."""
    learned = factor.learn(estimated, reported)
    assert factor.value / 1.17 <= learned.value <= factor.value * 1.17
    assert learned.model == factor.model


@given(factors, st.integers(MIN_TOKENS, 10**6), st.floats(LEAST_FACTOR, GREATEST_FACTOR))
def test_it_moves_towards_the_report_and_never_past_it(factor: TokenFactor, estimated: int, ratio: float) -> None:
    """Each report brings it nearer."""
    reported = max(MIN_TOKENS, round(estimated * ratio))
    target = min(GREATEST_FACTOR, max(LEAST_FACTOR, reported / estimated))
    learned = factor.learn(estimated, reported)
    low, high = sorted((factor.value, target))
    assert low * (1 - 1e-9) <= learned.value <= high * (1 + 1e-9)
    assert learned.samples == factor.samples + 1


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.0, 1.25, 2.0, 3.0])
def test_reports_that_agree_are_believed(ratio: float) -> None:
    """After thirty calls the factor is their ratio."""
    assert taught(*[(10_000, round(10_000 * ratio))] * 30).value == pytest.approx(ratio, rel=0.03)


def test_an_outlier_among_good_reports_is_hardly_seen() -> None:
    """One call in twenty that reports ten times as much changes the counts by a twentieth at most on the way."""
    good = [(1_000, 1_200)] * 19
    assert taught(*good, (1_000, 12_000), *good).value == pytest.approx(1.2, rel=0.05)


@given(factors, st.integers(-10, MIN_TOKENS - 1), counts)
def test_small_prompts_teach_nothing(factor: TokenFactor, small: int, other: int) -> None:
    """The framing of messages is most of them."""
    assert factor.learn(small, other) is factor
    assert factor.learn(other, small) is factor


@given(factors, st.text(max_size=200), st.text(max_size=200))
def test_a_scaled_count_is_rounded_up_and_keeps_the_order(factor: TokenFactor, one: str, other: str) -> None:
    """A text with more tokens never gets fewer."""
    counter = scaled(estimate, factor)
    assert counter("") == 0
    assert counter(one) >= estimate(one) * round(factor.value, 2) - 1e-6
    assert counter(one) < estimate(one) * round(factor.value, 2) + 1
    assert estimate(one) > estimate(other) or counter(one) <= counter(other)


@given(factors)
def test_a_scaled_counter_is_found_by_its_name(factor: TokenFactor) -> None:
    """A manifest's name gives the counts again."""
    counter = scaled(estimate, factor)
    again = counter_named(name_of(counter))
    assert name_of(again) == name_of(counter)
    assert [again(text) for text in ("", "a", "words " * 500)] == [counter(text) for text in ("", "a", "words " * 500)]


def test_the_name_shows_the_factor() -> None:
    """And the counter that it is applied to; a factor of one is none."""
    assert name_of(scaled(estimate, TokenFactor("m", 1.1249))) == "estimate×1.12"
    assert name_of(scaled(chars4, TokenFactor("m", 2))) == "chars4×2.00"
    assert scaled(estimate, TokenFactor("m", 1.0049)) is estimate


def test_a_scaled_counter_is_not_scaled_twice() -> None:
    """The newer factor stands for the older."""
    once = scaled(estimate, TokenFactor("m", 1.5))
    assert name_of(scaled(once, TokenFactor("m", 1.2))) == "estimate×1.20"
    assert scaled(once, TokenFactor("m")) is estimate


def test_an_exact_counter_is_never_scaled() -> None:
    """What a provider reports beyond it is framing."""
    exact = ExactCounter("o200k", _Words())
    assert scaled(exact, TokenFactor("m", 1.5)) is exact


def test_the_counter_of_a_model_has_its_factor() -> None:
    """Where it is an estimate."""
    assert name_of(counter_for("grok-4", factor=TokenFactor("grok-4", 1.2))) == "estimate×1.20"


@pytest.mark.parametrize("name", ["estimate×3.01", "estimate×0.49", "estimate×1.2", "o200k×1.20", "nothing×1.20"])
def test_a_scaled_name_that_nothing_gives_is_refused(name: str) -> None:
    """Exact counters have no factor, and a factor has two places and its bounds."""
    with pytest.raises(InvalidInput, match="no token counter"):
        counter_named(name)


class _Words:
    def count(self, text: str, /) -> int:
        return len(text.split())
