"""The PostgreSQL driver: a pool of psycopg connections, which are checked after a pause or a failure."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool

from threadkeep.boundary import AsyncOnFailure
from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import (
    GROUP_LOCK_SECONDS,
    Appended,
    Backend,
    Driver,
    NewTurns,
    Statement,
    StoreOptions,
    check_loop,
    seconds_left,
)
from threadkeep.store.postgres_connection import PostgresConnection, PostgresTransaction, RawConnection, translated
from threadkeep.store.statements import load_statements

type DictConnection = psycopg.AsyncConnection[DictRow]

# Longer than the pause between an idle worker's queries (`owner_check_seconds`), so that its connections need no check.
TRUSTED_SECONDS = 3.0
_CONNECT_SECONDS = 10
_LEAST_SECONDS = 0.01
_RETRY_SECONDS = 0.5
_LEAST_OPENING_SECONDS = 1.0
# Errors that do not go away with time. psycopg gives them no SQLSTATE, so they are recognised by their English text.
_FINAL = re.compile(
    "authentication failed|no password supplied|does not exist|no pg_hba.conf entry|pg_hba.conf rejects connection"
    "|permission denied|server does not support SSL, but SSL was required"
)
# The pool gives up after this time, and tries again when a caller needs a connection. With longer attempts, it would
# notice late that a server is up again.
_RECONNECT_SECONDS = 5
# An arbitrary number that identifies this advisory lock. It is not a parameter, because a statement with parameters
# keeps its snapshot, and CREATE INDEX CONCURRENTLY waits for old snapshots.
_TRY_SETUP_LOCK = "SELECT pg_try_advisory_xact_lock(7310865113)"

_log = logging.getLogger("threadkeep.store")


class PostgresDriver(Driver):
    """A PostgreSQL database behind a connection pool."""

    backend: Final[Backend] = "postgres"

    def __init__(self, dsn: str, options: StoreOptions, *, read_only: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self._sql = load_statements("postgres/append.sql")
        statement, _, answer = self._sql["append"].rpartition("\nSELECT ")
        self._append_turns = f"{statement}\n{self._sql['append_turns']}\nSELECT {answer}"
        self._lock_seconds = options.lock_timeout_seconds
        self._read_only = read_only
        self.is_pooled = False
        self._group_lock = _timeout_text(min(GROUP_LOCK_SECONDS, options.lock_timeout_seconds))
        self._used: WeakKeyDictionary[RawConnection, float] = WeakKeyDictionary()
        self._pool: AsyncConnectionPool[RawConnection] = AsyncConnectionPool(
            dsn,
            kwargs={"autocommit": True, "connect_timeout": _CONNECT_SECONDS},
            min_size=options.pool_min_size,
            max_size=options.pool_max_size,
            timeout=options.pool_timeout_seconds,
            max_idle=options.pool_max_idle_seconds,
            reconnect_timeout=_RECONNECT_SECONDS,
            configure=self._configure,
            open=False,
        )

    @classmethod
    async def open(cls, dsn: str, options: StoreOptions, *, read_only: bool = False) -> Self:
        """Open a driver and the first connections of its pool.

        Raises:
            StoreUnavailable: the server refuses a connection or does not answer in time; the error says why.
            StoreError: the DSN has an unknown parameter.
        """
        try:
            conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            # Do not quote psycopg's error, because it may contain part of the password.
            address = DatabaseAddress("postgres", dsn=dsn)
            raise StoreError(f"psycopg cannot read the URL {address}; check the parameters after its ?.") from None
        driver = cls(dsn, options, read_only=read_only)
        async with AsyncOnFailure(driver.close):
            with translated():
                await _open(driver._pool, dsn, options)
        return driver

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[PostgresConnection]:
        """Lend a connection for reading. If it breaks, it is replaced once, and the statement is repeated."""
        check_loop(self.loop)
        with translated():
            loan = _Loan(self._pool, self._used)
            try:
                connection = PostgresConnection(await loan.take(), another=loan.exchange)
                yield connection
                self._used[connection.raw] = time.monotonic()
            finally:
                await loan.give_back()

    @asynccontextmanager
    async def writing(self, *, lock_timeout_seconds: float | None = None) -> AsyncIterator[PostgresConnection]:
        """Lend a connection inside a write transaction."""
        async with self._working() as raw:
            async with raw.transaction() as transaction:
                for sql, parameters in self._lock_timeout(lock_timeout_seconds):
                    await PostgresConnection(raw).fetch(sql, parameters)
                yield PostgresConnection(raw)
            if transaction.status != transaction.Status.COMMITTED:
                # Raise an error here, because psycopg raises none if the connection was closed during the block.
                raise psycopg.OperationalError("The connection was closed before the transaction was committed.")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        """Lend a write transaction."""
        async with self._working() as raw:
            connection = PostgresConnection(raw)
            try:
                yield PostgresTransaction(connection, self._lock_timeout(None), limits=self._short_wait)
            finally:
                await connection.roll_back()

    async def append(self, turns: NewTurns) -> Appended:
        """Store a group of new turns with one statement; the statements `before` and `after` share its transaction."""
        sessions, messages, graph_turns, before, after = turns
        parameters = {
            "sessions": json.dumps(sessions, ensure_ascii=False),
            "messages": json.dumps(messages, ensure_ascii=False),
            "lock_timeout": self._group_lock,
        }
        sql = self._sql["append"]
        if graph_turns:
            sql, parameters["turns"] = self._append_turns, json.dumps(graph_turns, ensure_ascii=False)
        if not before and not after:
            async with self._working() as raw:
                return Appended(dict(await PostgresConnection(raw).fetch(sql, parameters)))
        async with self.transaction() as transaction:
            rows = await transaction.commit((), [*before, (sql, parameters), *after])
        at = len(before)
        return Appended(dict(rows[at]), rows[:at], rows[at + 1 :])

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    async def _configure(self, raw: RawConnection) -> None:
        """Set up a new connection: UTC as its time zone, the timeouts, and JSON values as text."""
        for name in ("json", "jsonb"):
            raw.adapters.register_loader(name, TextLoader)
        # Do not pass the time zone as a connection option, which would replace the options in the DSN.
        await raw.execute("SELECT set_config('TimeZone', 'UTC', FALSE)")
        if await negotiate_pooler(raw):
            self.is_pooled = True
            return
        await raw.execute("SELECT set_config('lock_timeout', %s, FALSE)", [_timeout_text(self._lock_seconds)])
        if self._read_only:
            await raw.execute("SET default_transaction_read_only = on")

    def _short_wait(self) -> Sequence[Statement]:
        """Return the statement after which a transaction waits at most `GROUP_LOCK_SECONDS` for a lock."""
        return self._lock_timeout(min(GROUP_LOCK_SECONDS, self._lock_seconds or GROUP_LOCK_SECONDS))

    def _lock_timeout(self, seconds: float | None) -> Sequence[Statement]:
        """Return the statement that sets a transaction's lock timeout; none if the connection's timeout applies."""
        if seconds is None and self.is_pooled:
            seconds = self._lock_seconds
        left = seconds_left()
        if left is not None:
            left = max(left, _LEAST_SECONDS)
            seconds = left if not seconds else min(seconds, left)
        if seconds is None:
            return ()
        return (("SELECT set_config('lock_timeout', :seconds, TRUE)", {"seconds": _timeout_text(seconds)}),)

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[RawConnection]:
        """Lend a connection for writing. If it breaks, all other connections are checked before their next use."""
        check_loop(self.loop)
        with translated():
            loan = _Loan(self._pool, self._used)
            try:
                raw = await loan.take()
                yield raw
                self._used[raw] = time.monotonic()
            except psycopg.OperationalError:
                self._used.clear()
                raise
            finally:
                await loan.give_back()


class _Loan:
    """A connection that the pool lends for one block. `used` maps each connection to the time when it last worked.

    The pool's own context manager is slower, because it tries to end a transaction that does not exist.
    """

    def __init__(self, pool: AsyncConnectionPool[RawConnection], used: WeakKeyDictionary[RawConnection, float]) -> None:
        self._pool = pool
        self._used = used
        self._raw: RawConnection | None = None

    async def take(self) -> RawConnection:
        """Return a working connection; check it first, unless it worked within the last `TRUSTED_SECONDS`."""
        raw = self._raw = await self._connection()
        if time.monotonic() - self._used.get(raw, 0.0) <= TRUSTED_SECONDS or await _lives(raw):
            return raw
        return await self.exchange()

    async def exchange(self) -> RawConnection:
        """Give back a broken connection, and return a working one.

        If one connection is broken, others probably are too, so the pool checks all of them at once.
        """
        await self.give_back()
        self._used.clear()
        await self._pool.check()
        self._raw = await self._connection()
        return self._raw

    async def _connection(self) -> RawConnection:
        left = seconds_left()
        # Never pass a timeout of 0, because the pool would then return no connection.
        limit = None if left is None else min(max(left, _LEAST_SECONDS), self._pool.timeout)
        return await self._pool.getconn(limit)

    async def give_back(self) -> None:
        """Give the connection back to the pool, if one was taken."""
        raw, self._raw = self._raw, None
        if raw is not None:
            await close_in_pipeline(raw)
            await self._pool.putconn(raw)


async def _open[C: RawConnection | DictConnection](
    pool: AsyncConnectionPool[C], dsn: str, options: StoreOptions
) -> None:
    """Open a pool and its first connections, within the timeout of the pool."""
    deadline = time.monotonic() + options.pool_timeout_seconds
    await _reach(dsn, options)
    await pool.open(wait=True, timeout=max(deadline - time.monotonic(), _LEAST_OPENING_SECONDS))


async def _reach(dsn: str, options: StoreOptions) -> None:
    """Connect once without the pool, because the pool does not report why it gets no connection.

    If the server refuses the connection for now, retry until the pool's timeout. With `waits_for_server`, do the same
    if the server cannot be reached.

    Raises:
        StoreUnavailable: no connection; the error quotes the server's or the network's message, without a password.
    """
    seconds, told = options.pool_timeout_seconds, False
    deadline = time.monotonic() + seconds
    # With several hosts, stop only if every host gives a final error, because one of them may be starting.
    parameters = conninfo_to_dict(dsn)
    several = any("," in str(parameters.get(name)) for name in ("host", "hostaddr"))
    while True:
        try:
            await (await psycopg.AsyncConnection.connect(dsn, connect_timeout=_CONNECT_SECONDS)).close()
        except psycopg.OperationalError as error:
            sentence = str(error).partition("\n")[0].rstrip(".")
            failures = str(error).split("\n- host: ")[1:] or [str(error)]
            is_final = (all if several else any)(map(_FINAL.search, failures))
            if is_final or time.monotonic() >= deadline or not (options.waits_for_server or "FATAL" in str(error)):
                address = DatabaseAddress("postgres", dsn=dsn)  # shown without its password
                cure = f"Check the URL {address}, and that the server runs and lets this machine connect."
                raise StoreUnavailable(f"PostgreSQL cannot be reached ({sentence}). {cure}") from error
            if not told:
                _log.warning("waiting up to %g seconds for PostgreSQL (%s)", seconds, sentence)
                told = True
        else:
            return
        await asyncio.sleep(_RETRY_SECONDS)


@asynccontextmanager
async def open_dict_pool(dsn: str, options: StoreOptions) -> AsyncIterator[AsyncConnectionPool[DictConnection]]:
    """Open a pool for LangGraph's libraries, with rows as dicts and without automatically prepared statements."""
    pool: AsyncConnectionPool[DictConnection] = AsyncConnectionPool(
        dsn,
        kwargs={
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": dict_row,
            "connect_timeout": _CONNECT_SECONDS,
        },
        min_size=options.pool_min_size,
        max_size=options.pool_max_size,
        timeout=options.pool_timeout_seconds,
        max_idle=options.pool_max_idle_seconds,
        reconnect_timeout=_RECONNECT_SECONDS,
        check=AsyncConnectionPool.check_connection,
        configure=_configure_dict_connection,
        reset=close_in_pipeline,
        open=False,
    )
    try:
        with translated():
            await _open(pool, dsn, options)
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def exclusive(dsn: str, *, seconds: float) -> AsyncIterator[None]:
    """Let one process at a time run the block, across all machines; raise `StoreUnavailable` after `seconds`.

    The lock is polled, because a transaction that waits in the server would block CREATE INDEX CONCURRENTLY. The lock
    belongs to a transaction, not to a session, because a pooler shares sessions between clients.
    """
    with translated():
        async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=_CONNECT_SECONDS) as raw:
            deadline = time.monotonic() + seconds
            while not (await (await raw.execute(_TRY_SETUP_LOCK)).fetchone() or (False,))[0]:
                await raw.rollback()
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        "Another process is still setting up this database; find out which one it is before you end it."
                    )
                await asyncio.sleep(0.05)
            yield


