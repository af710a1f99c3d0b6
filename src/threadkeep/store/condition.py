"""How a database is doing: what the engine says of itself, how much it holds, who holds locks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from threadkeep.store.driver import Driver
from threadkeep.store.migrations import known_migrations, schema_version
from threadkeep.store.statements import load_statements

_LONG_SECONDS = 10.0
# Less is not worth keeping everybody else from writing.
_MUCH_FREE_BYTES = 10 * 1024 * 1024
_MUCH_FREE_SHARE = 0.1


@dataclass(frozen=True)
class LockHolder:
    """A process that may hold others up. `pid` is None where it cannot be seen; PostgreSQL's are the server's."""

    pid: int | None
    name: str
    doing: str
    seconds: float | None = None


@dataclass(frozen=True)
class Condition:
    """A database that answers.

    `schema` is the newest migration that it has, `newest` the newest that this code knows. `engine` has what the
    engine says of itself, by its own names. The counts are None where there are no tables yet that this code knows;
    `unindexed` messages cannot be found by a search before the index has caught up. `free_bytes` of `file_bytes` are
    for later messages to use; 0 on PostgreSQL, which gives room back by itself.
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
        """Whether it is worth while to give room back to the disk."""
        return self.free_bytes >= max(_MUCH_FREE_BYTES, _MUCH_FREE_SHARE * self.file_bytes)


async def read_condition(driver: Driver) -> Condition:
    """Ask a database how it is doing, without changing anything.

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
