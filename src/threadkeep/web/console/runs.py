"""Pages of runs: the list, and one run with its parents and children, its events (updated live), and forms."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from threadkeep.errors import InvalidInput
from threadkeep.records import Json
from threadkeep.records.runs import RUN_ENDS, RUN_STATUSES, RunQuery, RunStatus
from threadkeep.web.api.parameters import AppInUse, LastEventId, RunId, read_cursor, write_cursor
from threadkeep.web.api.runs import get_events, get_run, get_trace, get_tree
from threadkeep.web.console.rendering import ConsoleRoute, Form, SeenAs, page, redirect, run_address

_PAGE = 50
_EVENTS = 200
_ANSWER = "answer:"

router = APIRouter(prefix="/console/runs", route_class=ConsoleRoute, include_in_schema=False)


@router.get("")
async def list_runs(
    *,
    request: Request,
    app: AppInUse,
    user: SeenAs = None,
    session: Annotated[str | None, Query(max_length=256)] = None,
    status: Annotated[RunStatus | None, Query()] = None,
    workflow: Annotated[str | None, Query(max_length=128)] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Response:
    """Show a page of runs, newest first."""
    query = RunQuery(
        session_id=session or None,
        user_id=user,
        workflow=workflow or None,
        status=status,
        limit=_PAGE,
        cursor=read_cursor("runs", cursor),
    )
    found, following = await (await app.runs.service()).list(query)
    return page(
        request,
        "runs.html",
        runs=found,
        took={run.run_id: _seconds(run.started_at, run.ended_at) for run in found},
        chosen={"user": user or "", "session": session or "", "status": status or "", "workflow": workflow or ""},
        statuses=RUN_STATUSES,
        workflows=sorted(one.name for one in app.workflows.all()),
        next_cursor=write_cursor("runs", following),
    )


@router.get("/{run_id}")
async def show_run(
    request: Request,
    run_id: RunId,
    app: AppInUse,
    user: SeenAs = None,
    after: Annotated[int, Query(ge=0, lt=2**53)] = 0,
) -> Response:
    """Show a run with its tree, its questions, its usage and its trace."""
    # Read the run before its trace: the page of an ended run is not refreshed, so it must have all events.
    run = await get_run(run_id, app, user)
    trace = await get_trace(run_id, app, user, after, _EVENTS)
    return page(
        request,
        "run.html",
        run=run,
        took=_seconds(run.started_at, run.ended_at),
        tree=(await get_tree(run_id, app, user)).runs,
        events=trace.events,
        next_after=trace.next_after,
        calls=[call.call for call in await app.memory.manifests.of_run(run_id, user_id=user)],
        over=run.status in RUN_ENDS,
        user=user or "",
    )


@router.get("/{run_id}/events")
async def stream_events(
    request: Request, run_id: RunId, app: AppInUse, user: SeenAs = None, last_event_id: LastEventId = None
) -> Response:
    """Stream the events of a run, for the console's script."""
    return await get_events(run_id, app, request, user, last_event_id)


@router.post("/{run_id}/resume")
async def resume(run_id: RunId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Resume a run with a person's answer to its question."""
    answers = {name.removeprefix(_ANSWER): value for name, value in form.items() if name.startswith(_ANSWER)}
    given: dict[str, Json] = {name: text for name, text in answers.items() if text.strip()}
    if "json" in form:
        try:
            given = {name: json.loads(answers[name]) for name in given}
        except (ValueError, RecursionError):
            raise InvalidInput("The answer is not JSON; correct it, or send it as text.") from None
    if not given:
        raise InvalidInput("The form has no answer; write one.")
    value = next(iter(given.values())) if len(answers) == 1 else given
    runs = await app.runs.service()
    await runs.resume(run_id, value, user_id=user, mode="background", questions=answers.keys())
    return redirect(run_address(run_id, user_id=user))


@router.post("/{run_id}/cancel")
async def cancel(run_id: RunId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Cancel a run and all its descendants."""
    await (await app.runs.service()).cancel(run_id, user_id=user)
    return redirect(run_address(run_id, user_id=user))


@router.post("/{run_id}/retry")
async def retry(run_id: RunId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Retry a failed, cancelled or interrupted run."""
    await (await app.runs.service()).retry(run_id, user_id=user, mode="background")
    return redirect(run_address(run_id, user_id=user))


def _seconds(started_at: datetime | None, ended_at: datetime | None) -> float | None:
    return (ended_at - started_at).total_seconds() if started_at and ended_at else None
