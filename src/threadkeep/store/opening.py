"""Opens a database by its address; each engine's library is imported only when it is used."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, StoreOptions


@asynccontextmanager
async def open_database(address: DatabaseAddress, options: StoreOptions) -> AsyncIterator[Driver]:
    """Open a database as it is, without bringing its schema up to date: for those who look before they act.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    driver = await _open_driver(address, options)
    try:
        yield driver
    finally:
        await driver.close()


async def _open_driver(address: DatabaseAddress, options: StoreOptions) -> Driver:
    if address.dsn is not None:
        from threadkeep.store.postgres import PostgresDriver

        return await PostgresDriver.open(address.dsn, options)
    from threadkeep.store.sqlite import SqliteDriver

    if address.path is not None:
        with contextlib.suppress(OSError):  # opening the file tells what is wrong, with the cure
            address.path.parent.mkdir(parents=True, exist_ok=True)
    return SqliteDriver(address.path, options)
