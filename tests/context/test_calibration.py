"""Tests of `TokenFactor`: learning from usage reports, and scaled counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.estimates import ExactCounter, other_scripts
from threadkeep.context.tokens import (
    GREATEST_FACTOR,
    GREATEST_OF_OTHER,
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
of_latin, of_other = st.floats(LEAST_FACTOR, GREATEST_FACTOR), st.floats(LEAST_FACTOR, GREATEST_OF_OTHER)
two_factors = st.builds(TokenFactor, st.just("m"), of_latin, st.integers(0, 1000), of_other)


def taught(*reports: tuple[int, int]) -> TokenFactor:
    """Return the factor after reports of (estimated, reported) tokens."""
    factor = TokenFactor("m")
    for estimated, reported in reports:
        factor = factor.learn(estimated, reported)
    return factor


@given(st.lists(st.tuples(counts, counts), max_size=60))
def test_a_factor_stays_within_its_bounds(reports: list[tuple[int, int]]) -> None:
    assert LEAST_FACTOR <= taught(*reports).value <= GREATEST_FACTOR


@given(factors, counts, counts)
def test_one_report_changes_the_factor_by_at_most_17_percent(
    factor: TokenFactor, estimated: int, reported: int
) -> None:
    learned = factor.learn(estimated, reported)
    assert factor.value / 1.17 <= learned.value <= factor.value * 1.17
    assert learned.model == factor.model


@given(factors, st.integers(MIN_TOKENS, 10**6), st.floats(LEAST_FACTOR, GREATEST_FACTOR))
def test_a_report_moves_the_factor_towards_its_ratio_and_never_past_it(
    factor: TokenFactor, estimated: int, ratio: float
) -> None:
    reported = max(MIN_TOKENS, round(estimated * ratio))
    target = min(GREATEST_FACTOR, max(LEAST_FACTOR, reported / estimated))
    learned = factor.learn(estimated, reported)
    low, high = sorted((factor.value, target))
    assert low * (1 - 1e-9) <= learned.value <= high * (1 + 1e-9)
    assert learned.samples == factor.samples + 1


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.0, 1.25, 2.0, 3.0])
def test_equal_reports_yield_their_ratio(ratio: float) -> None:
    assert taught(*[(10_000, round(10_000 * ratio))] * 30).value == pytest.approx(ratio, rel=0.03)


def test_one_outlier_changes_the_factor_by_at_most_five_percent() -> None:
    good = [(1_000, 1_200)] * 19
    assert taught(*good, (1_000, 12_000), *good).value == pytest.approx(1.2, rel=0.05)


@given(factors, st.integers(-10, MIN_TOKENS - 1), counts)
def test_small_prompts_do_not_change_the_factor(factor: TokenFactor, small: int, other: int) -> None:
    assert factor.learn(small, other) is factor
    assert factor.learn(other, small) is factor


@given(factors, st.text(max_size=200), st.text(max_size=200))
def test_a_scaled_count_is_rounded_up_and_keeps_the_order(factor: TokenFactor, one: str, other: str) -> None:
    counter = scaled(estimate, factor)
    assert counter("") == 0
    assert counter(one) >= estimate(one) * round(factor.value, 2) - 1e-6
    assert counter(one) < estimate(one) * round(factor.value, 2) + 1
    assert estimate(one) > estimate(other) or counter(one) <= counter(other)


@given(factors)
def test_a_scaled_counter_is_found_by_its_name(factor: TokenFactor) -> None:
    counter = scaled(estimate, factor)
    again = counter_named(name_of(counter))
    assert name_of(again) == name_of(counter)
    assert [again(text) for text in ("", "a", "words " * 500)] == [counter(text) for text in ("", "a", "words " * 500)]


def test_the_name_shows_the_factor() -> None:
    """The name has the counter and its factors; a factor of one yields the counter itself."""
    assert name_of(scaled(estimate, TokenFactor("m", 1.1249))) == "estimate×1.12"
    assert name_of(scaled(chars4, TokenFactor("m", 2))) == "chars4×2.00"
    assert name_of(scaled(estimate, TokenFactor("m", 1.05, 2, 3.744))) == "estimate×1.05, other scripts ×3.74"
    assert scaled(estimate, TokenFactor("m", other=1.0)) is estimate
    assert scaled(estimate, TokenFactor("m", 1.0049)) is estimate


def test_a_scaled_counter_is_not_scaled_twice() -> None:
    once = scaled(estimate, TokenFactor("m", 1.5))
    assert name_of(scaled(once, TokenFactor("m", 1.2))) == "estimate×1.20"
    assert scaled(once, TokenFactor("m")) is estimate


def test_an_exact_counter_is_never_scaled() -> None:
    exact = ExactCounter("o200k", _Words())
    assert scaled(exact, TokenFactor("m", 1.5)) is exact


@given(two_factors, counts, counts, st.floats(0, 1))
def test_two_factors_stay_within_their_bounds_and_step(
    factor: TokenFactor, estimated: int, reported: int, share: float
) -> None:
    learned = factor.learn(estimated, reported, round(max(estimated, 0) * share))
    bounds = (GREATEST_FACTOR, GREATEST_OF_OTHER)
    for bound, before, after in zip(bounds, (factor.value, factor.other), (learned.value, learned.other), strict=True):
        assert before is not None
        assert after is not None
        assert LEAST_FACTOR <= after <= bound
        assert before / 1.44 <= after <= before * 1.44


@pytest.mark.parametrize(("latin", "other"), [(0.6, 0.6), (1.0, 3.8), (1.0, 7.5), (1.5, 0.8)])
def test_two_factors_learn_from_reports_of_all_mixtures(latin: float, other: float) -> None:
    factor = TokenFactor("m", other=1.0)
    for share in (0, 300, 1000, 700, 0, 900) * 5:
        factor = factor.learn(1_000, round((1_000 - share) * latin + share * other), share)
    assert factor.other is not None
    assert factor.value == pytest.approx(latin, rel=0.05)
    assert factor.other == pytest.approx(other, rel=0.05)


def test_a_report_of_one_script_group_leaves_the_other_alone() -> None:
    assert TokenFactor("m", 1.0, 0, 3.5).learn(1_000, 1_300).other == 3.5
    assert TokenFactor("m", 1.0, 0, 3.5).learn(1_000, 4_000, 1_000).value == 1.0


@given(two_factors, st.text(max_size=200))
def test_the_parts_of_a_text_have_the_factors_of_their_scripts(factor: TokenFactor, text: str) -> None:
    counter, share = scaled(estimate, factor), other_scripts(text) / 1_000
    assert factor.other is not None
    tokens = estimate(text) * (round(factor.value, 2) * (1 - share) + round(factor.other, 2) * share)
    assert tokens - 1e-6 <= counter(text) < tokens + 1
    assert counter_named(name_of(counter))(text) == counter(text)


@pytest.mark.parametrize("text", ["", "plain", "déjà vu – “Größe”, żółć, şu", "x = {'a': 1}", "1,000 €"])
def test_latin_letters_punctuation_and_code_are_one_group(text: str) -> None:
    assert other_scripts(text) == 0


@pytest.mark.parametrize(
    "text", ["สวัสดี", "привет", "你好", "こんにちは", "안녕", "नमस्ते", "γειά", "مرحبا", "שלום", "🙂"]
)
def test_all_other_scripts_are_the_other_group(text: str) -> None:
    """Characters of other scripts weigh twice as much as Latin ones."""
    assert other_scripts(text) == 1_000
    assert other_scripts(text + "a" * len(text)) == 666


def test_the_counter_of_a_model_has_its_factor() -> None:
    assert name_of(counter_for("grok-4", factor=TokenFactor("grok-4", 1.2))) == "estimate×1.20"


@pytest.mark.parametrize(
    "name",
    [
        "estimate×3.01",
        "estimate×0.49",
        "estimate×1.2",
        "o200k×1.20",
        "nothing×1.20",
        "estimate×1.00, other scripts ×8.01",
        "estimate×1.00, other scripts ×1.00",
    ],
)
def test_an_invalid_scaled_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="no token counter"):
        counter_named(name)


class _Words:
    def count(self, text: str, /) -> int:
        return len(text.split())
