"""Tests of the built-in embedding: the mean of word vectors, without the package's loader."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Self

import pytest

from tests.context.recall.test_index import index_of
from threadkeep.context.recall import RecallIndex, embedding
from threadkeep.context.recall.embedding import Embedder, unit_vector

WORDS = ("<unk>", "cat", "kitten", "stock")
ROWS = ((0.0, 0.0), (1.0, 0.5), (1.0, 0.25), (-0.5, 1.0))


class _Tokenizer:
    """A tokenizer of four words with the interface of the package `tokenizers`."""

    @classmethod
    def from_file(cls, path: str) -> Self:
        assert json.loads(Path(path).read_text())["words"] == list(WORDS)
        return cls()

    def no_padding(self) -> None: ...

    def no_truncation(self) -> None: ...

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[_Ids]:
        assert not add_special_tokens
        return [_Ids([WORDS.index(word) if word in WORDS else 0 for word in text.split()]) for text in texts]


class _Ids:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedder | None]:
    """Return the embedder of a package with four words."""
    pytest.importorskip("numpy", reason="the extra `meaning` brings it")
    package = tmp_path / "wordllama"
    for folder in ("weights", "tokenizers"):
        (package / folder).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tokenizers/l2_supercat_tokenizer_config.json").write_text(json.dumps({"words": WORDS}))
    numbers = b"".join(struct.pack("<e", number) for row in ROWS for number in row)
    header = json.dumps({"embedding.weight": {"dtype": "F16", "shape": [4, 2], "data_offsets": [0, 16]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + numbers
    (package / "weights/l2_supercat_256.safetensors").write_bytes(weights)
    tokenizers = ModuleType("tokenizers")
    tokenizers.Tokenizer = _Tokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", tokenizers)
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    embedding.installed_word_vectors.cache_clear()
    yield embedding.installed_word_vectors()
    embedding.installed_word_vectors.cache_clear()


async def test_the_vector_of_a_text_is_the_mean_of_its_words(found: Embedder | None) -> None:
    assert found is not None
    assert [list(vector) for vector in await found.embed(["cat kitten", "stock", ""])] == [
        [1.0, 0.375],
        [-0.5, 1.0],
        [0.0, 0.0],
    ]
    assert math.sumprod(await found.embed_query("cat"), await found.embed_query("kitten")) > 1


def test_without_the_extra_there_is_no_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "find_spec", lambda _: None)
    embedding.installed_word_vectors.cache_clear()
    assert embedding.installed_word_vectors() is None
    embedding.installed_word_vectors.cache_clear()


def test_an_input_is_embedded_without_names_and_common_words() -> None:
    index: RecallIndex = index_of([("Caroline", "I went to Zürich."), ("user", "Nice.")])
    assert index.meaningful("When did Caroline's friend go to Zürich?") == "friend go Zürich"
    assert index.meaningful("Who is she?") == "Who is she?"


def test_vectors_are_compared_alike_with_and_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    one, others = unit_vector([3.0, 4.0]), [unit_vector([1.0, 0.0]), unit_vector([3.0, 4.0])]
    first = embedding.dot_products(one, others)
    assert first == pytest.approx([0.6, 1.0])
    monkeypatch.setattr(embedding, "_has_numpy", lambda: False)
    assert embedding.dot_products(one, others) == pytest.approx(first)
    assert embedding.dot_products(one, []) == []
