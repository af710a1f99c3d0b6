"""Access to the items of a LangGraph store: the interface, and its implementation by SQL on LangGraph's table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Hashable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import batched
from typing import Any, Protocol
from weakref import WeakValueDictionary

from pydantic_core import PydanticSerializationError, from_json, to_json

from threadkeep.graph_store.layout import GraphLayout, ItemKey, Namespace
from threadkeep.observe import Backend
from threadkeep.store.driver import Driver, DuplicateRow, Parameters, Row, RowLocked, Statement, Transaction
from threadkeep.store.statements import Tables, for_rows, like_pattern, row_parameters

type Value = Mapping[str, Any]
"""The value of an item. Never change it in place: some stores return the very object they store."""


class Stored(dict[str, Any]):
    """The value of an item that `TableItems` has read or written. Until the item changes, reads return the same object.

    `text` is its JSON if this process wrote it. `mark` shows whether the item has changed: on SQLite, it is the stored
    text, and on PostgreSQL, the version of the row.
    """

    text: str = ""
    mark: str | bytes | None = None


class ConversationChanged(RowLocked):
    """Another process or task changed the conversation after it was read for this write; nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "Others keep changing this conversation in the graph store; the same call may succeed a moment later."
        )


class Readable(Protocol):
    """An object from which items are read: a whole store, or a locked conversation."""

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in the order of the keys."""


class Writing(Readable, Protocol):
    """A locked conversation. Other writers that take the same lock wait until the block of `Items.writing` ends."""

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys that begin with `beginning` in a namespace."""

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata and other items, now or when the block ends. None removes an item.

        Call `put` or `remove` only once in a block.

        Raises:
            ConversationChanged: the stored metadata have another `version`, or exist although `version` is None.
        """

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Remove items, whatever version the metadata have (see `put`)."""


class ReadItems:
    """A cache that reads each item from `source` at most once. Items that are passed as `known` are never read."""

    def __init__(self, source: Readable, known: Mapping[ItemKey, Value | None] | None = None) -> None:
        self._source = source
        self._read = dict(known or {})

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in the order of the keys."""
        unread = [key for key in dict.fromkeys(keys) if key not in self._read]
        if unread:
            self._read.update(zip(unread, await self._source.get(unread), strict=True))
        return [self._read[key] for key in keys]


class ReadOnce(ReadItems):
    """A locked conversation that reads each item only once, because items cannot change while it is locked.

    If the items are in `TableItems`, the transaction that writes them also executes the statements in `beside`, and
    `rows` gets the rows of these statements.
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


class Items(Readable, Protocol):
    """The interface to a LangGraph store. Its methods raise `StoreUnavailable` if the store does not answer.

    An item that is not a JSON object is returned as an empty object, which no reader accepts as valid.
    """

    @property
    def backend(self) -> Backend:
        """The name of the store in metrics."""

    @property
    def locks(self) -> Locks[ItemKey]:
        """This process's locks on conversations, by the keys of their metadata items."""

    def conversations(self, layout: GraphLayout) -> AsyncIterator[tuple[str, Value]]:
        """Yield the session id and the metadata of each conversation in the layout's namespace, in any order."""

    def writing(self, metadata: ItemKey) -> AbstractAsyncContextManager[Writing]:
        """Lock a conversation by its metadata item. The caller must already hold `locks[metadata]`."""


type Locks[Key: Hashable] = WeakValueDictionary[Key, asyncio.Lock]
"""Locks by key. A lock lives while it is referenced; get it with `locks.setdefault(key, asyncio.Lock())`."""


_ITEMS_AT_ONCE = 200
_PAD_BYTES = 8192
_GROWING = "messages"
"""The list field of a chunk, which usually only grows."""
_PAGE_ITEMS = 500


class TabledStore:
    """A base class for LangGraph stores that Threadkeep opens.

    `items` accesses the store's table, and `fingerprint` identifies the database. Both are None for a store in memory.
    """

    items: TableItems | None = None
    fingerprint: str | None = None


