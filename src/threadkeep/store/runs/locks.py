"""What only one transaction at a time does to runs. On SQLite all writers take turns, so there is nothing to lock."""

from __future__ import annotations

from threadkeep.store.driver import Backend, Connection, Parameters, Statement
from threadkeep.store.statements import load_statements


class RunLocks:
    """Locks that a transaction holds until it ends, always taken in this order: of a session, of trees, of rows."""

    def __init__(self, backend: Backend) -> None:
        self._sql = load_statements(f"{backend}/runs.sql")

    def session(self, session_id: str) -> list[Statement]:
        """What takes the lock of a session: nobody else orders its runs then. It need not be there."""
        return self._statements("lock_order", {"session_id": session_id})

    def tree(self, root_run_id: str) -> list[Statement]:
        """What takes the lock of a tree of runs: nobody else adds to it then, or stops it."""
        return self._statements("lock_tree", {"root_run_id": root_run_id})

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
        for sql, given in self._statements(statement, parameters):
            await connection.fetch(sql, given)

    def _statements(self, statement: str, parameters: Parameters) -> list[Statement]:
        return [(self._sql[statement], parameters)] if statement in self._sql else []
