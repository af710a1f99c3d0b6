"""Definitions of workflows by version: a run ends with the version with which it began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from threadkeep.records import Json
from threadkeep.records.runs import WorkflowVersion
from threadkeep.store.codec import time_of, time_text
from threadkeep.store.driver import Driver, Row
from threadkeep.store.runs.rows import json_of, json_text
from threadkeep.store.statements import load_statements

# A query takes time, and clocks of other processes differ.
_CLOCKS_DIFFER = timedelta(hours=1)


class WorkflowVersions:
    """The table `chat_workflows`. A version never changes after it is stored."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("runs_records.sql")

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
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["keep_workflow"], parameters)

    async def version(self, name: str, version: str) -> WorkflowVersion | None:
        """Return one version of a workflow."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["workflow"], {"name": name, "version": version})
        return _version_of(rows[0]) if rows else None

    async def versions(self, name: str, *, limit: int = 50) -> list[WorkflowVersion]:
        """Return the versions of a workflow with which runs began, the newest first."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["workflow_versions"], {"name": name, "limit": limit})
        return [_version_of(row) for row in rows]

    async def unused(self, before: datetime, *, limit: int = 100) -> list[tuple[str, str]]:
        """Return names and versions that are old and without runs, except the newest version of each workflow."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["unused_workflows"], {"before": time_text(before), "limit": limit})
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
