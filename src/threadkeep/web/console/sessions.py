"""Pages of sessions: the list, and one session as a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from threadkeep.app import App
from threadkeep.history.all_sessions import AllSessions
from threadkeep.history.memory import damaged_sessions
from threadkeep.records import Message, SessionInfo, Summary
from threadkeep.records.runs import Run, RunQuery
from threadkeep.store.codec import clean_text
from threadkeep.store.transcripts import SessionQuery
from threadkeep.web.api.parameters import AppInUse, SessionId, read_cursor, write_cursor
from threadkeep.web.console.forms import SeenAs
from threadkeep.web.console.rendering import ConsoleRoute, page

_PAGE = 30
_MESSAGES = 100
_RUNS_LOOKED_AT = 10

router = APIRouter(route_class=ConsoleRoute, include_in_schema=False)


@dataclass(frozen=True)
class Stretch:
    """Consecutive messages of a transcript that are all active or all superseded."""

    superseded: bool
    messages: list[Message]


@router.get("/")
async def list_sessions(
    request: Request,
    app: AppInUse,
    user: SeenAs = None,
    q: Annotated[str | None, Query(max_length=200)] = None,
    tag: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Response:
    """Show a page of sessions, newest activity first."""
    everything = AllSessions(app.memory)
    text = clean_text(q.strip()) if q and q.strip() else None
    query = SessionQuery(user, text, None, _PAGE, read_cursor(cursor), tag or None)
    found, following = await everything.page(query)
    damaged = damaged_sessions(await everything.damaged(user))
    return page(
        request,
        "sessions.html",
        sessions=found,
        next_cursor=write_cursor(following),
        damaged=damaged,
        cursor=cursor,
        q=text or "",
        user=user or "",
        tag=tag or "",
        workflows=_workflows(app),
    )


@router.get("/console/sessions/{session_id}")
async def show_session(
    request: Request,
    session_id: SessionId,
    app: AppInUse,
    user: SeenAs = None,
    before: Annotated[int | None, Query(ge=1, lt=2**53)] = None,
) -> Response:
    """Show the transcript of a session as a chat."""
    session, info = await AllSessions(app.memory).find(session_id, user_id=user)
    shown = await session.page(before, _MESSAGES, view="history")
    waiting = [message for message in session.waiting() if message.id not in {one.id for one in shown.messages}]
    summaries = [] if info.namespace else await app.memory.summaries.active(session_id, user_id=user)
    return page(
        request,
        "session.html",
        info=info,
        user=user or "",
        stretches=_stretches(shown.messages),
        next_before=shown.next_before,
        before=before,
        waiting=waiting if before is None else [],
        summaries=_by_end(summaries, info),
        live=None if info.namespace else await _unfinished(app, session_id),
        workflows=_workflows(app),
    )


def _stretches(messages: Sequence[Message]) -> list[Stretch]:
    grouped = groupby(messages, lambda message: message.superseded_at is not None)
    return [Stretch(superseded, list(some)) for superseded, some in grouped]


def _by_end(summaries: Sequence[Summary], info: SessionInfo) -> dict[int, Summary]:
    """Return summaries by the position after which the page shows them."""
    return {min(summary.last_seq, info.last_seq): summary for summary in summaries}


async def _unfinished(app: App, session_id: str) -> Run | None:
    """Return the newest run of a session that is not over."""
    runs, _ = await (await app.runs.service()).list(RunQuery(session_id=session_id, limit=_RUNS_LOOKED_AT))
    return next((run for run in runs if not run.over and run.parent_run_id is None), None)


def _workflows(app: App) -> list[str]:
    return sorted(workflow.name for workflow in app.workflows.all())
