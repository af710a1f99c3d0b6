"""Conversations in the table of LangGraph's own SQLite and PostgreSQL stores, safe for the writers of many processes.

What is written is what LangGraph's stores write, so that they read it. In one transaction a conversation is held, read
and written, and its metadata are compared once more by the database: somebody who knows nothing of the lock may have
put others.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from threadkeep.observe import Backend
from threadkeep.records import dump_json
from threadkeep.store.driver import Connection, Driver, Parameters
from threadkeep.store.graph_transcripts.items import ConversationChanged, Locks, Value
from threadkeep.store.graph_transcripts.layout import GraphLayout, ItemKey, Namespace
from threadkeep.store.statements import for_rows, load_statements, row_parameters
from threadkeep.store.tables import like_pattern

_ITEMS_AT_ONCE = 200
_PAGE_ITEMS = 500


class TabledStore:
    """What a LangGraph store of ours has besides: its items by its table, and which database that is in.

    Both are None in memory, which nobody shares.
    """

    items: TableItems | None = None
    fingerprint: str | None = None


class TableItems:
    """The items of one of LangGraph's own stores, by a driver of ours to the same database."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("graph_items.sql", f"{driver.backend}/graph_items.sql")
        self._locks = Locks[ItemKey]()

    @property
    def backend(self) -> Backend:
        """Which engine is below, for metrics."""
        return self._driver.backend

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """The items with these keys, in their order."""
        async with self._driver.reading() as connection:
            return await _get(connection, self._sql, keys)

    async def conversations(self, layout: GraphLayout) -> AsyncIterator[Value]:
        """The metadata of all conversations of a layout, in no order."""
        suffix = layout.meta_key_suffix
        pattern = like_pattern(suffix).removesuffix("%")
        place = {"prefix": _text(layout.namespace), "pattern": pattern, "limit": _PAGE_ITEMS}
        after: str | None = ""
        while after is not None:
            async with self._driver.reading() as connection:
                rows = await connection.fetch(self._sql["conversations"], {**place, "after": after})
            for key, value in rows:
                if key.endswith(suffix):
                    yield json.loads(value)
            after = rows[-1][0] if len(rows) == _PAGE_ITEMS else None

    @asynccontextmanager
    async def writing(self, metadata: ItemKey) -> AsyncIterator[_TableWriting]:
        """Hold the conversation with these metadata, in all processes."""
        # In this process first: its turns keep their order, and take one connection.
        async with self._locks.of(metadata), self._driver.writing() as connection:
            if "lock_conversation" in self._sql:
                name = f"{_text(metadata.namespace)} {metadata.key}"
                await connection.fetch(self._sql["lock_conversation"], {"name": name})
            yield _TableWriting(connection, self._sql, metadata)


class _TableWriting:
    """A conversation that this transaction holds."""

    def __init__(self, connection: Connection, sql: Mapping[str, str], metadata: ItemKey) -> None:
        self._connection = connection
        self._sql = sql
        self._metadata = metadata

    async def get(self, keys: Sequence[ItemKey]) -> list[Value | None]:
        """The items with these keys, in their order."""
        return await _get(self._connection, self._sql, keys)

    async def put(self, metadata: Value | None, others: Mapping[ItemKey, Value | None], *, version: int | None) -> None:
        """Write the metadata, if they are of this version still, then the other items."""
        row = {**_place(self._metadata), "version": version}
        if metadata is None:
            changed = await self._connection.execute(self._sql["delete_metadata"], row)
        elif version is None:
            row = {**_place(self._metadata), "value": dump_json(metadata)}
            changed = await self._connection.execute(self._sql["insert_metadata"], row)
        else:
            changed = await self._connection.execute(
                self._sql["update_metadata"], {**row, "value": dump_json(metadata)}
            )
        if not changed:
            raise ConversationChanged
        puts = [{**_place(key), "value": dump_json(value)} for key, value in others.items() if value is not None]
        removals = [_place(key) for key, value in others.items() if value is None]
        if puts:
            await self._connection.execute_many(self._sql["put_item"], puts)
        if removals:
            await self._connection.execute_many(self._sql["delete_item"], removals)


async def _get(connection: Connection, sql: Mapping[str, str], keys: Sequence[ItemKey]) -> list[Value | None]:
    found: dict[tuple[str, str], Value] = {}
    for start in range(0, len(keys), _ITEMS_AT_ONCE):
        rows = [_place(key) for key in keys[start : start + _ITEMS_AT_ONCE]]
        for prefix, key, value in await connection.fetch(for_rows(sql["items"], len(rows)), row_parameters(rows)):
            found[prefix, key] = json.loads(value)
    return [found.get((_text(key.namespace), key.key)) for key in keys]


def _place(key: ItemKey) -> Parameters:
    return {"prefix": _text(key.namespace), "key": key.key}


def _text(namespace: Namespace) -> str:
    """A namespace as LangGraph's stores write it."""
    return ".".join(namespace)
