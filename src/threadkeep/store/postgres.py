"""The PostgreSQL driver: a pool of psycopg connections that notices a restarted server by itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Self
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool

from threadkeep.errors import StoreUnavailable
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Backend, Parameters, Row, Statement, StoreOptions
from threadkeep.store.postgres_connection import PostgresConnection, RawConnection, translated
from threadkeep.store.statements import load_statements

type DictConnection = psycopg.AsyncConnection[DictRow]

_TRUSTED_SECONDS = 1.0
_CONNECT_SECONDS = 10
# The pool's pauses between tries double until this, then whoever wants a connection begins anew: a server that comes
# back after a long time is found within seconds.
_RECONNECT_SECONDS = 5
# Any fixed number: it names this lock among the advisory locks of a database.
_SETUP_LOCK = 7310865113


class PostgresDriver:
    """A PostgreSQL database behind a connection pool."""

    def __init__(self, dsn: str, options: StoreOptions) -> None:
        self._sql = load_statements("postgres/append.sql")
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
            configure=partial(_configure, lock_timeout_seconds=options.lock_timeout_seconds),
            open=False,
        )

    @property
    def backend(self) -> Backend:
        """Which engine this is."""
        return "postgres"

    @classmethod
    async def open(cls, dsn: str, options: StoreOptions) -> Self:
        """A driver with its pool filled.

        Raises:
            StoreUnavailable: the server does not answer in time.
        """
        driver = cls(dsn, options)
        try:
            with translated():
                await driver._pool.open(wait=True, timeout=options.pool_timeout_seconds)
        except BaseException:
            await driver.close()
            raise
        return driver

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[PostgresConnection]:
        """A connection to read from; one that breaks is replaced once, unnoticed."""
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
        """A connection inside a write transaction."""
        async with self._working() as raw, raw.transaction():
            if lock_timeout_seconds is not None:
                await raw.execute("SELECT set_config('lock_timeout', %s, TRUE)", [_timeout_text(lock_timeout_seconds)])
            yield PostgresConnection(raw)

    async def write(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """All rows of each of some statements in a write transaction, in one round trip."""
        async with self._working() as raw:
            return await PostgresConnection(raw).transact(statements)

    async def append(self, sessions: Sequence[Parameters], messages: Sequence[Parameters]) -> list[Row]:
        """Store a group of new turns: one statement, which is a transaction of its own."""
        parameters = {
            "sessions": json.dumps(sessions, ensure_ascii=False),
            "messages": json.dumps(messages, ensure_ascii=False),
            "lock_timeout": self._group_lock,
        }
        async with self._working() as raw:
            return await PostgresConnection(raw).fetch(self._sql["append"], parameters)

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[RawConnection]:
        """A connection to write with; when it breaks no other is trusted, and the caller decides what to do again."""
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
    """One connection of the pool, for the length of a block; `used` says when each one worked last.

    The pool's own block costs a tenth of a short read: it ends a transaction that there is not.
    """

    def __init__(self, pool: AsyncConnectionPool[RawConnection], used: WeakKeyDictionary[RawConnection, float]) -> None:
        self._pool = pool
        self._used = used
        self._raw: RawConnection | None = None

    async def take(self) -> RawConnection:
        """A connection that lives; one that worked a moment ago is not asked, since the question costs a round trip."""
        raw = self._raw = await self._pool.getconn()
        if time.monotonic() - self._used.get(raw, 0.0) <= _TRUSTED_SECONDS or await _lives(raw):
            return raw
        return await self.exchange()

    async def exchange(self) -> RawConnection:
        """A connection that lives, for a broken one.

        Where one is broken others are likely to be, so the pool looks at all of them at once; by itself it would find
        them one by one, with pauses that double.
        """
        await self.give_back()
        self._used.clear()
        await self._pool.check()
        self._raw = await self._pool.getconn()
        return self._raw

    async def give_back(self) -> None:
        """Let others have the connection, if there is one."""
        raw, self._raw = self._raw, None
        if raw is not None:
            await self._pool.putconn(raw)


@asynccontextmanager
async def open_dict_pool(dsn: str, options: StoreOptions) -> AsyncIterator[AsyncConnectionPool[DictConnection]]:
    """A pool as LangGraph's own libraries want it: rows as dicts, nothing prepared by itself."""
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
        open=False,
    )
    try:
        with translated():
            await pool.open(wait=True, timeout=options.pool_timeout_seconds)
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def exclusive(dsn: str, *, seconds: float) -> AsyncIterator[None]:
    """Let one process at a time into the block, across machines.

    It asks again and again rather than wait in the server: a waiting session would stop CREATE INDEX CONCURRENTLY.
    """
    with translated():
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=_CONNECT_SECONDS) as raw:
            deadline = time.monotonic() + seconds
            while not (
                await (await raw.execute("SELECT pg_try_advisory_lock(%s)", [_SETUP_LOCK])).fetchone() or (False,)
            )[0]:
                if time.monotonic() > deadline:
                    raise StoreUnavailable("Another process has been setting this database up for long; see who it is.")
                await asyncio.sleep(0.05)
            yield


async def _lives(raw: RawConnection) -> bool:
    try:
        await AsyncConnectionPool.check_connection(raw)
    except psycopg.OperationalError:
        return False
    return True


async def _configure(raw: RawConnection, *, lock_timeout_seconds: float) -> None:
    """Read times in UTC, and JSON columns as the text they are: one codec for both engines parses it."""
    # Not options of the connection, which would replace those of the DSN.
    settings = "SELECT set_config('TimeZone', 'UTC', FALSE), set_config('lock_timeout', %s, FALSE)"
    await raw.execute(settings, [_timeout_text(lock_timeout_seconds)])
    for name in ("json", "jsonb"):
        raw.adapters.register_loader(name, TextLoader)


def _timeout_text(seconds: float) -> str:
    """Seconds as PostgreSQL's settings take them; 0 turns a timeout off, so nothing else becomes 0."""
    return f"{max(1, round(seconds * 1000))}ms" if seconds > 0 else "0"
