"""The tables of the context engine, opened together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from threadkeep.store.contexts import Contexts
from threadkeep.store.driver import Driver
from threadkeep.store.embeddings import EmbeddingRows
from threadkeep.store.manifests import ManifestRows
from threadkeep.store.summaries import Summaries
from threadkeep.store.token_factors import TokenFactors


@dataclass(frozen=True)
class ContextTables:
    """The stored data of contexts, besides the transcripts."""

    contexts: Contexts
    summaries: Summaries
    manifests: ManifestRows
    token_factors: TokenFactors
    embeddings: EmbeddingRows

    @classmethod
    def over(cls, driver: Driver, *, clock: Callable[[], datetime]) -> Self:
        """Return all tables of one database."""
        return cls(
            contexts=Contexts(driver),
            summaries=Summaries(driver, clock=clock),
            manifests=ManifestRows(driver, clock=clock),
            token_factors=TokenFactors(driver, clock=clock),
            embeddings=EmbeddingRows(driver),
        )
