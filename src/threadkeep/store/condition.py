"""The condition of a database: its schema, locks, sizes and damage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.store.driver import Driver, Row, RowLocked
from threadkeep.store.migrations import known_migrations, known_tables, schema_version
from threadkeep.store.statements import load_statements

_LONG_SECONDS = 10.0
# Returning free space to the disk blocks other writers, so it is recommended only from this size on.
_MUCH_FREE_BYTES = 10 * 1024 * 1024
_MUCH_FREE_SHARE = 0.1


@dataclass(frozen=True)
class LockHolder:
    """A process whose lock may block others (on PostgreSQL, a server process). `pid` is None if it is unknown."""

    pid: int | None
    name: str
    doing: str
    seconds: float | None = None


@dataclass(frozen=True)
class Condition:
    """The condition of a readable database.

    - `schema`: the version of the database's newest migration. `newest`: the newest version that this code knows.
    - `engine`: settings of SQLite or PostgreSQL, by name.
    - `sessions`, `messages` and `unindexed` (messages that are not in the search index yet): counts, or None if this
      code does not know the schema, or if another transaction has locked the table.
    - `free_bytes`: the part of the file's `file_bytes` that is free for later messages. Both are 0 on PostgreSQL.
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
        """True if returning the free space to the disk is worth blocking other writers."""
        return self.free_bytes >= max(_MUCH_FREE_BYTES, _MUCH_FREE_SHARE * self.file_bytes)


async def read_condition(driver: Driver) -> Condition:
    """Read the condition of a database, without changing anything.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    sql = load_statements(f"{driver.backend}/condition.sql")
    schema = await schema_version(driver)
    versions = [version for version, _ in known_migrations(driver.backend)]
    counts: Row = (None, None, None)
    with suppress(RowLocked):
        [counts] = await driver.fetch(sql["totals"], {}) if schema in versions else [counts]
    async with driver.reading() as connection:
        engine = {str(name): str(value) for name, value in await connection.fetch(sql["engine"], {})}
        rows = await connection.fetch(sql["holders"], {"seconds": _LONG_SECONDS}) if "holders" in sql else []
        room = (await connection.fetch(sql["room"], {}))[0] if "room" in sql else (0, 0)
    sessions, messages, unindexed = (None if count is None else int(count) for count in counts)
    holders = tuple(LockHolder(int(pid), str(name), str(state), float(age)) for pid, name, state, age in rows)
    return Condition(schema, versions[-1], engine, sessions, messages, unindexed, holders, *map(int, room))


class MissingRights(NamedTuple):
    """The rights on a table or sequence that a role lacks, such as `INSERT, UPDATE`; `schema` is quoted if needed."""

    table: str
    rights: str
    schema: str


async def missing_rights(driver: Driver) -> list[MissingRights]:
    """Return the rights that the role of a PostgreSQL database lacks; on SQLite, return an empty list."""
    if driver.backend == "sqlite":
        return []
    sql = load_statements("postgres/condition.sql")["missing_rights"]
    return [MissingRights(*row) for row in await driver.fetch(sql, {"tables": known_tables()})]


async def check_unused(driver: Driver) -> None:
    """Check that a PostgreSQL database has no other connections; the driver itself must have only one.

    Raises:
        StoreUnavailable: other connections exist; the error lists them.
    """
    if rows := await driver.fetch(load_statements("postgres/condition.sql")["connections"], {}):
        listed = ", ".join(f"{name} (server process {pid})" for pid, name in rows)
        raise StoreUnavailable(f"The database has other connections: {listed}; stop the processes that use it.")


# Offset of the byte that a writer locks: in WAL mode in the -shm file (wal.c), else in the database file (os_unix.c).
_WAL_WRITE = 120
_RESERVED = 0x40000001


class _Lock(NamedTuple):
    exclusive: bool
    pid: int
    inode: int
    first: int
    last: int | None


def lock_holders(path: Path, *, locks: Path = Path("/proc/locks")) -> tuple[LockHolder, ...]:
    """Return the other processes that lock a SQLite file, writers first; none if `/proc/locks` cannot be read."""
    inodes = {_inode(path): _RESERVED, _inode(path.with_name(path.name + "-shm")): _WAL_WRITE}
    writes: dict[int, bool] = {}
    for lock in _locks(locks):
        if lock.inode in inodes and lock.pid != os.getpid():
            byte = inodes[lock.inode]
            held = lock.exclusive and lock.first <= byte and (lock.last is None or byte <= lock.last)
            writes[lock.pid] = writes.get(lock.pid, False) or held
    ordered = sorted(writes.items(), key=lambda item: (not item[1], item[0]))
    return tuple(
        LockHolder(pid if pid > 0 else None, _name(pid), "writing" if writing else "open") for pid, writing in ordered
    )


def _locks(locks: Path) -> Iterator[_Lock]:
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # A line is "12: POSIX ADVISORY WRITE 4711 fd:01:1835023 120 120"; a waiting lock has "->" before "POSIX".
        words = line.split()
        if len(words) != 8 or words[1] not in ("POSIX", "OFDLCK"):
            continue
        _, _, _, mode, pid, file, first, last = words
        inode = int(file.rpartition(":")[2])
        yield _Lock(mode == "WRITE", int(pid), inode, int(first), None if last == "EOF" else int(last))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class SessionGap:
    """A session with fewer or more messages than its row says."""

    session_id: str
    expected: int
    found: int


@dataclass(frozen=True)
class Integrity:
    """The result of a check for damage.

    `damage`: the error messages of the database, which quote no rows; SQLite's are limited to 20. `gaps` has at most
    20 sessions. `indexes` is the number of PostgreSQL indexes that amcheck has checked; None if the database
    user cannot use amcheck.
    """

    damage: tuple[str, ...] = ()
    gaps: tuple[SessionGap, ...] = ()
    indexes: int | None = None


async def check_integrity(driver: Driver, *, transcripts: bool) -> Integrity:
    """Check a database for damage; with `transcripts`, also check the sessions in its tables.

    On SQLite, the whole file is read. On PostgreSQL, the damage that the server has noticed is returned, and indexes
    are checked if the extension amcheck is installed.
    """
    sql = load_statements("integrity.sql", f"{driver.backend}/integrity.sql")
    async with driver.reading() as connection:
        damage = [str(problem) for (problem,) in await connection.fetch(sql["damage"], {}) if problem != "ok"]
        rows = await connection.fetch(sql["gaps"], {}) if transcripts and not damage else []
        amcheck = "amcheck" in sql and bool(await connection.fetch(sql["amcheck"], {}))
        indexes = await connection.fetch(sql["indexes"], {}) if amcheck else []
    for index, name in indexes:
        damage += await _damage_of(driver, sql["check_index"], int(index), str(name))
    gaps = tuple(SessionGap(str(session_id), int(expected), int(found)) for session_id, expected, found in rows)
    return Integrity(tuple(damage), gaps, len(indexes) if amcheck else None)


async def _damage_of(driver: Driver, sql: str, index: int, name: str) -> list[str]:
    try:
        await driver.fetch(sql, {"index": index})
    except StoreUnavailable:
        raise
    except StoreError as error:
        return [f"the index {name} is damaged: {error}"]
    return []
