"""Token counters: the estimate against recorded counts of a real tokenizer, its laws, and its cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.tokens import TokenCounter, chars4, counter_named, estimate, name_of
from threadkeep.errors import InvalidInput

# Own texts in fourteen languages, code, JSON, numbers and base64, each with its tokens in o200k_base.
SAMPLES: dict[str, list[tuple[str, int]]] = {}
for _line in (Path(__file__).parent / "token_counts.jsonl").read_text(encoding="utf-8").splitlines():
    _sample = json.loads(_line)
    SAMPLES.setdefault(_sample["kind"], []).append((_sample["text"], _sample["tokens"]))


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_estimate_is_near_the_real_count(kind: str) -> None:
    """Never under by more than a tenth, nor over by more than a third, for a text of some length."""
    real = sum(tokens for _, tokens in SAMPLES[kind])
    estimated = sum(estimate(text) for text, _ in SAMPLES[kind])
    assert 0.9 * real <= estimated <= 1.35 * real


@pytest.mark.parametrize("kind", SAMPLES)
def test_no_single_message_is_far_under(kind: str) -> None:
    """A short message may be off by more, but not by as much as four characters a token are."""
    assert all(estimate(text) >= 0.75 * tokens for text, tokens in SAMPLES[kind])


def test_four_characters_a_token_is_wrong_for_chinese() -> None:
    """Why it is not the default: it finds a third of the tokens."""
    real = sum(tokens for _, tokens in SAMPLES["Chinese"])
    assert sum(chars4(text) for text, _ in SAMPLES["Chinese"]) < 0.4 * real


@pytest.mark.parametrize("counter", [estimate, chars4])
def test_an_empty_text_has_no_tokens(counter: TokenCounter) -> None:
    """And no other text has fewer."""
    assert counter("") == 0


@given(st.text() | st.text("\ud800\udfff\x00 aé中ก👍", max_size=40))
def test_any_text_can_be_estimated(text: str) -> None:
    """Lone surrogates too; the same each time; at least one token for something."""
    assert estimate(text) == estimate(text)
    assert estimate(text) >= bool(text)
    assert estimate(text) <= 4 * len(text.encode("utf-8", "surrogatepass"))


@given(st.sampled_from([text for texts in SAMPLES.values() for text, _ in texts]), st.integers(1, 9))
def test_more_of_the_same_is_more(text: str, times: int) -> None:
    """Repeated, a text costs about as many times as much."""
    once, repeated = estimate(text), estimate(text * times)
    assert 0.8 * times * once - times <= repeated <= 1.25 * times * once + times


def test_a_million_characters_are_estimated_in_linear_time() -> None:
    """Ten times the text gives ten times the tokens, and nothing is looked at twice."""
    text = "今天天气很好, the weather is fine. " * 3000
    assert estimate(text * 10) == pytest.approx(10 * estimate(text), rel=0.01)


def test_counters_have_names() -> None:
    """A setting names the counter, a manifest says which one was used."""
    assert counter_named("estimate") is estimate
    assert counter_named("chars4") is chars4
    assert [name_of(estimate), name_of(chars4), name_of(len)] == ["estimate", "chars4", "len"]


def test_an_unknown_counter_is_refused_with_the_names_there_are() -> None:
    """The sentence carries the cure."""
    with pytest.raises(
        InvalidInput, match="no token counter 'gpt2'; choose one of chars4, cl100k, estimate, estimate_cl100k, o200k"
    ):
        counter_named("gpt2")


def test_a_counter_without_a_name_is_named_by_its_type() -> None:
    """A callable object is a counter too."""

    class Exact:
        def __call__(self, text: str, /) -> int:
            return len(text)

    assert name_of(Exact()) == "Exact"
