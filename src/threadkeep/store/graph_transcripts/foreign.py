"""Conversations in any LangGraph store, safe for the writers of one process. Importing this imports LangGraph.

The interface of LangGraph's stores has no transaction and cannot compare: where another process writes to the same
conversation, turns can be lost. Several processes need a store of `threadkeep.create_graph_store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp

from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.observe import Backend
from threadkeep.store.graph_transcripts.items import ConversationChanged, Locks, Value
from threadkeep.store.graph_transcripts.layout import GraphLayout, ItemKey
from threadkeep.store.graph_transcripts.shapes import METADATA_KIND

_PAGE_ITEMS = 10_000

# Of the store, not of who asks: an agent's node may have its own transcripts in each run.
_LOCKS: WeakKeyDictionary[BaseStore, Locks[ItemKey]] = WeakKeyDictionary()


class StoreItems:
    """The items of a LangGraph store, through its own interface."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._locks = _LOCKS.setdefault(store, Locks[ItemKey]())

    @property
    def backend(self) -> Backend:
        """Which engine is below, for metrics."""
        return "other"

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """The items with these keys, in their order."""
        found = await _whole(self._store, [GetOp(key.namespace, key.key, refresh_ttl=False) for key in keys])
        return [item.value if isinstance(item, Item) else None for item in found]

    async def conversations(self, layout: GraphLayout) -> AsyncIterator[Value]:
        """The metadata of all conversations of a layout, in no order."""
        seen: set[str] = set()
        offset = 0
        while True:
            search = SearchOp(layout.namespace, {"kind": METADATA_KIND}, _PAGE_ITEMS, offset, refresh_ttl=False)
            [found] = await _whole(self._store, [search])
            page = [item for item in found if isinstance(item, SearchItem)] if isinstance(found, list) else []
            for item in page:
                # A search finds what is in namespaces below, too.
                if item.namespace == layout.namespace and item.key not in seen:
                    seen.add(item.key)
                    yield item.value
            if len(page) < _PAGE_ITEMS:
                return
            offset += _PAGE_ITEMS

    @asynccontextmanager
    async def writing(self, metadata: ItemKey) -> AsyncIterator[_StoreWriting]:
        """Hold the conversation with these metadata, in this process."""
        async with self._locks.of(metadata):
            yield _StoreWriting(self._store, self, metadata)


class _StoreWriting:
    """A conversation that this process holds."""

    def __init__(self, store: BaseStore, items: StoreItems, metadata: ItemKey) -> None:
        self._store = store
        self._items = items
        self._metadata = metadata

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """The items with these keys, in their order."""
        return await self._items.get(keys)

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the items in one batch, the metadata last: what is behind them is as if it were not there."""
        [found] = await self._items.get([self._metadata])
        if (found is None) != (version is None) or (found is not None and found.get("version") != version):
            raise ConversationChanged
        puts: list[Op] = [_put(key, value) for key, value in others.items()]
        puts.append(_put(self._metadata, metadata))
        await _whole(self._store, puts)


async def _whole(store: BaseStore, operations: Sequence[Op]) -> list[Result]:
    """Carry a batch out whatever happens to its caller; stores that are stopped half-way may not work any more."""
    batch = asyncio.ensure_future(store.abatch(operations))
    with _translated():
        try:
            return await asyncio.shield(batch)
        except asyncio.CancelledError:
            await asyncio.wait([batch])
            batch.exception()
            raise


def _put(key: ItemKey, value: Value | None) -> PutOp:
    return PutOp(key.namespace, key.key, None if value is None else dict(value), index=False)


@contextmanager
def _translated() -> Iterator[None]:
    """Turn whatever a store raises into ours: each has errors of its own, and none tells which would pass."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        # From None: what the error says may quote what was put.
        raise StoreUnavailable(
            f"The graph store does not take this call ({type(error).__name__}); check that its database answers."
        ) from None
