"""Pages that list and show sessions, and handlers of their forms, such as for sending a message."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Mapping
from itertools import groupby
from typing import Annotated
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from fastapi import APIRouter, Query, Request, Response
from langchain_core.utils.uuid import uuid7

from threadkeep.app import App
from threadkeep.errors import InvalidInput, ModelCallFailed, RunFailed, RunWaits
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.exporting import export, named_sessions
from threadkeep.history.memory import damaged_sessions
from threadkeep.history.session import Session
from threadkeep.records import SessionInfo
from threadkeep.records.runs import RESET, Run, RunQuery
from threadkeep.runs.chat import RegenerationRequest
from threadkeep.runs.chat_turns import ChatTurn
from threadkeep.runs.requests import RunRequest
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import SessionQuery
from threadkeep.web.api.parameters import AppInUse, SessionId, read_cursor, write_cursor
from threadkeep.web.api.sessions import delete_session, reset_session
from threadkeep.web.callers import CallerInUse
from threadkeep.web.console.rendering import ConsoleRoute, Form, SeenAs, page, redirect, session_address
from threadkeep.web.langgraph.states import runs_of
from threadkeep.web.schemas import MAX_MESSAGE_CHARACTERS
from threadkeep.workflows.built_in import CHAT

_PAGE = 30
_MESSAGES = 100

router = APIRouter(route_class=ConsoleRoute, include_in_schema=False)


@router.get("/")
async def list_sessions(
    *,
    request: Request,
    app: AppInUse,
    user: SeenAs = None,
    q: Annotated[str | None, Query(max_length=200)] = None,
    tag: Annotated[str | None, Query(max_length=200)] = None,
    channel: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Response:
    """Show a page of sessions, newest activity first."""
    everything = AllSessions(app.memory)
    text = clean_text(q.strip()) if q and q.strip() else None
    query = SessionQuery(user, text, None, _PAGE, read_cursor("sessions", cursor), tag or None, channel or None)
    found, following = await everything.page(query)
    return page(
        request,
        "sessions.html",
        sessions=found,
        next_cursor=write_cursor("sessions", following),
        damaged=damaged_sessions(await everything.damaged(user)),
        cursor=cursor,
        chosen={"q": text or "", "user": user or "", "channel": channel or "", "tag": tag or ""},
        workflows=_workflows(app),
        demo=app.settings.model == "demo",
    )


@router.get("/console/sessions/{session_id}")
async def show_session(
    request: Request,
    session_id: SessionId,
    app: AppInUse,
    user: SeenAs = None,
    before: Annotated[int | None, Query(ge=1, lt=2**53)] = None,
) -> Response:
    """Show a page of 100 messages of a session as a chat."""
    session, info = await AllSessions(app.memory).find(session_id, user_id=user)
    # Read the runs before the messages. If a run ends in between, its answer is then among the messages.
    runs: list[Run] = []
    if not info.namespace:
        service = await app.runs.service()
        found = await runs_of(service, session_id)
        # A reset matters only if it is newer than the last turn, so do not search all runs of a long session for one.
        latest, _ = await service.list(RunQuery(session_id=session_id, limit=20))
        resets = [run for run in latest if run.workflow == RESET][:1]
        newest = sorted((*found[:1], *resets), key=lambda run: run.created_at)[-1:]
        # Show the unfinished runs, oldest first; if all are finished, the last run (or reset) if it failed.
        runs = [run for run in reversed(found) if not run.over] or [run for run in newest if run.status == "failed"]
    shown = await session.page(before, _MESSAGES, view="history")
    waiting = [message for message in session.waiting() if message.id not in {one.id for one in shown.messages}]
    summaries = [] if info.namespace else await app.memory.summaries.active(session_id, user_id=user)
    grouped = groupby(shown.messages, lambda message: message.superseded_at is not None)
    return page(
        request,
        "session.html",
        info=info,
        user=user or "",
        stretches=[(superseded, list(messages)) for superseded, messages in grouped],
        next_before=shown.next_before,
        before=before,
        waiting=waiting if before is None else [],
        # Maps the `seq` of a message to the summary that the page shows after this message.
        summaries={min(summary.last_seq, info.last_seq): summary for summary in summaries},
        runs=runs,
        workflows=_workflows(app),
    )


def _workflows(app: App) -> list[str]:
    return sorted(workflow.name for workflow in app.workflows.all())


_START_SECONDS = 3.0
"""Seconds to wait for a turn to start. After that, the page shows the turn as queued."""

_START_POLLS = 60


@router.post("/console/say")
async def start_session(form: Form, app: AppInUse, caller: CallerInUse) -> Response:
    """Send a message to a session, or to a new one if the form names none."""
    # Use the message's id as the id of a new session, so that a form that is sent twice opens only one session.
    session_id = form.get("session_id", "").strip() or _message_id(form)
    app.memory.session(session_id)  # validates the id
    user = caller.user(form.get("user_id", "").strip() or None)
    turn = app.chat.begin(_request(form, session_id, user))
    await _wait_for_start(turn)
    for _ in range(_START_POLLS):  # the next page must find the session
        if await app.memory.session(turn.session_id).tail(1, view="history"):
            break
        await asyncio.sleep(_START_SECONDS / _START_POLLS)
    return redirect(session_address(turn.session_id) + "#end")


@router.post("/console/sessions/{session_id}/say")
async def say(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Send a message as the session's user."""
    _, info = await _writable_session(app, session_id, user)
    await _wait_for_start(app.chat.begin(_request(form, session_id, info.user_id)))
    return _redirect_back(session_id, user)


