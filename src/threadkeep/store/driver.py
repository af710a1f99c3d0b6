"""The interface through which stores use a database, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from threadkeep.errors import InvalidInput, StoreClosed, StoreError, StoreUnavailable
from threadkeep.records import Message, Receipt, Turn

type Backend = Literal["sqlite", "postgres"]
type Parameters = Mapping[str, object]
type Row = tuple[Any, ...]
type Statement = tuple[str, Parameters]


GROUP_LOCK_SECONDS = 0.5
"""The seconds for which a write for many sessions waits for a row that another transaction has locked."""


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def waiting_until(moment: float | None) -> Iterator[None]:
    """Let calls in the block wait for connections and locks only until `moment`, a value of `time.monotonic()`.

    A call that has no connection or lock by then raises `StoreUnavailable` and has written nothing. A statement that
    has begun is not interrupted. Tasks created in the block have the same limit. If `moment` is None, only the driver's
    own timeouts apply.
    """
    token = _deadline.set(moment)
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float | None:
    """Return the seconds that a database call may still wait, at least 0, or None if there is no limit."""
    moment = _deadline.get()
    return None if moment is None else max(moment - time.monotonic(), 0.0)


def unstorable_text() -> InvalidInput:
    """Return the error for a text with a character that databases cannot store (NUL, or half of a surrogate pair)."""
    return InvalidInput("A text has a NUL character or half of a surrogate pair, which no database stores; remove it.")


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise `StoreClosed` if the running event loop is not the database's `loop`. Its calls could wait forever."""
    if asyncio.get_running_loop() is not loop:
        raise StoreClosed(
            "This memory is closed, or was opened on another event loop; use it on the loop and in the block of its "
            "`async with open_memory(...)`, or call the blocking methods of open_memory_sync's memory."
        )


class TurnRefused(StoreError):
    """A turn cannot be stored in one transaction with the caller's statements; nothing was stored."""


class DuplicateRow(StoreError):
    """A row violates a unique constraint; the transaction is rolled back."""


class RightsMissing(StoreError):
    """The role of a PostgreSQL database lacks a right on a table or on its schema; the message names it."""


class RowLocked(StoreUnavailable):
    """Another transaction kept a row locked for too long, or a deadlock occurred; writes to other rows may succeed."""


class StatementCancelled(StoreUnavailable):
    """The server interrupted a statement, perhaps while it waited for a lock; the transaction is rolled back."""


class Appended(NamedTuple):
    """The result of `Driver.append`: each session's new `last_seq`, and rows of the statements `before` and `after`."""

    last_seqs: Mapping[str, int]
    before: Sequence[list[Row]] = ()
    after: Sequence[list[Row]] = ()


class NewTurns(NamedTuple):
    """A group of new turns, to be stored with statements that are executed `before` and `after` them.

    - `sessions`: the parameters of the statement `reserve` for each session, in ascending order of `session_id`.
    - `messages`: the parameters of `insert_message`. Instead of `seq`, they have `behind`, the number of later messages
      of the session in this group, and `question`, the id of the message that the turn answers, or None.
    - `graph_turns`: the parameters of `add_graph_turn`, with `first_behind` and `last_behind` instead of `seq` values.
    """

    sessions: Sequence[Parameters]
    messages: Sequence[Parameters]
    graph_turns: Sequence[Parameters] = ()
    before: Sequence[Statement] = ()
    after: Sequence[Statement] = ()


class Joined(NamedTuple):
    """Statements for the transaction that stores a turn, executed `before` and `after` its messages are stored.

    With `supersedes_after`, the transaction first supersedes the session's active messages after this `seq`.
    """

    before: Sequence[Statement] = ()
    after: Sequence[Statement] = ()
    supersedes_after: int | None = None


@dataclass
class PreparedTurn:
    """A turn that is ready to be stored, with its cleaned messages and their columns.

    If `is_joined`, the turn is stored in one transaction with the statements `before` and `after`, or not at all;
    `rows` then contains the rows that these statements returned.
    """

    turn: Turn
    messages: list[Message]
    columns: list[dict[str, object]]
    now: str
    cleaned: tuple[str, ...] = ()
    before: Sequence[Statement] = ()
    after: Sequence[Statement] = ()
    rows: list[list[Row]] = field(default_factory=list)
    stored: asyncio.Future[Receipt] = field(default_factory=asyncio.Future)
    is_joined: bool = False

    def receipt(self, first_seq: int, count: int) -> Receipt:
        """Return the receipt of the turn. Its `count` messages are stored from `first_seq` on."""
        return Receipt(
            first_seq=first_seq,
            last_seq=first_seq + count - 1,
            cleaned=self.cleaned,
            ids=tuple([str(message.id) for message in self.messages]),
        )


