"""Databases that take nothing for a while."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection holds the write lock of a SQLite file inside the block."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@asynccontextmanager
async def locked_meanwhile(path: Path) -> AsyncIterator[None]:
    """The same for a test in an event loop, which has to run while the lock is waited for."""
    lock = locked(path)
    await asyncio.to_thread(lock.__enter__)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


class Outage:
    """A database in a SQLite file that can be taken away: `async with outage():`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """The database takes no writes inside the block."""
        async with locked_meanwhile(self.path):
            yield
