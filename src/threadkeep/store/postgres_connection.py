"""A PostgreSQL connection, and the translation of its errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from threadkeep.errors import StoreClosed, StoreError, StoreUnavailable, ThreadkeepError
from threadkeep.store.driver import (
    DuplicateRow,
    Parameters,
    RightsMissing,
    Row,
    RowLocked,
    Statement,
    StatementCancelled,
    unstorable_text,
)
from threadkeep.store.statements import for_psycopg

type RawConnection = psycopg.AsyncConnection[Row]

# Statements with this comment are not prepared, so that PostgreSQL plans them for their parameters. Its plan for a
# prepared statement fits any parameters, and may sort all runs of a long session.
_REPLAN = "/* replan */"
_IN_TRANSACTION = (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR)


class PostgresConnection:
    """A psycopg connection with the methods of the protocol `threadkeep.store.driver.Connection`."""

    def __init__(self, raw: RawConnection, another: Callable[[], Awaitable[RawConnection]] | None = None) -> None:
        self.raw = raw
        self._another = another

    async def fetch(self, sql: str, parameters: Parameters) -> list[Row]:
        """Return all rows of a statement."""
        prepare = False if _REPLAN in sql else None
        try:
            cursor = await self.raw.execute(for_psycopg(sql), parameters, prepare=prepare)
        except psycopg.OperationalError:
            if self._another is None or not self.raw.closed:
                raise
            # Repeat the statement on another connection. This is safe: only connections for reading have `_another`.
            self.raw, self._another = await self._another(), None
            cursor = await self.raw.execute(for_psycopg(sql), parameters, prepare=prepare)
        return await cursor.fetchall()

    async def execute(self, sql: str, parameters: Parameters) -> int:
        """Execute a statement; return the number of changed rows."""
        cursor = await self.raw.execute(for_psycopg(sql), parameters)
        return cursor.rowcount

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements in one round trip; return the rows of each statement."""
        async with self._pipeline():
            cursors = [await self.raw.execute(for_psycopg(sql), parameters) for sql, parameters in statements]
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]

    async def roll_back(self) -> None:
        """Roll back the transaction, if one is open."""
        if self.raw.info.transaction_status in _IN_TRANSACTION:
            await self.raw.rollback()

    @asynccontextmanager
    async def _pipeline(self) -> AsyncIterator[None]:
        """Open a pipeline for the block, unless libpq is too old for pipelines.

        psycopg would log a warning if an error left its pipeline block, so the error is raised after that block.
        """
        failure: BaseException | None = None
        try:
            async with self.raw.pipeline() if psycopg.AsyncPipeline.is_supported() else nullcontext():
                try:
                    yield
                except (psycopg.Error, asyncio.CancelledError) as error:
                    failure = error
        except psycopg.Error:
            if failure is None:
                raise
        if failure is not None:
            raise failure

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Execute a statement once for each row of parameters."""
        # Open a pipeline here: if psycopg is cancelled while it opens one itself, it raises an AssertionError.
        async with self._pipeline(), self.raw.cursor() as cursor:
            await cursor.executemany(for_psycopg(sql), rows)


class PostgresTransaction:
    """A write transaction. Each call is one pipeline; the first call also executes BEGIN and the statements `first`.

    `limits` returns statements that shorten the lock timeout; `commit` executes them before the statements `beside`.
    """

    def __init__(
        self, connection: PostgresConnection, first: Sequence[Statement], *, limits: Callable[[], Sequence[Statement]]
    ) -> None:
        self._connection = connection
        self._first = [("BEGIN", {}), *first]
        self._limits = limits

    async def fetch_each(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Execute statements in one round trip; return the rows of each statement."""
        first, self._first = self._first, []
        return (await self._connection.fetch_each([*first, *statements]))[len(first) :]

    async def commit(self, statements: Sequence[Statement], beside: Sequence[Statement] = ()) -> list[list[Row]]:
        """Execute `statements`, then `beside`, and commit; return the rows of each statement."""
        limits = self._limits() if beside else ()
        rows = await self.fetch_each([*statements, *limits, *beside, ("COMMIT", {})])
        return [*rows[: len(statements)], *rows[len(statements) + len(limits) : -1]]