class Connection(Protocol):
    """A connection that is valid only in the block that lends it. Statements refer to parameters as `:name`.

    Raises `StoreUnavailable` if the database does not answer, is full or read-only, or is locked for longer than the
    timeout, and `DuplicateRow` if a unique constraint is violated.
    """

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """Return all rows of a statement."""

    async def execute(self, sql: str, parameters: Parameters) -> int:
        """Execute a statement; return the number of changed rows."""

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements in order and in one round trip; return the rows of each statement."""

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Execute a statement once for each row of parameters."""


class Transaction(Protocol):
    """A write transaction with few round trips: BEGIN is sent with the first statements, COMMIT with the last ones.

    Raises the errors of a connection. Without a commit, the transaction is rolled back.
    """

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements in one round trip; return the rows of each statement."""

    async def commit(self, statements: Sequence[Statement], beside: Sequence[Statement] = ()) -> list[list[Row]]:
        """Execute `statements`, then `beside`, and commit, in one round trip; return the rows of each statement.

        On PostgreSQL, the statements `beside` wait at most `GROUP_LOCK_SECONDS` for a lock.
        """


class Driver(Protocol):
    """An open database.

    `reading()` lends a connection for single statements. `writing()` lends a connection inside a write transaction,
    which is durable when the block ends, and rolled back when the block raises an error. SQLite locks the database when
    the transaction begins. On PostgreSQL, the transaction raises `RowLocked` after it has waited `lock_timeout_seconds`
    for one lock; None means the timeout in the options. On both databases, a timeout of 0 means no limit.
    """

    loop: asyncio.AbstractEventLoop  # the loop that opened the database

    @property
    def backend(self) -> Backend:
        """The name of the database system."""

    async def check_file(self) -> None:
        """Check that the path of a SQLite database still names the file that was opened.

        Raises:
            DatabaseFileReplaced: the file was removed or replaced.
        """

    def reading(self) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for reading, for one block."""

    def writing(self, *, lock_timeout_seconds: float | None = None) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection inside a write transaction, for one block."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Lend a write transaction for one block; it takes its locks with its first statements."""

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """Execute a single statement that only reads; return its rows."""
        async with self.reading() as connection:
            return await connection.fetch(sql, parameters)

    async def write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements in one transaction, which is repeated once after a deadlock; return each one's rows."""
        try:
            async with self.transaction() as transaction:
                return await transaction.commit(statements)
        except RowLocked as error:
            if not error.interrupted:
                raise
        async with self.transaction() as transaction:
            return await transaction.commit(statements)

    async def append(self, turns: NewTurns) -> Appended:
        """Store a group of new turns in one write transaction, with as few round trips as possible.

        A session of another user is skipped. If a message exists already, or if the message that a turn answers is
        missing, nothing is stored and `DuplicateRow` is raised. If another transaction has locked a session,
        `RowLocked` is raised after a short wait.
        """

    async def close(self) -> None:
        """Close every connection."""


_RARE_IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class StoreOptions:
    """Options for opening a database. Times are in seconds.

    - `synchronous`: SQLite's PRAGMA. With FULL, every acknowledged turn survives a power cut. With NORMAL, a power cut
      may lose the last turns, but a crash of the process loses none.
    - `key`: 64 hexadecimal digits, with which SQLCipher (the extra `sqlcipher`) encrypts SQLite files.
    - `partitions`: the number of message partitions in a new PostgreSQL database.
    - `waits_for_server`: True to retry for `pool_timeout_seconds` if a PostgreSQL server cannot be reached yet.
    """

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    lock_timeout_seconds: float = 10.0
    pool_min_size: int = 1
    pool_max_size: int = 5
    pool_timeout_seconds: float = 30.0
    pool_max_idle_seconds: float = 300.0
    partitions: int | None = None
    waits_for_server: bool = False
    key: str | None = field(default=None, repr=False)

    def for_rare_use(self) -> StoreOptions:
        """Return a copy of the options for a pool that keeps no connections while it is not used."""
        return replace(self, pool_min_size=0, pool_max_idle_seconds=min(self.pool_max_idle_seconds, _RARE_IDLE_SECONDS))
