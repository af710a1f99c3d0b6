"""Which processes live: told by locks on files where they share a machine, by heartbeats where they share a server."""

from __future__ import annotations

import fcntl
import glob
import os
import time
from collections.abc import Set
from pathlib import Path
from typing import Protocol

import sqlalchemy

from threadkeep.runs.engine.dbos_database import SCHEMA, Connections

_LOCK_NUMBER = 7310865114


class Presence(Protocol):
    """This process among those that carry runs out. Every process has a new name; none is ever used again."""

    def enter(self) -> None:
        """Be there, before the first run is taken."""
        ...

    def beat(self) -> bool:
        """Show that this process lives; False when it was taken for dead, and others have its runs."""
        ...

    def is_fresh(self) -> bool:
        """Whether this process is certain that nobody has taken it for dead."""
        ...

    def dead(self, names: Set[str]) -> Set[str]:
        """Those of some other processes that have died; maybe others, too."""
        ...

    def forget(self, name: str) -> None:
        """Put away what is left of a dead process, whose runs have been taken care of."""
        ...

    def leave(self) -> None:
        """Be there no more: whatever this process still has is others'."""
        ...


class LockedFiles:
    """A lock on a file for each process that uses a SQLite database: the system takes it away when the process dies.

    A process that stands still (a debugger, a laptop that sleeps) keeps its lock, and so its runs.
    """

    def __init__(self, database: Path, name: str) -> None:
        self._database = database
        self._name = name
        self._descriptor: int | None = None

    def enter(self) -> None:
        """Lock this process's file; under its own name nobody has ever seen it unlocked."""
        made = self._path(self._name).with_suffix(".new")
        self._descriptor = os.open(made, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        made.rename(self._path(self._name))

    def beat(self) -> bool:
        """Nothing has to be shown."""
        return True

    def is_fresh(self) -> bool:
        """The lock does not go by itself."""
        return True

    def dead(self, names: Set[str]) -> Set[str]:
        """Those whose file is not locked, or not there; with them those that left no more than a file."""
        files = self._database.parent.glob(f"{glob.escape(self._database.name)}.*.lock")
        known = names | {file.suffixes[-2].removeprefix(".") for file in files}
        return {name for name in known if name != self._name and not _is_locked(self._path(name))}

    def forget(self, name: str) -> None:
        """Remove a file."""
        self._path(name).unlink(missing_ok=True)

    def leave(self) -> None:
        """Remove this process's file."""
        if self._descriptor is not None:
            self.forget(self._name)
            os.close(self._descriptor)
            self._descriptor = None

    def _path(self, name: str) -> Path:
        return self._database.with_name(f"{self._database.name}.{name}.lock")


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # Shared: two that look at the same moment do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


_TABLES = sqlalchemy.MetaData(schema=SCHEMA)
_PROCESSES = sqlalchemy.Table(
    "processes",
    _TABLES,
    sqlalchemy.Column("name", sqlalchemy.Text, primary_key=True),
    sqlalchemy.Column("beats", sqlalchemy.BigInteger, nullable=False),
)


class Heartbeats:
    """A row for each process of a PostgreSQL database, counted up as long as the process lives.

    No clock is compared with another: dead is whose row stood still for `dead_seconds` while this process looked at it
    again and again. So a server that was down for long, or a process that stood still itself, takes nobody for dead.
    """

    def __init__(self, connections: Connections, name: str, dead_seconds: float) -> None:
        # A pool of its own: whatever else waits for a connection, the heart beats.
        self._pool = connections.pool(2)
        self._name = name
        self._dead_seconds = dead_seconds
        self._shown_at = 0.0
        self._looked_at = 0.0
        self._seen: dict[str, tuple[int, float]] = {}

    def enter(self) -> None:
        """Add this process's row; the first process makes the table."""
        with self._pool.begin() as connection:
            lock = sqlalchemy.func.pg_advisory_xact_lock(_LOCK_NUMBER)
            connection.execute(sqlalchemy.select(lock))
            connection.execute(sqlalchemy.schema.CreateSchema(SCHEMA, if_not_exists=True))
            _TABLES.create_all(connection)
            connection.execute(_PROCESSES.insert().values(name=self._name, beats=0))
        self._shown_at = _now()

    def beat(self) -> bool:
        """Count this process's row up."""
        began = _now()
        statement = _PROCESSES.update().where(_PROCESSES.c.name == self._name).values(beats=_PROCESSES.c.beats + 1)
        with self._pool.begin() as connection:
            if connection.execute(statement).rowcount == 0:
                return False
        self._shown_at = began
        return True

    def is_fresh(self) -> bool:
        """Whether this process has shown itself before anybody could have lost patience."""
        return _now() - self._shown_at < self._dead_seconds

    def dead(self, names: Set[str]) -> Set[str]:
        """Those that have no row, after the rows that stood still for too long are removed."""
        now = _now()
        with self._pool.begin() as connection:
            rows = {str(row.name): int(row.beats) for row in connection.execute(_PROCESSES.select())}
        if now - self._looked_at > self._dead_seconds / 2:
            self._seen = {}
        self._looked_at = now
        since = {name: self._since(name, beats, now) for name, beats in rows.items()}
        self._seen = {name: (rows[name], at) for name, at in since.items()}
        still = {name for name, at in since.items() if now - at >= self._dead_seconds and name != self._name}
        removed = {name for name in still if self._remove(name, rows[name])}
        return {name for name in names if name not in rows or name in removed} - {self._name}

    def forget(self, name: str) -> None:
        """Its row is gone already."""

    def leave(self) -> None:
        """Remove this process's row."""
        try:
            with self._pool.begin() as connection:
                connection.execute(_PROCESSES.delete().where(_PROCESSES.c.name == self._name))
        finally:
            self._pool.dispose()

    def _since(self, name: str, beats: int, now: float) -> float:
        before = self._seen.get(name)
        return before[1] if before is not None and before[0] == beats else now

    def _remove(self, name: str, beats: int) -> bool:
        """Take a process for dead, unless it has shown itself in the meantime."""
        row = (_PROCESSES.c.name == name) & (_PROCESSES.c.beats == beats)
        with self._pool.begin() as connection:
            return connection.execute(_PROCESSES.delete().where(row)).rowcount > 0


def _now() -> float:
    """Seconds that also pass while the machine sleeps, where the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)
