"""The contenders: one interface for Threadkeep, raw SQL and the memories of other frameworks."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, cast

type Engine = Literal["sqlite", "postgres"]
type Kind = Literal["ours", "raw", "session", "saver", "framework"]
type Measure = Literal["append", "tail", "throughput"]

ENGINES: tuple[Engine, ...] = ("sqlite", "postgres")


class TurnTexts(NamedTuple):
    """The texts of one turn."""

    user: str
    assistant: str


class Conversation(Protocol):
    """A session of a contender."""

    async def append(self, turn: TurnTexts) -> None:
        """Store a turn of two messages; durable when this returns."""
        ...

    async def tail(self, limit: int) -> Sequence[object]:
        """Return the newest messages, oldest first, in the form that the contender's users get."""
        ...


class Contender(Protocol):
    """An open memory with its database."""

    def conversation(self, session_id: str) -> AbstractAsyncContextManager[Conversation]:
        """Open a session to append to and read from."""
        ...

    async def fill(self, session_id: str, turns: Sequence[TurnTexts]) -> None:
        """Store many turns in an empty session; this is never measured."""
        ...

    async def settle(self) -> None:
        """Finish deferred work now, so that it does not run during the measurement of the next contender."""
        ...


class OneByOne:
    """A base class of contenders that store one turn at a time, and defer no work."""

    def conversation(self, session_id: str) -> AbstractAsyncContextManager[Conversation]:
        """Open a session to append to and read from."""
        raise NotImplementedError

    async def fill(self, session_id: str, turns: Sequence[TurnTexts]) -> None:
        """Store many turns, one after the other."""
        async with self.conversation(session_id) as conversation:
            for turn in turns:
                await conversation.append(turn)

    async def settle(self) -> None:
        """Do nothing, because no work is deferred."""


@dataclass(frozen=True)
class Place:
    """The location of a contender's data: a new folder, and on PostgreSQL a new database."""

    folder: Path
    dsn: str | None = None

    @property
    def file(self) -> Path:
        """The file of its SQLite database."""
        return self.folder / "bench.db"

    @property
    def url(self) -> str:
        """The database as a URL for Threadkeep."""
        return self.dsn or f"sqlite:///{self.file}"


@dataclass(frozen=True)
class Entry:
    """A contender: its name, its kind, and the function that opens it on each engine.

    The packages of the kind `framework` are only in the environment of `make peers`.

    A function is named by `module:function` and loaded when it is needed, so that a missing package excludes only its
    own contenders. `measures` lists the measures in which the contender takes part; `data_of` names an entry with which
    it shares a database.
    """

    name: str
    title: str
    kind: Kind
    opens: dict[Engine, str]
    measures: tuple[Measure, ...] = ("append", "tail", "throughput")
    data_of: str | None = None

    def open(self, engine: Engine, place: Place) -> AbstractAsyncContextManager[Contender]:
        """Open the contender at a place.

        Raises:
            ImportError: its package is not installed.
        """
        module, _, function = self.opens[engine].partition(":")
        opener = getattr(importlib.import_module(module), function)
        return cast("Callable[[Place], AbstractAsyncContextManager[Contender]]", opener)(place)


FIELD: tuple[Entry, ...] = (
    Entry(
        "threadkeep",
        "Threadkeep",
        "ours",
        {"sqlite": "bench.threadkeep_memory:open_memory_here", "postgres": "bench.threadkeep_memory:open_memory_here"},
    ),
    Entry(
        "raw",
        "raw SQL, a dict a message",
        "raw",
        {"sqlite": "bench.raw_sqlite:open_dicts", "postgres": "bench.raw_postgres:open_dicts"},
    ),
    Entry(
        "raw-tuples",
        "raw SQL, tuples as they come",
        "raw",
        {"sqlite": "bench.raw_sqlite:open_tuples", "postgres": "bench.raw_postgres:open_tuples"},
        measures=("tail",),
        data_of="raw",
    ),
    Entry(
        "raw-16",
        "raw SQL, 16 connections",
        "raw",
        {"postgres": "bench.raw_postgres:open_many_connections"},
        measures=("throughput",),
        data_of="raw",
    ),
    Entry(
        "agents-async-sqlite",
        "OpenAI Agents AsyncSQLiteSession",
        "session",
        {"sqlite": "bench.openai_agents:open_async_sqlite"},
    ),
    Entry("agents-sqlite", "OpenAI Agents SQLiteSession", "session", {"sqlite": "bench.openai_agents:open_sqlite"}),
    Entry(
        "agents-sqlalchemy",
        "OpenAI Agents SQLAlchemySession",
        "session",
        {"sqlite": "bench.openai_agents:open_sqlalchemy", "postgres": "bench.openai_agents:open_sqlalchemy"},
    ),
    Entry(
        "langgraph-saver",
        "LangGraph saver, MessagesState",
        "saver",
        {"sqlite": "bench.langgraph_saver:open_sqlite_saver", "postgres": "bench.langgraph_saver:open_postgres_saver"},
    ),
    Entry("google-adk", "Google ADK DatabaseSessionService", "framework", {"sqlite": "bench.google_adk:open_sqlite"}),
    Entry("agno", "agno AsyncSqliteDb", "framework", {"sqlite": "bench.agno_sessions:open_sqlite"}),
    Entry("llama-index", "LlamaIndex Memory", "framework", {"sqlite": "bench.llama_index:open_sqlite"}),
)


def write_ahead(file: Path) -> None:
    """Create a SQLite file in WAL mode, for contenders that do not set the mode themselves."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
