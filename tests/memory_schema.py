"""The schema of databases in memory: created once in a test process, and copied for each of its databases."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime

from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.migrations import migrate, schema_version
from threadkeep.store.opening import open_database
from threadkeep.store.sqlite import SqliteDriver

type OpenDatabase = Callable[[DatabaseAddress, StoreOptions], AbstractAsyncContextManager[Driver]]

_TEMPLATE = "threadkeep-tests-template"


@contextmanager
def copying_schema() -> Iterator[OpenDatabase]:
    """Yield a function that opens databases and copies the schema into those in memory.

    A copy takes 1 ms, the migrations take 12 ms.
    """

    @asynccontextmanager
    async def opened(address: DatabaseAddress, options: StoreOptions) -> AsyncIterator[Driver]:
        async with open_database(address, options) as driver:
            if address.memory_name is not None and await schema_version(driver) == 0:
                with closing(_connected(_TEMPLATE)) as template, closing(_connected(address.memory_name)) as copy:
                    template.backup(copy)
            yield driver

    # The template exists as long as a connection to it.
    with closing(_connected(_TEMPLATE)):
        asyncio.run(_migrate())
        yield opened


async def _migrate() -> None:
    driver = SqliteDriver(None, StoreOptions(), memory_name=_TEMPLATE)
    try:
        await migrate(driver, datetime.now(UTC))
    finally:
        await driver.close()


def _connected(name: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:/{name}?vfs=memdb", uri=True)
