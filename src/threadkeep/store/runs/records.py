"""Queries for runs, and their deletion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import batched

from threadkeep.records.runs import Run, RunCursor, RunQuery
from threadkeep.store.codec import time_text
from threadkeep.store.driver import Connection, Driver, Parameters, RowLocked
from threadkeep.store.runs.rows import fetch_run, fetch_runs
from threadkeep.store.statements import for_rows, load_statements, row_parameters

_LAST_TIME = "9999-12-31T23:59:59.999999+00:00"
_LAST_ID = "~"
_RUNS_AT_ONCE = 500


@dataclass(frozen=True)
class RunCounts:
    """The numbers of runs that are queued, running, waiting or set aside; each counted up to a limit."""

    queued: int = 0
    running: int = 0
    waiting: int = 0
    set_aside: int = 0


class RunRecords:
    """Lists of runs, trees of runs, and the deletion of runs and checkpoints."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("runs.sql", "runs_records.sql")

    async def runs(self, query: RunQuery) -> tuple[list[Run], RunCursor | None]:
        """Return runs, the newest first, and the cursor of the next page (None at the end)."""
        created_at, run_id = query.cursor or (None, _LAST_ID)
        parameters = {
            "session_id": query.session_id,
            "user_id": query.user_id,
            "workflow": query.workflow,
            "status": query.status,
            "parent_run_id": query.parent_run_id,
            "root_run_id": None if query.parent_run_id else query.root_run_id,
            "since": query.since and time_text(query.since),
            "set_aside": query.set_aside,
            "created_at": time_text(created_at) if created_at else _LAST_TIME,
            "run_id": run_id,
            "limit": query.limit + 1,
        }
        found = await self._fetch(_statement_for(query), parameters)
        if len(found) <= query.limit:
            return found, None
        last = found[query.limit - 1]
        return found[: query.limit], (last.created_at, last.run_id)

    async def tree(self, run_id: str, *, limit: int = 500) -> list[Run]:
        """Return the whole tree of a run, parents before their children; at most `limit` runs."""
        async with self._driver.reading() as connection:
            roots = await connection.fetch(self._sql["root"], {"run_id": run_id})
            if not roots:
                left = await fetch_run(connection, run_id)
                return [] if left is None else [left]
        return await self._fetch("tree", {"root_run_id": roots[0][0], "limit": limit})

    async def counts(self, *, limit: int = 10_000) -> RunCounts:
        """Return the numbers of runs for operators, each counted up to a limit."""
        rows = await self._driver.fetch(self._sql["counts"], {"limit": limit})
        return RunCounts(**{state: int(count) for state, count in rows})

    async def forget_runs(self, run_ids: Sequence[str]) -> int:
        """Delete the given runs and their trees, except those that belong to a session."""
        async with self._driver.writing() as connection:
            return await self._forget(connection, run_ids)

    async def forget_runs_at_rest(self, run_ids: Sequence[str]) -> int:
        """Delete runs like `forget_runs`, if no run of their trees is queued or running.

        Raises:
            RowLocked: a run is queued or running; nothing was deleted.
        """
        async with self._driver.writing() as connection:
            for some in batched(run_ids, _RUNS_AT_ONCE):
                if await connection.fetch(for_rows(self._sql["alone_at_work"], len(some)), _rows(some)):
                    raise RowLocked("A run that spoke there is queued or at work; try again when it is over.")
            return await self._forget(connection, run_ids)

    async def _forget(self, connection: Connection, run_ids: Sequence[str]) -> int:
        gone = 0
        for some in batched(run_ids, _RUNS_AT_ONCE):
            gone += await connection.execute(for_rows(self._sql["delete_alone"], len(some)), _rows(some))
        return gone

    async def with_checkpoints(self, moment: datetime, *, limit: int) -> list[str]:
        """Return runs that may still have checkpoints: done, deleted, or ended without a result before `moment`."""
        return await self._ids("with_checkpoints", {"before": time_text(moment), "limit": limit})

    async def checkpoints_expected(self, run_id: str) -> None:
        """Record that a run may have checkpoints."""
        await self._driver.write([(self._sql["may_have_checkpoints"], {"run_id": run_id})])

    async def checkpoints_removed(self, run_ids: Sequence[str]) -> None:
        """Record that runs have no checkpoints any more, except runs that have been resumed."""
        async with self._driver.writing() as connection:
            await connection.execute_many(
                self._sql["checkpoints_removed"], [{"run_id": run_id} for run_id in sorted(run_ids)]
            )

    async def _ids(self, statement: str, parameters: Parameters) -> list[str]:
        return [run_id for (run_id,) in await self._driver.fetch(self._sql[statement], parameters)]

    async def _fetch(self, statement: str, parameters: Parameters) -> list[Run]:
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql[statement], parameters)
            return await fetch_runs(connection, [run_id for (run_id,) in rows])


def _rows(run_ids: Sequence[str]) -> Parameters:
    return row_parameters([{"run_id": run_id} for run_id in run_ids])


def _statement_for(query: RunQuery) -> str:
    """Return the statement whose index fits a query."""
    if query.parent_run_id is not None or query.root_run_id is not None:
        return "newest_below"
    if query.session_id is not None:
        return "newest_of_session"
    if query.user_id is not None:
        return "newest_of_user"
    return "newest_set_aside" if query.set_aside else "newest"
