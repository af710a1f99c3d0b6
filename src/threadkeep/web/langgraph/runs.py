"""Routes of runs in the v1 API of LangGraph's server: streamed, awaited or in the background."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from anyio import CancelScope
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator
from pydantic_core import from_json

from threadkeep.app import App
from threadkeep.boundary import running
from threadkeep.errors import InvalidInput, RunNotFound, SessionNotFound
from threadkeep.records import Json
from threadkeep.records.runs import Run
from threadkeep.runs.requests import QUESTION_ID
from threadkeep.runs.service import Mode
from threadkeep.web.api.parameters import AppInUse, EncodedPathRoute, LastEventId, RunId, UserId, number_in
from threadkeep.web.callers import Caller, CallerInUse
from threadkeep.web.langgraph.commands import Start, start_run, user_of
from threadkeep.web.langgraph.run_events import INTERRUPTS, RunEvents, encoded_parts, last_seq
from threadkeep.web.langgraph.schemas import RunCreateBody, StreamMode, ThreadRunBody, ThreadRunStatus, status_of
from threadkeep.web.langgraph.states import ACTIVE, find_thread, newest_runs, questions, values_of_run
from threadkeep.web.langgraph.thread_events import thread_events_of
from threadkeep.web.langgraph.threads import CreatedThread, ThreadId, known_thread
from threadkeep.web.problems import ProblemRaised, documented, make_problem
from threadkeep.web.streams import HEARTBEAT, EventStream, json_event, streamed, with_keepalives

router = APIRouter(tags=["langgraph"], route_class=EncodedPathRoute, responses=documented(404, 422, 503))

_STARTING = documented(400, 409, 413)
_EXAMPLE = (
    'event: metadata\ndata: {"run_id": "0199…", "thread_id": "session-123", "attempt": 1}\n\n'
    'id: 1073741826-4c1f09b2a7de\nevent: values\ndata: {"messages": [{"type": "human", "content": "Hello"}]}\n\n'
    'event: end\ndata: {"run_id": "0199…", "status": "success"}\n\n'
)
_STREAM: dict[str, Any] = {"response_class": Response, "responses": {200: streamed(_EXAMPLE, "The events of the run.")}}
_STARTED: dict[str, Any] = {**_STREAM, "responses": {**_STREAM["responses"], **_STARTING}}
_MOST = 200


def _decoded(modes: object) -> object:
    """Decode the JSON list that older JavaScript SDKs send for several modes."""
    match modes:
        case [str(encoded)] if encoded.startswith("["):
            return from_json(encoded)
    return modes


# LangGraph's Python SDK sends an empty mode for a run, and `run_modes` for a thread, if its caller chose none.
type StreamModes = Annotated[
    list[StreamMode | Literal["", "run_modes"]] | None,
    BeforeValidator(_decoded),
    Query(description="What to stream; by default the modes of the request that started the run, or `values`."),
]


@dataclass(frozen=True)
class ThreadRuns:
    """Operations on the runs of a thread, or on runs without a thread, for the caller of one request."""

    app: App
    caller: Caller
    request: Request
    user_id: str | None
    thread_id: str | None

    async def start(self, body: RunCreateBody, mode: Mode) -> tuple[Run, int]:
        """Start a run or, with a command, answer or end the waiting run. Return the run and how many events it has.

        Raises:
            InvalidInput: the body has an unsupported option, or a command although no run of its assistant waits, or a
                command and a message.
        """
        body.check()
        if self.thread_id is None and body.on_completion == "keep":
            raise InvalidInput("A run without a thread cannot keep one; create one with POST /threads, and run in it.")
        runs = await self.app.runs.service()
        start = Start.of(body.model_dump(exclude_none=True, by_alias=True))
        start = replace(start, user_id=user_of(start, self.caller, self.user_id))
        if body.if_not_exists == "reject" and self.thread_id is not None:
            await self._check_exists(start.user_id)
        if body.command is None:
            submitted = await start_run(self.app, self.thread_id, start, mode=mode)
            return await runs.run(submitted.run_id), 0
        if self.thread_id is None:
            raise InvalidInput("`command` answers a run that waits in a thread; send it to /threads/{thread_id}/runs.")
        resume = body.command.get("resume")
        thread = await find_thread(self.app, self.thread_id, user_id=start.user_id)
        if start.text and start.message_id not in {run.message_id for run in thread.runs} - {None}:
            raise InvalidInput("A message beside `command` would be lost; send it as the next run, without `command`.")
        waiting = thread.waiting(resume if isinstance(resume, dict) else ())
        if waiting is None:
            raise InvalidInput("No run of this thread waits for a person.")
        if body.assistant_id != waiting.workflow:
            raise InvalidInput(f"The waiting run is of the workflow {waiting.workflow!r}; send this as `assistant_id`.")
        known, before = thread_events_of(self.request.app).follow_run(runs, waiting), 0
        async for _ in known.events_from(0):  # wait until this process has read the events up to the pause
            before += 1
        if body.ends_waiting:
            await runs.cancel(waiting.run_id, user_id=start.user_id)
            return await runs.run(waiting.run_id), before
        asked, answer = {one.id for one in questions(waiting)}, cast("Json", resume)
        by_id = isinstance(answer, dict) and (answer.keys() <= asked or all(map(QUESTION_ID.fullmatch, answer)))
        named = answer.keys() if isinstance(answer, dict) and by_id else ()
        await runs.resume(waiting.run_id, answer, user_id=start.user_id, mode=mode, questions=named)
        return await runs.run(waiting.run_id), before

    async def _check_exists(self, user_id: str | None) -> None:
        try:
            await find_thread(self.app, str(self.thread_id), user_id=user_id)
        except SessionNotFound:
            if await CreatedThread(self.app.memory, str(self.thread_id)).thread() is not None:
                return  # The thread exists, but has no owner yet.
            sentence = "This thread does not exist; to create it with its first run, send if_not_exists: create."
            raise ProblemRaised(make_problem(404, "session-not-found", sentence)) from None

    async def run(self, run_id: str) -> Run:
        """Return a run of the thread, if the caller may see it.

        Raises:
            RunNotFound: the thread has no such run, or the caller may not see it.
        """
        run = await (await self.app.runs.service()).run(run_id, user_id=self.user_id)
        if self.thread_id is not None and run.session_id != self.thread_id:
            raise RunNotFound(run_id)
        return run

    async def newest(self) -> Run:
        """Return the thread's newest run.

        Raises:
            RunNotFound: the thread has no run.
        """
        found = (await find_thread(self.app, str(self.thread_id), user_id=self.user_id)).newest
        if found is None:
            raise RunNotFound(str(self.thread_id))
        return found

    async def events(self, run: Run) -> RunEvents:
        """Return the events of a run."""
        return thread_events_of(self.request.app).follow_run(await self.app.runs.service(), run)

    async def values(self, run_id: str) -> dict[str, Any]:
        """Wait for a run and return the values of its thread."""
        run = (await (await self.app.runs.service()).result(run_id)).run
        values = await values_of_run(self.app, run)
        if run.status == "waiting":
            return {**values, INTERRUPTS: [one.model_dump() for one in questions(run)]}
        if status_of(run) == "error":
            return {**values, "__error__": {"error": run.error or "failed", "message": "The run failed."}}
        return values

    async def values_unless_gone(self, run_id: str) -> dict[str, Any]:
        """Wait for a run and return the values of its thread. If the client disconnects, cancel the run."""
        async with running(self._cancel_if_gone(run_id), f"threadkeep-client-of-{run_id}"):
            return await self.values(run_id)

    async def _cancel_if_gone(self, run_id: str) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
        await self.cancel_unless_ended(run_id)

    async def cancel_unless_ended(self, run_id: str, *, wait: bool = False) -> None:
        """Cancel a run unless it is over or is waiting for a person.

        With `wait`, return after the run has ended or waits for a person.
        """
        runs = await self.app.runs.service()
        run = await runs.run(run_id)
        if not run.over and run.status != "waiting":
            await runs.cancel(run_id)
        if wait:
            await runs.result(run_id)


def _in_thread(
    thread_id: ThreadId, app: AppInUse, caller: CallerInUse, request: Request, user_id: UserId = None
) -> ThreadRuns:
    return ThreadRuns(app, caller, request, user_id, thread_id)


def _alone(app: AppInUse, caller: CallerInUse, request: Request, user_id: UserId = None) -> ThreadRuns:
    return ThreadRuns(app, caller, request, user_id, None)


type RunsInThread = Annotated[ThreadRuns, Depends(_in_thread)]
type RunsAlone = Annotated[ThreadRuns, Depends(_alone)]


def _address(run: Run) -> str:
    thread = f"/threads/{quote(run.session_id, safe='')}" if run.session_id is not None else ""
    return f"{thread}/runs/{quote(run.run_id, safe='')}"


async def _with_heartbeats(
    asked: ThreadRuns, run: Run, parts: AsyncGenerator[bytes], *, cancels: bool
) -> AsyncGenerator[bytes]:
    async with aclosing(with_keepalives(parts, asked.request)) as everything:
        try:
            async for part in everything:
                yield HEARTBEAT if part is None else part
            cancels = False
        except ProblemRaised as refused:
            cancels = False  # the service ends the stream, because the key or the token is not valid any more
            yield json_event({"error": refused.problem.type, "message": refused.problem.detail}, "error")
        finally:
            if cancels:
                with CancelScope(shield=True):  # the client disconnected, so this response is being cancelled
                    await asked.cancel_unless_ended(run.run_id)


@router.post("/threads/{thread_id}/runs/stream", summary="Run an assistant in a thread, and stream the run", **_STARTED)
async def stream_run(asked: RunsInThread, body: RunCreateBody) -> EventStream:
    """Stream a run in the chosen modes. `Content-Location` names the run, `Location` the stream to reconnect to."""
    run, position = await asked.start(body, "wait")
    events = await asked.events(run)
    events.modes = body.modes()
    parts = encoded_parts(events, events.modes, position=position)
    stream = EventStream(_with_heartbeats(asked, run, parts, cancels=body.on_disconnect == "cancel"))
    stream.headers["Content-Location"] = _address(run)
    stream.headers["Location"] = f"{_address(run)}/stream"
    return stream


@router.post("/runs/stream", summary="Run an assistant without a thread, and stream the run", **_STARTED)
async def stream_stateless_run(asked: RunsAlone, body: RunCreateBody) -> EventStream:
    """Stream a run that sees no earlier turns and stores none."""
    return await stream_run(asked, body)


@router.post("/threads/{thread_id}/runs/wait", summary="Run an assistant in a thread, and wait", responses=_STARTING)
async def wait_for_run(asked: RunsInThread, body: RunCreateBody, response: Response) -> dict[str, Any]:
    """Return the thread's values after the run, with `__interrupt__` or `__error__` if it did not finish."""
    run, _ = await asked.start(body, "wait")
    response.headers["Content-Location"] = _address(run)
    response.headers["Location"] = f"{_address(run)}/join"
    if body.on_disconnect != "cancel":
        return await asked.values(run.run_id)
    return await asked.values_unless_gone(run.run_id)


