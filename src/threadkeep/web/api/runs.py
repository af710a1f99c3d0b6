"""Runs of workflows: start, list, inspect, cancel, resume and retry."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from threadkeep.records.runs import RunQuery, RunStatus
from threadkeep.runs.service import RunService
from threadkeep.runs.views import RunBody, RunEventBody, RunSummary
from threadkeep.web.api.parameters import (
    DEFAULT_LIMIT,
    AppInUse,
    Cursor,
    Limit,
    RunId,
    UserId,
    read_cursor,
    write_cursor,
)
from threadkeep.web.api.workflows import WorkflowName
from threadkeep.web.callers import CallerInUse
from threadkeep.web.problems import documented
from threadkeep.web.runs import (
    EXAMPLE,
    Cancelled,
    ResumeBody,
    RetryBody,
    RunList,
    RunRequestBody,
    RunTraceBody,
    RunTree,
    WaitMode,
    open_run_stream,
    open_submitted_stream,
)
from threadkeep.web.schemas import GivenId
from threadkeep.web.streams import EventStream

router = APIRouter(prefix="/api/v1", tags=["runs"])

_FAILURES = documented(404, 422, 503)
_CHANGES = documented(400, 404, 413, 422, 503)
_STREAMED = {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}}
_LATER: dict[int | str, dict[str, Any]] = {
    202: {"model": RunBody, "description": "The run goes on; GET /api/v1/runs/{run_id} tells how."}
}
_STARTED: dict[int | str, dict[str, Any]] = {
    200: {"model": RunBody, "description": "The run, which is over or waits for a person.", "content": _STREAMED},
    **_LATER,
}


@router.post(
    "/workflows/{name}/runs",
    summary="Run a workflow",
    response_model=None,
    responses={**_STARTED, **documented(400, 404, 409, 413, 422, 503)},
)
async def start_run(
    name: WorkflowName, body: RunRequestBody, app: AppInUse, caller: CallerInUse, request: Request, response: Response
) -> RunBody | EventStream:
    """Run a workflow in a session, one turn after another, in order of arrival.

    With `mode` `wait` the response is the run when it has ended or waits for a person; with `stream` it is `start`,
    which names the run, followed by its events; with `background` it is the run in its current state (202). A client
    that disconnects stops nothing. The same `message_id` in a session is the same run.
    """
    if body.session_id is not None:
        app.memory.session(body.session_id)  # validates the id: an empty one must not start a new session
    body.user_id = caller.user(body.user_id)
    runs = await app.runs.service()
    submitted = await runs.submit(body.request(name), mode="background" if body.mode == "background" else "wait")
    if body.mode == "stream":
        heartbeat = request.app.state.heartbeat_seconds
        return await open_submitted_stream(runs, submitted, body, heartbeat_seconds=heartbeat)
    return await _told(runs, submitted.run_id, body.user_id, response, mode=body.mode)


@router.get("/runs", summary="List runs", responses=documented(422, 503))
async def list_runs(
    *,
    app: AppInUse,
    user_id: UserId = None,
    session_id: Annotated[str | None, Query(max_length=256, description="Only runs in this session.")] = None,
    workflow: Annotated[str | None, Query(max_length=128, description="Only runs of this workflow.")] = None,
    status: Annotated[RunStatus | None, Query(description="Only runs that stand so.")] = None,
    parent_run_id: Annotated[GivenId | None, Query(description="Only the children of this run.")] = None,
    set_aside: Annotated[bool | None, Query(description="Only those that wait to be tried again, or do not.")] = None,
    since: Annotated[datetime | None, Query(description="Only runs that were asked for since then.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> RunList:
    """List runs, newest first."""
    query = RunQuery(
        session_id=session_id,
        user_id=user_id,
        workflow=workflow,
        status=status,
        parent_run_id=parent_run_id,
        set_aside=set_aside,
        since=since and since.astimezone(),
        limit=limit,
        cursor=read_cursor(cursor),
    )
    found, following = await (await app.runs.service()).list(query)
    next_cursor = write_cursor(following)
    return RunList(runs=[RunSummary.of(run) for run in found], next_cursor=next_cursor)


@router.get("/runs/{run_id}", summary="See a run", responses=_FAILURES)
async def get_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunBody:
    """Return a run with its status, its result, and its usage including all children."""
    return await _whole(await app.runs.service(), run_id, user_id)


@router.get("/runs/{run_id}/tree", summary="See a run with its parents and children", responses=_FAILURES)
async def get_tree(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunTree:
    """Return all runs of its tree, parents before their children."""
    found = await (await app.runs.service()).tree(run_id, user_id=user_id)
    return RunTree(root_run_id=found[0].root_run_id, runs=[RunSummary.of(run) for run in found])


@router.get("/runs/{run_id}/trace", summary="See what happened in a run", responses=_FAILURES)
async def get_trace(
    run_id: RunId,
    app: AppInUse,
    user_id: UserId = None,
    after: Annotated[int, Query(ge=0, lt=2**53, description="Only events after this number.")] = 0,
    limit: Limit = DEFAULT_LIMIT,
) -> RunTraceBody:
    """Return nodes, model calls, tools, children and messages, in order. The trace contains messages' text."""
    found = await (await app.runs.service()).trace(run_id, after=after, limit=limit, user_id=user_id)
    events = [RunEventBody.of(event) for event in found]
    return RunTraceBody(run_id=run_id, events=events, next_after=events[-1].number if len(events) == limit else None)


