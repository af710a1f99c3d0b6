"""Requests that named their message: claimed by one process, answered once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from threadkeep.records.runs import Run
from threadkeep.store.codec import time_text
from threadkeep.store.driver import Driver
from threadkeep.store.runs.rows import fetch_runs
from threadkeep.store.statements import load_statements


@dataclass(frozen=True)
class Claim:
    """A request that wants to be answered: by `owner`, under `run_id` if it is the first of its message."""

    run_id: str
    session_id: str
    message_id: str
    workflow: str
    owner: str


async def claim_message(driver: Driver, claim: Claim, *, now: datetime, stale: timedelta) -> tuple[Run, bool]:
    """The run of a message, and whether the caller is the one who has to carry it out now.

    Two processes with the same message agree so on who answers: the first gets its run, the others read it. An owner
    that has not sent a heartbeat for a time is taken for dead.
    """
    sql = load_statements("runs.sql")
    key = {"session_id": claim.session_id, "message_id": claim.message_id}
    row = {**key, "run_id": claim.run_id, "workflow": claim.workflow, "owner": claim.owner, "now": time_text(now)}
    async with driver.writing() as connection:
        mine = bool(await connection.fetch(sql["claim"], row))
        if not mine:
            again = {**key, "owner": claim.owner, "now": time_text(now), "stale": time_text(now - stale)}
            mine = bool(await connection.fetch(sql["take_over"], again))
        [(run_id,)] = await connection.fetch(sql["claimed"], key)
        [found] = await fetch_runs(connection, [run_id])
    return found, mine
