"""Condition of a database: the engine's own values, the amount of data, and the holders of locks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from threadkeep.store.driver import Driver
from threadkeep.store.migrations import known_migrations, schema_version
from threadkeep.store.statements import load_statements

_LONG_SECONDS = 10.0
# Less free space is not worth blocking other writers.
_MUCH_FREE_BYTES = 10 * 1024 * 1024
_MUCH_FREE_SHARE = 0.1


@dataclass(frozen=True)
class LockHolder:
    """A process that may block others. `pid` is None if unknown; PostgreSQL's pids are the server's."""

    pid: int | None
    name: str
    doing: str
    seconds: float | None = None


@dataclass(frozen=True)
class Condition:
    """The condition of a database that answers.

    `schema` is its newest migration, `newest` the newest that this code knows. `engine` has the engine's own values,
    under its own names. The counts are None if there are no tables yet that this code knows; `unindexed` messages
    cannot be found by a search until the index has caught up. `free_bytes` of `file_bytes` are available for later
    messages; 0 on PostgreSQL, which frees space by itself.
    """

    schema: int
    newest: int
    engine: Mapping[str, str]
    sessions: int | None = None
    messages: int | None = None
    unindexed: int | None = None
    holders: tuple[LockHolder, ...] = field(default=())
    free_bytes: int = 0
    file_bytes: int = 0

    @property
    def much_is_free(self) -> bool:
        """True if it is worth returning free space to the disk."""
        return self.free_bytes >= max(_MUCH_FREE_BYTES, _MUCH_FREE_SHARE * self.file_bytes)


async def read_condition(driver: Driver) -> Condition:
    """Read the condition of a database, without changing anything.

    Raises:
        StoreUnavailable: it does not answer.
    """
    sql = load_statements(f"{driver.backend}/condition.sql")
    schema = await schema_version(driver)
    newest = known_migrations(driver.backend)[-1][0]
    async with driver.reading() as connection:
        engine = {str(name): str(value) for name, value in await connection.fetch(sql["engine"], {})}
        counts = (await connection.fetch(sql["totals"], {}))[0] if 0 < schema <= newest else (None, None, None)
        rows = await connection.fetch(sql["holders"], {"seconds": _LONG_SECONDS}) if "holders" in sql else []
        room = (await connection.fetch(sql["room"], {}))[0] if "room" in sql else (0, 0)
    sessions, messages, unindexed = (None if count is None else int(count) for count in counts)
    holders = tuple(LockHolder(int(pid), str(name), str(state), float(age)) for pid, name, state, age in rows)
    return Condition(schema, newest, engine, sessions, messages, unindexed, holders, *map(int, room))


async def can_write(driver: Driver) -> None:
    """Begin a write transaction and end it without a change.

    Raises:
        StoreUnavailable: the database is locked by others, read-only or full.
    """
    async with driver.writing():
        pass
