"""Items of a LangGraph store: the interface for reading and writing, and its implementation on our tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol
from weakref import WeakValueDictionary

from pydantic_core import from_json, to_json

from threadkeep.graph_store.layout import GraphLayout, ItemKey, Namespace
from threadkeep.observe import Backend
from threadkeep.store.driver import Connection, Driver, Parameters, RowLocked
from threadkeep.store.statements import Tables, for_rows, row_parameters
from threadkeep.store.tables import like_pattern

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

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys of a namespace that begin with a text."""

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata and other items of the conversation, once in a block; None removes an item.

        The write is atomic at the end of the block.

        Raises:
            ConversationChanged: the metadata have another version (None: they exist already).
        """

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Remove items of the conversation, once in a block, whatever the version of its metadata."""


class ReadOnce:
    """A locked conversation whose items are read once: nobody else changes them before the block ends."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._read: dict[ItemKey, Value | None] = {}
        self.keys, self.put, self.remove = writing.keys, writing.put, writing.remove

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        unread = [key for key in dict.fromkeys(keys) if key not in self._read]
        if unread:
            self._read.update(zip(unread, await self._writing.get(unread), strict=True))
        return [self._read[key] for key in keys]


class Items(Protocol):
    """A LangGraph store, as conversations use it. Raises `StoreUnavailable` if it does not answer.

    An item that is not a JSON object is returned as an empty one, which no reader accepts as valid.
    """

    @property
    def backend(self) -> Backend:
        """The engine's name for metrics."""

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""

    def conversations(self, layout: GraphLayout) -> AsyncIterator[tuple[str, Value]]:
        """Yield the id and the metadata of every conversation of a layout, unordered."""

    def writing(self, metadata: ItemKey) -> AbstractAsyncContextManager[Writing]:
        """Lock the conversation with these metadata."""


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


_ITEMS_AT_ONCE = 200
_PAGE_ITEMS = 500


class TabledStore:
    """The additions of our LangGraph stores: the items by their table, and the fingerprint of the database.

    Both are None for a store in memory, which is not shared.
    """

    items: TableItems | None = None
    fingerprint: str | None = None


class TableItems(Tables, sql=("graph_items.sql", "{backend}/graph_items.sql")):
    """The items of one of LangGraph's own stores, through our driver to the same database."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._locks = Locks[ItemKey]()

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        async with self._driver.reading() as connection:
            return await _get(connection, self._sql, keys)

    async def conversations(self, layout: GraphLayout) -> AsyncIterator[tuple[str, Value]]:
        """Yield the id and the metadata of every conversation of a layout, unordered."""
        pattern = like_pattern(layout.meta_key_suffix).removesuffix("%")
        place = {"prefix": _text(layout.namespace), "pattern": pattern, "limit": _PAGE_ITEMS}
        after: str | None = ""
        while after is not None:
            rows = await self._driver.fetch(self._sql["conversations"], {**place, "after": after})
            for key, value in rows:
                if session_id := layout.session_of(key):
                    yield session_id, _value(value)
            after = rows[-1][0] if len(rows) == _PAGE_ITEMS else None

    @asynccontextmanager
    async def writing(self, metadata: ItemKey) -> AsyncIterator[_TableWriting]:
        """Lock the conversation with these metadata, in all processes."""
        # In this process first: turns keep their order and share one connection.
        async with self._locks.of(metadata), self._driver.writing() as connection:
            if "lock_conversation" in self._sql:
                name = f"{_text(metadata.namespace)} {metadata.key}"
                await connection.fetch(self._sql["lock_conversation"], {"name": name})
            yield _TableWriting(connection, self._sql, metadata)


class _TableWriting:
    """A conversation that this transaction has locked."""

    def __init__(self, connection: Connection, sql: Mapping[str, str], metadata: ItemKey) -> None:
        self._connection = connection
        self._sql = sql
        self._metadata = metadata

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        return await _get(self._connection, self._sql, keys)

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys of a namespace that begin with a text."""
        place = {"prefix": _text(namespace), "pattern": like_pattern(beginning).removeprefix("%")}
        rows = await self._connection.fetch(self._sql["keys"], place)
        return [key for (key,) in rows if key.startswith(beginning)]

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata, if they still have this version, then the other items."""
        row = {**_place(self._metadata), "version": version}
        if metadata is None:
            changed = await self._connection.execute(self._sql["delete_metadata"], row)
        elif version is None:
            row = {**_place(self._metadata), "value": _text_of(metadata)}
            changed = await self._connection.execute(self._sql["insert_metadata"], row)
        else:
            changed = await self._connection.execute(self._sql["update_metadata"], {**row, "value": _text_of(metadata)})
        if not changed:
            raise ConversationChanged
        puts = [{**_place(key), "value": _text_of(value)} for key, value in others.items() if value is not None]
        removals = [_place(key) for key, value in others.items() if value is None]
        if puts:
            await self._connection.execute_many(self._sql["put_item"], puts)
        if removals:
            await self._connection.execute_many(self._sql["delete_item"], removals)

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Remove items of the conversation, whatever the version of its metadata."""
        await self._connection.execute_many(self._sql["delete_item"], [_place(key) for key in keys])


async def _get(connection: Connection, sql: Mapping[str, str], keys: Sequence[ItemKey]) -> list[Value | None]:
    found: dict[tuple[str, str], Value] = {}
    for start in range(0, len(keys), _ITEMS_AT_ONCE):
        rows = [_place(key) for key in keys[start : start + _ITEMS_AT_ONCE]]
        for prefix, key, value in await connection.fetch(for_rows(sql["items"], len(rows)), row_parameters(rows)):
            found[prefix, key] = _value(value)
    return [found.get((_text(key.namespace), key.key)) for key in keys]


def _value(text: str | bytes) -> Value:
    """Return the object that an item holds; an empty one if it holds something else."""
    try:
        value = from_json(text)
    except ValueError:
        # Python's parser also takes halves of surrogate pairs.
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _text_of(value: Value) -> str:
    """Return the JSON of an item, whose values are JSON already."""
    return to_json(value).decode()


def _place(key: ItemKey) -> Parameters:
    return {"prefix": _text(key.namespace), "key": key.key}


def _text(namespace: Namespace) -> str:
    """Return a namespace in the format of LangGraph's stores."""
    return ".".join(namespace)
