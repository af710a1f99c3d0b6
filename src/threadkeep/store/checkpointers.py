"""LangGraph checkpointers on Threadkeep's database, and read-only checkpointers on databases of other systems."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from langchain_core.load.load import Reviver
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import StoreOptions
from threadkeep.store.opening import FOREIGN_OPTIONS, make_folder, one_at_a_time
from threadkeep.store.sqlite import RollbackLock, open_sqlite
from threadkeep.store.sqlite_connection import translated
from threadkeep.store.translating_saver import TranslatingSaver


class SqliteCheckpointer(TranslatingSaver, AsyncSqliteSaver):
    """LangGraph's checkpointer on SQLite; it raises Threadkeep's errors instead of SQLite's."""

    translated = translated


def open_checkpointer(
    address: DatabaseAddress, options: StoreOptions, *, types: Sequence[type] = ()
) -> AbstractAsyncContextManager[BaseCheckpointSaver[str]]:
    """Open a LangGraph checkpointer for `graph.compile(checkpointer=…)`; an application should open only one.

    While a graph runs, the checkpointer raises Threadkeep's errors, such as `StoreUnavailable`. It deserializes only
    `types` and the types that LangGraph calls safe, such as messages; values of other types stay plain data.
    """
    # Without `allowed_msgpack_modules`, LangGraph would import and call any function that a row names.
    return _opened(address, options, JsonPlusSerializer(allowed_msgpack_modules=list(types) or None))


def open_foreign_checkpoints(
    address: DatabaseAddress, columns: Mapping[str, frozenset[str]]
) -> AbstractAsyncContextManager[BaseCheckpointSaver[str]]:
    """Open the checkpoints in another system's database for reading. `columns` maps each table to its column names."""
    return _opened(address, FOREIGN_OPTIONS, StrictSerializer(), foreign=columns)


@asynccontextmanager
async def _opened(
    address: DatabaseAddress,
    options: StoreOptions,
    serde: SerializerProtocol,
    *,
    foreign: Mapping[str, frozenset[str]] | None = None,
) -> AsyncIterator[BaseCheckpointSaver[str]]:
    if address.dsn is not None:
        from threadkeep.store.postgres_checkpointer import open_postgres_saver  # it needs the extra `postgres`

        async with open_postgres_saver(address.dsn, options, serde, set_up=foreign is None) as postgres:
            yield postgres
        return
    if foreign is None:
        make_folder(address.path)
    # Use autocommit only for reading: to write, LangGraph's saver needs the transactions that `sqlite3` begins itself.
    async with open_sqlite(address.path, options, autocommit=foreign is not None, read_only=foreign is not None) as raw:
        saver = SqliteCheckpointer(raw, serde=serde)
        saver.lock = RollbackLock(raw)
        if foreign is None:
            async with one_at_a_time(address.path):
                with translated():
                    await saver.setup()
        else:
            # Skip `setup`, because it would write to the other system's database.
            saver.is_setup = True
            saver._has_task_path = "task_path" in foreign["writes"]  # noqa: SLF001 - `setup` would have detected this
        yield saver


class StrictSerializer:
    """A serializer of checkpoints that creates only messages and plain values, never objects by import path.

    For objects of other classes, it returns the values from which they would have been created.
    """

    def __init__(self) -> None:
        self._revive = Reviver(allowed_objects="messages")
        # None allows only LangGraph's own list of safe types, even if the environment allows all types.
        self._strict = JsonPlusSerializer(allowed_msgpack_modules=None)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the name of a format, and the value as bytes in this format."""
        return self._strict.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the deserialized value; `data` is a pair: the name of a format, and the value in this format.

        Raises:
            NotImplementedError: the format is unknown, such as the format of encrypted checkpoints.
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
