"""Runs of workflows: start, list, inspect, cancel, resume and retry, and their events as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue

from threadkeep.records.json_values import example
from threadkeep.records.runs import DoubleTexting, Run, RunEvent, RunQuery, RunStatus
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import Followed, RunService
from threadkeep.runs.streams import RunPiece
from threadkeep.runs.views import BudgetBody, RunBody, RunEventBody, RunSummary
from threadkeep.store.codec import in_utc
from threadkeep.web.api.parameters import (
    DEFAULT_LIMIT,
    AppInUse,
    Cursor,
    LastEventId,
    Limit,
    RunId,
    UserId,
    number_in,
    read_cursor,
    write_cursor,
)
from threadkeep.web.api.workflows import WorkflowName
from threadkeep.web.callers import CallerInUse
from threadkeep.web.problems import documented, problem_of
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS, CleanText, GivenId, Metadata
from threadkeep.web.streams import HEARTBEAT, EventStream, begin_with, encoded, json_event, streamed, with_keepalives
from threadkeep.workflows.resources import MAX_DEADLINE

type WaitMode = Literal["wait", "background"]


class RunRequestBody(
    BaseModel, extra="forbid", json_schema_extra=example(message="Where is my parcel?", user_id="user-456")
):
    """A request for a run of a workflow."""

    message: CleanText = Field(
        "",
        max_length=MAX_MESSAGE_CHARACTERS,
        description="The message of the user; empty for a run that an event starts.",
    )
    session_id: str | None = Field(
        None, description="The session. By default the user's last one with this workflow, or a new one."
    )
    user_id: GivenId | None = Field(None, description="The user; only this user sees the run.")
    message_id: GivenId | None = Field(
        None, description="The caller's id of the message; a repeated id in the session returns the same run."
    )
    inputs: Metadata = Field(default_factory=dict, description="The payload that starts the run: `{{inputs.…}}`.")
    results: Metadata = Field(default_factory=dict, description="Results of the channel's parser: `{{results.…}}`.")
    user_context: Metadata = Field(default_factory=dict, description="Known data about the user; children get it too.")
    metadata: Metadata = Field(default_factory=dict, description="Any data to store with the message.")
    budget: BudgetBody = Field(
        default_factory=BudgetBody, description="The stricter of these limits and the workflow's own apply."
    )
    deadline_seconds: float | None = Field(None, gt=0, le=MAX_DEADLINE, description="Seconds that the run may take.")
    sessionless: bool = Field(False, description="True for a run that reads no earlier turns and stores none.")
    double_texting: DoubleTexting | None = Field(
        None, description="What to do if a turn of the session is running; by default the workflow's own policy."
    )
    mode: Literal["wait", "stream", "background"] = Field(
        "wait", description="Wait for the end, stream the run (server-sent events), or get 202 at once."
    )

    def request(self, workflow: str) -> RunRequest:
        """Return the request as a `RunRequest` for the workflow.

        Raises:
            InvalidInput: the fields contradict each other.
        """
        return RunRequest(
            workflow=workflow,
            text=self.message,
            # A channel that sends `results` does not know the id of the new session. With the trigger `webhook`, agents
            # do not use this id as the key of their conversation.
            trigger="webhook" if self.results and self.session_id is None else "http",
            budget=self.budget.limits(),
            stream=self.mode == "stream",
            **self.model_dump(exclude={"message", "budget", "mode"}),
        )


class ResumeBody(BaseModel, extra="forbid", json_schema_extra=example(value="yes")):
    """A person's answer to the question of a waiting run."""

    value: JsonValue = Field(description="The answer; for several questions, a map from their ids.")
    message_id: GivenId | None = Field(
        None, description="The caller's id of the answer, new in the session; a repeated id changes nothing."
    )
    mode: WaitMode = Field("wait", description="Wait for the end, or get 202 at once.")


class RetryBody(BaseModel, extra="forbid", json_schema_extra=example(mode="background")):
    """The options for retrying a run, such as a larger budget."""

    budget: BudgetBody = Field(default_factory=BudgetBody, description="The new limits, for the whole run.")
    mode: WaitMode = Field("wait", description="Wait for the end, or get 202 at once.")


class RunList(BaseModel):
    """A page of runs."""

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null at the end.")


class RunTree(BaseModel):
    """A root run and all its descendants (500 runs at most), parents before their children."""

    root_run_id: str
    runs: list[RunSummary]


class RunTraceBody(BaseModel):
    """A page of the events of a run, in order."""

    run_id: str
    events: list[RunEventBody]
    next_after: int | None = Field(description="Pass it as `after` for later events; null if there are none.")


