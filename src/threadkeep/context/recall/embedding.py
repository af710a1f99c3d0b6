"""Embedding models: their interface, arithmetic of vectors, and the built-in model of the extra `meaning`.

The built-in model is wordllama: the vector of a text is the mean of its tokens' vectors, which takes 0.2 ms and no
network. The files are read here, because the package's own `load` downloads its tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol


class Embedder(Protocol):
    """An embedding model. `name` distinguishes the vectors of different models."""

    @property
    def name(self) -> str:
        """The model's name, which is stored with each vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text, all of the same length."""
        ...

    async def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a query."""
        ...


def unit_vector(vector: Sequence[float]) -> array[float]:
    """Return the vector scaled to length 1; zeros if its length is 0 or not finite."""
    length = math.hypot(*vector)
    if not 0 < length < math.inf:
        return array("f", bytes(4 * len(vector)))
    return array("f", [value / length for value in vector])


def dot_products(vector: array[float], others: Sequence[array[float]]) -> list[float]:
    """Return the dot product of `vector` with each of the `others`. Numpy is used if it is installed."""
    if not others or not _has_numpy():
        return [math.sumprod(vector, other) for other in others]
    numpy = import_module("numpy")
    matrix = numpy.frombuffer(b"".join(others), dtype="f4").reshape(len(others), len(vector))
    found: list[float] = (matrix @ numpy.frombuffer(vector, dtype="f4")).tolist()
    return found


@cache
def _has_numpy() -> bool:
    return find_spec("numpy") is not None


_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_LENGTH_BYTES = 8


class _Matrix(Protocol):
    def __getitem__(self, rows: Sequence[int], /) -> _Matrix: ...

    def mean(self, *, axis: int, dtype: str) -> _Matrix: ...

    def tolist(self) -> list[float]: ...


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class _Tokenizer(Protocol):
    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[_Encoding]: ...


class WordVectors:
    """An embedder without a neural network: a text's vector is the mean of the static vectors of its tokens."""

    name = "wordllama-l2-256"

    def __init__(self, tokenizer: _Tokenizer, vectors: _Matrix) -> None:
        self._tokenizer = tokenizer
        self._vectors = vectors

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text."""
        return await asyncio.to_thread(self._embed, list(texts))

    async def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a query."""
        return self._embed([text])[0]

    def _embed(self, texts: list[str]) -> list[list[float]]:
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        # A text without tokens gets the vector of the unknown token, which resembles no text.
        return [self._vectors[one.ids or [0]].mean(axis=0, dtype="float32").tolist() for one in encoded]


@cache
def installed_word_vectors() -> Embedder | None:
    """Return the embedder of wordllama, or None if wordllama is not installed. The first call loads the tokenizer."""
    spec = find_spec("wordllama")
    folder = Path(next(iter(spec.submodule_search_locations or ("",)))) if spec else Path()
    if spec is None or not (folder / _WEIGHTS).is_file() or not (folder / _TOKENIZER).is_file():
        return None
    tokenizer = import_module("tokenizers").Tokenizer.from_file(str(folder / _TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return WordVectors(tokenizer, _matrix(folder / _WEIGHTS))


def _matrix(path: Path) -> _Matrix:
    """Map the only tensor of a safetensors file into memory."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        [about] = (value for key, value in json.loads(file.read(length)).items() if key != "__metadata__")
    offset = _LENGTH_BYTES + length + about["data_offsets"][0]
    shape = tuple(about["shape"])
    found: _Matrix = import_module("numpy").memmap(path, dtype="<f2", mode="r", offset=offset, shape=shape)
    return found
