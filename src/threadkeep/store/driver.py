"""The database interface of the stores: a few methods, the same on both engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from threadkeep.errors import InvalidInput, StoreError, StoreUnavailable
from threadkeep.records import Message, Receipt, Turn

type Backend = Literal["sqlite", "postgres"]
type Parameters = Mapping[str, object]
type Row = tuple[Any, ...]
type Statement = tuple[str, Parameters]


GROUP_LOCK_SECONDS = 0.5
"""Seconds that a write of many sessions waits for a row that another transaction has locked."""


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def waiting_until(moment: float | None) -> Iterator[None]:
    """Limit the time that calls in the block wait for connections and locks; `moment` is a monotonic time.

    A call that does not get them by then raises `StoreUnavailable` and has written nothing. A statement that has begun
    is not interrupted. Tasks created in the block have the same limit. With None, each call has only its own limit.
    """
    token = _deadline.set(moment)
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float | None:
    """Return the seconds that a call may wait, at least 0; None if there is no limit."""
    moment = _deadline.get()
    return None if moment is None else max(moment - time.monotonic(), 0.0)


def unstorable_text() -> InvalidInput:
    """Return the error for a parameter with a character that the engine cannot encode."""
    return InvalidInput("A text has a NUL character or half of a surrogate pair, which no database stores; remove it.")


class TurnRefused(StoreError):
    """A turn cannot be stored together with the statements that belong to it; nothing was stored."""


class DuplicateRow(StoreError):
    """A row violates a unique constraint; the transaction is rolled back."""


class RowLocked(StoreUnavailable):
    """Another transaction kept a row locked for too long; other rows may be free."""


class StatementCancelled(StoreUnavailable):
    """The server interrupted a statement, perhaps while it waited for a locked row; the transaction is rolled back."""


class Appended(NamedTuple):
    """The new `last_seq` of each session, and the rows that the statements before and after the messages returned."""

    last_seqs: Mapping[str, int]
    before: Sequence[list[Row]] = ()
    after: Sequence[list[Row]] = ()


class Joined(NamedTuple):
    """Statements for the transaction that stores a turn, executed `before` and `after` its messages.

    With `supersedes_after`, the transaction first supersedes the session's active messages after this `seq`.
    """

    before: Sequence[Statement] = ()
    after: Sequence[Statement] = ()
    supersedes_after: int | None = None


@dataclass
class PreparedTurn:
    """A turn that is ready to be stored: its cleaned messages with ids, and their columns.

    If `is_joined`, it is stored in one transaction with the statements `before` and `after`, or not at all; `rows`
    receives the rows of the statements.
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
        """Return the receipt of the turn; its first message has `first_seq`."""
        return Receipt(
            first_seq=first_seq,
            last_seq=first_seq + count - 1,
            cleaned=self.cleaned,
            ids=tuple([str(message.id) for message in self.messages]),
        )


class Connection(Protocol):
    """A connection that is valid inside the block that lent it. Parameters of statements are written `:name`.

    Raises `StoreUnavailable` if the database does not answer, is locked beyond its timeout, full or read-only, and
    `DuplicateRow` if a unique constraint is violated.
    """

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """Return all rows of a statement."""

    async def execute(self, sql: str, parameters: Parameters) -> int:
        """Execute a statement; return the number of changed rows."""

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Return all rows of each statement, with one round trip; each sees the changes of the statements before it."""

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Execute a statement once for each row of parameters."""


class Transaction(Protocol):
    """A write transaction with few round trips; it begins with its first statements and ends with its last ones.

    Raises the errors of a connection. Whatever is not committed is rolled back.
    """

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Return all rows of each statement, with one round trip."""

    async def commit(self, statements: Sequence[Statement], beside: Sequence[Statement] = ()) -> list[list[Row]]:
        """Execute the last statements and commit, with one round trip; return all rows of each.

        The statements `beside` come last; on PostgreSQL they wait `GROUP_LOCK_SECONDS` at most for a lock.
        """


class Driver(Protocol):
    """An open database.

    `reading()` lends a connection for single statements. `writing()` lends one inside a transaction that takes its
    write lock at once, is durable when the block ends, and is rolled back when the block raises. On PostgreSQL it
    raises `RowLocked` after waiting `lock_timeout_seconds` for one lock; None means the timeout of the options. On both
    engines, 0 means no limit.
    """

    @property
    def backend(self) -> Backend:
        """The name of the engine."""

    async def check_file(self) -> None:
        """Check that the path of a SQLite database still names the file that was opened.

        Raises:
            DatabaseFileReplaced: it was removed or replaced.
        """

    def reading(self) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for reading."""

    def writing(self, *, lock_timeout_seconds: float | None = None) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection inside a write transaction."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Lend a write transaction; it takes its write lock with its first statements."""

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """Return all rows of a single statement that reads."""

    async def write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements as one write transaction with one round trip; return all rows of each."""

    async def append(
        self,
        sessions: Sequence[Parameters],
        messages: Sequence[Parameters],
        graph_turns: Sequence[Parameters] = (),
        *,
        before: Sequence[Statement] = (),
        after: Sequence[Statement] = (),
    ) -> Appended:
        """Store a group of new turns in one write transaction, with as few round trips as possible.

        Args:
            sessions: parameters of the statement `reserve`, in ascending order of `session_id`, each session once.
            messages: parameters of `insert_message`, with `behind` instead of `seq`: the number of later messages of
                the session in this group; and with `question`, the id of the message that its turn answers, if any.
            graph_turns: parameters of `add_graph_turn`, with `first_behind` and `last_behind` for the `seq` values.
            before: statements that are executed first, in the same transaction.
            after: statements that are executed last, in the same transaction.

        Another user's session is skipped with its messages.
        If a message's id exists already, or an answered message does not, `DuplicateRow` is raised and nothing is
        stored. If another transaction has locked a session, `RowLocked` is raised soon.
        """

    async def close(self) -> None:
        """Close every connection."""


_RARE_IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class StoreOptions:
    """Options for opening a database. Times are in seconds.

    `synchronous` is SQLite's: with FULL every acknowledged turn survives a power cut; with NORMAL the last ones may be
    lost (but never by a crash of the process). A `key` of 64 hexadecimal digits encrypts SQLite files with SQLCipher,
    which needs the extra `sqlcipher`. `partitions` is the number of partitions of a new PostgreSQL database.
    """

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    lock_timeout_seconds: float = 10.0
    pool_min_size: int = 1
    pool_max_size: int = 5
    pool_timeout_seconds: float = 30.0
    pool_max_idle_seconds: float = 300.0
    partitions: int | None = None
    key: str | None = field(default=None, repr=False)

    def for_rare_use(self) -> StoreOptions:
        """Return the options of a pool that holds no connections while it is not used."""
        return replace(self, pool_min_size=0, pool_max_idle_seconds=min(self.pool_max_idle_seconds, _RARE_IDLE_SECONDS))