@router.post("/console/sessions/{session_id}/edit")
async def edit(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Replace a message. Answer a user message again, unless an agent stores the conversation in a LangGraph store."""
    session, info = await AllSessions(app.memory).find(session_id, user_id=user)
    message = await session.edit(form.get("message_id", ""), _text(form))
    if message.role == "user" and not info.namespace:
        await _wait_for_start(await app.chat.regenerate(session, RegenerationRequest(message_id=message.id)))
    return _redirect_back(session_id, user)


@router.post("/console/sessions/{session_id}/regenerate")
async def regenerate(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Answer a question again."""
    session, _ = await _writable_session(app, session_id, user)
    asked = RegenerationRequest(message_id=form.get("message_id") or None)
    await _wait_for_start(await app.chat.regenerate(session, asked))
    return _redirect_back(session_id, user)


@router.post("/console/sessions/{session_id}/take-back")
async def take_back(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Take the newest messages back, unless messages were superseded since the page was shown (a double click)."""
    session, info = await AllSessions(app.memory).find(session_id, user_id=user)
    count = form.get("n", "1")
    if form.get("revision", str(info.revision)) == str(info.revision):
        await session.take_back(int(count) if count.isdecimal() and len(count) < 6 else 0)
    return _redirect_back(session_id, user)


@router.post("/console/sessions/{session_id}/reset")
async def reset(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Hide all earlier messages from the model."""
    await reset_session(session_id, app, user)
    return _redirect_back(session_id, user)


@router.post("/console/sessions/{session_id}/delete")
async def delete(session_id: SessionId, form: Form, app: AppInUse, user: SeenAs = None) -> Response:
    """Delete a session with all its messages."""
    await delete_session(session_id, app, user)
    return redirect("/")


@router.get("/console/sessions/{session_id}/export")
async def export_session(session_id: SessionId, app: AppInUse, user: SeenAs = None) -> Response:
    """Return a session's history in the format of `threadkeep sessions export`."""
    stream = io.BytesIO()
    chosen = named_sessions(app.memory, [session_id], user)
    await export(chosen, stream, lambda _: None, view="history")
    name = quote(session_id.replace("/", "-"), safe="", errors="surrogateescape")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}.jsonl"}
    return Response(stream.getvalue(), media_type="application/x-ndjson", headers=headers)


async def _writable_session(app: App, session_id: str, user: str | None) -> tuple[Session, SessionInfo]:
    """Return a session after checking that the console may send messages to it.

    Raises:
        InvalidInput: an agent stores the conversation in a LangGraph store, so the chat cannot answer in it.
    """
    session, info = await AllSessions(app.memory).find(session_id, user_id=user)
    if info.namespace:
        raise InvalidInput("An agent stores this conversation itself, so the console cannot send messages to it.")
    return session, info


async def _wait_for_start(turn: ChatTurn) -> None:
    """Wait briefly until a turn has started, so that the next page shows it or its failure."""
    events = turn.follow()
    with contextlib.suppress(TimeoutError, ModelCallFailed, RunFailed, RunWaits):
        async with asyncio.timeout(_START_SECONDS):
            await anext(events)


def _request(form: Mapping[str, str], session_id: str, user_id: str | None) -> RunRequest:
    workflow = form.get("workflow") or CHAT
    return RunRequest(
        text=_text(form), session_id=session_id, user_id=user_id, message_id=_message_id(form), workflow=workflow
    )


def _message_id(form: Mapping[str, str]) -> str:
    """Return an id for the message in a form. If a form is sent twice, both messages have the same id."""
    rendered = form.get("form_id") or str(uuid7())
    return str(uuid5(NAMESPACE_URL, "\n".join([rendered, form.get("workflow", ""), _text(form)])))


def _text(form: Mapping[str, str]) -> str:
    text = clean_text(form.get("message", "").strip())
    if not 0 < len(text) <= MAX_MESSAGE_CHARACTERS:
        raise InvalidInput(f"A message has 1 to {MAX_MESSAGE_CHARACTERS:,} characters; change its length.")
    return text


def _redirect_back(session_id: str, user: str | None) -> Response:
    return redirect(session_address(session_id, user_id=user) + "#end")