class Cancelled(BaseModel):
    """The runs that were cancelled."""

    run_ids: list[str] = Field(description="The run and its descendants that had not ended.")


EXAMPLE = (
    'event: start\ndata: {"session_id": "room:1", "run_id": "0199…", "message_id": "web-1"}\n\n'
    'event: status\nid: 1\ndata: {"number": 1, "kind": "status", "data": {"status": "running"}}\n\n'
    'event: token\ndata: {"node": "answer", "text": "It comes "}\n\n'
    'event: end\ndata: {"run_id": "0199…", "status": "done", "text": "It comes tomorrow."}\n\n'
)


def _stream(runs: RunService, events: AsyncGenerator[Followed | Mapping[str, str | None] | None]) -> EventStream:
    """Return a stream of a run's events. `events` may begin with a mapping of ids, which becomes the event `start`."""

    async def encode(event: Followed | Mapping[str, str | None] | None) -> AsyncIterator[bytes]:
        match event:
            case None:
                yield HEARTBEAT
            case Mapping():
                yield json_event(event, "start")
            case RunPiece() if event.text:
                yield json_event({"node": event.node, "message_id": event.message_id, "text": event.text}, "token")
            case RunEvent():
                yield _encoded_event(event.kind, RunEventBody.model_validate(event), str(event.number))
            case Run():
                yield _encoded_event("end", RunBody.whole(event, await runs.usage(event.run_id)))

    def failed(error: Exception) -> list[bytes]:
        return [json_event(problem_of(error).model_dump(exclude_none=True), "error")]

    return EventStream(encoded(events, encode, failed))


def _encoded_event(name: str, body: BaseModel, number: str | None = None) -> bytes:
    return json_event(body.model_dump(mode="json"), name, number=number)


router = APIRouter(prefix="/api/v1", tags=["runs"])

