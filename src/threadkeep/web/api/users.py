"""Users: erasing of a person."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import ADMINISTERS
from threadkeep.web.erase_schemas import EraseView
from threadkeep.web.problems import documented
from threadkeep.web.routing import EncodedPathRoute
from threadkeep.web.schemas import GivenId

router = APIRouter(prefix="/api/v1/users", tags=["users"], route_class=EncodedPathRoute)


@router.delete("/{user_id}", summary="Erase a person", responses=documented(404, 422, 503), openapi_extra=ADMINISTERS)
async def erase_user(
    user_id: Annotated[GivenId, Path(description="The person; a slash is %2F.", examples=["user-456"])],
    app: AppInUse,
    dry_run: Annotated[bool, Query(description="Say what would go, and write nothing.")] = False,
) -> EraseView:
    """Erase a person with all ids from every store, and return the signed receipt; a repeat goes on.

    Sessions of the person are deleted whole, messages in sessions of others become empty rows. `complete` is false if
    the person wrote meanwhile: repeat it.
    """
    return EraseView.of(await app.memory.erase(user_id=user_id, dry_run=dry_run))
