"""Token factors of models: the ratio between a provider's count and the estimate, learned from calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from threadkeep.store.codec import clean_text, time_text
from threadkeep.store.contexts import Contexts
from threadkeep.store.driver import Driver
from threadkeep.store.manifests import ManifestRows
from threadkeep.store.statements import load_statements
from threadkeep.store.summaries import Summaries


class TokenFactors:
    """The table `chat_token_factors`."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("token_factors.sql")

    async def all(self) -> dict[str, tuple[float, int]]:
        """Return the factor of each model, with its number of samples."""
        rows = await self._driver.fetch(self._sql["all"], {})
        return {str(model): (float(factor), int(samples)) for model, factor, samples in rows}

    async def save(self, model: str, factor: float, samples: int) -> None:
        """Store a model's factor, replacing the previous one."""
        row = {
            "model": clean_text(model),
            "factor": float(factor),
            "samples": samples,
            "now": time_text(self._clock()),
        }
        await self._driver.write([(self._sql["save"], row)])


class EmbeddingRows:
    """The table `chat_embeddings`; a vector is bytes in the format of the caller."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("embeddings.sql", f"{driver.backend}/sessions.sql")

    async def of_session(self, session_id: str, model: str, after_seq: int = 0) -> list[tuple[int, bytes]]:
        """Return the `seq` and vector of embedded messages after a `seq`, in order."""
        parameters = {"session_id": session_id, "model": model, "after_seq": after_seq}
        rows = await self._driver.fetch(self._sql["of_session"], parameters)
        return [(int(seq), bytes(vector)) for seq, vector in rows]

    async def add(
        self, session_id: str, model: str, rows: Sequence[tuple[int, bytes]], *, last_id: str | None = None
    ) -> None:
        """Store vectors of messages; skip messages that do not exist.

        `last_id` is the id of the last row's message. If another message has that `seq`, the session was replaced by
        another one of this name, and nothing is stored.
        """
        if not rows:
            return
        place = {"session_id": session_id}
        async with self._driver.writing() as connection:
            await connection.fetch(self._sql["keep_session"], place)
            if last_id is not None:
                there = await connection.fetch(self._sql["message_at"], {**place, "seq": rows[-1][0]})
                if there != [(last_id,)]:
                    return
            vectors = [{**place, "model": model, "seq": seq, "vector": vector} for seq, vector in rows]
            await connection.execute_many(self._sql["insert_vector"], vectors)


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
