"""Locks for runs. On SQLite writers are serialised, so nothing has to be locked."""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep.store.driver import Backend, Connection, Parameters, Statement
from threadkeep.store.statements import load_statements


class RunLocks:
    """Locks that a transaction holds until it ends, taken in this order: conversations by name, trees, rows."""

    def __init__(self, backend: Backend) -> None:
        self._sql = load_statements(f"{backend}/runs.sql")

    def session(self, session_id: str) -> list[Statement]:
        """Return the statements that lock a session's order of runs; the session need not exist."""
        return self._statements("lock_order", {"place": session_id})

    def tree(self, root_run_id: str) -> list[Statement]:
        """Return the statements that lock a tree of runs against additions and cancellation."""
        return self._statements("lock_tree", {"root_run_id": root_run_id})

    async def hold_orders(self, connection: Connection, places: Iterable[str | None]) -> None:
        """Lock the order of runs of conversations; these need not exist."""
        for place in sorted({place for place in places if place is not None}):
            await self._hold(connection, "lock_order", {"place": place})

    async def hold_orders_of(self, connection: Connection, run_id: str) -> None:
        """Lock the order of runs of all conversations of a run."""
        await self._hold(connection, "lock_order_of", {"run_id": run_id})

    async def hold_tree(self, connection: Connection, root_run_id: str) -> None:
        """Lock a tree of runs against additions and cancellation."""
        await self._hold(connection, "lock_tree", {"root_run_id": root_run_id})

    async def hold_below(self, connection: Connection, run_id: str) -> None:
        """Lock a run and the runs below it against changes."""
        await self._hold(connection, "hold_below", {"run_id": run_id})

    async def _hold(self, connection: Connection, statement: str, parameters: Parameters) -> None:
        for sql, given in self._statements(statement, parameters):
            await connection.fetch(sql, given)

    def _statements(self, statement: str, parameters: Parameters) -> list[Statement]:
        return [(self._sql[statement], parameters)] if statement in self._sql else []
