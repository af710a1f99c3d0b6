"""Databases that refuse writes for a while."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock of a SQLite file in another connection during the block."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@asynccontextmanager
async def locked_meanwhile(path: Path) -> AsyncIterator[None]:
    """Hold the lock in an event loop, which must run while the lock is waited for."""
    lock = locked(path)
    await asyncio.to_thread(lock.__enter__)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


class Outage:
    """A SQLite database that can refuse writes: `async with outage():`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """Refuse writes during the block."""
        async with locked_meanwhile(self.path):
            yield