async def close_in_pipeline(raw: psycopg.AsyncConnection[Any]) -> None:
    """Close a connection if a cancelled call left it in pipeline mode; the pool then opens a new one.

    psycopg 3.3.9 leaves this mode on if it is cancelled early. A statement then returns its rows before it is
    committed, and is rolled back when the connection is closed.
    """
    if raw.info.pipeline_status != psycopg.pq.PipelineStatus.OFF:
        await raw.close()


async def _lives(raw: RawConnection) -> bool:
    try:
        await AsyncConnectionPool.check_connection(raw)
    except psycopg.OperationalError:
        return False
    return True


async def negotiate_pooler(raw: psycopg.AsyncConnection[Any]) -> bool:
    """Detect a pooler such as pgbouncer; if there is one, turn prepared statements off and return True.

    In transaction mode each transaction may get another session of the server, so no prepared statement, setting or
    lock may be left in a session. A pooler reports process ids that differ from the server's.
    """
    cursor = await raw.execute("SELECT pg_backend_pid() AS pid", prepare=False)
    row = await cursor.fetchone()
    pid = row["pid"] if isinstance(row, dict) else (row or (None,))[0]
    if pid == raw.info.backend_pid:
        return False
    raw.prepare_threshold = None
    return True


async def _configure_dict_connection(raw: DictConnection) -> None:
    await negotiate_pooler(raw)


def _timeout_text(seconds: float) -> str:
    """Return seconds as a PostgreSQL setting of at least 1 ms; 0 turns the timeout off."""
    return f"{max(1, round(seconds * 1000))}ms" if seconds > 0 else "0"
