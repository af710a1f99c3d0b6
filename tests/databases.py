"""Direct access to databases, through a driver or through the libraries of the engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime

import psycopg

from tests.memory_schema import open_prepared
from threadkeep.store.address import parse_address
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.migrations import migrate
from threadkeep.store.postgres import PostgresDriver
from threadkeep.store.sqlite import SqliteDriver
from threadkeep.store.sqlite_connection import connect


@asynccontextmanager
async def driver_of(url: str) -> AsyncIterator[Driver]:
    """Open a driver without a memory."""
    address = parse_address(url)
    driver: Driver
    if address.dsn is not None:
        driver = await PostgresDriver.open(address.dsn, StoreOptions())
    else:
        driver = SqliteDriver(address.path, StoreOptions())
    try:
        yield driver
    finally:
        await driver.close()


@asynccontextmanager
async def migrated_driver(url: str) -> AsyncIterator[Driver]:
    """Open a driver over a database with Threadkeep's schema."""
    async with open_prepared(parse_address(url), StoreOptions()) as driver:
        await migrate(driver, datetime(2026, 1, 1, tzinfo=UTC))
        yield driver


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    """Return the rows of a statement, with the library of the engine."""
    address = parse_address(url)
    if address.dsn is not None:
        with psycopg.connect(address.dsn) as connection:
            return connection.execute(sql.encode()).fetchall()
    assert address.path is not None
    with closing(connect(address.path, StoreOptions().key)) as database:
        return database.execute(sql).fetchall()


def execute(url: str, sql: str) -> None:
    """Execute a statement with the library of the engine."""
    address = parse_address(url)
    if address.dsn is not None:
        with psycopg.connect(address.dsn, autocommit=True) as connection:
            connection.execute(sql.encode())
        return
    assert address.path is not None
    with closing(connect(address.path, StoreOptions().key)) as database, database:
        database.execute(sql)