class TableItems(Tables, sql=("graph_items.sql", "{backend}/graph_items.sql")):
    """The items in the table of a LangGraph store, accessed with Threadkeep's driver."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.driver = driver
        self.locks: Locks[ItemKey] = WeakValueDictionary()
        self._known: WeakValueDictionary[ItemKey, Stored] = WeakValueDictionary()

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in the order of the keys."""
        reading = _Reading(self._sql, keys, self._known)
        async with self._driver.reading() as connection:
            return reading.found([await connection.fetch(*statement) for statement in reading.statements])

    async def conversations(self, layout: GraphLayout) -> AsyncIterator[tuple[str, Value]]:
        """Yield the session id and the metadata of each conversation in the layout's namespace, in any order."""
        pattern = like_pattern(layout.meta_key_suffix).removesuffix("%")
        parameters = {"prefix": _text(layout.namespace), "pattern": pattern, "limit": _PAGE_ITEMS}
        after: str | None = ""
        while after is not None:
            rows = await self._driver.fetch(self._sql["conversations"], {**parameters, "after": after})
            for key, value in rows:
                if session_id := layout.session_of(key):
                    yield session_id, _value(value)
            after = rows[-1][0] if len(rows) == _PAGE_ITEMS else None

    @asynccontextmanager
    async def writing(self, metadata: ItemKey) -> AsyncIterator[_TableWriting]:
        """Lock a conversation against other writers, in this process and in other processes."""
        try:
            async with self._driver.transaction() as transaction:
                writing = _TableWriting(transaction, self._sql, metadata, self._known)
                yield writing
                await writing.commit()
        except DuplicateRow:
            raise ConversationChanged from None


