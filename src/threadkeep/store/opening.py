"""Functions that open databases. The library of a database system is imported only when such a database is opened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from threadkeep.boundary import of_extra
from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, Row, StoreOptions
from threadkeep.store.private_files import lock_at_once, make_private_file, make_private_folder
from threadkeep.store.statements import load_statements

SETUP_SECONDS: Final = 60.0
"""The seconds for which a process waits until another process has created LangGraph's tables."""

_POLL_SECONDS = 0.05


@asynccontextmanager
async def open_database(
    address: DatabaseAddress, options: StoreOptions, *, read_only: bool = False
) -> AsyncIterator[Driver]:
    """Open a database without migrating its schema.

    With `read_only`, nothing can be written, and a SQLite file must already exist.

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
        with of_extra("postgres"):
            from threadkeep.store.postgres import PostgresDriver
        return await PostgresDriver.open(address.dsn, options, read_only=read_only)
    from threadkeep.store.sqlite import SqliteDriver

    if not read_only:
        make_folder(address.path)
    return SqliteDriver(address.path, options, read_only=read_only, memory_name=address.memory_name)


def make_folder(path: Path | None) -> None:
    """Create the folder of a SQLite file, accessible only to this user."""
    if path is not None:
        with contextlib.suppress(OSError):  # opening the file will report the error with a cure
            make_private_folder(path.parent)


@asynccontextmanager
async def one_at_a_time(path: Path | None) -> AsyncIterator[None]:
    """Let one process at a time set up a SQLite file; raise `StoreUnavailable` after 60 seconds.

    The lock is on a separate file, because SQLite itself locks the database file during the setup.
    """
    if path is None:
        yield
        return
    make_private_file(lock := path.with_name(path.name + ".setup-lock"))
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + SETUP_SECONDS
        while not lock_at_once(descriptor):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    "Another process is still setting up this database; find out which one it is before you end it."
                )
            await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


FOREIGN_OPTIONS = StoreOptions(pool_max_size=2, pool_timeout_seconds=10.0)


class ForeignDatabase:
    """Read access to the tables of another system's database."""

    def __init__(self, driver: Driver, address: DatabaseAddress) -> None:
        self._driver = driver
        self._address = address
        self._sql = load_statements("foreign.sql")
        self.columns: Mapping[str, frozenset[str]] = {}

    async def rows(self, statement: str, **parameters: object) -> list[Row]:
        """Return the rows of a statement from `foreign.sql`."""
        if self._driver.backend == "sqlite":  # a text that is not UTF-8 can only be passed as bytes
            parameters = {name: str(text).encode("utf-8", "surrogateescape") for name, text in parameters.items()}
        try:
            return await self._driver.fetch(self._sql[statement], parameters)
        except StoreError as error:
            error.add_note(f"The error concerns the database to import, {self._address}.")
            raise


@asynccontextmanager
async def open_foreign(address: DatabaseAddress) -> AsyncIterator[ForeignDatabase]:
    """Open the database of another system for reading.

    Raises:
        StoreUnavailable: the database does not answer, or the file is not a database.
    """
    async with open_database(address, FOREIGN_OPTIONS, read_only=True) as driver:
        database, tables = ForeignDatabase(driver, address), dict[str, set[str]]()
        for table, column in await database.rows(f"columns_{driver.backend}"):
            tables.setdefault(table, set()).add(column)
        database.columns = {table: frozenset(names) for table, names in tables.items()}
        yield database
