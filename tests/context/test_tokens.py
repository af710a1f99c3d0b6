"""Tests of token counters: the estimate against recorded counts of a real tokenizer, and its properties."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.tokens import TokenCounter, chars4, counter_named, estimate, estimate_cl100k, name_of
from threadkeep.errors import InvalidInput

# Original texts in fourteen languages, code, JSON, numbers and base64, each with its token count in o200k_base.
SAMPLES: dict[str, list[tuple[str, int]]] = {}
for _line in (Path(__file__).parent / "token_counts.jsonl").read_text(encoding="utf-8").splitlines():
    _sample = json.loads(_line)
    SAMPLES.setdefault(_sample["kind"], []).append((_sample["text"], _sample["tokens"]))


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_estimate_is_near_the_real_count(kind: str) -> None:
    """The estimate of a longer text is at most a tenth under and a third over the real count."""
    real = sum(tokens for _, tokens in SAMPLES[kind])
    estimated = sum(estimate(text) for text, _ in SAMPLES[kind])
    assert 0.9 * real <= estimated <= 1.35 * real


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_estimate_of_a_single_message_is_not_far_under(kind: str) -> None:
    """The estimate of a short message is at least three quarters of the real count."""
    assert all(estimate(text) >= 0.75 * tokens for text, tokens in SAMPLES[kind])


def test_four_characters_per_token_is_wrong_for_chinese() -> None:
    """Four characters per token finds less than 40 percent of Chinese tokens."""
    real = sum(tokens for _, tokens in SAMPLES["Chinese"])
    assert sum(chars4(text) for text, _ in SAMPLES["Chinese"]) < 0.4 * real


@pytest.mark.parametrize("counter", [estimate, estimate_cl100k, chars4])
def test_an_empty_text_has_no_tokens(counter: TokenCounter) -> None:
    assert counter("") == 0


@given(st.text() | st.text("\ud800\udfff\x00 aé中ก👍", max_size=40))
def test_any_text_can_be_estimated(text: str) -> None:
    for counter in (estimate, estimate_cl100k):
        assert counter(text) == counter(text)
        assert counter(text) >= bool(text)
        assert counter(text) <= 8 * len(text.encode("utf-8", "surrogatepass"))


@given(st.sampled_from([text for texts in SAMPLES.values() for text, _ in texts]), st.integers(1, 9))
def test_the_estimate_is_proportional_to_repetitions(text: str, times: int) -> None:
    once, repeated = estimate(text), estimate(text * times)
    assert 0.8 * times * once - times <= repeated <= 1.25 * times * once + times


def test_the_estimate_of_a_long_text_is_proportional_to_its_length() -> None:
    text = "今天天气很好, the weather is fine. " * 3000
    assert estimate(text * 10) == pytest.approx(10 * estimate(text), rel=0.01)


@pytest.mark.parametrize(
    "laughter", ["haha", "jaja", "哈哈", "ㅋㅋ", "하하", "ahah ", "xaxa", "ха", "ه", "no ", "ok ", "!!"]
)
def test_repeated_words_are_not_free(laughter: str) -> None:
    flood = laughter * 100
    assert estimate(flood) >= len(flood) / 10
    assert estimate(f"Das war lustig! {flood}") > estimate("Das war lustig!")


def test_base64_in_a_text_is_dear() -> None:
    """Base64 text counts at least 0.6 tokens per character, as tokenizers split it into short pieces."""
    data = b64encode(Random(1).randbytes(3_000)).decode()
    for counter in (estimate, estimate_cl100k):
        assert 0.6 * len(data) <= counter(data) <= 1.0 * len(data)


def test_older_models_need_more_tokens_for_other_scripts() -> None:
    for kind in ("Chinese", "Japanese", "Korean", "Russian", "Arabic", "Hindi", "Thai"):
        texts = [text for text, _ in SAMPLES[kind]]
        assert sum(map(estimate_cl100k, texts)) > 1.15 * sum(map(estimate, texts))


def test_counters_have_names() -> None:
    assert counter_named("estimate") is estimate
    assert counter_named("estimate_cl100k") is estimate_cl100k
    assert counter_named("chars4") is chars4
    counters = [estimate, estimate_cl100k, chars4, len]
    assert [name_of(counter) for counter in counters] == ["estimate", "estimate_cl100k", "chars4", "len"]


def test_an_unknown_counter_is_refused_with_the_names_there_are() -> None:
    names = (
        "chars4, cl100k, estimate, estimate_cl100k, estimate_claude2, estimate_claude3, estimate_claude47, "
        "estimate_deepseek, estimate_gemma3, estimate_llama2, estimate_llama3, estimate_qwen3, o200k"
    )
    with pytest.raises(InvalidInput, match=rf"no token counter 'gpt2'; choose one of {names}\.$"):
        counter_named("gpt2")


def test_a_counter_without_a_name_is_named_by_its_type() -> None:
    class Exact:
        def __call__(self, text: str, /) -> int:
            return len(text)

    assert name_of(Exact()) == "Exact"
