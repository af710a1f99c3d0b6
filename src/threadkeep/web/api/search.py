"""Finding what was said."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from threadkeep.history.all_sessions import AllSessions
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Limit, UserId
from threadkeep.web.problems import documented
from threadkeep.web.schemas import SearchHitBody, SearchResult

router = APIRouter(prefix="/api/v1/search", tags=["search"])


@router.get("", summary="Search messages", responses=documented(422, 503), response_model_exclude_unset=True)
async def search(
    app: AppInUse,
    q: Annotated[str, Query(min_length=1, max_length=1000, description="Words; all of them must be there.")],
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
) -> SearchResult:
    """Messages that have all the words of a query, best first, of one user or of all."""
    found = await AllSessions(app.memory).search(q, user_id=user_id, limit=limit)
    hits = [SearchHitBody.of(hit) for hit in found.hits]
    return SearchResult(hits=hits, count=len(hits), unindexed=found.unindexed)
