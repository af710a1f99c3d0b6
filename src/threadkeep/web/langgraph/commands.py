"""Routes of LangGraph's streaming protocol: commands to a thread, and the stream of the thread's events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, Request, Response

from threadkeep.app import App
from threadkeep.errors import InvalidInput, ThreadkeepError
from threadkeep.history.session import Session
from threadkeep.records import Json
from threadkeep.records.runs import DOUBLE_TEXTING, DoubleTexting
from threadkeep.runs.chat import RegenerationRequest
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.service import Mode
from threadkeep.web.api.parameters import AppInUse, EncodedPathRoute, UserId
from threadkeep.web.callers import READS, Caller, CallerInUse
from threadkeep.web.langgraph.run_events import ProtocolEvent, seq_base
from threadkeep.web.langgraph.schemas import CommandBody, CommandResponseBody, EventStreamBody
from threadkeep.web.langgraph.states import history_of, question_of, questions, seq_of, state_of
from threadkeep.web.langgraph.thread_events import EventChoice, ThreadEvents, error_event, thread_events_of
from threadkeep.web.langgraph.threads import CreatedThread, ThreadId, known_thread
from threadkeep.web.problems import documented, problem_of
from threadkeep.web.streams import HEARTBEAT, EventStream, begin_with, encoded, json_event, streamed, with_keepalives

_MOST = 1000


@dataclass(frozen=True)
class Start:
    """A request to run an assistant in a thread.

    `fork` is the `seq` of the checkpoint to continue from; later messages are superseded. Without a new message, the
    question after the checkpoint is answered again.
    """

    assistant_id: str
    text: str
    message_id: str | None
    inputs: Mapping[str, Json]
    user_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    user_context: Mapping[str, Json] = field(default_factory=dict)
    fork: int | None = None
    policy: DoubleTexting | None = None

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Start:
        """Parse the parameters of `run.start`, or the body of a request for a run.

        Raises:
            InvalidInput: a parameter is missing or invalid.
        """
        assistant = given.get("assistant_id")
        if not isinstance(assistant, str) or not assistant:
            raise InvalidInput("assistant_id must name a workflow; POST /assistants/search lists them.")
        config = _map(given.get("config"))
        configurable = _map(config.get("configurable"))
        user = configurable.get("user_id")
        if user is not None and not isinstance(user, str):
            raise InvalidInput("config.configurable.user_id must be a string.")
        policy = given.get("multitask_strategy") or given.get("multitaskStrategy")
        if policy is not None and policy not in DOUBLE_TEXTING:
            raise InvalidInput(f"multitask_strategy must be one of {', '.join(DOUBLE_TEXTING)}.")
        checkpoints = (given.get("checkpoint"), given.get("checkpoint_id"), configurable.get("checkpoint_id"))
        return cls(
            assistant,
            *question_of(given.get("input")),
            user_id=user,
            metadata=_map(given.get("metadata")),
            user_context=_map(given.get("context")),
            fork=next((seq for one in checkpoints if (seq := seq_of(one)) is not None), None),
            policy=policy,
        )


def user_of(start: Start, caller: Caller, named: str | None) -> str | None:
    """Return the user that the query or `config.configurable` names for a run, or None.

    Raises:
        InvalidInput: the query and the config name different users.
        ProblemRaised: the caller may not act for that user.
    """
    if named is None or caller.user_id is not None:
        return caller.user(start.user_id)
    if start.user_id not in (None, named):
        raise InvalidInput("The request names two users: send `user_id` in the query or in config.configurable.")
    return named


async def start_run(app: App, thread_id: str | None, start: Start, *, mode: Mode = "wait") -> Submitted:
    """Start a run in a thread, or without a thread.

    Raises:
        InvalidInput: there is nothing to answer.
        WorkflowNotFound, SessionBusy, WrongUser, StoreUnavailable: as for every other run.
    """
    app.workflows.get(start.assistant_id)
    runs = await app.runs.service()
    request = None
    if thread_id is not None:
        session = app.memory.session(thread_id, user_id=start.user_id)
        await CreatedThread(app.memory, thread_id, start.user_id).begin()
        request = None if start.fork is None else await _forked(app, session, start, start.fork)
    return await runs.submit(request or _request(start, thread_id), mode=mode)


async def _forked(app: App, session: Session, start: Start, fork: int) -> RunRequest | None:
    """Return a request to answer the first question after the checkpoint `fork` again, or None if there is no question.

    Messages after the question are superseded. A new message in `start` replaces the question.
    """
    page = await session.page(fork + 1 + _MOST, _MOST)
    later = [one for one in page.messages if (one.seq or 0) > fork]
    asked = next((one for one in later if one.role == "user" and one.id), None)
    if asked is None or asked.id is None:
        return None
    question_id, text = asked.id, start.text
    is_edit = bool(text) and (start.message_id, text) != (asked.id, asked.content)
    policy = start.policy or app.workflows.get(start.assistant_id).options.double_texting
    if is_edit:
        if policy == "reject":
            await app.chat.check_free(session, None)
        new_id = start.message_id
        question_id = str((await session.edit(asked.id, text, new_id=new_id if new_id != asked.id else None)).id)
    again = RegenerationRequest(message_id=question_id, workflow=start.assistant_id, double_texting=policy)
    chat = await app.chat.supersede_answers(session, again)
    return replace(
        _request(start, chat.session_id),
        text=chat.text,
        user_id=chat.user_id,
        message_id=chat.message_id,
        metadata={**chat.metadata, **start.metadata},
    )


def _request(start: Start, thread_id: str | None) -> RunRequest:
    return RunRequest(
        workflow=start.assistant_id,
        text=start.text,
        session_id=thread_id,
        user_id=start.user_id,
        message_id=None if thread_id is None else start.message_id,
        inputs=start.inputs,
        user_context=start.user_context,
        metadata=start.metadata,
        sessionless=thread_id is None,
        stream=True,
        double_texting=start.policy,
    )


def _map(value: object) -> dict[str, Json]:
    return {str(name): inner for name, inner in value.items()} if isinstance(value, Mapping) else {}


_FAILURES = documented(400, 404, 413, 422, 503)

router = APIRouter(prefix="/threads/{thread_id}", tags=["langgraph"], route_class=EncodedPathRoute, responses=_FAILURES)

_EXAMPLE = (
    'event: message\nid: 1\ndata: {"type": "event", "event_id": "…-0", "seq": 1073741825, "method": "lifecycle", '
    '"params": {"namespace": [], "timestamp": 1767225600000, "data": {"event": "running"}}}\n\n'
)
_STREAM = streamed(_EXAMPLE, "The events of the thread's runs, until the client or the service closes the stream.")


@dataclass
class Commands:
    """An executor of a client's command in a thread. `meta` becomes the metadata of the response."""

    app: App
    events: ThreadEvents
    caller: Caller
    thread_id: str
    user_id: str | None
    meta: dict[str, int] | None = None

    async def result(self, method: str, params: Mapping[str, Json]) -> dict[str, Any] | None:
        """Execute a command and return its result. If the command is unknown, return None."""
        match method:
            case "run.start":
                return await self._start(Start.of(params))
            case "input.respond":
                return await self._respond(params)
            case "input.inject":
                message = params.get("message")
                return await self._start(Start.of({**params, "input": {"messages": [message]}}))
            case "state.get":
                state = await state_of(await known_thread(self.app, self.thread_id, self.user_id))
                return {"values": state.values, "checkpoint": {"id": state.checkpoint.checkpoint_id}}
            case "state.listCheckpoints":
                limit = 10 if params.get("limit") is None else params["limit"]
                if not isinstance(limit, int) or not 0 < limit <= _MOST:
                    raise InvalidInput(f"limit must be a whole number from 1 to {_MOST:,}.")
                states = await history_of(await known_thread(self.app, self.thread_id, self.user_id), limit=limit)
                found = [(one.checkpoint.checkpoint_id, one.created_at, one.metadata["step"]) for one in states]
                moments = [(name, moment.isoformat() if moment else "", step) for name, moment, step in found]
                return {"checkpoints": [{"id": name, "timestamp": at, "step": step} for name, at, step in moments]}
        return None

    async def _start(self, start: Start) -> dict[str, Any]:
        start = replace(start, user_id=user_of(start, self.caller, self.user_id))
        submitted = await start_run(self.app, self.thread_id, start)
        runs = await self.app.runs.service()
        run = await runs.run(submitted.run_id)
        self.events.follow_run(runs, run).commanded = True
        self.meta = {"applied_through_seq": seq_base(run)}  # clients send it as `since`
        return {"run_id": run.run_id}

    async def _respond(self, params: Mapping[str, Json]) -> dict[str, Any]:
        given = params.get("responses")
        answers = given if isinstance(given, list) else [params]
        values = {str(one.get("interrupt_id")): one.get("response") for one in answers if isinstance(one, Mapping)}
        waiting = (await known_thread(self.app, self.thread_id, self.user_id)).waiting(values)
        if waiting is None:
            raise InvalidInput("No run of this thread waits for a person.")
        asked = [one.id for one in questions(waiting)]
        if not values or not set(values) <= set(asked):
            raise InvalidInput(f"interrupt_id must name a question of run {waiting.run_id!r}: {', '.join(asked)}.")
        value: Json = dict(values) if len(asked) > 1 else values[asked[0]]
        runs = await self.app.runs.service()
        await runs.resume(waiting.run_id, value, user_id=self.user_id, questions=values.keys())
        self.events.follow_run(runs, await runs.run(waiting.run_id)).commanded = True
        return {"run_id": waiting.run_id}


