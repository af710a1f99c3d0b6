"""The contract of transcripts in LangGraph stores: through the interface of any store, and through our tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from langgraph.store.memory import InMemoryStore

from tests.databases import migrated_driver
from tests.graph_store.opening import graph_transcripts, moving_clock, open_store, transcripts_of
from threadkeep.context.tokens import estimate
from threadkeep.graph_store.foreign import StoreItems
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.graph_store.opening import open_graph_backend
from threadkeep.store.address import parse_address
from threadkeep.store.driver import StoreOptions
from threadkeep.store.transcripts import Transcripts
from threadkeep.testing import TranscriptContract


class TestAnyStore(TranscriptContract):
    """The contract on a store that has only LangGraph's interface."""

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Open transcripts in a new store in memory."""
        yield transcripts_of(StoreItems(InMemoryStore()))


class TestSmallChunks(TranscriptContract):
    """The contract with three messages per chunk, so that most guarantees span several chunks."""

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Open transcripts in a new store in memory."""
        yield transcripts_of(StoreItems(InMemoryStore()), GraphLayout(chunk_size=3))


class TableContract(TranscriptContract):
    """The contract on the table of a graph store; a subclass names the database."""

    url: str

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Open transcripts in a new graph store, and close it after the block."""
        async with graph_transcripts(self.url) as transcripts:
            yield transcripts


class TestSqlite(TableContract):
    """The contract on a SQLite file."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """Set the URL of a new file."""
        self.url = sqlite_url


class TestPostgres(TableContract):
    """The contract on PostgreSQL."""

    @pytest.fixture(autouse=True)
    def database(self, empty_postgres_url: str) -> None:
        """Set the URL of a new database."""
        self.url = empty_postgres_url


class TestSqliteThroughItsInterface(TranscriptContract):
    """The contract on LangGraph's SQLite store through its interface; its batches are transactions."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """Set the URL of a new file."""
        self.url = sqlite_url

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Open transcripts in a new store, and close it after the block."""
        async with open_store(self.url) as store:
            yield transcripts_of(StoreItems(store))


class IndexedContract(TranscriptContract):
    """The contract with index rows in our tables; a subclass names the database."""

    url: str

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Open transcripts as a memory keeps them in a graph store."""
        address = parse_address(self.url)
        async with migrated_driver(self.url) as driver:
            opening = open_graph_backend(
                driver,
                address,
                own=address,
                options=StoreOptions(),
                count=estimate,
                clock=moving_clock(),
                troubled=_told,
            )
            async with opening as kept:
                yield kept.transcripts


class TestIndexedOnSqlite(IndexedContract):
    """The contract with index rows on a SQLite file."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """Set the URL of a new file."""
        self.url = sqlite_url


class TestIndexedInMemory(IndexedContract):
    """The contract with tables and store in memory."""

    url = "sqlite://"


class TestIndexedOnPostgres(IndexedContract):
    """The contract with index rows on PostgreSQL."""

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        """Set the URL of a new database."""
        self.url = postgres_url


def _told(backend: str, session_id: str, error: Exception) -> None:
    raise AssertionError(f"unexpected failure: {error}")