_ERRORS: Mapping[type[BaseException], tuple[Callable[[str], ThreadkeepError], str]] = {
    psycopg.errors.UniqueViolation: (DuplicateRow, "A row with this key exists already."),
    PoolTimeout: (
        StoreUnavailable,
        "PostgreSQL gave no connection in time: it is down, or THREADKEEP_POSTGRES_POOL_MAX_SIZE is too small.",
    ),
    PoolClosed: (StoreClosed, "The database was closed; use a memory inside its `async with` block."),
    psycopg.errors.LockNotAvailable: (
        RowLocked,
        (
            "Another transaction has held a lock that this call needs for longer than THREADKEEP_LOCK_TIMEOUT; "
            "find it with `threadkeep doctor`, and end it."
        ),
    ),
    psycopg.errors.DeadlockDetected: (
        partial(RowLocked, interrupted=True),
        "PostgreSQL ended this call because of a deadlock with another transaction; nothing was stored, so try again.",
    ),
    psycopg.errors.QueryCanceled: (
        StatementCancelled,
        "PostgreSQL interrupted this call: somebody cancelled it, or the statement_timeout of its user is too short.",
    ),
    psycopg.errors.ReadOnlySqlTransaction: (
        StoreUnavailable,
        "PostgreSQL is read-only here; name the primary server in THREADKEEP_DATABASE_URL.",
    ),
    psycopg.errors.DiskFull: (StoreUnavailable, "PostgreSQL's disk is full; free some space on the server."),
}

_SCHEMA_DENIED = re.compile(r"permission denied for schema (\S+)$")
_INCOMPLETE = "restore a backup, or correct the database and the search_path of THREADKEEP_DATABASE_URL."
_CURES_OF_TABLES: Mapping[type[psycopg.Error], str] = {
    psycopg.errors.InsufficientPrivilege: (
        "after an upgrade, run `threadkeep migrate` as the role that owns the tables, and then grant the role of "
        "THREADKEEP_DATABASE_URL the rights on the tables and their schema."
    ),
    psycopg.errors.InvalidSchemaName: "create the schema that the search_path names, or correct the search_path.",
    psycopg.errors.UndefinedTable: _INCOMPLETE,
    psycopg.errors.UndefinedColumn: _INCOMPLETE,
}


@contextmanager
def translated() -> Iterator[None]:
    """Translate the errors of psycopg into Threadkeep's errors, each with advice."""
    try:
        yield
    except tuple(_ERRORS) as error:
        kind, sentence = _ERRORS[type(error)]
        raise kind(sentence) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        if (error.sqlstate or "").startswith("54"):
            # The call exceeds a limit of the server, so a retry would not help.
            raise _refusal(error) from None
        raise StoreUnavailable(
            f"PostgreSQL does not answer ({type(error).__name__}); check that it runs and lets this machine connect.",
            interrupted=True,
        ) from error
    except (psycopg.Error, UnicodeEncodeError) as error:
        # Suppress the cause, because the server's details may quote a row with message texts.
        raise _refusal(error) from None


def environment_of(dsn: str) -> Mapping[str, str]:
    """Return the environment variables that make libpq and its tools connect to a DSN's database."""
    options = psycopg.pq.Conninfo.parse(dsn.encode())
    return {one.envvar.decode(): one.val.decode() for one in options if one.envvar and one.val is not None}


def _refusal(error: psycopg.Error | UnicodeEncodeError) -> ThreadkeepError:
    if isinstance(error, UnicodeEncodeError) or (error.sqlstate is None and "NUL" in str(error)):
        return unstorable_text()
    name = f"{type(error).__name__} {error.sqlstate or ''}".strip()
    cure = "look it up in the log of the server, and check the tables with `threadkeep doctor`."
    if cure_of_tables := _CURES_OF_TABLES.get(type(error)):
        # The messages of these errors name tables, schemas and columns, and quote no values.
        name, cure = f"{name}: {error.diag.message_primary}", cure_of_tables
        if schema := _SCHEMA_DENIED.search(name):
            cure = (
                f"as the owner of the database, execute GRANT USAGE, CREATE ON SCHEMA {schema[1]} TO the role of "
                "THREADKEEP_DATABASE_URL, because new tables are created there."
            )
    kind_of_error = RightsMissing if isinstance(error, psycopg.errors.InsufficientPrivilege) else StoreError
    return kind_of_error(f"PostgreSQL rejected this call ({name}); {cure}")
