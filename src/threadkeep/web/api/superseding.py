"""Changes to a conversation: taking back, editing and regenerating messages, and branching."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request, Response

from threadkeep.app import App
from threadkeep.errors import InvalidInput
from threadkeep.history.all_sessions import AllSessions
from threadkeep.runs.chat import Again, RegenerationRequest
from threadkeep.runs.chat_turns import ChatTurn
from threadkeep.web.api.chat import STREAM, answer_of
from threadkeep.web.api.parameters import AppInUse, SessionId, UserId
from threadkeep.web.problems import documented
from threadkeep.web.routing import EncodedPathRoute
from threadkeep.web.schemas import (
    BranchBody,
    ChatResponseBody,
    EditBody,
    Edited,
    HistoryMessage,
    RegenerateBody,
    SessionBody,
    TakeBackBody,
    TakenBack,
)
from threadkeep.web.streams import EventStream, open_stream

router = APIRouter(prefix="/api/v1/sessions/{session_id}", tags=["sessions"], route_class=EncodedPathRoute)

_FAILURES = documented(400, 404, 413, 422, 503)
_CHAT_FAILURES = documented(400, 404, 409, 413, 422, 502, 503)


@router.post(
    "/take-back", summary="Take the newest messages back", responses=_FAILURES, response_model_exclude_unset=True
)
async def take_back(
    session_id: SessionId, app: AppInUse, body: TakeBackBody | None = None, user_id: UserId = None
) -> TakenBack:
    """Supersede the newest messages and return them: they stay in the history, but are not active any more.

    Concurrent requests get different messages.
    """
    session, _ = await AllSessions(app.memory).find(session_id, user_id=user_id)
    taken = await session.take_back(body.n if body is not None else 1)
    messages = [HistoryMessage.of(message) for message in taken]
    return TakenBack(session_id=session_id, messages=messages, count=len(messages))


@router.post(
    "/edit",
    summary="Replace a message",
    responses={**_FAILURES, **documented(409)},
    response_model_exclude_unset=True,
)
async def edit(session_id: SessionId, body: EditBody, app: AppInUse, user_id: UserId = None) -> Edited:
    """Supersede a message and all later ones, and store a new version of it. `regenerate` has it answered."""
    session, _ = await AllSessions(app.memory).find(session_id, user_id=user_id)
    message = await session.edit(body.message_id, body.message, new_id=body.new_message_id)
    return Edited(session_id=session_id, message=HistoryMessage.of(message))


@router.post(
    "/branch",
    summary="Branch a session",
    status_code=201,
    responses=_FAILURES,
    response_model_exclude_defaults=True,
)
async def branch(
    session_id: SessionId, app: AppInUse, body: BranchBody | None = None, user_id: UserId = None
) -> SessionBody:
    """Create a session with copies of this session's messages up to a position. Both continue independently."""
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    wanted = BranchBody() if body is None else body
    branched = await session.branch(wanted.at, session_id=wanted.session_id)
    return SessionBody.of(replace(await branched.info(), namespace=found.namespace))


@router.post("/regenerate", summary="Have a question answered again", responses=_CHAT_FAILURES)
async def regenerate(
    session_id: SessionId, app: AppInUse, body: RegenerateBody | None = None, user_id: UserId = None
) -> ChatResponseBody:
    """Supersede everything after a question and answer it again, as POST /api/v1/chat does.

    The question keeps its `message_id`: sending it again returns the new answer. If the question is being answered,
    the response is that answer.
    """
    return await answer_of(await _again(app, session_id, user_id, body, stream=False))


@router.post(
    "/regenerate/stream",
    summary="Have a question answered again, and read the answer as it comes",
    response_class=Response,
    responses={200: STREAM, **_CHAT_FAILURES},
)
async def stream_regenerated(
    session_id: SessionId,
    app: AppInUse,
    request: Request,
    body: RegenerateBody | None = None,
    user_id: UserId = None,
) -> EventStream:
    """Regenerate an answer as server-sent events, as POST /api/v1/chat/stream does."""
    turn = await _again(app, session_id, user_id, body, stream=True)
    return await open_stream(turn, heartbeat_seconds=request.app.state.heartbeat_seconds)


async def _again(
    app: App, session_id: str, user_id: str | None, body: RegenerateBody | None, *, stream: bool
) -> ChatTurn:
    """Start the turn that answers a question again.

    Raises:
        InvalidInput: the built-in chat does not use this conversation, or both a run and a message are named.
    """
    session, found = await AllSessions(app.memory).find(session_id, user_id=user_id)
    if found.namespace:
        raise InvalidInput("An agent keeps this conversation by itself, and the chat does not answer in it.")
    wanted = RegenerateBody() if body is None else body
    asked = RegenerationRequest(wanted.run_id, wanted.message_id, wanted.workflow)
    return await Again(app.chat, app.memory, app.workflows).begin(session, asked, stream=stream)
