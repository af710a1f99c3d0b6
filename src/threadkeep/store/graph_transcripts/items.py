"""What conversations ask of a LangGraph store: items read together, and several written together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from weakref import WeakValueDictionary

from threadkeep.observe import Backend
from threadkeep.store.driver import RowLocked
from threadkeep.store.graph_transcripts.layout import GraphLayout, ItemKey

type Value = Mapping[str, Any]
"""What an item holds: a JSON object, never changed in place. Some stores hand out the very object that was put."""


class ConversationChanged(RowLocked):
    """Somebody else changed a conversation between the read and the write of it; nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "Others keep changing this conversation in the graph store; the same call may succeed a moment later."
        )


class Writing(Protocol):
    """One conversation, held: nobody else who holds conversations writes to it before the block ends."""

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """The items with these keys, in their order."""
        ...

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata and other items of the conversation, once in a block; None removes an item.

        All of it or nothing is there when the block ends.

        Raises:
            ConversationChanged: the metadata are not of this version (None: are there already).
        """
        ...


class Items(Protocol):
    """A LangGraph store, as far as conversations go. Raises `StoreUnavailable` when it does not answer."""

    @property
    def backend(self) -> Backend:
        """Which engine is below, for metrics."""
        ...

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """The items with these keys, in their order."""
        ...

    def conversations(self, layout: GraphLayout) -> AsyncIterator[Value]:
        """The metadata of all conversations of a layout, in no order."""
        ...

    def writing(self, metadata: ItemKey) -> AbstractAsyncContextManager[Writing]:
        """Hold the conversation with these metadata."""
        ...


class Locks[Key: Hashable]:
    """A lock for each conversation, by some key of it, as long as anybody wants it; who asks first has it first."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: Key) -> asyncio.Lock:
        """The lock of a conversation; keep it while using it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
