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
from threadkeep.store.driver import Driver, DuplicateRow, Parameters, Row, RowLocked, Statement, Transaction
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


class Readable(Protocol):
    """Items, or the items of a locked conversation."""

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""


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


class ReadItems:
    """Items that are read once each."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._read: dict[ItemKey, Value | None] = {}

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        unread = [key for key in dict.fromkeys(keys) if key not in self._read]
        if unread:
            self._read.update(zip(unread, await self._source.get(unread), strict=True))
        return [self._read[key] for key in keys]


class ReadOnce(ReadItems):
    """A locked conversation whose items are read once: nobody else changes them before the block ends.

    `beside` are statements of its database that are executed in the same transaction, if it is one of our tables; at
    its end `rows` receives their rows.
    """

    def __init__(self, writing: Writing) -> None:
        super().__init__(writing)
        self._writing = writing
        self.keys, self.remove = writing.keys, writing.remove
        self.beside: Sequence[Statement] = ()
        self.rows: list[list[Row]] = []

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata and other items of the conversation."""
        if isinstance(self._writing, _TableWriting):
            self._writing.beside, self._writing.rows = self.beside, self.rows
        await self._writing.put(metadata, others, version=version)


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
_PAD_BYTES = 8192
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
        self.driver = driver
        self._locks = Locks[ItemKey]()

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        async with self._driver.reading() as connection:
            return _found(keys, [await connection.fetch(*statement) for statement in _reads(self._sql, keys)])

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
        try:
            async with self._locks.of(metadata), self._driver.transaction() as transaction:
                writing = _TableWriting(transaction, self._sql, metadata)
                yield writing
                await writing.commit()
        except DuplicateRow:
            raise ConversationChanged from None


class _TableWriting:
    """A conversation that this transaction locks with the first statement."""

    def __init__(self, transaction: Transaction, sql: Mapping[str, str], metadata: ItemKey) -> None:
        self._transaction = transaction
        self._sql = sql
        self._metadata = metadata
        self._changes: list[Statement] = []
        self.beside: Sequence[Statement] = ()
        self.rows: list[list[Row]] = []
        self._lock: list[Statement] = []
        self._is_sqlite = "refuse_unchanged" in sql
        if "lock_conversation" in sql:
            name = f"{_text(metadata.namespace)} {metadata.key}"
            self._lock = [(sql["lock_conversation"], {"name": name})]

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in their order."""
        return _found(keys, await self._fetch(_reads(self._sql, keys)))

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys of a namespace that begin with a text."""
        place = {"prefix": _text(namespace), "pattern": like_pattern(beginning).removeprefix("%")}
        [rows] = await self._fetch([(self._sql["keys"], place)])
        return [key for (key,) in rows if key.startswith(beginning)]

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata at the end, if they still have this version, and the other items."""
        changes: list[Statement] = []
        row = {**_place(self._metadata), "version": version}
        if metadata is None:
            changes.append((self._sql["delete_metadata"], row))
        elif version is None:
            changes.append((self._sql["insert_metadata"], {**_place(self._metadata), "value": self._text(metadata)}))
        else:
            changes.append((self._sql["update_metadata"], {**row, "value": self._text(metadata)}))
        if version is not None and self._is_sqlite:
            changes.append((self._sql["refuse_unchanged"], _place(self._metadata)))
        puts = [{**_place(key), "value": self._text(value)} for key, value in others.items() if value is not None]
        removals = [_place(key) for key, value in others.items() if value is None]
        changes += [*_groups(self._sql["put_items"], puts), *_groups(self._sql["delete_items"], removals)]
        self._changes = changes

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Remove items of the conversation at the end, whatever the version of its metadata."""
        self._changes = _groups(self._sql["delete_items"], [_place(key) for key in keys])

    async def commit(self) -> None:
        """Write what was put, and the statements beside it, in one round trip."""
        if self._changes:
            rows = await self._transaction.commit(self._changes, self.beside)
            self.rows += rows[len(self._changes) :]

    def _text(self, value: Value) -> str:
        return _text_of(value, padded=self._is_sqlite)

    async def _fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        lock, self._lock = self._lock, []
        return (await self._transaction.fetch_each([*lock, *statements]))[len(lock) :]


def _reads(sql: Mapping[str, str], keys: Sequence[ItemKey]) -> list[Statement]:
    """Return the statements that read items."""
    return _groups(sql["items"], [_place(key) for key in keys])


def _groups(sql: str, rows: Sequence[Parameters]) -> list[Statement]:
    """Return a statement of many rows, as often as it takes."""
    groups = [rows[start : start + _ITEMS_AT_ONCE] for start in range(0, len(rows), _ITEMS_AT_ONCE)]
    return [(for_rows(sql, len(group)), row_parameters(group)) for group in groups]


def _found(keys: Sequence[ItemKey], groups: Sequence[Sequence[Row]]) -> list[Value | None]:
    """Return the items in the rows of `_reads`, in the order of the keys."""
    found = {(prefix, key): _value(value) for rows in groups for prefix, key, value in rows}
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


def _text_of(value: Value, *, padded: bool) -> str:
    """Return the JSON of an item, whose values are JSON already; long ones may be padded to a round length."""
    text = to_json(value)
    pages = len(text) // _PAD_BYTES
    # SQLite overwrites a value of the same length in place, and then writes only those of its pages that have changed.
    return (text.ljust((pages + 1) * _PAD_BYTES) if padded and pages else text).decode()


def _place(key: ItemKey) -> Parameters:
    return {"prefix": _text(key.namespace), "key": key.key}


def _text(namespace: Namespace) -> str:
    """Return a namespace in the format of LangGraph's stores."""
    return ".".join(namespace)
