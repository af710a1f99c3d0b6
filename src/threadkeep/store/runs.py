"""Requests that named their message: claimed by one process, answered once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from threadkeep.records import Json, dump_json
from threadkeep.store.codec import clean_json, time_of, time_text
from threadkeep.store.driver import Driver, Row
from threadkeep.store.statements import load_statements

type RunStatus = Literal["running", "done", "failed", "interrupted"]


@dataclass(frozen=True)
class Run:
    """One request and what became of it. `result` is the answer as it was given; `error` names a kind, never a text."""

    run_id: str
    session_id: str
    message_id: str
    workflow: str
    status: RunStatus
    owner: str
    result: Mapping[str, Json] | None
    error: str | None
    started_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class Claim:
    """A request that wants to be answered: by `owner`, under `run_id` if it is the first of its message."""

    run_id: str
    session_id: str
    message_id: str
    workflow: str
    owner: str


class Runs:
    """The table of runs.

    `claim` is how two processes with the same message agree on who answers: the first gets its run, the others read it.
    An owner that has not sent a heartbeat for `stale_seconds` is taken for dead.
    """

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime], stale_seconds: float = 15.0) -> None:
        self._driver = driver
        self._clock = clock
        self._stale = timedelta(seconds=stale_seconds)
        self._sql = load_statements("runs.sql")

    async def claim(self, claim: Claim) -> tuple[Run, bool]:
        """The run of a message, and whether the caller is the one who has to carry it out now."""
        now = self._clock()
        key = {"session_id": claim.session_id, "message_id": claim.message_id}
        row = {**key, "run_id": claim.run_id, "workflow": claim.workflow, "owner": claim.owner, "now": time_text(now)}
        async with self._driver.writing() as connection:
            mine = bool(await connection.fetch(self._sql["claim"], row))
            if not mine:
                again = {**key, "owner": claim.owner, "now": time_text(now), "stale": time_text(now - self._stale)}
                mine = bool(await connection.fetch(self._sql["take_over"], again))
            [found] = await connection.fetch(self._sql["claimed"], key)
        return _run_of(found), mine

    async def run(self, run_id: str) -> Run | None:
        """The run with an id."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["run"], {"run_id": run_id})
        return _run_of(rows[0]) if rows else None

    async def heartbeat(self, run_id: str, owner: str) -> None:
        """Say that the owner is alive and at work."""
        async with self._driver.writing() as connection:
            await connection.execute(
                self._sql["heartbeat"], {"run_id": run_id, "owner": owner, "now": time_text(self._clock())}
            )

    async def finish(
        self,
        run_id: str,
        owner: str,
        status: RunStatus,
        *,
        result: Mapping[str, Json] | None = None,
        error: str | None = None,
    ) -> None:
        """Record how a run ended."""
        parameters = {
            "run_id": run_id,
            "owner": owner,
            "status": status,
            "result": None if result is None else dump_json(clean_json(dict(result))),
            "error": error,
            "now": time_text(self._clock()),
        }
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["finish"], parameters)


def _run_of(row: Row) -> Run:
    values: list[Any] = list(row)
    values[6] = None if values[6] is None else json.loads(values[6])
    values[8:11] = [value and time_of(value) for value in values[8:11]]
    return Run(*values)
