"""What the stores ask of a database: a few verbs, the same on both engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from threadkeep.errors import StoreError, StoreUnavailable

type Backend = Literal["sqlite", "postgres"]
type Parameters = Mapping[str, object]
type Row = tuple[Any, ...]
type Statement = tuple[str, Parameters]


GROUP_LOCK_SECONDS = 0.5
"""How long what concerns many sessions waits for a row that somebody else has locked."""


class DuplicateRow(StoreError):
    """A unique constraint refused a row; the transaction is rolled back."""


class RowLocked(StoreUnavailable):
    """Somebody else's transaction kept a row locked for too long; others' rows may be free."""


class Connection(Protocol):
    """One connection, inside the block that lent it. Statements name their parameters `:name`.

    Raises `StoreUnavailable` when the database does not answer, is locked beyond its timeout, full or read-only, and
    `DuplicateRow` when a unique constraint is broken.
    """

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """All rows of a statement."""
        ...

    async def execute(self, sql: str, parameters: Parameters) -> int:
        """Run a statement; answers the number of rows it changed."""
        ...

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """All rows of each of some statements, with one wait for all; each sees what those before it did."""
        ...

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Run a statement once for each row of parameters."""
        ...


class Driver(Protocol):
    """A database, open.

    `reading()` lends a connection for single statements. `writing()` lends one inside a transaction that takes its
    write lock at once, is durable when the block ends, and rolled back when the block raises. On PostgreSQL it raises
    `RowLocked` after `lock_timeout_seconds` of waiting for one lock: those of the options if it is None. 0 is for ever,
    on either engine.
    """

    @property
    def backend(self) -> Backend:
        """Which engine this is."""
        ...

    def reading(self) -> AbstractAsyncContextManager[Connection]:
        """A connection to read from."""
        ...

    def writing(self, *, lock_timeout_seconds: float | None = None) -> AbstractAsyncContextManager[Connection]:
        """A connection inside a write transaction."""
        ...

    async def write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """All rows of each of some statements, which are a write transaction together, with one wait for all."""
        ...

    async def append(self, sessions: Sequence[Parameters], messages: Sequence[Parameters]) -> list[Row]:
        """Store a group of new turns in one write transaction, with as few waits as the engine allows.

        Args:
            sessions: the parameters of the statement `reserve`, in ascending order of `session_id`, each one once.
            messages: those of `insert_message`, but with `behind` in place of `seq`: how many messages of its session
                in this group follow a message; and with `answers`, the id of what its turn answers, or None.

        Answers `session_id` and the new `last_seq` of each session; another user's session is left out, with its
        messages. When a message's id is there already, or what a turn answers is not, `DuplicateRow` is raised and
        nothing is stored; and so is `RowLocked`, soon, when somebody else has locked one of the sessions.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


@dataclass(frozen=True)
class StoreOptions:
    """How a database is opened. Times in seconds.

    `synchronous` is SQLite's: FULL survives a power cut with every acknowledged turn, NORMAL may lose the last ones
    then (never by a crash of the process).
    """

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    lock_timeout_seconds: float = 10.0
    pool_min_size: int = 1
    pool_max_size: int = 10
    pool_timeout_seconds: float = 30.0
    pool_max_idle_seconds: float = 300.0
