"""The keys that a service accepts: those of its settings, and those in its database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from threadkeep.errors import StoreError
from threadkeep.records.api_keys import ApiKey
from threadkeep.store.api_keys import ApiKeys, digest_of
from threadkeep.web.callers import Caller
from threadkeep.web.rate_limits import RateLimits

REFRESH_SECONDS = 5.0
_TIMEOUT_SECONDS = 1.0
_FIRST_TIMEOUT_SECONDS = 10.0
_NOTE_SECONDS = 60.0

_logger = logging.getLogger("threadkeep.web")


class KeyRing:
    """The callers by the digests of their keys, read from the database again after five seconds.

    While the database does not answer, the keys that were read last are accepted.
    """

    def __init__(self, keys: ApiKeys, configured: Mapping[str, str], *, clock: Callable[[], datetime]) -> None:
        self._keys = keys
        self._clock = clock
        # Keys are found by a digest: the duration of the search reveals nothing about them.
        self._configured = {digest_of(key.encode()): name for name, key in configured.items()}
        self._known: dict[str, ApiKey] = {}
        self._was_read = False
        self._failing = False
        self._next_read = 0.0
        self._work: asyncio.Task[None] | None = None
        self._next_note: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()

    @property
    def in_use(self) -> bool:
        """Return whether there are keys, or were ever any."""
        return bool(self._configured or self._known)

    async def refresh(self) -> bool:
        """Read the keys again if it is time; return False if they could never be read."""
        if time.monotonic() >= self._next_read:
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._read(), name="threadkeep-keys")
            await asyncio.wait([self._work])
        return self._was_read

    def caller(self, given: bytes, limits: RateLimits) -> Caller | None:
        """Return the caller with a key; None if no valid key is given."""
        digest = digest_of(given)
        key = self._known.get(digest)
        if key is None:
            name = self._configured.get(digest)
            return None if name is None else Caller(name, "admin", limits=limits)
        now = self._clock()
        if not key.is_valid(now):
            return None
        if time.monotonic() >= self._next_note.get(key.key_id, 0.0):
            self._next_note[key.key_id] = time.monotonic() + _NOTE_SECONDS
            task = asyncio.create_task(self._note(key.key_id, now))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)
        return Caller(key.name, key.scope, key.user_id, limits)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS if self._was_read else _FIRST_TIMEOUT_SECONDS):
                found = await self._keys.all()
        except (StoreError, TimeoutError) as error:
            if not self._failing:
                _logger.warning("the keys cannot be read: %s", type(error).__name__)
            self._failing = True
        else:
            self._failing = False
            self._known = {key.digest: key for key in found}
            self._was_read = True
        finally:
            self._next_read = time.monotonic() + REFRESH_SECONDS

    async def _note(self, key_id: str, moment: datetime) -> None:
        with contextlib.suppress(StoreError):  # noted again a minute later
            await self._keys.note_use(key_id, moment)
