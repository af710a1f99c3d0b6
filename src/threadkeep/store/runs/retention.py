"""Retention of runs that are over, and of workflow versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from threadkeep.records import Json
from threadkeep.records.runs import RunStatus, WorkflowVersion
from threadkeep.store.codec import json_text, time_of, time_text
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Connection, Parameters, Row
from threadkeep.store.runs.rows import json_of
from threadkeep.store.statements import ClockedTables, Tables, for_rows, row_parameters

_NEVER = "1970-01-01T00:00:00.000000+00:00"

type TreeCursor = tuple[datetime, str]


@dataclass(frozen=True)
class Cutoffs:
    """The times before which a run must have ended; without `set_aside_before` runs set aside are never deleted."""

    before: datetime
    set_aside_before: datetime | None = None


@dataclass(frozen=True)
class FinishedTree:
    """An expired run with all runs below; `workflow` and the times are those of the run at the top."""

    root_run_id: str
    workflow: str
    status: RunStatus
    ended_at: datetime
    runs: int
    events: int
    cursor: TreeCursor


@dataclass(frozen=True)
class RemovedRuns:
    """The result of one step: deleted trees with their runs, or some events of a large tree."""

    trees: int = 0
    runs: int = 0
    events: int = 0


class FinishedRuns(Tables, sql=("runs_retention.sql", "{backend}/runs.sql")):
    """The tables of runs, as retention needs them.

    Guarantees: a tree is deleted entirely or not at all; a tree with a running, waiting or resumed run stays. The
    record that a message was answered stays as long as the message.
    """

    async def trees(self, cutoffs: Cutoffs, *, after: TreeCursor | None, limit: int) -> list[FinishedTree]:
        """Return expired trees, the oldest first."""
        created_at, run_id = after or (None, "")
        place = {"created_at": time_text(created_at) if created_at else _NEVER, "run_id": run_id, "limit": limit}
        rows = await self._driver.fetch(self._sql["over_for_long"], {**place, **_times(cutoffs)})
        return [_tree_of(row) for row in rows]

    async def delete(self, trees: Sequence[FinishedTree], cutoffs: Cutoffs) -> RemovedRuns:
        """Delete the given trees that are still expired, with their traces and usage.

        Raises:
            RowLocked: another transaction has locked one of their runs.
        """
        sizes = {tree.root_run_id: tree for tree in trees}
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            roots = await self._still_over(connection, sorted(sizes), cutoffs)
            if not roots:
                return RemovedRuns()
            rows = [{"root_run_id": root} for root in roots]
            await connection.execute(for_rows(self._sql["remember"], len(rows)), row_parameters(rows))
            gone = await connection.fetch(for_rows(self._sql["delete_trees"], len(rows)), row_parameters(rows))
        return RemovedRuns(len(roots), len(gone), sum(sizes[root].events for root in roots))

    async def delete_some_events(self, tree: FinishedTree, cutoffs: Cutoffs, *, limit: int) -> RemovedRuns:
        """Delete some events of a large tree before the tree itself; do nothing if the tree is not expired any more."""
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            if not await self._still_over(connection, [tree.root_run_id], cutoffs):
                return RemovedRuns()
            parameters = {"root_run_id": tree.root_run_id, "limit": limit}
            return RemovedRuns(events=await connection.execute(self._sql["delete_some_events"], parameters))

    async def _still_over(self, connection: Connection, roots: Sequence[str], cutoffs: Cutoffs) -> list[str]:
        rows = [{"root_run_id": root} for root in roots]
        if "hold_trees" in self._sql:
            await connection.fetch(for_rows(self._sql["hold_trees"], len(rows)), row_parameters(rows))
        parameters = {**row_parameters(rows), **_times(cutoffs)}
        found = await connection.fetch(for_rows(self._sql["still_over"], len(rows)), parameters)
        return [root for (root,) in found]


def _times(cutoffs: Cutoffs) -> Parameters:
    aside = cutoffs.set_aside_before
    return {
        "before": time_text(cutoffs.before),
        "set_aside_before": _NEVER if aside is None else time_text(aside),
    }


def _tree_of(row: Row) -> FinishedTree:
    root_run_id, workflow, status, created_at, run_id, ended_at, runs, events = row
    return FinishedTree(
        root_run_id,
        workflow,
        status,
        time_of(ended_at),
        int(runs),
        int(events),
        cursor=(time_of(created_at), run_id),
    )


# A query takes time, and clocks of other processes differ.
_CLOCKS_DIFFER = timedelta(hours=1)


class WorkflowVersions(ClockedTables, sql=("runs_records.sql",)):
    """The table `chat_workflows`. A version never changes after it is stored."""

    async def keep(self, name: str, version: str, definition: Mapping[str, Json] | None) -> None:
        """Store a definition, unless its version exists already."""
        if await self.version(name, version) is not None:
            return
        parameters = {
            "name": name,
            "version": version,
            "definition": None if definition is None else json_text(dict(definition)),
            "now": time_text(self._clock()),
        }
        await self._driver.write([(self._sql["keep_workflow"], parameters)])

    async def version(self, name: str, version: str) -> WorkflowVersion | None:
        """Return one version of a workflow."""
        rows = await self._driver.fetch(self._sql["workflow"], {"name": name, "version": version})
        return _version_of(rows[0]) if rows else None

    async def versions(self, name: str, *, limit: int = 50) -> list[WorkflowVersion]:
        """Return the versions of a workflow with which runs began, the newest first."""
        rows = await self._driver.fetch(self._sql["workflow_versions"], {"name": name, "limit": limit})
        return [_version_of(row) for row in rows]

    async def unused(self, before: datetime, *, limit: int = 100) -> list[tuple[str, str]]:
        """Return names and versions that are old and without runs, except the newest version of each workflow."""
        rows = await self._driver.fetch(self._sql["unused_workflows"], {"before": time_text(before), "limit": limit})
        return [(name, version) for name, version in rows]

    async def forget(self, unused: Sequence[tuple[str, str]]) -> int:
        """Delete versions that were just found unused, except those with which runs have begun since.

        Return the number deleted.
        """
        since = time_text(self._clock() - _CLOCKS_DIFFER)
        async with self._driver.writing() as connection:
            return sum(
                [
                    await connection.execute(
                        self._sql["forget_workflow"], {"name": name, "version": version, "since": since}
                    )
                    for name, version in unused
                ]
            )


def _version_of(row: Row) -> WorkflowVersion:
    name, version, definition, first_used_at = row
    return WorkflowVersion(name, version, json_of(definition), time_of(first_used_at))