@router.post("/runs/wait", summary="Run an assistant without a thread, and wait", responses=_STARTING)
async def wait_for_stateless_run(asked: RunsAlone, body: RunCreateBody, response: Response) -> dict[str, Any]:
    """Return the messages of a run that sees no earlier turns and stores none."""
    return await wait_for_run(asked, body, response)


@router.post("/threads/{thread_id}/runs", summary="Run an assistant in the background", responses=_STARTING)
async def start_background_run(asked: RunsInThread, body: RunCreateBody, response: Response) -> ThreadRunBody:
    """Start a run in a thread and return it. Join it later, or read the state of the thread."""
    run, _ = await asked.start(body, "background")
    if body.modes() != ["values"]:
        (await asked.events(run)).modes = body.modes()  # for the client that will join the run
    response.headers["Content-Location"] = _address(run)
    return ThreadRunBody.of(run)


@router.post("/runs", summary="Run an assistant in the background without a thread", responses=_STARTING)
async def start_stateless_run(asked: RunsAlone, body: RunCreateBody, response: Response) -> ThreadRunBody:
    """Start a run that sees no earlier turns and stores none."""
    return await start_background_run(asked, body, response)


@router.get("/threads/{thread_id}/runs", summary="List the runs of a thread")
async def list_thread_runs(
    *,
    thread_id: ThreadId,
    app: AppInUse,
    user_id: UserId = None,
    limit: Annotated[int, Query(ge=1, le=_MOST, description="The maximum number of results.")] = 10,
    offset: Annotated[int, Query(ge=0, le=_MOST, description="The number of newest runs to skip.")] = 0,
    status: Annotated[ThreadRunStatus | None, Query(description="Only runs with this status.")] = None,
) -> list[ThreadRunBody]:
    """List the runs of a thread, newest first, without child runs. Only its newest 400 runs are searched."""
    await known_thread(app, thread_id, user_id)
    most = offset + limit if status is None else 2 * _MOST
    found = await newest_runs(await app.runs.service(), thread_id, user_id=user_id, limit=most)
    shown = [one for one in map(ThreadRunBody.of, found) if status in (None, one.status)]
    return shown[offset : offset + limit]


