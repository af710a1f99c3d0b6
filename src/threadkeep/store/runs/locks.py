"""What only one transaction at a time does to runs. On SQLite all writers take turns, so there is nothing to lock."""

from __future__ import annotations

from threadkeep.store.driver import Backend, Connection, Parameters
from threadkeep.store.statements import load_statements


class RunLocks:
    """Locks that a transaction holds until it ends, always taken in this order: of a session, of trees, of rows."""

    def __init__(self, backend: Backend) -> None:
        self._sql = load_statements(f"{backend}/runs.sql")

    async def hold_session(self, connection: Connection, session_id: str) -> None:
        """Nobody else orders the runs of a session, which need not be there."""
        await self._hold(connection, "lock_order", {"session_id": session_id})

    async def hold_session_of(self, connection: Connection, run_id: str) -> None:
        """Nobody else orders the runs of the session that a run is in, if it is in one."""
        await self._hold(connection, "lock_order_of", {"run_id": run_id})

    async def hold_tree(self, connection: Connection, root_run_id: str) -> None:
        """Nobody else adds to a tree of runs, or stops it."""
        await self._hold(connection, "lock_tree", {"root_run_id": root_run_id})

    async def hold_below(self, connection: Connection, run_id: str) -> None:
        """Nobody else changes a run or those below it."""
        await self._hold(connection, "hold_below", {"run_id": run_id})

    async def _hold(self, connection: Connection, statement: str, parameters: Parameters) -> None:
        if statement in self._sql:
            await connection.fetch(self._sql[statement], parameters)
