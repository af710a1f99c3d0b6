"""Digests of received texts, keyed per database."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from threadkeep.errors import StoreError
from threadkeep.store.channel_tables import ChannelState

_SCOPE: Final = "threadkeep"
_NAME: Final = "received_key"
_TIMEOUT_SECONDS: Final = 1.0
_DIGITS: Final = 32


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
