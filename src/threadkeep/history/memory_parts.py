"""The parts of a memory, which `open_sessions` opens and closes."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from threadkeep.context.estimates import FamilyEstimate
from threadkeep.context.tokens import RememberedCounts, TokenFactor, counter_for, family_of
from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.history.graph_conversations import GraphConversations
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.older_turns import OlderTurns
from threadkeep.history.pending import PendingTurns
from threadkeep.history.retention import Pruner
from threadkeep.observe import IndexingBegan, IndexingDone, Observer, Observers
from threadkeep.records import SearchResult
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.archive import Restoring
from threadkeep.store.backend import DamageRegister
from threadkeep.store.contexts import Contexts, ContextTables, TokenFactors
from threadkeep.store.driver import Driver, RightsMissing, waiting_until
from threadkeep.store.duties import ChannelState
from threadkeep.store.search import MUCH_UNINDEXED, Search
from threadkeep.store.transcripts import Transcripts

_READ_SECONDS = 1.0
_SAVE_SECONDS = 15.0
_CLOSING_SECONDS = 1.0
_SCOPE: Final = "threadkeep"
_NAME: Final = "received_key"
_DIGITS: Final = 32


def factor_key(model: str) -> str:
    """Return the database key of a model's token factor: the model's name, and its token estimate's name if any."""
    counter = counter_for(model)
    return f"{model} {counter.name}" if isinstance(counter, FamilyEstimate) else model


def is_in_use(key: str) -> bool:
    """Return True if the factor with this key was learned with the token estimate that the model uses now."""
    return factor_key(key.partition(" estimate_")[0]) == key


class LearnedFactors:
    """The factors by which each model's token estimates are corrected, read once and saved periodically.

    If several processes learn the factor of a model, the last one to save it wins.
    """

    def __init__(self, rows: TokenFactors) -> None:
        self._rows = rows
        self._factors: dict[str, TokenFactor] | None = None
        self._unsaved: set[str] = set()
        self._reading = asyncio.Lock()

    async def of(self, model: str) -> TokenFactor:
        """Return the factor by which to multiply a model's token estimates, or 1 if it is unknown."""
        if self._factors is None:
            await self._read()
        return self._known(model)

    def learn(self, model: str, estimated: int, reported: int, other: int = 0) -> None:
        """Adapt a model's factor to the tokens `estimated` for a model call, and those `reported` by the provider.

        `other` is the part of the estimate for text in non-Latin scripts; see `TokenFactor`. Nothing is learned before
        `of` has read the stored factors.
        """
        if self._factors is None:
            return
        key = factor_key(model)
        before = self._known(model)
        after = before.learn(estimated, reported, other)
        if after is not before:
            self._factors[key] = after
            self._unsaved.add(key)

    async def save(self) -> None:
        """Save the token factors that were learned since the last save.

        Raises:
            StoreError: the database does not answer; the next save writes the rest.
        """
        for key in sorted(self._unsaved):
            factor = (self._factors or {})[key]
            self._unsaved.discard(key)
            try:
                await self._rows.save(key, factor.value, factor.samples, factor.other)
            except StoreError:
                self._unsaved.add(key)
                raise

    async def keep_saving(self) -> None:
        """Save learned factors every 15 seconds, until cancelled."""
        while True:
            await asyncio.sleep(_SAVE_SECONDS)
            with contextlib.suppress(StoreError):
                await self.save()

    async def close(self) -> None:
        """Save the newly learned factors, unless the database does not answer."""
        with contextlib.suppress(StoreError), waiting_until(time.monotonic() + _CLOSING_SECONDS):
            await self.save()

    def _known(self, model: str) -> TokenFactor:
        found = (self._factors or {}).get(factor_key(model)) or TokenFactor(model)
        return replace(found, other=None if family_of(model) else found.other or found.value)

    async def _read(self) -> None:
        async with self._reading:
            if self._factors is not None:
                return
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    stored = await self._rows.all()
            except (StoreError, TimeoutError):
                return  # the next call tries to read again
            self._factors = {key: TokenFactor(key, *values) for key, values in stored.items()}


class TextDigests:
    """Digests of texts with a secret key for each database.

    Without the key, a digest does not reveal its text, even if the text is short.
    """

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._key: bytes | None = None

    async def digest(self) -> Callable[[str], str] | None:
        """Return the digest function of the database, or None if its key cannot be read."""
        if self._key is None:
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    self._key = await self._read_key()
            except (StoreError, TimeoutError):
                return None
        return self._digest

    async def _read_key(self) -> bytes | None:
        found = await self._state.value(_SCOPE, _NAME)
        if found is None:
            # Read the key again, because another process may have stored its own key first.
            await self._state.keep_first(_SCOPE, _NAME, secrets.token_hex(32))
            found = await self._state.value(_SCOPE, _NAME)
        return None if found is None else bytes.fromhex(found)

    def _digest(self, text: str) -> str:
        return hmac.digest(self._key or b"", text.encode("utf-8", "surrogatepass"), "sha256").hex()[:_DIGITS]


_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = 5.0


class MessageSearch:
    """A full-text search in messages, which updates its index before each query."""

    def __init__(self, index: Search, observer: Observer) -> None:
        self._index = index
        self._observer = observer

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> SearchResult:
        """Return up to `limit` messages that contain all words of a query, and the number of unindexed messages.

        The search waits only for messages of the given session or user, not for a backlog of other sessions.
        """
        complete = False
        # Search even if the database accepts no writes (full disk, missing rights).
        with contextlib.suppress(StoreUnavailable, RightsMissing):
            complete = await self._index.catch_up(seconds=_TIMEOUT_SECONDS, user_id=user_id, session_id=session_id)
        unindexed = 0 if complete else await self._index.unindexed(user_id=user_id, session_id=session_id)
        hits = await self._index.search(query, limit=limit, user_id=user_id, session_id=session_id, after=after)
        return SearchResult(hits, unindexed)

    async def keep_up(self) -> None:
        """Add new messages to the search index until cancelled, and report a large backlog."""
        behind, began = 0, 0.0
        while True:
            with contextlib.suppress(StoreError):
                started = time.monotonic()
                complete = await self._index.catch_up(seconds=_TIMEOUT_SECONDS)
                # Count only if indexing has reached its time limit, because the count reads all sessions.
                is_late = not complete and time.monotonic() - started >= _TIMEOUT_SECONDS
                if is_late and not behind and (waiting := await self._index.unindexed()) >= MUCH_UNINDEXED:
                    behind, began = waiting, started
                    self._observer.notify(IndexingBegan(messages=behind))
                if (complete or await self._index.catch_up()) and behind:
                    taken = (time.monotonic() - began) * 1000
                    self._observer.notify(IndexingDone(messages=behind, milliseconds=taken))
                    behind = 0
            await asyncio.sleep(_PAUSE_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The stores and services that depend on where a memory stores its messages."""

    transcripts: Transcripts
    index: MessageSearch
    archive: Restoring
    damages: DamageRegister
    contexts: Contexts
    older_turns: OlderTurns
    pending: PendingTurns
    retention: Pruner


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """The database, stores, options and observers from which `open_sessions` creates a memory."""

    address: DatabaseAddress
    options: MemoryOptions
    driver: Driver
    backend: Backend
    tables: ContextTables
    conversations: GraphConversations
    remembered_counts: RememberedCounts
    observers: Observers
