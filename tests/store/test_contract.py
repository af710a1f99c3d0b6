"""The contract of transcripts on every database that Threadkeep brings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from threadkeep.context.tokens import estimate
from threadkeep.store.address import parse_address
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.migrations import migrate
from threadkeep.store.postgres import PostgresDriver
from threadkeep.store.sqlite import SqliteDriver
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import Transcripts
from threadkeep.testing import TranscriptContract


class TableContract(TranscriptContract):
    """The contract on SQL tables; the database is named by the class below."""

    url: str

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Transcripts in a new database, closed in the order in which an application does."""
        driver = await _open_driver(self.url)
        clock = moving_clock()
        try:
            await migrate(driver, clock())
            transcripts = TableTranscripts(driver, count=estimate, clock=clock)
            yield transcripts
            await transcripts.close()
        finally:
            await driver.close()


class TestSqliteFile(TableContract):
    """On a SQLite file."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """A file of the test's own."""
        self.url = sqlite_url


class TestSqliteMemory(TableContract):
    """On SQLite in memory."""

    url = "sqlite://"


class TestPostgres(TableContract):
    """On PostgreSQL."""

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        """A database of the test's own."""
        self.url = postgres_url


@pytest.mark.slow
class TestPartitionedPostgres(TableContract):
    """On PostgreSQL with messages in partitions."""

    @pytest.fixture(autouse=True)
    def database(self, partitioned_url: str) -> None:
        """A database of the test's own."""
        self.url = partitioned_url


async def _open_driver(url: str) -> Driver:
    address = parse_address(url)
    if address.dsn is not None:
        return await PostgresDriver.open(address.dsn, StoreOptions())
    return SqliteDriver(address.path, StoreOptions())


def moving_clock() -> Callable[[], datetime]:
    """A clock that is a second later at every look."""
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def clock() -> datetime:
        nonlocal now
        now += timedelta(seconds=1)
        return now

    return clock
