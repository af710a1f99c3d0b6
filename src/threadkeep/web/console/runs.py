"""Pages of runs: the list, one run with its tree and its trace, and its events as they happen."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from threadkeep.web.api.parameters import AppInUse, RunId
from threadkeep.web.api.runs import get_events
from threadkeep.web.console.rendering import ConsoleRoute
from threadkeep.web.console.sessions import SeenAs

router = APIRouter(prefix="/console/runs", route_class=ConsoleRoute, include_in_schema=False)


@router.get("/{run_id}/events")
async def stream_events(
    request: Request,
    run_id: RunId,
    app: AppInUse,
    user: SeenAs = None,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> Response:
    """Stream the events of a run, for the console's script."""
    return await get_events(run_id, app, request, user or None, last_event_id)
