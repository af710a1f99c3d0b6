"""Runs in the API: their schemas, and their events as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

from threadkeep.records.json_values import example
from threadkeep.records.runs import (
    DoubleTexting,
    Run,
    RunEvent,
)
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.results import Followed
from threadkeep.runs.service import RunService
from threadkeep.runs.streams import RunPiece
from threadkeep.runs.views import BudgetBody, RunBody, RunEventBody, RunSummary
from threadkeep.web.problems import problem_of
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS, CleanText, GivenId, Metadata
from threadkeep.web.streams import HEARTBEAT, EventStream, begin_with, encoded, json_event, with_silences

type WaitMode = Literal["wait", "background"]


class RunRequestBody(
    BaseModel, extra="forbid", json_schema_extra=example(message="Where is my parcel?", user_id="user-456")
):
    """A request for a run of a workflow."""

    message: Annotated[CleanText, Field(max_length=MAX_MESSAGE_CHARACTERS)] = Field(
        "", description="The message of the user; empty for a run that an event starts."
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
        default_factory=BudgetBody, description="The stricter one of this and the workflow's own applies."
    )
    deadline_seconds: float | None = Field(None, gt=0, le=31_536_000, description="Seconds that the run may take.")
    sessionless: bool = Field(False, description="True for a run that reads no earlier turns and stores none.")
    double_texting: DoubleTexting | None = Field(
        None, description="What to do if a turn of the session is running; by default the workflow's own policy."
    )
    mode: Literal["wait", "stream", "background"] = Field(
        "wait", description="Wait for the end, stream the run (server-sent events), or get 202 at once."
    )

    def request(self, workflow: str) -> RunRequest:
        """Return the request as a record.

        Raises:
            InvalidInput: the fields contradict each other.
        """
        return RunRequest(
            workflow=workflow,
            text=self.message,
            session_id=self.session_id,
            user_id=self.user_id,
            message_id=self.message_id,
            inputs=self.inputs,
            results=self.results,
            user_context=self.user_context,
            metadata=self.metadata,
            # A delivery of a channel that names no session: its sender knows no thread.
            trigger="webhook" if self.results and self.session_id is None else "http",
            budget=self.budget.limits(),
            deadline_seconds=self.deadline_seconds,
            sessionless=self.sessionless,
            stream=self.mode == "stream",
            double_texting=self.double_texting,
        )


class ResumeBody(BaseModel, extra="forbid", json_schema_extra=example(value="yes")):
    """The answer to a run's question."""

    value: JsonValue = Field(description="The answer; for several questions, a map from their ids.")
    mode: WaitMode = Field("wait", description="Wait for the end, or get 202 at once.")


class RetryBody(BaseModel, extra="forbid", json_schema_extra=example(mode="background")):
    """The options of a retry."""

    budget: BudgetBody = Field(default_factory=BudgetBody, description="The new limits in total.")
    mode: WaitMode = Field("wait", description="Wait for the end, or get 202 at once.")


class RunList(BaseModel):
    """A page of runs."""

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next ones; null at the end.")


class RunTree(BaseModel):
    """All runs of a tree, parents before their children."""

    root_run_id: str
    runs: list[RunSummary]


class RunStartBody(BaseModel):
    """The ids of a run, before its events; a client that reconnects needs the run's id."""

    session_id: str | None
    run_id: str
    message_id: str | None


class RunTraceBody(BaseModel):
    """The events of a run, in order."""

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


async def open_run_stream(
    runs: RunService, run_id: str, *, after: int, user_id: str | None, heartbeat_seconds: float
) -> EventStream:
    """Return the stream of an existing run. Errors before its first event are raised, for an HTTP status."""
    events = with_silences(runs.follow(run_id, after=after, user_id=user_id), heartbeat_seconds)
    return _stream(runs, begin_with(await anext(events), events))


async def open_submitted_stream(
    runs: RunService, submitted: Submitted, body: RunRequestBody, *, heartbeat_seconds: float
) -> EventStream:
    """Return the stream of a newly requested run. Raises RunNotFound if it belongs to another user."""
    if submitted.outcome != "new":
        await runs.run(submitted.run_id, user_id=body.user_id)
    events = with_silences(_with_start(runs, submitted, body), heartbeat_seconds)
    return _stream(runs, events)


async def _with_start(
    runs: RunService, submitted: Submitted, body: RunRequestBody
) -> AsyncIterator[Followed | RunStartBody]:
    yield RunStartBody(session_id=submitted.session_id, run_id=submitted.run_id, message_id=body.message_id)
    async for event in runs.follow(submitted.run_id, user_id=body.user_id):
        yield event


def _stream(runs: RunService, events: AsyncGenerator[Followed | RunStartBody | None]) -> EventStream:
    async def encode(event: Followed | RunStartBody | None) -> AsyncIterator[bytes]:
        match event:
            case None:
                yield HEARTBEAT
            case RunStartBody():
                yield _event("start", event)
            case RunPiece():
                yield json_event({"node": event.node, "message_id": event.message_id, "text": event.text}, "token")
            case RunEvent():
                yield _event(event.kind, RunEventBody.of(event), str(event.number))
            case Run():
                yield _event("end", RunBody.whole(event, await runs.usage(event.run_id)))

    def failed(error: Exception) -> list[bytes]:
        return [json_event(problem_of(error).model_dump(exclude_none=True), "error")]

    return EventStream(encoded(events, encode, failed))


def _event(name: str, body: BaseModel, number: str | None = None) -> bytes:
    return json_event(body.model_dump(mode="json"), name, number=number)