@router.post("/commands", summary="Send a command to a thread", response_model_exclude_none=True)
async def send_command(
    thread_id: ThreadId, body: CommandBody, app: AppInUse, caller: CallerInUse, request: Request, user_id: UserId = None
) -> CommandResponseBody:
    """Start a run, answer a question, or read the state. An invalid command returns 200 with `type: error`."""
    app.memory.session(thread_id)  # validates the id
    commands = Commands(app, thread_events_of(request.app), caller, thread_id, user_id)
    try:
        result = await commands.result(body.method, body.params)
    except ThreadkeepError as error:
        problem = problem_of(error)
        if problem.status >= 500:
            raise
        return CommandResponseBody(type="error", id=body.id, error="invalid_argument", message=problem.detail)
    if result is None:
        message = "This command is not supported; send run.start, input.respond, input.inject, state.get."
        return CommandResponseBody(type="error", id=body.id, error="unknown_command", message=message)
    return CommandResponseBody(type="success", id=body.id, result=result, meta=commands.meta)


@router.post(
    "/stream/events",
    summary="Stream the events of a thread",
    response_class=Response,
    responses={200: _STREAM},
    openapi_extra=READS,
)
async def stream_events(
    thread_id: ThreadId, body: EventStreamBody, app: AppInUse, request: Request, user_id: UserId = None
) -> EventStream:
    """Stream the events of the active run and of later runs, in the chosen channels.

    A client that reconnects continues after the `seq` in `since`. If the thread does not exist yet, the status is 404.
    """
    await known_thread(app, thread_id, user_id)
    at_root = not body.namespaces or [] in body.namespaces
    choice = EventChoice(frozenset(body.channels), body.since, at_root)
    events = thread_events_of(request.app).of_thread(thread_id, choice, user_id=user_id)
    # Send a heartbeat at once, so that the client knows that its request was accepted.
    heartbeats = begin_with(None, with_keepalives(events, request))
    return EventStream(encoded(heartbeats, _encoded, _failed))


async def _encoded(event: ProtocolEvent | None) -> AsyncIterator[bytes]:
    if event is None:
        yield HEARTBEAT
        return
    seq = event.get("seq")
    yield json_event(event, "message", number=None if seq is None else str(seq))


def _failed(error: Exception) -> list[bytes]:
    return [json_event(error_event(problem_of(error).detail), "message")]
