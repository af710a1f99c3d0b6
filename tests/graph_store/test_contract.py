"""The contract of transcripts in LangGraph's stores: any one through its interface, and our two by their table."""

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
from threadkeep.store.backend import BackendDependencies
from threadkeep.store.driver import StoreOptions
from threadkeep.store.transcripts import Transcripts
from threadkeep.testing import TranscriptContract


class TestAnyStore(TranscriptContract):
    """On a store of which nothing is known but LangGraph's interface."""

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Transcripts in a new store in memory."""
        yield transcripts_of(StoreItems(InMemoryStore()))


class TestSmallChunks(TranscriptContract):
    """With three messages in a chunk, so that most laws are about several chunks."""

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Transcripts in a new store in memory."""
        yield transcripts_of(StoreItems(InMemoryStore()), GraphLayout(chunk_size=3))


class TableContract(TranscriptContract):
    """The contract on the table of a graph store; the database is named by the class below."""

    url: str

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Transcripts in a new graph store."""
        async with graph_transcripts(self.url) as transcripts:
            yield transcripts


class TestSqlite(TableContract):
    """On a SQLite file."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """A file of the test's own."""
        self.url = sqlite_url


class TestPostgres(TableContract):
    """On PostgreSQL."""

    @pytest.fixture(autouse=True)
    def database(self, empty_postgres_url: str) -> None:
        """A database of the test's own."""
        self.url = empty_postgres_url


class TestSqliteThroughItsInterface(TranscriptContract):
    """LangGraph's own SQLite store as any other: its batches are transactions."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """A file of the test's own."""
        self.url = sqlite_url

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Transcripts in a new store."""
        async with open_store(self.url) as store:
            yield transcripts_of(StoreItems(store))


class IndexedContract(TranscriptContract):
    """The contract with rows in our tables that follow; the database is named by the class below."""

    url: str

    @asynccontextmanager
    async def open_transcripts(self) -> AsyncIterator[Transcripts]:
        """Transcripts as a memory keeps them in a graph store."""
        address = parse_address(self.url)
        async with migrated_driver(self.url) as driver:
            dependencies = BackendDependencies(driver, estimate, moving_clock(), _told)
            async with open_graph_backend(dependencies, address, own=address, options=StoreOptions()) as kept:
                yield kept.transcripts


class TestIndexedOnSqlite(IndexedContract):
    """On a SQLite file."""

    @pytest.fixture(autouse=True)
    def database(self, sqlite_url: str) -> None:
        """A file of the test's own."""
        self.url = sqlite_url


class TestIndexedInMemory(IndexedContract):
    """With tables and store in memory."""

    url = "sqlite://"


class TestIndexedOnPostgres(IndexedContract):
    """On PostgreSQL."""

    @pytest.fixture(autouse=True)
    def database(self, postgres_url: str) -> None:
        """A database of the test's own."""
        self.url = postgres_url


def _told(backend: str, session_id: str, error: Exception) -> None:
    raise AssertionError(f"nothing is to go wrong here: {error}")
