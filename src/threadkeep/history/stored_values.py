"""Values that a process reads once from its database: the key of text digests, and factors of token estimates."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from threadkeep.context.tokens import TokenFactor
from threadkeep.errors import StoreError
from threadkeep.store.contexts import TokenFactors
from threadkeep.store.duties import ChannelState

_TIMEOUT_SECONDS = 1.0
_PAUSE_SECONDS = 15.0
_SCOPE: Final = "threadkeep"
_NAME: Final = "received_key"
_DIGITS: Final = 32


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
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    stored = await self._rows.all()
            except (StoreError, TimeoutError):
                return  # the next call reads again
            self._factors = {model: TokenFactor(model, *values) for model, values in stored.items()}


class TextDigests:
    """The digests of one database; its key is created on first use.

    Without the key a digest does not reveal its text, even a short one.
    """

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._key: bytes | None = None

    async def digest(self) -> Callable[[str], str] | None:
        """Return the digest function of the database; None while the database does not answer."""
        if self._key is None:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    self._key = await self._read_key()
            except (StoreError, TimeoutError):
                return None
        return self._digest

    async def _read_key(self) -> bytes | None:
        found = await self._state.value(_SCOPE, _NAME)
        if found is None:
            # Of several processes the first one's key counts.
            await self._state.keep_first(_SCOPE, _NAME, secrets.token_hex(32))
            found = await self._state.value(_SCOPE, _NAME)
        return None if found is None else bytes.fromhex(found)

    def _digest(self, text: str) -> str:
        return hmac.digest(self._key or b"", text.encode("utf-8", "surrogatepass"), "sha256").hex()[:_DIGITS]
