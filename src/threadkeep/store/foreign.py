"""Databases of other systems, opened for reading: nothing is changed, and no code named in them is executed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, Row, StoreOptions
from threadkeep.store.opening import open_database
from threadkeep.store.statements import load_statements

FOREIGN_OPTIONS = StoreOptions(pool_max_size=2, pool_timeout_seconds=10.0)


class ForeignDatabase:
    """The tables of another system."""

    def __init__(self, driver: Driver, columns: Mapping[str, frozenset[str]]) -> None:
        self._driver = driver
        self._sql = load_statements("foreign.sql")
        self.columns = columns

    async def rows(self, statement: str, **parameters: object) -> list[Row]:
        """Return the rows of a statement of `foreign.sql`."""
        return await self._driver.fetch(self._sql[statement], parameters)


@asynccontextmanager
async def open_foreign(address: DatabaseAddress) -> AsyncIterator[ForeignDatabase]:
    """Open a database of another system.

    Raises:
        StoreUnavailable: the database does not answer, or the file is no database.
    """
    async with open_database(address, FOREIGN_OPTIONS, read_only=True) as driver:
        rows = await driver.fetch(load_statements("foreign.sql")[f"columns_{driver.backend}"], {})
        tables: dict[str, set[str]] = {}
        for table, column in rows:
            tables.setdefault(table, set()).add(column)
        yield ForeignDatabase(driver, {table: frozenset(names) for table, names in tables.items()})
