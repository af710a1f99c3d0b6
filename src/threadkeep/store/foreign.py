"""Databases of other systems, opened for reading: nothing is changed, and no code named in them is executed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, Row, StoreOptions
from threadkeep.store.opening import open_database
from threadkeep.store.statements import load_statements

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

_OPTIONS = StoreOptions(pool_max_size=2, pool_timeout_seconds=10.0)


class ForeignDatabase:
    """The tables of another system."""

    def __init__(self, driver: Driver, columns: Mapping[str, frozenset[str]]) -> None:
        self._driver = driver
        self._sql = load_statements("foreign.sql")
        self.columns = columns

    async def rows(self, statement: str, **parameters: object) -> list[Row]:
        """Return the rows of a statement of `foreign.sql`."""
        async with self._driver.reading() as connection:
            return await connection.fetch(self._sql[statement], parameters)


@asynccontextmanager
async def open_foreign(address: DatabaseAddress) -> AsyncIterator[ForeignDatabase]:
    """Open a database of another system.

    Raises:
        StoreUnavailable: the database does not answer, or the file is no database.
    """
    async with open_database(address, _OPTIONS, read_only=True) as driver:
        async with driver.reading() as connection:
            rows = await connection.fetch(load_statements("foreign.sql")[f"columns_{driver.backend}"], {})
        tables: dict[str, set[str]] = {}
        for table, column in rows:
            tables.setdefault(table, set()).add(column)
        yield ForeignDatabase(driver, {table: frozenset(names) for table, names in tables.items()})


@asynccontextmanager
async def open_foreign_checkpoints(
    address: DatabaseAddress, columns: Mapping[str, frozenset[str]]
) -> AsyncIterator[BaseCheckpointSaver[str]]:
    """Open the checkpoints of a database of another system, as LangGraph's own savers read them."""
    if address.dsn is not None:
        from threadkeep.store.postgres import open_dict_pool
        from threadkeep.store.postgres_checkpointer import PostgresCheckpointer

        async with open_dict_pool(address.dsn, _OPTIONS) as pool:
            yield PostgresCheckpointer(conn=pool, serde=StrictSerializer())
        return
    from threadkeep.store.sqlite import open_sqlite
    from threadkeep.store.sqlite_checkpointer import SqliteCheckpointer

    async with open_sqlite(address.path, _OPTIONS, read_only=True) as raw:
        saver = SqliteCheckpointer(raw, serde=StrictSerializer())
        # `setup` would write.
        saver.is_setup = True
        saver._has_task_path = "task_path" in columns["writes"]  # noqa: SLF001 - `setup` would have found it out
        yield saver


class StrictSerializer:
    """A serializer of checkpoints that creates messages and plain values, and no object by its import path.

    Objects of other classes stay the values from which they would be created.
    """

    def __init__(self) -> None:
        from langchain_core.load.load import Reviver
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

        self._revive = Reviver(allowed_objects="messages")
        # None allows LangGraph's own list of safe types, whatever the environment says.
        self._strict = JsonPlusSerializer(allowed_msgpack_modules=None)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return a value as bytes, with the name of their format."""
        return self._strict.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value of bytes in a format.

        Raises:
            NotImplementedError: the format is unknown, such as that of encrypted checkpoints.
        """
        kind, raw = data
        return json.loads(raw, object_hook=self._from_json) if kind == "json" else self._strict.loads_typed(data)

    def _from_json(self, value: dict[str, Any]) -> Any:
        if value.get("lc") != 1:
            return value
        try:
            return self._revive(value)
        except (ValueError, NotImplementedError):
            return value
