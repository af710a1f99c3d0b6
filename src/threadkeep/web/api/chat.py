"""Talking: a message in, an answer out, at once or piece by piece; and what was said."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from threadkeep.app import App
from threadkeep.errors import Interrupted, ModelCallFailed, RunFailed, RunWaits
from threadkeep.graphs.built_in import CHAT
from threadkeep.history.all_sessions import AllSessions
from threadkeep.runs.chat.turns import ChatRequest, ChatTurn
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Limit, SessionId, UserId
from threadkeep.web.problems import ProblemRaised, documented
from threadkeep.web.schemas import ChatRequestBody, ChatResponseBody, History, HistoryMessage
from threadkeep.web.streams import EXAMPLE, EventStream, open_stream, problem_of_turn

router = APIRouter(prefix="/api/v1/chat", tags=["chat"])

_FAILURES = documented(400, 404, 409, 413, 422, 502, 503)
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["start", "token", "end", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_STREAM: dict[str, object] = {
    "description": "The turn as it happens.",
    "content": {"text/event-stream": {"itemSchema": _EVENT, "example": EXAMPLE}},
}


@router.post("", summary="Say something", responses=_FAILURES)
async def chat(body: ChatRequestBody, app: AppInUse) -> ChatResponseBody:
    """Answer a message with the memory of its session.

    Without a `session_id` the user goes on with the session of the last message to the workflow; without a `user_id`
    too, a session begins. Turns of one session run one after the other, in order of arrival. The turn goes on if the
    caller goes away; the same `message_id` then gets its answer. If the model fails (502), the message is stored and no
    answer is. Each turn is a run of the workflow: GET /api/v1/runs/{run_id} tells of it.
    """
    turn = _begin(app, body, stream=False)
    try:
        answer = await turn.answer()
    except (ModelCallFailed, RunFailed, RunWaits, Interrupted) as error:
        raise ProblemRaised(problem_of_turn(turn, error)) from error
    return ChatResponseBody.model_validate(answer.to_dict())


@router.post(
    "/stream",
    summary="Say something, and read the answer as it comes",
    response_class=Response,  # one without a media type: what the stream holds is described below
    responses={200: _STREAM, **_FAILURES},
)
async def stream(body: ChatRequestBody, app: AppInUse, request: Request) -> EventStream:
    """The same as server-sent events.

    First `start` (`session_id`, `run_id`, `message_id`), then `token` (`text`) for each piece, last `end` (all that the
    answer to `POST /api/v1/chat` has) or `error` (a problem document). Lines that begin with a colon keep the
    connection open. What fails before `start` is an HTTP error.
    """
    return await open_stream(_begin(app, body, stream=True), heartbeat_seconds=request.app.state.heartbeat_seconds)


@router.get(
    "/history/{session_id}",
    summary="Read what was said",
    responses=documented(404, 422, 503),
    response_model_exclude_unset=True,
)
async def history(
    session_id: SessionId,
    app: AppInUse,
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
    before: Annotated[int | None, Query(ge=1, lt=2**53, description="Only messages before this `seq`.")] = None,
) -> History:
    """The newest messages of a session, oldest first. `next_before` leads to older ones."""
    session, _ = await AllSessions(app.memory).find(session_id, user_id=user_id)
    page = await session.page(before, limit)
    messages = [HistoryMessage.of(message) for message in page.messages]
    return History(session_id=session_id, messages=messages, count=len(messages), next_before=page.next_before)


def _begin(app: App, body: ChatRequestBody, *, stream: bool) -> ChatTurn:
    """Start the turn that a body asks for.

    Raises:
        InvalidKey, InvalidInput: the session id or the user id cannot be used.
        WorkflowNotFound: there is no such workflow.
    """
    if body.session_id is not None:
        app.memory.session(body.session_id)  # checks it: an empty one must not begin a new session
    return app.chat.begin(
        ChatRequest(
            message=body.message,
            session_id=body.session_id,
            user_id=body.user_id,
            message_id=body.message_id,
            metadata=body.metadata,
            workflow=CHAT if body.workflow is None else body.workflow,
        ),
        stream=stream,
    )