@router.get(
    "/runs/{run_id}/events",
    summary="Read a run as it happens",
    response_class=Response,
    responses={200: {"description": "The events.", "content": _STREAMED}, **_FAILURES},
)
async def get_events(
    run_id: RunId,
    app: AppInUse,
    request: Request,
    user_id: UserId = None,
    last_event_id: Annotated[
        str | None, Header(max_length=32, description="The id of the newest event that the reader has.")
    ] = None,
) -> EventStream:
    """Stream the trace as server-sent events, with pieces of the answer (`token`); last `end` or `error`.

    The id of each trace event is its number; with `Last-Event-ID` a client resumes after that event.
    """
    known = last_event_id or ""
    after = int(known) if known.isascii() and known.isdigit() and len(known) < 19 else 0
    runs = await app.runs.service()
    heartbeat = request.app.state.heartbeat_seconds
    return await open_run_stream(runs, run_id, after=after, user_id=user_id, heartbeat_seconds=heartbeat)


@router.post("/runs/{run_id}/cancel", summary="Stop a run", responses=_FAILURES)
async def cancel_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> Cancelled:
    """Cancel a run and all its descendants, in any process.

    Running runs end within two seconds; if their process has just died, as soon as that is detected.
    """
    return Cancelled(run_ids=await (await app.runs.service()).cancel(run_id, user_id=user_id))


@router.post("/runs/{run_id}/resume", summary="Answer what a run asks", responses={**_LATER, **_CHANGES})
async def resume_run(
    run_id: RunId, body: ResumeBody, app: AppInUse, response: Response, user_id: UserId = None
) -> RunBody:
    """Resume a run that waits for a person, with the answer."""
    runs = await app.runs.service()
    await runs.resume(run_id, body.value, user_id=user_id, mode=body.mode)
    return await _told(runs, run_id, user_id, response, mode=body.mode)


@router.post("/runs/{run_id}/retry", summary="Try a run again", responses={**_LATER, **_CHANGES})
async def retry_run(
    run_id: RunId, app: AppInUse, response: Response, body: RetryBody | None = None, user_id: UserId = None
) -> RunBody:
    """Retry a failed, cancelled or interrupted run from its last checkpoint. The body is optional.

    A run that used up its budget needs a larger one.
    """
    runs = await app.runs.service()
    asked = body or RetryBody()
    await runs.retry(run_id, user_id=user_id, mode=asked.mode, budget=asked.budget.limits())
    return await _told(runs, run_id, user_id, response, mode=asked.mode)


async def _told(runs: RunService, run_id: str, user_id: str | None, response: Response, *, mode: WaitMode) -> RunBody:
    if mode == "wait":
        await runs.result(run_id, user_id=user_id)
    else:
        response.status_code = 202
    return await _whole(runs, run_id, user_id)


async def _whole(runs: RunService, run_id: str, user_id: str | None) -> RunBody:
    run = await runs.run(run_id, user_id=user_id)
    return RunBody.whole(run, await runs.usage(run_id, user_id=user_id))
