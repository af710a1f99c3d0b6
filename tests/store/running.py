"""Helpers that create and query runs."""

from __future__ import annotations

from threadkeep import Memory
from threadkeep.records.runs import Begun, NewRun, Run, RunQuery, RunStatus


def asked(run_id: str, *, session: str | None = "room", message: str | None = None, said: str = "hello") -> NewRun:
    """Return a new run of the support workflow."""
    return NewRun(run_id=run_id, workflow="support", input={"text": said}, session_id=session, message_id=message)


async def begun(memory: Memory, run_id: str, owner: str = "me") -> Run:
    """Begin the run, and return it."""
    outcome = await memory.runs.order.begin(run_id, owner)
    assert isinstance(outcome, Begun)
    return outcome.run


def in_room(status: RunStatus | None = None, *, session: str = "room") -> RunQuery:
    """Return a query for all runs of the room, or for those with a status."""
    return RunQuery(session_id=session, status=status, limit=200)
