"""The interface of LangGraph stores for conversations: reads of several items, and atomic writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from weakref import WeakValueDictionary

from threadkeep.observe import Backend
from threadkeep.store.driver import RowLocked
from threadkeep.store.graph_transcripts.layout import GraphLayout, ItemKey, Namespace

type Value = Mapping[str, Any]
"""The value of an item: a JSON object, never changed in place. Some stores return the very object that was put."""


class ConversationChanged(RowLocked):
    """Another writer changed a conversation between the read and the write; nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "Others keep changing this conversation in the graph store; the same call may succeed a moment later."
        )


class Writing(Protocol):
    """A locked conversation: no other lock holder writes to it before the block ends."""

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        ...

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys of a namespace that begin with a text."""
        ...

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata and other items of the conversation, once in a block; None removes an item.

        The write is atomic at the end of the block.

        Raises:
            ConversationChanged: the metadata have another version (None: they exist already).
        """
        ...

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Remove items of the conversation, once in a block, whatever the version of its metadata."""
        ...


class Items(Protocol):
    """A LangGraph store, as conversations use it. Raises `StoreUnavailable` if it does not answer.

    An item that is not a JSON object is returned as an empty one, which no reader accepts as valid.
    """

    @property
    def backend(self) -> Backend:
        """The engine's name for metrics."""
        ...

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        ...

    def conversations(self, layout: GraphLayout) -> AsyncIterator[tuple[str, Value]]:
        """Yield the id and the metadata of every conversation of a layout, unordered."""
        ...

    def writing(self, metadata: ItemKey) -> AbstractAsyncContextManager[Writing]:
        """Lock the conversation with these metadata."""
        ...


class Locks[Key: Hashable]:
    """Locks of conversations by key, weakly referenced; waiters are served in order."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: Key) -> asyncio.Lock:
        """Return the lock of a conversation; keep a reference while using it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
