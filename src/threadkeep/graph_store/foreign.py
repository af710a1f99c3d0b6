"""Conversations in any LangGraph store. Only one process may write to such a store. This module imports LangGraph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.base.batch import AsyncBatchedBaseStore

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import InvalidInput, StoreError, StoreUnavailable
from threadkeep.graph_store.items import ConversationChanged, Locks, Value
from threadkeep.graph_store.layout import GraphLayout, ItemKey, Namespace
from threadkeep.graph_store.shapes import METADATA_KIND
from threadkeep.observe import Backend

_PAGE_ITEMS = 10_000

# Locks belong to the store, because an agent's node may create a `StoreItems` in each run.
_LOCKS: WeakKeyDictionary[BaseStore, Locks[ItemKey]] = WeakKeyDictionary()


class StoreItems:
    """The items of a LangGraph store, accessed through the store's own interface."""

    backend: Final[Backend] = "other"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self.locks = _LOCKS.setdefault(store, WeakValueDictionary())

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in the order of the keys."""
        found = await _whole(self._store, [GetOp(key.namespace, key.key, refresh_ttl=False) for key in keys])
        return [_value(item) if isinstance(item, Item) else None for item in found]

    async def conversations(self, layout: GraphLayout) -> AsyncIterator[tuple[str, Value]]:
        """Yield the session id and the metadata of each conversation in the layout's namespace, in any order."""
        seen: set[str] = set()
        async for item in self.search(layout.namespace, {"kind": METADATA_KIND}):
            if item.key not in seen and (session_id := layout.session_of(item.key)):
                seen.add(item.key)
                yield session_id, _value(item)

    async def search(self, namespace: Namespace, wanted: dict[str, object] | None = None) -> AsyncIterator[SearchItem]:
        """Yield the items of a namespace, in any order; some of them may be yielded twice."""
        offset = 0
        while True:
            [found] = await _whole(self._store, [SearchOp(namespace, wanted, _PAGE_ITEMS, offset, refresh_ttl=False)])
            page = [item for item in found if isinstance(item, SearchItem)] if isinstance(found, list) else []
            for item in page:
                # Skip items of deeper namespaces, which the search returns too.
                if item.namespace == namespace:
                    yield item
            if len(page) < _PAGE_ITEMS:
                return
            offset += _PAGE_ITEMS

    @asynccontextmanager
    async def writing(self, metadata: ItemKey) -> AsyncIterator[_StoreWriting]:
        """Yield the conversation with this metadata key. The caller holds its lock. No other process may write it."""
        yield _StoreWriting(self._store, self, metadata)


class _StoreWriting:
    """A conversation that this process has locked for writing."""

    def __init__(self, store: BaseStore, items: StoreItems, metadata: ItemKey) -> None:
        self._store = store
        self._items = items
        self._metadata = metadata

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in the order of the keys."""
        return await self._items.get(keys)

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys that begin with `beginning` in a namespace."""
        return list({item.key async for item in self._items.search(namespace) if item.key.startswith(beginning)})

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write items in one batch, the metadata last: until then, readers ignore messages above the old `last_seq`."""
        [found] = await self._items.get([self._metadata])
        if (found is None) != (version is None) or (found is not None and found.get("version") != version):
            raise ConversationChanged
        puts: list[Op] = [_put(key, value) for key, value in others.items()]
        puts.append(_put(self._metadata, metadata))
        await _whole(self._store, puts)

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Remove items in one batch, the metadata last."""
        rest = [key for key in keys if key != self._metadata]
        await _whole(self._store, [_put(key, None) for key in (*rest, self._metadata)])


async def _whole(store: BaseStore, operations: Sequence[Op]) -> list[Result]:
    """Execute a batch to its end despite cancellation, because a store may break if interrupted."""
    batch = asyncio.ensure_future(store.abatch(operations))
    with _translated():
        try:
            return await asyncio.shield(batch)
        except asyncio.CancelledError:
            await asyncio.wait([batch])
            batch.exception()
            raise


def _value(item: Item) -> Value:
    """Return the JSON object in an item, or an empty object if the item has a value of another type."""
    value: object = item.value
    return value if isinstance(value, dict) else {}


def _put(key: ItemKey, value: Value | None) -> PutOp:
    return PutOp(key.namespace, key.key, None if value is None else dict(value), index=False)


@contextmanager
def _translated() -> Iterator[None]:
    """Turn every error of a LangGraph store into `StoreUnavailable`: stores do not tell which errors are transient."""
    with ErrorBoundary(raising=(StoreError,)) as call:
        yield
    if call.error is not None:
        # Do not chain the store's error, because its text may quote stored data.
        raise StoreUnavailable(
            f"The graph store failed in this call ({type(call.error).__name__}); check that its database answers."
        )


class IndexedStore(AsyncBatchedBaseStore):
    """A LangGraph store that rejects a query if it has no vector index. LangGraph's own stores ignore such a query."""

    async def end_batches(self) -> None:
        """End the task that executes batches; if it were destroyed with the store, asyncio would log an error."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def asearch(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Return the items of a namespace and of all namespaces that begin with it.

        Raises:
            InvalidInput: there is a query, but the store has no index.
        """
        if query and getattr(self, "index_config", None) is None:
            raise InvalidInput(
                "This graph store has no index, so it cannot search by a query; give one to "
                "create_graph_store(settings, index={'dims': …, 'embed': …}), or search by filter."
            )
        # With a filter, search outside of a batch: if the filter is wrong, all operations of its batch fail.
        kind = BaseStore if filter else AsyncBatchedBaseStore
        return await kind.asearch(
            self, namespace_prefix, query=query, filter=filter, limit=limit, offset=offset, refresh_ttl=refresh_ttl
        )
