"""Runs in the API: their schemas, and their events as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi.sse import format_sse_event
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from threadkeep.errors import ThreadkeepError
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
from threadkeep.store.codec import clean_text
from threadkeep.web.problems import log_failure, problem_of
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS, CleanText, GivenId, Metadata
from threadkeep.web.streams import EventStream, with_silences

type WaitMode = Literal["wait", "background"]


class RunRequestBody(BaseModel):
    """A request for a run of a workflow."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"message": "Where is my parcel?", "user_id": "user-456"}]},
    )

    message: Annotated[CleanText, Field(max_length=MAX_MESSAGE_CHARACTERS)] = Field(
        "", description="What the user says; empty for a run that something else starts."
    )
    session_id: str | None = Field(
        None, description="The conversation. Without one the user's last one with this workflow goes on, or one begins."
    )
    user_id: GivenId | None = Field(None, description="Who speaks; only they see the run.")
    message_id: GivenId | None = Field(
        None, description="The caller's own id of the message: the same again in the session is the same run."
    )
    inputs: Metadata = Field(default_factory=dict, description="The payload that starts the run: `{{inputs.…}}`.")
    results: Metadata = Field(default_factory=dict, description="What a channel found in it: `{{results.…}}`.")
    user_context: Metadata = Field(default_factory=dict, description="What is known of the user, for children too.")
    metadata: Metadata = Field(default_factory=dict, description="Anything to keep with the message.")
    budget: BudgetBody = Field(default_factory=BudgetBody, description="The tighter of this and the workflow's own.")
    deadline_seconds: float | None = Field(None, gt=0, le=31_536_000, description="Seconds that the run may take.")
    sessionless: bool = Field(False, description="Whether it sees no earlier turns and stores none.")
    double_texting: DoubleTexting | None = Field(
        None, description="What it does if a turn of its session goes on; the workflow's own policy if not given."
    )
    mode: Literal["wait", "stream", "background"] = Field(
        "wait", description="Wait for the end, read it as it happens (server-sent events), or come back for it (202)."
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


class ResumeBody(BaseModel):
    """The answer to a run's question."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"value": "yes"}]})

    value: JsonValue = Field(description="The answer; with several questions a map from their ids.")
    mode: WaitMode = Field("wait", description="Wait for the end, or come back for it (202).")


class RetryBody(BaseModel):
    """The options of a retry."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"mode": "background"}]})

    budget: BudgetBody = Field(
        default_factory=BudgetBody, description="What it may take in all, in the place of what it was given."
    )
    mode: WaitMode = Field("wait", description="Wait for the end, or come back for it (202).")


class RunList(BaseModel):
    """A page of runs."""

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="Where the list goes on; null at its end.")


class RunTree(BaseModel):
    """All runs of a tree, parents before their children."""

    root_run_id: str
    runs: list[RunSummary]


class RunStartBody(BaseModel):
    """The ids of the run whose events follow; a client that reconnects needs the run's id."""

    session_id: str | None
    run_id: str
    message_id: str | None


class RunTraceBody(BaseModel):
    """The events of a run, in order."""

    run_id: str
    events: list[RunEventBody]
    next_after: int | None = Field(description="Ask for what follows this number; null at the end of what there is.")


class Cancelled(BaseModel):
    """The runs that were cancelled."""

    run_ids: list[str] = Field(description="The run and those below it that were not over.")


EXAMPLE = (
    'event: start\ndata: {"session_id": "room:1", "run_id": "0199…", "message_id": "web-1"}\n\n'
    'event: status\nid: 1\ndata: {"number": 1, "kind": "status", "data": {"status": "running"}}\n\n'
    'event: token\ndata: {"node": "answer", "text": "It comes "}\n\n'
    'event: end\ndata: {"run_id": "0199…", "status": "done", "text": "It comes tomorrow."}\n\n'
)

_HEARTBEAT = format_sse_event(comment="still here")


async def open_run_stream(
    runs: RunService, run_id: str, *, after: int, user_id: str | None, heartbeat_seconds: float
) -> EventStream:
    """Return the stream of an existing run. Errors before its first event are raised, for an HTTP status."""
    followed = with_silences(runs.follow(run_id, after=after, user_id=user_id), heartbeat_seconds)
    first = await anext(followed)
    return EventStream(_encoded(runs, first, followed))


async def open_submitted_stream(
    runs: RunService, submitted: Submitted, body: RunRequestBody, *, heartbeat_seconds: float
) -> EventStream:
    """Return the stream of a newly requested run. Raises RunNotFound if it belongs to another user."""
    if submitted.outcome != "new":
        await runs.run(submitted.run_id, user_id=body.user_id)
    followed = with_silences(runs.follow(submitted.run_id, user_id=body.user_id), heartbeat_seconds)
    start = RunStartBody(session_id=submitted.session_id, run_id=submitted.run_id, message_id=body.message_id)
    return EventStream(_encoded(runs, start, followed))


async def _encoded(
    runs: RunService, first: Followed | RunStartBody | None, rest: AsyncGenerator[Followed | None]
) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        try:
            async for told in _after(first, rest):
                match told:
                    case None:
                        yield _HEARTBEAT
                    case RunStartBody():
                        yield _event("start", told)
                    case RunPiece():
                        piece = {"node": told.node, "message_id": told.message_id, "text": told.text}
                        yield format_sse_event(event="token", data_str=clean_text(json.dumps(piece)))
                    case RunEvent():
                        yield _event(told.kind, RunEventBody.of(told), str(told.number))
                    case Run():
                        usage = await runs.usage(told.run_id)
                        yield _event("end", RunBody.whole(told, usage))
        except Exception as error:  # noqa: BLE001 - a stream that breaks off looks like one that ended
            if not isinstance(error, ThreadkeepError):
                log_failure("a stream of a run failed", error)
            problem = problem_of(error).model_dump_json(exclude_none=True)
            yield format_sse_event(event="error", data_str=problem)


async def _after[T](first: T, rest: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for told in rest:
        yield told


def _event(name: str, body: BaseModel, number: str | None = None) -> bytes:
    return format_sse_event(event=name, id=number, data_str=clean_text(body.model_dump_json()))
