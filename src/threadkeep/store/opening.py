"""Opening of a database by its address; an engine's library is imported only when it is used."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.private_files import make_private_folder


@asynccontextmanager
async def open_database(
    address: DatabaseAddress, options: StoreOptions, *, read_only: bool = False
) -> AsyncIterator[Driver]:
    """Open a database without migrating its schema.

    With `read_only` nothing can be written, and a SQLite file has to exist.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    driver = await _open_driver(address, options, read_only=read_only)
    try:
        yield driver
    finally:
        await driver.close()


async def _open_driver(address: DatabaseAddress, options: StoreOptions, *, read_only: bool) -> Driver:
    if address.dsn is not None:
        from threadkeep.store.postgres import PostgresDriver

        return await PostgresDriver.open(address.dsn, options, read_only=read_only)
    from threadkeep.store.sqlite import SqliteDriver

    if address.path is not None and not read_only:
        with contextlib.suppress(OSError):  # opening the file reports the error, with the cure
            make_private_folder(address.path.parent)
    return SqliteDriver(address.path, options, read_only=read_only, memory_name=address.memory_name)
