"""Token factors of models: the ratio between a provider's count and the estimate, learned from calls."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from threadkeep.store.codec import clean_text
from threadkeep.store.driver import Driver
from threadkeep.store.statements import load_statements
from threadkeep.store.times import time_text


class TokenFactors:
    """The table `chat_token_factors`."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("token_factors.sql")

    async def all(self) -> dict[str, tuple[float, int]]:
        """Return the factor of each model, with its number of samples."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["all"], {})
        return {str(model): (float(factor), int(samples)) for model, factor, samples in rows}

    async def save(self, model: str, factor: float, samples: int) -> None:
        """Store a model's factor, replacing the previous one."""
        row = {
            "model": clean_text(model),
            "factor": float(factor),
            "samples": samples,
            "now": time_text(self._clock()),
        }
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["save"], row)
