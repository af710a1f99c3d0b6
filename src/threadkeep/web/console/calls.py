"""Pages of model calls: those of a session with charts, and one call with its budget, its messages and its reasons."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from threadkeep.app import App
from threadkeep.context.manifest import ContextManifest
from threadkeep.history.all_sessions import AllSessions
from threadkeep.store.manifests import StoredManifest
from threadkeep.web.api.parameters import AppInUse, RunId, SessionId, read_call_cursor, write_cursor
from threadkeep.web.console.call_views import CallReader
from threadkeep.web.console.charts import Column
from threadkeep.web.console.forms import SeenAs
from threadkeep.web.console.rendering import ConsoleRoute, page, run_address
from threadkeep.web.problems import ProblemRaised, make_problem

_CALLS = 60
_NEWEST = "last"
_NO_CALL = (
    "No such model call is on record, or not for this user. Records are kept for THREADKEEP_MANIFEST_RETENTION_DAYS, "
    "and go with their session."
)

router = APIRouter(prefix="/console", route_class=ConsoleRoute, include_in_schema=False)


@router.get("/sessions/{session_id}/calls")
async def list_calls(
    request: Request,
    session_id: SessionId,
    app: AppInUse,
    user: SeenAs = None,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Response:
    """Show the model calls of a session, newest first, with their tokens."""
    everything = AllSessions(app.memory)
    _, info = await everything.find(session_id, user_id=user)
    found = await everything.calls(session_id, user_id=user, limit=_CALLS + 1, before=read_call_cursor(cursor))
    shown, more = found[:_CALLS], len(found) > _CALLS
    calls = [_manifest(stored) for stored in shown]
    columns = [_column(call, user) for call in reversed(calls)]
    following = write_cursor(shown[-1].cursor) if more else None
    return page(request, "calls.html", info=info, user=user or "", calls=calls, columns=columns, next_cursor=following)


@router.get("/runs/{run_id}/calls/{call}")
async def show_call(request: Request, run_id: RunId, call: str, app: AppInUse, user: SeenAs = None) -> Response:
    """Show one model call: the sent messages, and the excluded ones with reasons."""
    stored, count = await _find(app, run_id, call, user)
    shown = await CallReader(app.memory, user).read(stored)
    factor = await app.memory.learned_factors.of(stored_model) if (stored_model := shown.view.manifest.model) else None
    return page(
        request, "call.html", call=shown, manifest=shown.view.manifest, count=count, factor=factor, user=user or ""
    )


async def _find(app: App, run_id: str, call: str, user: str | None) -> tuple[StoredManifest, int]:
    """Return a call of a run by its number or as the last one, and the number of calls."""
    found = {one.call: one for one in await app.memory.manifests.of_run(run_id, user_id=user)}
    number = max(found, default=0) if call == _NEWEST else int(call) if call.isdecimal() and len(call) < 9 else 0
    if number not in found:
        raise ProblemRaised(make_problem(404, "run-not-found", _NO_CALL))
    return found[number], len(found)


def _manifest(stored: StoredManifest) -> ContextManifest:
    values = {"created_at": stored.created_at.isoformat(), **stored.manifest, "call": stored.call}
    return ContextManifest.from_dict(values)


def _column(manifest: ContextManifest, user: str | None) -> Column:
    label = f"{manifest.created_at:%d %b %H:%M}" if manifest.created_at else f"call {manifest.call}"
    parts = {str(name): float(tokens) for name, tokens in manifest.sections.items()}
    return Column(label, parts, run_address(manifest.run_id, "calls", str(manifest.call), user_id=user))
