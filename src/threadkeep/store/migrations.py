"""Numbered migrations: applied once each, by one process at a time, refused on a database from the future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.resources import files

from threadkeep.errors import SchemaTooNew
from threadkeep.store.driver import Backend, Connection, Driver
from threadkeep.store.statements import load_script

type ToldOfMigration = Callable[[int, int, str], object]
"""Hears before each migration how many of how many are done, and its file."""

_TABLE = """CREATE TABLE IF NOT EXISTS threadkeep_migrations (
    version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL
)"""
_APPLIED = "INSERT INTO threadkeep_migrations (version, name, applied_at) VALUES (:version, :name, :now)"
# Engines whose new databases begin with a whole schema, and the migration that it has come to. On SQLite many are made:
# each one in memory is new, and most of the time of its migrations would go into renaming tables that are empty.
_BEGINNINGS: dict[Backend, int] = {"sqlite": 11}
# Any fixed number: it names this lock among the advisory locks of a PostgreSQL database.
_LOCK = "SELECT pg_advisory_xact_lock(7310865112)"
_IS_THERE: dict[Backend, str] = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'threadkeep_migrations'",
    "postgres": "SELECT count(*) FROM pg_tables "
    "WHERE schemaname = current_schema() AND tablename = 'threadkeep_migrations'",
}


def known_migrations(backend: Backend) -> list[tuple[int, str]]:
    """Version and file name of each migration of an engine, in order."""
    folder = files("threadkeep.store").joinpath("sql", backend)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    return [(int(name[:4]), name) for name in names]


async def schema_version(driver: Driver) -> int:
    """The newest migration that a database has; 0 for an empty one."""
    async with driver.reading() as connection:
        return await _version(connection, driver.backend)


async def migrate(driver: Driver, now: datetime, *, told: ToldOfMigration | None = None) -> list[int]:
    """Bring a database to the newest schema; answers the versions that were applied now.

    Safe when many processes start at once: they take turns, and the later ones find nothing left to do. A database that
    is up to date is only read.

    Raises:
        SchemaTooNew: the database has migrations that this code does not know; nothing was changed.
    """
    known = known_migrations(driver.backend)
    newest = known[-1][0]
    found = await schema_version(driver)
    if found > newest:
        raise SchemaTooNew(found=found, known=newest)
    if found == newest:
        return []
    # A big database takes its time, and those who start meanwhile wait for it.
    async with driver.writing(lock_timeout_seconds=0) as connection:
        if driver.backend == "postgres":
            await connection.fetch(_LOCK, {})
        found = await _version(connection, driver.backend)
        waiting = [(version, name) for version, name in known if version > found]
        scripts = [name for _, name in waiting] if found else _from_nothing(driver.backend, known)
        applied = [{"version": version, "name": name, "now": now.isoformat()} for version, name in waiting]
        await connection.execute(_TABLE, {})
        for done, script in enumerate(scripts):
            if told is not None:
                told(done, len(scripts), script)
            await connection.fetch_each([(statement, {}) for statement in load_script(f"{driver.backend}/{script}")])
        await connection.execute_many(_APPLIED, applied)
    return [version for version, _ in waiting]


def _from_nothing(backend: Backend, known: Sequence[tuple[int, str]]) -> list[str]:
    """The scripts that make the newest schema: a whole one, if there is one, and the migrations that came after it."""
    begun, scripts = 0, []
    if (version := _BEGINNINGS.get(backend, 0)) in [number for number, _ in known]:
        begun, scripts = version, [f"schema_{version:04}.sql"]
    return [*scripts, *(name for version, name in known if version > begun)]


async def _version(connection: Connection, backend: Backend) -> int:
    [(there,)] = await connection.fetch(_IS_THERE[backend], {})
    if not there:
        return 0
    [(version,)] = await connection.fetch("SELECT coalesce(max(version), 0) FROM threadkeep_migrations", {})
    return int(version)
