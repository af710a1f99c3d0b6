"""Tests of exact counters: against the reference tokenizer, with any text, and without the extra."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from hashlib import sha1
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.estimates import ExactCounter, installed_counter
from threadkeep.context.tokens import counter_for, counter_named, encoding_of, estimate, estimate_cl100k, name_of
from threadkeep.errors import InvalidInput

if (PACKAGE := find_spec("bpe_openai")) is None or PACKAGE.origin is None:
    pytest.skip("the extra `tokens` is not installed", allow_module_level=True)
tiktoken = pytest.importorskip("tiktoken")

DATA = Path(PACKAGE.origin).with_name("data")
ENCODINGS = ("o200k", "cl100k")
TEXTS = [
    "The refund for your order was approved yesterday.",
    "今天天气很好，我们去公园吧！\n\n好的 👍🏽",
    "def f(x: int) -> int:\n    return x ** 2  # squares\n\n\n",
    '{"id": 12345, "tags": ["a", "b"], "price": 19.99}',
    "<|endoftext|> is what a person typed <|im_start|>",
    "don't DON'T I'LL we've   \t \r\n  x",
    "नमस्ते दुनिया, مرحبا بالعالم, สวัสดีชาวโลก",
]


@pytest.fixture(scope="module")
def offline_tiktoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Provide the reference tokenizer with local vocabulary files, whose hashes it verifies."""
    folder = tmp_path_factory.mktemp("tiktoken")
    for encoding in ENCODINGS:
        address = f"https://openaipublic.blob.core.windows.net/encodings/{encoding}_base.tiktoken"
        packed = (DATA / f"{encoding}_base.tiktoken.gz").read_bytes()
        (folder / sha1(address.encode(), usedforsecurity=False).hexdigest()).write_bytes(gzip.decompress(packed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        for encoding in ENCODINGS:
            tiktoken.get_encoding(f"{encoding}_base")
        yield


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the extra's package appear uninstalled."""
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    installed_counter.cache_clear()
    yield
    installed_counter.cache_clear()


@pytest.mark.usefixtures("offline_tiktoken")
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", TEXTS)
def test_counts_are_those_of_the_reference_tokenizer(encoding: str, text: str) -> None:
    assert counter_named(encoding)(text) == len(tiktoken.get_encoding(f"{encoding}_base").encode_ordinary(text))


@pytest.mark.usefixtures("offline_tiktoken")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_text_is_counted_as_by_the_reference(encoding: str) -> None:
    """A lone surrogate counts as the replacement character."""
    reference, counter = tiktoken.get_encoding(f"{encoding}_base"), counter_named(encoding)

    @given(st.text(st.characters(codec=None)) | st.text("\ud800\udfff aé中ก👍\n'9", max_size=60))
    def counted(text: str) -> None:
        assert counter(text) == len(reference.encode_ordinary(text))

    counted()


def test_half_a_surrogate_pair_is_counted() -> None:
    counter = counter_named("o200k")
    assert counter("a\ud800b") == counter("a\ufffdb") == 3


def test_a_very_long_text_is_counted() -> None:
    assert counter_named("o200k")("word " * 300_000) == pytest.approx(300_000, rel=0.01)


@pytest.mark.parametrize(
    ("model", "counter"),
    [
        ("gpt-4o-2024-08-06", "o200k"),
        ("openai:gpt-5-mini", "o200k"),
        ("OpenRouter/openai/GPT-5.1-chat", "o200k"),
        ("gpt-4.1", "o200k"),
        ("o3", "o200k"),
        ("azure:o4-mini", "o200k"),
        ("openai/gpt-oss-120b", "o200k"),
        ("ft:gpt-4o-mini:acme::x1", "o200k"),
        ("gpt-4-0613", "cl100k"),
        ("gpt-3.5-turbo", "cl100k"),
        ("ollama:qwen3", "estimate_qwen3"),
        ("meta.llama3-1-70b-instruct-v1:0", "estimate_llama3"),
        ("llama-2-7b-chat", "estimate_llama2"),
        ("google/gemini-2.5-pro", "estimate_gemma3"),
        ("deepseek-chat", "estimate_deepseek"),
        ("claude-2.1", "estimate_claude2"),
        ("openrouter/anthropic/claude-opus-4.7", "estimate_claude47"),
        ("claude-sonnet-5", "estimate_claude47"),
        ("mistral-large", "estimate"),
        ("claude-sonnet-4-6", "estimate_claude3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "estimate_llama3"),
        ("deepseek-r1-distill-qwen-32b", "estimate_qwen3"),
        ("deepseek-r1-0528", "estimate_deepseek"),
        ("claude-v2", "estimate_claude2"),
        ("anthropic.claude-v2:1", "estimate_claude2"),
        ("claude-instant-v1", "estimate_claude2"),
        ("claude-opus-4-7", "estimate_claude47"),
        ("claude-sonnet-4-7-20260801", "estimate_claude47"),
        ("claude-haiku-4-9", "estimate_claude47"),
        ("us.anthropic.claude-sonnet-4-10-v1:0", "estimate_claude47"),
        ("anthropic/claude-4.7-sonnet", "estimate_claude47"),
        ("claude-opus-4", "estimate_claude3"),
        ("claude-opus-4-20250514", "estimate_claude3"),
        ("claude-opus-4-1-20250805", "estimate_claude3"),
        ("claude-3-7-sonnet-latest", "estimate_claude3"),
        ("qwen3.5-plus", "estimate_qwen3"),
        ("qwen2", "estimate_qwen3"),
        ("Qwen/Qwen2.5-7B-Instruct", "estimate_qwen3"),
        ("qwen-max", "estimate_qwen3"),
        ("gemma-4-31b-it", "estimate_gemma3"),
        ("gemma-2-9b-it", "estimate"),
        ("gpt-4ever", "estimate"),
        ("o11", "estimate"),
        ("", "estimate"),
        (None, "estimate"),
    ],
)
def test_a_model_has_the_best_counter(model: str | None, counter: str) -> None:
    """OpenAI's models have exact counters, other models the estimate of their family."""
    assert name_of(counter_for(model)) == counter


def test_exact_counters_carry_their_names() -> None:
    for encoding in ENCODINGS:
        counter = counter_named(encoding)
        assert isinstance(counter, ExactCounter)
        assert name_of(counter) == encoding
        assert counter_named(encoding) is counter


@pytest.mark.usefixtures("without_the_extra")
def test_without_the_extra_a_model_has_the_estimate_of_its_tokenizer() -> None:
    assert counter_for("gpt-4o") is estimate
    assert counter_for("gpt-4") is estimate_cl100k
    assert encoding_of("gpt-4") == "cl100k"


@pytest.mark.usefixtures("without_the_extra")
def test_without_the_extra_an_exact_counter_is_refused_with_the_cure() -> None:
    with pytest.raises(InvalidInput, match=r"pip install 'threadkeep\[tokens\]'"):
        counter_named("o200k")
