"""The schema of SQLite databases: created once in a test process, and copied for each new database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from threadkeep import MemoryOptions
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.migrations import migrate, schema_version
from threadkeep.store.opening import open_database
from threadkeep.store.sqlite import SqliteDriver

_TEMPLATE = "threadkeep-tests-template"
_files: list[Path] = []


@contextmanager
def schema_templates(file: Path) -> Iterator[None]:
    """Keep the templates that `open_prepared` copies: this file, and a database in memory."""
    # A database in memory exists as long as a connection to it.
    with closing(_connected(_TEMPLATE)):
        asyncio.run(_migrate())
        _files.append(file)
        yield
        _files.clear()


@asynccontextmanager
async def open_prepared(address: DatabaseAddress, options: StoreOptions) -> AsyncIterator[Driver]:
    """Open a database; copy the schema into a new SQLite database (1 ms), because migrating it takes 12 to 16 ms."""
    # Copy the file only for the default key, with which the template file is encrypted.
    if _files and address.path is not None and options.key == MemoryOptions().store.key:
        _copy_file(address.path)
    async with open_database(address, options) as driver:
        if _files and address.memory_name is not None and await schema_version(driver) == 0:
            with closing(_connected(_TEMPLATE)) as template, closing(_connected(address.memory_name)) as copy:
                template.backup(copy)
        yield driver


def _copy_file(path: Path) -> None:
    """Copy the template to a path unless the file exists or its folder does not; safe for concurrent processes."""
    # If the copy fails, the code under test creates the file or fails, as it does outside of tests.
    with contextlib.suppress(OSError):
        if path.exists() or not path.parent.is_dir():
            return
        copy = Path(shutil.copy(_files[0], _files[0].with_name(uuid.uuid4().hex)))
        try:
            os.link(copy, path)
        finally:
            copy.unlink()


async def _migrate() -> None:
    driver = SqliteDriver(None, StoreOptions(), memory_name=_TEMPLATE)
    try:
        await migrate(driver, datetime.now(UTC))
    finally:
        await driver.close()


def _connected(name: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:/{name}?vfs=memdb", uri=True)
