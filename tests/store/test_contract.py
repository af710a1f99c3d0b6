"""The contract of transcripts on every database engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tests.databases import migrated_driver
from threadkeep.context.tokens import estimate
from threadkeep.store.tables import TableTranscripts
from threadkeep.store.transcripts import Transcripts
from threadkeep.testing import TranscriptContract


class TableContract(TranscriptContract):
    """The contract on SQL tables; a subclass names the database."""

    url: str

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Open transcripts in a new database, and close them as an application does."""
        async with migrated_driver(self.url) as driver:
            transcripts = TableTranscripts(driver, count=estimate, clock=moving_clock())
            yield transcripts
            await transcripts.close()


class TestSqliteFile(TableContract):
    """The contract on a SQLite file."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """Set the URL of a new file."""
        self.url = sqlite_url


class TestSqliteMemory(TableContract):
    """The contract on SQLite in memory."""

    url = "sqlite://"


class TestPostgres(TableContract):
    """The contract on PostgreSQL."""

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        """Set the URL of a new database."""
        self.url = postgres_url


@pytest.mark.slow
class TestPartitionedPostgres(TableContract):
    """The contract on PostgreSQL with messages in partitions."""

    @pytest.fixture(autouse=True)
    def database(self, partitioned_url: str) -> None:
        """Set the URL of a new partitioned database."""
        self.url = partitioned_url


def moving_clock() -> Callable[[], datetime]:
    """Return a clock that advances by one second at each call."""
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def clock() -> datetime:
        nonlocal now
        now += timedelta(seconds=1)
        return now

    return clock