_FAILURES = documented(404, 422, 503)
_CHANGES = documented(400, 404, 413, 422, 503)
_LATER: dict[int | str, dict[str, Any]] = {
    202: {"model": RunBody, "description": "The run continues; GET /api/v1/runs/{run_id} shows its state."}
}
_STARTED: dict[int | str, dict[str, Any]] = {
    200: {"model": RunBody, **streamed(EXAMPLE, "The run, which has ended or waits for a person.")},
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
    """Run a workflow. The turns of one session run one after another, in order of arrival.

    `mode` selects the response. `wait` returns the run when it has ended or waits for a person. `stream` sends the
    event `start`, which names the run, and then the run's events. `background` returns the run in its current state
    (202). The run continues if the client disconnects. Repeating a `message_id` in a session returns the same run.
    """
    if body.session_id is not None:
        app.memory.session(body.session_id)  # rejects an empty id, which would start a new session
    body.user_id = caller.user(body.user_id)
    runs = await app.runs.service()
    submitted = await runs.submit(body.request(name), mode="background" if body.mode == "background" else "wait")
    if body.mode == "stream":
        if submitted.outcome != "new":
            await runs.run(submitted.run_id, user_id=body.user_id)  # checks that the run belongs to this user
        start = {"session_id": submitted.session_id, "run_id": submitted.run_id, "message_id": body.message_id}
        followed = runs.follow(submitted.run_id, user_id=body.user_id)
        events = with_keepalives(followed, request)
        return _stream(runs, begin_with(start, events))
    return await _result(runs, submitted.run_id, body.user_id, response, mode=body.mode)


def _written_out(text: str) -> str:
    if "-" not in text[1:]:  # pydantic would read it as seconds or milliseconds, depending on its size
        raise ValueError("a time is not a number; write it as in 2026-12-31T23:59:59Z")
    return text


Moment = Annotated[datetime, BeforeValidator(_written_out), AfterValidator(in_utc)]


@router.get("/runs", summary="List runs", responses=documented(422, 503))
async def list_runs(
    *,
    app: AppInUse,
    user_id: UserId = None,
    session_id: Annotated[str | None, Query(max_length=256, description="Only runs in this session.")] = None,
    workflow: Annotated[str | None, Query(max_length=128, description="Only runs of this workflow.")] = None,
    status: Annotated[RunStatus | None, Query(description="Only runs with this status.")] = None,
    parent_run_id: Annotated[GivenId | None, Query(description="Only the children of this run.")] = None,
    set_aside: Annotated[bool | None, Query(description="Only runs that a person must retry, or only others.")] = None,
    since: Annotated[Moment | None, Query(description="Only runs requested since this time.")] = None,
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
        since=since,
        limit=limit,
        cursor=read_cursor("runs", cursor),
    )
    found, following = await (await app.runs.service()).list(query)
    shown = [RunSummary.model_validate(run) for run in found]
    return RunList(runs=shown, next_cursor=write_cursor("runs", following))


@router.get("/runs/{run_id}", summary="See a run", responses=_FAILURES)
async def get_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunBody:
    """Return a run with its status, its result, and the usage of the run and all its children."""
    return await _run_body(await app.runs.service(), run_id, user_id)


@router.get("/runs/{run_id}/tree", summary="See a run with its parents and children", responses=_FAILURES)
async def get_tree(run_id: RunId, app: AppInUse, user_id: UserId = None) -> RunTree:
    """Return the root run of this run, and all descendants of the root (500 runs at most), parents before children."""
    found = await (await app.runs.service()).tree(run_id, user_id=user_id)
    return RunTree(root_run_id=found[0].root_run_id, runs=[RunSummary.model_validate(run) for run in found])


@router.get("/runs/{run_id}/trace", summary="See what happened in a run", responses=_FAILURES)
async def get_trace(
    run_id: RunId,
    app: AppInUse,
    user_id: UserId = None,
    after: Annotated[int, Query(ge=0, lt=2**53, description="Only events after this number.")] = 0,
    limit: Limit = DEFAULT_LIMIT,
) -> RunTraceBody:
    """Return the events of a run, in order: nodes, model calls, tools, children, and messages with their text."""
    found = await (await app.runs.service()).trace(run_id, after=after, limit=limit, user_id=user_id)
    events = [RunEventBody.model_validate(event) for event in found]
    return RunTraceBody(run_id=run_id, events=events, next_after=events[-1].number if len(events) == limit else None)


@router.get(
    "/runs/{run_id}/events",
    summary="Stream the events of a run",
    response_class=Response,
    responses={200: streamed(EXAMPLE, "The events."), **_FAILURES},
)
async def get_events(
    run_id: RunId, app: AppInUse, request: Request, user_id: UserId = None, last_event_id: LastEventId = None
) -> EventStream:
    """Stream a run's events and the pieces of its answer (`token`) as server-sent events. The last is `end` or `error`.

    The id of each event of the run is its number; with `Last-Event-ID` a client resumes after that event.
    """
    runs = await app.runs.service()
    followed = runs.follow(run_id, after=number_in(last_event_id), user_id=user_id)
    events = with_keepalives(followed, request)
    return _stream(runs, begin_with(await anext(events), events))  # an error of `anext` becomes an HTTP status


@router.post("/runs/{run_id}/cancel", summary="Stop a run", responses=_FAILURES)
async def cancel_run(run_id: RunId, app: AppInUse, user_id: UserId = None) -> Cancelled:
    """Cancel a run and all its descendants, in any process.

    A running run ends within two seconds. If its process has died, it ends as soon as this is detected.
    """
    return Cancelled(run_ids=await (await app.runs.service()).cancel(run_id, user_id=user_id))


@router.post(
    "/runs/{run_id}/resume",
    summary="Answer the question of a run",
    responses={**_LATER, **documented(400, 404, 409, 413, 422, 503)},
)
async def resume_run(
    run_id: RunId, body: ResumeBody, app: AppInUse, response: Response, user_id: UserId = None
) -> RunBody:
    """Resume a run that waits for a person's answer. With a `message_id`, repeating the request is safe."""
    runs = await app.runs.service()
    await runs.resume_once(run_id, body.value, user_id=user_id, mode=body.mode, message_id=body.message_id)
    return await _result(runs, run_id, user_id, response, mode=body.mode)


@router.post("/runs/{run_id}/retry", summary="Try a run again", responses={**_LATER, **_CHANGES})
async def retry_run(
    run_id: RunId, app: AppInUse, response: Response, body: RetryBody | None = None, user_id: UserId = None
) -> RunBody:
    """Retry a failed, cancelled or interrupted run from its last checkpoint. The body is optional.

    A run that has used up its budget can be retried only with a larger budget.
    """
    runs = await app.runs.service()
    asked = body or RetryBody()
    await runs.retry(run_id, user_id=user_id, mode=asked.mode, budget=asked.budget.limits())
    return await _result(runs, run_id, user_id, response, mode=asked.mode)


async def _result(runs: RunService, run_id: str, user_id: str | None, response: Response, *, mode: WaitMode) -> RunBody:
    if mode == "wait":
        # Wait for the root run, not the child: the child shows its old question until the root passes the answer on.
        await runs.result((await runs.run(run_id, user_id=user_id)).root_run_id)
    else:
        response.status_code = 202
    return await _run_body(runs, run_id, user_id)


async def _run_body(runs: RunService, run_id: str, user_id: str | None) -> RunBody:
    run = await runs.run(run_id, user_id=user_id)
    return RunBody.whole(run, await runs.usage(run_id, user_id=user_id))