class _TableWriting:
    """A locked conversation; the first statement of its transaction takes the lock."""

    def __init__(
        self,
        transaction: Transaction,
        sql: Mapping[str, str],
        metadata: ItemKey,
        known: MutableMapping[ItemKey, Stored],
    ) -> None:
        self._transaction = transaction
        self._sql = sql
        self._metadata = metadata
        self._known = known
        self._read: dict[ItemKey, Value | None] = {}
        self._written: dict[ItemKey, Stored] = {}
        self._changes: list[Statement] = []
        self.beside: Sequence[Statement] = ()
        self.rows: list[list[Row]] = []
        self._lock: list[Statement] = []
        self._is_sqlite = "refuse_unchanged" in sql
        if "lock_conversation" in sql:
            name = f"{_text(metadata.namespace)} {metadata.key}"
            self._lock = [(sql["lock_conversation"], {"name": name})]

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """Return the items with these keys, in the order of the keys."""
        reading = _Reading(self._sql, keys, self._known)
        found = reading.found(await self._fetch(reading.statements))
        self._read.update(zip(keys, found, strict=True))
        return found

    async def keys(self, namespace: Namespace, beginning: str = "") -> list[str]:
        """Return the keys that begin with `beginning` in a namespace."""
        parameters = {"prefix": _text(namespace), "pattern": like_pattern(beginning).removeprefix("%")}
        [rows] = await self._fetch([(self._sql["keys"], parameters)])
        return [key for (key,) in rows if key.startswith(beginning)]

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Collect writes for `commit`, which fails unless the stored version is `version` (None: nothing is stored)."""
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
        puts = [{**_place(key), "value": self._text(value, key)} for key, value in others.items() if value is not None]
        removals = [_place(key) for key, value in others.items() if value is None]
        changes += [*_groups(self._sql["put_items"], puts), *_groups(self._sql["delete_items"], removals)]
        self._changes = changes

    async def remove(self, keys: Collection[ItemKey]) -> None:
        """Collect removals of items for `commit`, whatever version the stored metadata have."""
        self._changes = _groups(self._sql["delete_items"], [_place(key) for key in keys])

    async def commit(self) -> None:
        """Execute the collected writes and the other statements in `beside` in one round trip, and commit."""
        if self._changes:
            rows = await self._transaction.commit(self._changes, self.beside)
            self.rows += rows[len(self._changes) :]
            marks = {(prefix, key): mark for one in rows[: len(self._changes)] for prefix, key, mark in one}
            for key, value in self._written.items():
                value.mark = marks[_text(key.namespace), key.key] if marks else value.text
                self._known[key] = value

    def _text(self, value: Value, key: ItemKey | None = None) -> str:
        """Return an item as JSON; if only messages were added, append them to the JSON that was read."""
        former = None if key is None else self._read.get(key)
        text = (_grown(former, value) if isinstance(former, Stored) else None) or _json(value)
        text = _padded(text) if self._is_sqlite else text
        if isinstance(value, Stored) and key is not None:
            value.text = text
            self._written[key] = value
        return text

    async def _fetch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        lock, self._lock = self._lock, []
        return (await self._transaction.fetch_each([*lock, *statements]))[len(lock) :]


class _Reading:
    """The SQL `statements` that read items, and the parsing of the returned rows. Unchanged items come from `known`."""

    def __init__(self, sql: Mapping[str, str], keys: Sequence[ItemKey], known: MutableMapping[ItemKey, Stored]) -> None:
        self._keys = keys
        self._known = known
        # Keep references until the rows are read, because `known` has only weak references.
        self._marked = {key: value for key in keys if (value := known.get(key)) is not None}
        rows = [{**_place(key), "mark": self._marked[key].mark if key in self._marked else None} for key in keys]
        self.statements = _groups(sql["items"], rows)

    def found(self, groups: Sequence[Sequence[Row]]) -> list[Value | None]:
        """Return the items in the rows that the statements have returned, in the order of the keys."""
        rows = {(prefix, key): rest for group in groups for prefix, key, *rest in group}
        pairs = [(key, rows.get((_text(key.namespace), key.key))) for key in self._keys]
        return [None if row is None else self._item(key, *row) for key, row in pairs]

    def _item(self, key: ItemKey, text: str | bytes, mark: str | None = None) -> Value:
        known = self._marked.get(key)
        if known is not None and known.mark == (mark or text):
            return known
        value = self._known[key] = Stored(_value(text))
        value.mark = mark or text
        return value


def _groups(sql: str, rows: Sequence[Parameters]) -> list[Statement]:
    return [(for_rows(sql, len(group)), row_parameters(group)) for group in batched(rows, _ITEMS_AT_ONCE)]


def _value(text: str | bytes) -> Value:
    """Return the JSON object in the text of an item, or an empty object if the text is anything else."""
    try:
        value = from_json(text)
    except ValueError:
        # pydantic's parser rejects lone surrogates, but Python's own accepts them.
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _json(value: object) -> str:
    try:
        return to_json(value).decode()
    except PydanticSerializationError:  # another program wrote half of a surrogate pair
        return json.dumps(value)


def _grown(former: Stored, value: Value) -> str | None:
    """Return the stored JSON of a chunk with its new messages appended, or None if an earlier part has changed."""
    names, old, new = list(value), former.get(_GROWING), value.get(_GROWING)
    if list(former) != names or not isinstance(old, list) or not isinstance(new, list) or not old:
        return None
    at = names.index(_GROWING)
    if new[: len(old)] != old or new is old or any(former[name] != value[name] for name in names[:at]):
        return None
    text, end = former.text.rstrip(), _end(former, names[at + 1 :])
    if not text.endswith(end):
        return None
    added = _json(new[len(old) :])[1:-1]
    return f"{text[: -len(end)]}{',' * bool(added)}{added}{_end(value, names[at + 1 :])}"


def _end(value: Value, names: Sequence[str]) -> str:
    """Return the part of a chunk's JSON that follows its messages."""
    rest = _json({name: value[name] for name in names})[1:]
    return f"],{rest}" if names else "]}"


def _padded(text: str) -> str:
    """Pad large JSON to a multiple of 8 KB, so that its length changes rarely.

    If the length is the same, SQLite overwrites the old value, and writes only the pages that have changed.
    """
    size = len(text) if text.isascii() else len(text.encode())
    return text + " " * (-size % _PAD_BYTES) if size >= _PAD_BYTES else text


def _place(key: ItemKey) -> Parameters:
    return {"prefix": _text(key.namespace), "key": key.key}


def _text(namespace: Namespace) -> str:
    """Return a namespace as LangGraph's stores write it: its labels, joined by full stops."""
    return ".".join(namespace)
