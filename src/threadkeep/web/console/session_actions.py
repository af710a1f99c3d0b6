"""Forms of a session: say, edit, regenerate, take back, reset, export, delete."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Mapping
from urllib.parse import quote

from fastapi import APIRouter, Response

from threadkeep.app import App
from threadkeep.errors import InvalidInput, ModelCallFailed, RunFailed, RunWaits
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.exporting import export, named_sessions
from threadkeep.history.session import Session
from threadkeep.records import SessionInfo
from threadkeep.runs.chat import Again, RegenerationRequest
from threadkeep.runs.chat_turns import ChatRequest, ChatTurn
from threadkeep.store.codec import clean_text
from threadkeep.web.api.parameters import AppInUse, SessionId
from threadkeep.web.api.sessions import delete_session, reset_session
from threadkeep.web.callers import CallerInUse
from threadkeep.web.console.forms import Form, SeenAs
from threadkeep.web.console.rendering import ConsoleRoute, redirect, session_address
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS
from threadkeep.workflows.built_in import CHAT

_START_SECONDS = 3.0
"""Seconds to wait for a turn to begin. Then the page shows it as queued."""

_AGENTS_OWN = "An agent keeps this conversation by itself, and the console does not speak in it."

router = APIRouter(prefix="/console", route_class=ConsoleRoute, include_in_schema=False)
_session = APIRouter(prefix="/console/sessions/{session_id}", route_class=ConsoleRoute, include_in_schema=False)


@router.post("/say")
async def start_session(form: Form, app: AppInUse, caller: CallerInUse) -> Response:
    """Send a message to a session; without a name, to a new one."""
    session_id = form.get("session_id", "").strip() or None
    if session_id is not None:
        app.memory.session(session_id)  # validates the id
    user = caller.user(form.get("user_id", "").strip() or None)
    turn = app.chat.begin(_request(form, session_id, user))
    await _begun(turn)
    return redirect(session_address(turn.session_id) + "#end")


@_session.post("/say")
async def say(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Say something as the session's user."""
    _, info = await _own(app, session_id, user)
    await _begun(app.chat.begin(_request(form, session_id, info.user_id)))
    return _back(session_id, user)


@_session.post("/edit")
async def edit(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Replace a message and have the new version answered if it is the user's."""
    session, info = await AllSessions(app.memory).find(session_id, user_id=user)
    message = await session.edit(form.get("message_id", ""), _text(form))
    if message.role == "user" and not info.namespace:
        await _again(app, session, RegenerationRequest(message_id=message.id))
    return _back(session_id, user)


@_session.post("/regenerate")
async def regenerate(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Have a question answered again."""
    session, _ = await _own(app, session_id, user)
    await _again(app, session, RegenerationRequest(message_id=form.get("message_id") or None))
    return _back(session_id, user)


@_session.post("/take-back")
async def take_back(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Take the newest messages back."""
    session, _ = await AllSessions(app.memory).find(session_id, user_id=user)
    count = form.get("n", "1")
    await session.take_back(int(count) if count.isdecimal() and len(count) < 6 else 0)
    return _back(session_id, user)


@_session.post("/reset")
async def reset(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Hide all earlier messages from the model."""
    await reset_session(session_id, app, user)
    return _back(session_id, user)


@_session.post("/delete")
async def delete(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Delete a session with all its messages."""
    await delete_session(session_id, app, user)
    return redirect("/")


@_session.get("/export")
async def export_session(session_id: SessionId, app: AppInUse, user: SeenAs = None) -> Response:
    """Return a session with its whole history as JSONL, as `threadkeep export` writes it."""
    stream = io.BytesIO()
    chosen = named_sessions(app.memory, [session_id], user)
    await export(chosen, stream, lambda _: None, view="history")
    name = quote(session_id.replace("/", "-"), safe="", errors="surrogateescape")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}.jsonl"}
    return Response(stream.getvalue(), media_type="application/x-ndjson", headers=headers)


router.routes.extend(_session.routes)


async def _own(app: App, session_id: str, user: str | None) -> tuple[Session, SessionInfo]:
    """Return a session in which the chat may speak.

    Raises:
        InvalidInput: an agent stores the conversation itself.
    """
    session, info = await AllSessions(app.memory).find(session_id, user_id=user)
    if info.namespace:
        raise InvalidInput(_AGENTS_OWN)
    return session, info


async def _again(app: App, session: Session, asked: RegenerationRequest) -> None:
    await _begun(await Again(app.chat, app.memory, app.workflows).begin(session, asked, stream=True))


async def _begun(turn: ChatTurn) -> None:
    """Wait until a turn has begun, so that the page that follows shows it. Its failure is shown there."""
    events = turn.follow()
    with contextlib.suppress(TimeoutError, ModelCallFailed, RunFailed, RunWaits):
        async with asyncio.timeout(_START_SECONDS):
            await anext(events)


def _request(form: Mapping[str, str], session_id: str | None, user_id: str | None) -> ChatRequest:
    workflow = form.get("workflow") or CHAT
    return ChatRequest(_text(form), session_id=session_id, user_id=user_id, workflow=workflow)


def _text(form: Mapping[str, str]) -> str:
    text = clean_text(form.get("message", "").strip())
    if not 0 < len(text) <= MAX_MESSAGE_CHARACTERS:
        raise InvalidInput(f"A message has 1 to {MAX_MESSAGE_CHARACTERS:,} characters; write some, or fewer.")
    return text


def _back(session_id: str, user: str | None) -> Response:
    return redirect(session_address(session_id, user_id=user) + "#end")
