"""The partitioning of messages and of their search index by session, on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from threadkeep.errors import InvalidInput, InvalidSettings
from threadkeep.records import dump_json
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Backend, Connection, Driver, RowLocked
from threadkeep.store.statements import load_statements

type Progress = Callable[[int, int, int], object]
"""A callback that receives the numbers of finished ranges, of all ranges and of copied messages, after each step."""

_RANGES = 200
# This is short, because other transactions, even readers, queue behind the request for a lock. It is also below
# deadlock_timeout, after which PostgreSQL may abort other transactions.
_LOCK_SECONDS = GROUP_LOCK_SECONDS
_PAUSE_SECONDS = 1.0
_MOST_TRIES = 100
RETRY_SECONDS = _MOST_TRIES * (_LOCK_SECONDS + _PAUSE_SECONDS)
"""Seconds after which `with_lock_retries` fails, if each try waits for one lock."""
_SQL = load_statements("postgres/partitions.sql")
# A line that is not indented begins the next statement of a script.
_STATEMENT_END = re.compile(r";\n(?=\S)")


def check_partitions(backend: Backend, partitions: int | None) -> None:
    """Check that a database can have partitions if they are requested.

    Raises:
        InvalidSettings: the database is SQLite.
    """
    if partitions is not None and backend == "sqlite":
        variable = "THREADKEEP_PARTITIONS"
        raise InvalidSettings(
            f"{variable} needs PostgreSQL, because SQLite has no partitions; remove it, or name a PostgreSQL "
            "database in THREADKEEP_DATABASE_URL.",
            variable=variable,
        )


async def index_statements(connection: Connection, sql: Mapping[str, str]) -> Mapping[str, str]:
    """Return the statements for the search index as it is now, because another process may have partitioned it."""
    if "is_partitioned" not in sql:
        return sql
    [(is_partitioned,)] = await connection.fetch(sql["is_partitioned"], {})
    return {**sql, **load_statements("postgres/partitioned_search.sql")} if is_partitioned else sql


async def make_partitions(connection: Connection, partitions: int) -> None:
    """Replace the empty tables of a new schema with partitioned ones."""
    await connection.fetch(_SQL["count"], {"count": str(partitions)})
    for name in ("create", "index", "swap"):
        await _run(connection, name)


class PartitionState(NamedTuple):
    """The progress of partitioning the tables of messages. `partitions` is 0 if they are not partitioned.

    If `is_begun`, a partitioned copy is unfinished; `copied_into` is its number of partitions (0 before they exist).
    Partitioning is impossible if another PostgreSQL user, `owner`, owns the tables, or if `views` use them.
    """

    partitions: int
    copied_into: int
    is_begun: bool
    owner: str | None
    views: str | None

    def refusal(self, wanted: int) -> str | None:
        """Return an error message if the tables cannot be given `wanted` partitions, otherwise None."""
        if self.partitions not in (0, wanted):
            cure = "to change the number, export the sessions and import them into a new database."
            return f"This database has {self.partitions} partitions; {cure}"
        if self.copied_into not in (0, wanted):
            return f"{self.copied_into} partitions were begun; name {self.copied_into} to continue, or use --abandon."
        if self.owner is not None:
            return f"The tables belong to {self.owner}; connect as that PostgreSQL user."
        if self.views is not None:
            return f"These views use the tables: {self.views}; drop them first, and create them again afterwards."
        return None


async def partition_state(driver: Driver) -> PartitionState:
    """Return how far the tables of messages are partitioned; on SQLite, they have no partitions."""
    if driver.backend == "sqlite":
        return PartitionState(0, 0, is_begun=False, owner=None, views=None)
    async with driver.reading() as connection:
        return await _state(connection)


async def partition(driver: Driver, partitions: int, *, report: Progress) -> bool:
    """Partition the tables of a database that is in use; return False if another call has partitioned them.

    After an interruption, the next call continues the work. Concurrent callers share it.

    Raises:
        InvalidInput: the tables cannot be given this number of partitions, or another process has removed their copy.
        RowLocked: other transactions kept the tables locked for too long; the next call continues.
    """
    state = await partition_state(driver)
    if (refusal := state.refusal(partitions)) is not None:
        raise InvalidInput(refusal)
    if state.partitions:
        return False
    if not state.copied_into:
        await with_lock_retries(driver, _begin)
        await with_lock_retries(driver, partial(_create, partitions=partitions))
    # If another call has replaced the tables in the meantime, `_step` returns None, and there is nothing to copy.
    [(total,)] = await _step(driver, partitions, lambda connection: connection.fetch(_SQL["left"], {})) or [(0,)]
    done = copied = 0
    for is_indexed in (False, True):
        ranges = _RANGES
        while ranges == _RANGES:
            ranges, messages = await _step(driver, partitions, _copy) or (0, 0)
            done, copied = done + ranges, copied + messages
            if ranges:
                report(min(done, total), total, copied)
        if not is_indexed:
            await _step(driver, partitions, partial(_run, name="index"))
    return await _step(driver, partitions, _swap) is not None


async def abandon(driver: Driver) -> bool:
    """Remove the partitioned copies of tables that an unfinished partitioning made; return False if there are none."""

    async def remove(connection: Connection) -> bool:
        state = await _lock(connection)
        if removes := state.is_begun and not state.partitions:
            await _run(connection, "abandon")
        return removes

    return await with_lock_retries(driver, remove)


async def _state(connection: Connection) -> PartitionState:
    return PartitionState(*(await connection.fetch(_SQL["state"], {}))[0])


async def _lock(connection: Connection) -> PartitionState:
    """Take the lock for partitioning until the end of the transaction, and return the state of the tables."""
    await connection.fetch(_SQL["lock"], {})
    return await _state(connection)


async def _begin(connection: Connection) -> None:
    if not (await _lock(connection)).partitions:
        await _run(connection, "begin")


async def _create(connection: Connection, *, partitions: int) -> None:
    state = await _lock(connection)
    if not state.partitions and not state.copied_into:
        await connection.fetch_each([(_SQL["note_all"], {}), (_SQL["count"], {"count": str(partitions)})])
        await _run(connection, "create")


async def _step[T](driver: Driver, partitions: int, work: Callable[[Connection], Awaitable[T]]) -> T | None:
    """Execute one step of the copy into partitioned tables; return None if another caller has replaced the tables."""

    async def step(connection: Connection) -> T | None:
        state = await _lock(connection)
        refusal = state.refusal(partitions)
        if refusal is None and not (state.partitions or state.copied_into):
            refusal = "Another process has removed the copy; run the command again to begin a new one."
        if refusal is not None:
            raise InvalidInput(refusal)
        return None if state.partitions else await work(connection)

    return await with_lock_retries(driver, step)


async def _copy(connection: Connection) -> tuple[int, int]:
    """Copy some changed `seq` ranges, oldest changes first. Return the numbers of ranges and of additional messages."""
    taken = await connection.fetch(_SQL["take"], {"limit": _RANGES})
    fields = ("session_id", "first_seq", "last_seq")
    ranges = {"ranges": dump_json([dict(zip(fields, row, strict=True)) for row in taken])}
    await connection.fetch(_SQL["keep"], ranges)
    dropped = await connection.execute(_SQL["drop_messages"], ranges)
    for name in ("drop_texts", "copy_texts"):
        await connection.execute(_SQL[name], ranges)
    return len(taken), await connection.execute(_SQL["copy_messages"], ranges) - dropped


async def _swap(connection: Connection) -> bool:
    """Lock the tables, copy the remaining changes, replace the tables by the copy, and return True."""
    await _run(connection, "hold")
    while (await _copy(connection))[0]:
        pass
    await _run(connection, "swap")
    return True


async def with_lock_retries[T](
    driver: Driver, work: Callable[[Connection], Awaitable[T]], *, on_retry: Callable[[], object] | None = None
) -> T:
    """Execute `work`, which locks tables, in a transaction; retry if other transactions keep the tables locked.

    Between two tries, no table is locked, and other processes can write. `on_retry` is called before each retry.

    Raises:
        RowLocked: no try succeeded.
    """
    for tries in range(_MOST_TRIES):
        if tries:
            if on_retry is not None:
                on_retry()
            await asyncio.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(RowLocked):
            async with driver.writing(lock_timeout_seconds=_LOCK_SECONDS) as connection:
                return await work(connection)
    raise RowLocked(
        f"Other transactions kept tables locked during {_MOST_TRIES} tries to change them; find them with "
        "`threadkeep doctor`, and end them, or wait for the end of a backup; then try again."
    )


async def _run(connection: Connection, name: str) -> None:
    await connection.fetch_each([(statement, {}) for statement in _STATEMENT_END.split(_SQL[name])])
