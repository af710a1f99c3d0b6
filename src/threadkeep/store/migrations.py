"""Numbered migrations of the schema, each applied once. A database with an unknown migration is rejected.

The first migration creates the whole schema of version 0.1.0; it has the number 20, because it replaces earlier ones.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import datetime
from functools import cache, partial
from importlib.resources import files

from threadkeep.errors import SchemaTooNew, StoreError
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Backend, Connection, Driver
from threadkeep.store.partitions import RETRY_SECONDS, check_partitions, make_partitions, with_lock_retries
from threadkeep.store.statements import load_script

type MigrationReport = Callable[[int, int, str], object]
"""A callback that receives, before each migration, the numbers of finished and due migrations, and the file name.

If a try fails, the next try begins with the first due migration again.
"""

_logger = logging.getLogger("threadkeep.store")
_LOCK_NOTE_SECONDS = 1.0
_LOCKED: dict[Backend, str] = {
    "sqlite": "waits without a limit for another process that writes to the file",
    "postgres": f"waits up to {RETRY_SECONDS:.0f} seconds for other transactions that use its tables, and without a "
    "limit for another process that upgrades it",
}
_TABLE = """CREATE TABLE IF NOT EXISTS threadkeep_migrations (
    version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL
)"""
_APPLIED = "INSERT INTO threadkeep_migrations (version, name, applied_at) VALUES (:version, :name, :now)"
# The advisory lock has an arbitrary number. Only the wait for this lock has no limit, because other starting processes
# must wait while a large database is migrated.
_LOCK = (
    "SET LOCAL lock_timeout = 0",
    "SELECT pg_advisory_xact_lock(7310865112)",
    f"SET LOCAL lock_timeout = {GROUP_LOCK_SECONDS * 1000:.0f}",
)
_MADE = re.compile(r"^CREATE (?:TABLE|VIEW|SEQUENCE) (chat_\w+)", re.MULTILINE)
_IS_THERE: dict[Backend, str] = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'threadkeep_migrations'",
    # Do not use the view pg_tables: it joins other system tables, which each new connection would have to read first.
    "postgres": "SELECT count(*) FROM pg_class WHERE relname = 'threadkeep_migrations' AND relkind IN ('r', 'p') "
    "AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())",
}
_SCHEMAS = (
    "SELECT current_schema(), relnamespace::regnamespace::text FROM pg_class WHERE relname = 'threadkeep_migrations' "
    "AND pg_table_is_visible(oid)"
)


def known_migrations(backend: Backend) -> list[tuple[int, str]]:
    """Return the version and the file name of each migration for a database system, in order."""
    folder = files("threadkeep.store").joinpath("sql", backend)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    return [(int(name[:4]), name) for name in names]


def known_tables() -> list[str]:
    """Return the names of the tables, views and named sequences in the newest schema on PostgreSQL."""
    scripts = [*(name for _, name in known_migrations("postgres")), "partitions.sql"]
    made = [_MADE.findall(statement) for name in scripts for statement in load_script(f"postgres/{name}")]
    return sorted({name.removesuffix("_new") for names in made for name in names})


def check_schema(backend: Backend, found: int) -> None:
    """Check that a database with the schema version `found` can be upgraded; 0 is an empty database.

    Raises:
        SchemaTooNew: the database has migrations that this code does not know.
        StoreError: the database is older than the first migration.
    """
    known = known_migrations(backend)
    first, newest = known[0][0], known[-1][0]
    if found > newest:
        raise SchemaTooNew(found=found, known=newest)
    if 0 < found < first:
        raise StoreError(
            f"The database is at schema {found}, which a version before 0.1.0 created and no later version can "
            "upgrade: export its sessions with the old version, and import them into a new database."
        )


async def schema_version(driver: Driver) -> int:
    """Return the version of a database's newest migration, or 0 for an empty database."""
    async with driver.reading() as connection:
        return await _version(connection, driver.backend)


async def migrate(
    driver: Driver,
    now: datetime,
    *,
    report: MigrationReport | None = None,
    on_wait: Callable[[], object] | None = None,
    partitions: int | None = None,
) -> list[int]:
    """Bring a database to the newest schema; return the versions of the migrations that this call applied.

    If several processes call this at once, one migrates, and the others wait. A database that is up to date is only
    read. A new PostgreSQL database gets `partitions` partitions for messages. If the call has to wait for other
    processes, `on_wait` is called once; by default, it logs a warning.

    Raises:
        SchemaTooNew: the database has migrations that this code does not know; nothing was changed.
        StoreError: the database is older than the first migration, or another schema of the search_path has the tables;
            nothing was changed.
        RowLocked: other transactions used the tables for too long; nothing was changed.
        InvalidSettings: partitions were requested for a SQLite database.
    """
    check_partitions(driver.backend, partitions)
    found = await schema_version(driver)
    check_schema(driver.backend, found)
    if found == known_migrations(driver.backend)[-1][0]:
        return []
    if not found and driver.backend == "postgres":
        await _check_search_path(driver)
    # By default, log no warning for an empty database, because even the first connection to it may take long.
    warning = "the upgrade of the database's schema %s; `threadkeep doctor` names them"
    warn = partial(_logger.warning, warning, _LOCKED[driver.backend])
    on_wait = cache(on_wait or (warn if found else lambda: None))
    waits = asyncio.get_running_loop().call_later(_LOCK_NOTE_SECONDS, on_wait)

    async def apply(connection: Connection) -> list[int]:
        if driver.backend == "postgres":
            await connection.fetch_each([(statement, {}) for statement in _LOCK])
        waits.cancel()
        return await _apply(connection, driver.backend, now, report=report, partitions=partitions)

    try:
        if driver.backend == "postgres":
            return await with_lock_retries(driver, apply, on_retry=on_wait)
        async with driver.writing(lock_timeout_seconds=0) as connection:
            return await apply(connection)
    finally:
        waits.cancel()


async def _apply(
    connection: Connection,
    backend: Backend,
    now: datetime,
    *,
    report: MigrationReport | None,
    partitions: int | None,
) -> list[int]:
    found = await _version(connection, backend)
    waiting = [(version, name) for version, name in known_migrations(backend) if version > found]
    applied = [{"version": version, "name": name, "now": now.isoformat()} for version, name in waiting]
    await connection.execute(_TABLE, {})
    for done, (_, script) in enumerate(waiting):
        if report is not None:
            report(done, len(waiting), script)
        await connection.fetch_each([(statement, {}) for statement in load_script(f"{backend}/{script}")])
    if partitions is not None and not found:
        await make_partitions(connection, partitions)
    await connection.execute_many(_APPLIED, applied)
    return [version for version, _ in waiting]


async def _check_search_path(driver: Driver) -> None:
    """Raise `StoreError` if a later schema of the search_path has Threadkeep's tables: new tables would hide them."""
    for current, other in await driver.fetch(_SCHEMAS, {}):
        if current != other:
            raise StoreError(
                f"The schema {current} has no tables of Threadkeep, but {other} has, which comes later in the "
                f"search_path: put {other} first to use its sessions, or leave it out to create an empty database in "
                f"{current}."
            )


async def _version(connection: Connection, backend: Backend) -> int:
    [(exists,)] = await connection.fetch(_IS_THERE[backend], {})
    if not exists:
        return 0
    [(version,)] = await connection.fetch("SELECT coalesce(max(version), 0) FROM threadkeep_migrations", {})
    return int(version)
