"""The page of knowledge: facts with their evidence, and what goes to a Graphiti server with whose consent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from threadkeep.records.knowledge import FactQuery
from threadkeep.store.codec import clean_text
from threadkeep.web.api.parameters import AppInUse, read_cursor, write_cursor
from threadkeep.web.console.forms import SeenAs
from threadkeep.web.console.rendering import ConsoleRoute, page

_PAGE = 50
_DEAD = 20

router = APIRouter(prefix="/console", route_class=ConsoleRoute, include_in_schema=False)


@router.get("/knowledge")
async def show_knowledge(
    *,
    request: Request,
    app: AppInUse,
    user: SeenAs = None,
    q: Annotated[str | None, Query(max_length=200)] = None,
    past: Annotated[bool, Query()] = False,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Response:
    """Show facts, most recently changed first; without a user also the deliveries to Graphiti."""
    words = clean_text(q.strip()) if q and q.strip() else None
    query = FactQuery(text=words, past=past, user_id=user, limit=_PAGE, cursor=read_cursor(cursor))
    facts, following = await app.memory.knowledge.facts_page(query)
    graphiti = app.memory.graphiti
    # Deliveries and consent are about all users.
    status = await graphiti.status() if user is None else None
    return page(
        request,
        "knowledge.html",
        facts=facts,
        q=words or "",
        user=user or "",
        past=past,
        next_cursor=write_cursor(following),
        status=status,
        consents=await graphiti.consents.decisions() if user is None else [],
        dead=await graphiti.deliveries(status="dead", limit=_DEAD) if user is None else [],
    )
