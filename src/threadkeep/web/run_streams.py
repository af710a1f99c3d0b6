"""Runs as server-sent events: each stored event with its number as the id, pieces of the answer, and the end.

For a new run the first event is `start`, which names the run; with `Last-Event-ID` a client resumes after that
event. The last event is `end` with the run, or `error`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi.sse import format_sse_event
from pydantic import BaseModel

from threadkeep.errors import ThreadkeepError
from threadkeep.records.runs import Run, RunEvent
from threadkeep.runs.requests import Submitted
from threadkeep.runs.results import Followed
from threadkeep.runs.service import RunService
from threadkeep.runs.streams import RunPiece
from threadkeep.runs.views import RunBody, RunEventBody
from threadkeep.store.codec import clean_text
from threadkeep.web.problems import log_failure, problem_of
from threadkeep.web.run_schemas import RunRequestBody, RunStartBody
from threadkeep.web.streams import EventStream, with_silences

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
