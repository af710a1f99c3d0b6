"""The interface of embedding models, and vectors of length 1, whose dot product is their cosine similarity."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    """An embedding model. `name` distinguishes the vectors of different models."""

    @property
    def name(self) -> str:
        """The model's name, which is stored with each vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text, all of one length."""
        ...

    async def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a query."""
        ...


def unit_vector(vector: Sequence[float]) -> array[float]:
    """Return the vector with length 1; a vector without a direction (zeros, or with NaN) is similar to nothing."""
    length = math.hypot(*vector)
    if not 0 < length < math.inf:
        return array("f", bytes(4 * len(vector)))
    return array("f", [value / length for value in vector])
