"""Routes of the chat: answers (whole or streamed), the history, ChatKit, and callbacks from platforms.

Each bot verifies its own callbacks, so callbacks need no API key.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response

from threadkeep.app import App
from threadkeep.channels.contract import Callback
from threadkeep.errors import (
    CallbackRefused,
    ChannelNotFound,
    Interrupted,
    ModelCallFailed,
    RunFailed,
    RunWaits,
    StoreUnavailable,
)
from threadkeep.history.all_sessions import AllSessions
from threadkeep.runs.chat_turns import ChatTurn
from threadkeep.runs.requests import RunRequest
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, EncodedPathRoute, Limit, SessionId, UserId
from threadkeep.web.callers import Caller, CallerInUse
from threadkeep.web.problems import TURN_FAILURES, ProblemRaised, documented, make_problem
from threadkeep.web.schemas import ChatRequestBody, ChatResponseBody, History, HistoryMessage
from threadkeep.web.streams import EXAMPLE, EventStream, TurnParts, open_stream, problem_of_turn, streamed
from threadkeep.workflows.built_in import CHAT

router = APIRouter(prefix="/api/v1/chat", tags=["chat"], route_class=EncodedPathRoute)

STREAM: dict[str, Any] = {
    "response_class": Response,  # no media type here, because `responses` describes the stream
    "responses": {200: streamed(EXAMPLE, "The events of the turn."), **TURN_FAILURES},
}


@router.post("", summary="Send a message", responses=TURN_FAILURES)
async def chat(body: ChatRequestBody, app: AppInUse, caller: CallerInUse) -> ChatResponseBody:
    """Answer a message with the memory of its session.

    Without a `session_id`, the message continues the user's last session with the workflow. Without a `session_id` and
    a `user_id`, a new session starts. Turns of one session run one after another, in order of arrival. If the client
    disconnects, the turn continues; send the same `message_id` again to get the answer. If the model fails (502), the
    message is stored without an answer. Each turn is a run of the workflow: see GET /api/v1/runs/{run_id}.
    """
    return await answer_of(_begin(app, body, caller, stream=False))


async def answer_of(turn: ChatTurn) -> ChatResponseBody:
    """Wait for the answer of a turn. If the turn fails, the error has the ids for sending the message again."""
    try:
        answer = await turn.answer()
    except (ModelCallFailed, RunFailed, RunWaits, Interrupted, StoreUnavailable) as error:
        raise ProblemRaised(problem_of_turn(turn, error)) from error
    return ChatResponseBody.model_validate(answer)


@router.post("/stream", summary="Send a message and stream the answer", **STREAM)
async def stream(body: ChatRequestBody, app: AppInUse, caller: CallerInUse, request: Request) -> EventStream:
    """Answer a message as server-sent events.

    The first event is `start` (`session_id`, `run_id`, `message_id`). Each piece of the answer is a `token` (`text`).
    The last event is `end` (all fields of the response of `POST /api/v1/chat`) or `error` (a problem document). Lines
    that begin with a colon keep the connection open. Failures before `start` are HTTP errors.
    """
    return await open_stream(_begin(app, body, caller, stream=True), TurnParts(), request)


@router.get("/history/{session_id}", summary="Read the history of a session", responses=documented(404, 409, 422, 503))
async def history(
    session_id: SessionId,
    app: AppInUse,
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
    before: Annotated[int | None, Query(ge=1, lt=2**53, description="Only messages before this `seq`.")] = None,
    view: Annotated[
        Literal["active", "history"], Query(description="`active`: no superseded messages; `history`: all.")
    ] = "active",
) -> History:
    """Return the newest messages of a session, oldest first. Pass `next_before` as `before` for older messages."""
    session, _ = await AllSessions(app.memory).find(session_id, user_id=user_id)
    page = await session.page(before, limit, view=view)
    messages = [HistoryMessage.of(message) for message in page.messages]
    return History(session_id=session_id, messages=messages, count=len(messages), next_before=page.next_before)


def _begin(app: App, body: ChatRequestBody, caller: Caller, *, stream: bool) -> ChatTurn:
    """Start the turn that answers the message of a request.

    Raises:
        InvalidKey, InvalidInput: the session id or the user id is invalid.
        WorkflowNotFound: the workflow does not exist.
    """
    if body.session_id is not None:
        app.memory.session(body.session_id)  # rejects an empty id, which would start a new session
    return app.chat.begin(
        RunRequest(
            text=body.message,
            session_id=body.session_id,
            user_id=caller.user(body.user_id),
            message_id=body.message_id,
            metadata=body.metadata,
            workflow=CHAT if body.workflow is None else body.workflow,
        ),
        stream=stream,
    )


chatkit_router = APIRouter(tags=["chat"])


@chatkit_router.post(
    "/chatkit", summary="Serve ChatKit", response_class=Response, responses=documented(404, 413, 422, 503)
)
async def serve_chatkit(
    request: Request,
    app: AppInUse,
    caller: CallerInUse,
    user_id: UserId = None,
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="A repeated key refers to the same thread and message.")
    ] = None,
) -> Response:
    """Serve a request from ChatKit's page. A thread is a session, and each answer is a run of the chat.

    The thread's metadata may name a `workflow` that answers instead of the chat. If the key or `user_id` names a user,
    threads of other users are not found. The answer continues if the client disconnects.
    """
    if find_spec("chatkit") is None:
        sentence = "ChatKit's server is not installed; install it with: pip install 'threadkeep[chatkit]'"
        raise ProblemRaised(make_problem(404, "chatkit-missing", sentence))
    # Import in an OS thread, because this takes seconds of CPU and would block the event loop.
    chatkit_server = await asyncio.to_thread(import_module, "threadkeep.web.chatkit_server")
    context = chatkit_server.ChatKitRequest(request, user_id, caller.repeat_id(user_id, idempotency_key))
    response: Response = await chatkit_server.serve(app, await request.body(), context)
    return response


channels_router = APIRouter(tags=["channels"])

_CALLBACK_FAILURES = {
    403: {"description": "The callback is not from the platform, or too old."},
    **documented(404, 413, 422, 503),
}

type ChannelName = Annotated[
    str, Path(description="The name of a bot in the channels file.", pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
]


@channels_router.get(
    "/channels/{name}",
    summary="Verify a callback's address",
    operation_id="check_callback",
    response_model=None,
    responses=_CALLBACK_FAILURES,
)
@channels_router.post(
    "/channels/{name}", summary="Receive a platform's callback", response_model=None, responses=_CALLBACK_FAILURES
)
async def receive_callback(name: ChannelName, request: Request, app: AppInUse) -> Response:
    """Receive a platform's callback for a bot. The bot usually sends its answer later, in a separate request."""
    if app.channels is None:
        raise ChannelNotFound(name)
    callback = Callback(
        method="GET" if request.method == "GET" else "POST",
        received_at=app.memory.clock(),
        query=request.scope["query_string"].decode("latin-1"),
        headers=dict(request.headers),
        body=await request.body(),
    )
    try:
        response = await app.channels.receive(name, callback)
    except CallbackRefused:
        return Response(status_code=403)
    except TimeoutError:
        sentence = "The database does not answer; the platform will send the callback again."
        raise ProblemRaised(make_problem(503, "database-unavailable", sentence)) from None
    return Response(response.body, media_type=response.media_type)