@router.get("/threads/{thread_id}/runs/{run_id}", summary="See a run of a thread")
async def get_thread_run(asked: RunsInThread, run_id: RunId) -> ThreadRunBody:
    """Return a run of a thread."""
    return ThreadRunBody.of(await asked.run(run_id))


@router.get("/threads/{thread_id}/runs/{run_id}/join", summary="Wait for a run of a thread")
async def join_run(asked: RunsInThread, run_id: RunId) -> dict[str, Any]:
    """Wait until the run has ended or waits for a person, and return the values of the thread."""
    return await asked.values((await asked.run(run_id)).run_id)


@router.get("/threads/{thread_id}/runs/{run_id}/stream", summary="Stream a run of a thread", **_STREAM)
async def join_run_stream(
    asked: RunsInThread,
    run_id: RunId,
    caller: CallerInUse,
    stream_mode: StreamModes = None,
    cancel_on_disconnect: Annotated[
        bool, Query(description="Cancel the run if the client disconnects; needs a key that may write.")
    ] = False,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Stream a run from its beginning, or after `Last-Event-ID`."""
    if cancel_on_disconnect:
        caller.check_scope("write")
    return await _join(asked, await asked.run(run_id), stream_mode, last_event_id, cancels=cancel_on_disconnect)


@router.get("/threads/{thread_id}/stream", summary="Stream the newest run of a thread", **_STREAM)
async def join_thread_stream(
    asked: RunsInThread, stream_mode: StreamModes = None, last_event_id: LastEventId = None
) -> EventStream:
    """Stream the thread's newest run, from its beginning or after `Last-Event-ID`."""
    return await _join(asked, await asked.newest(), stream_mode, last_event_id, cancels=False)


@router.post("/threads/{thread_id}/runs/{run_id}/cancel", summary="Stop a run of a thread", status_code=204)
async def cancel_thread_run(
    asked: RunsInThread,
    run_id: RunId,
    wait: Annotated[bool, Query(description="Respond after the run has ended.")] = False,
    action: Annotated[
        Literal["interrupt", "rollback"], Query(description="`rollback` takes messages back.")
    ] = "interrupt",
) -> None:
    """Cancel a run and its children. With `rollback`, respond when its messages are taken back; the run stays.

    A rollback changes no messages if a later run has answered the question again.
    """
    run = await asked.run(run_id)
    await asked.cancel_unless_ended(run_id, wait=wait or action == "rollback")
    if action == "rollback" and run.status in (*ACTIVE, "cancelled") and run.session_id is not None:
        asked_ids = [one.message_id or run_id for one in run.inputs] or [run_id]
        found = await newest_runs(await asked.app.runs.service(), run.session_id, user_id=run.user_id, limit=_MOST)
        later = takewhile(lambda one: one.run_id != run_id, found)
        if all(one.message_id not in asked_ids for other in later for one in other.inputs):
            await asked.app.memory.session(run.session_id, user_id=run.user_id).take_back_turn(asked_ids[0])


async def _join(
    asked: ThreadRuns, run: Run, modes: Sequence[str] | None, last_event_id: str | None, *, cancels: bool
) -> EventStream:
    number, _, stream_id = (last_event_id or "").partition("-")
    after = number_in(number)
    if after > last_seq(run):
        after = 0  # no event of this run has this id
    events = await asked.events(run)
    events.number_after(after)
    chosen = [one for mode in modes or [""] for one in (events.modes if mode in ("", "run_modes") else [mode])]
    elsewhere = after > 0 and stream_id != events.stream_id
    parts = encoded_parts(events, chosen, after=after, omit_pieces=elsewhere)
    return EventStream(_with_heartbeats(asked, run, parts, cancels=cancels))
