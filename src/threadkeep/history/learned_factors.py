"""Ratios between the token estimate and each provider's count, learned from calls and stored."""

from __future__ import annotations

import asyncio
import contextlib

from threadkeep.context.tokens import TokenFactor
from threadkeep.errors import StoreError
from threadkeep.store.context_tables import TokenFactors

_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 15.0


class LearnedFactors:
    """The token factors of all models, read once and saved periodically by the memory.

    Each process starts from the stored values. If several processes learn, the last one to save wins.
    """

    def __init__(self, rows: TokenFactors) -> None:
        self._rows = rows
        self._factors: dict[str, TokenFactor] | None = None
        self._unsaved: set[str] = set()
        self._reading = asyncio.Lock()

    async def of(self, model: str) -> TokenFactor:
        """Return the factor of a model; 1 if nothing was learned or the database does not answer."""
        if self._factors is None:
            await self._read()
        return (self._factors or {}).get(model) or TokenFactor(model)

    def learn(self, model: str, estimated: int, reported: int) -> None:
        """Learn from one call: the estimate without a factor, and the input tokens that the provider counted."""
        if self._factors is None:
            return
        before = self._factors.get(model) or TokenFactor(model)
        after = before.learn(estimated, reported)
        if after is not before:
            self._factors[model] = after
            self._unsaved.add(model)

    async def save(self) -> None:
        """Write the factors learned since the last save.

        Raises:
            StoreError: the database does not answer; they are written by the next save.
        """
        for model in sorted(self._unsaved):
            factor = (self._factors or {})[model]
            self._unsaved.discard(model)
            try:
                await self._rows.save(model, factor.value, factor.samples)
            except StoreError:
                self._unsaved.add(model)
                raise

    async def keep_saving(self) -> None:
        """Save learned factors periodically, until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(StoreError):
                await self.save()

    async def close(self) -> None:
        """Save the remaining factors, if the database answers."""
        with contextlib.suppress(StoreError):
            await self.save()

    async def _read(self) -> None:
        async with self._reading:
            if self._factors is not None:
                return
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    stored = await self._rows.all()
            except (StoreError, TimeoutError):
                return  # the next call reads again
            self._factors = {model: TokenFactor(model, *values) for model, values in stored.items()}
