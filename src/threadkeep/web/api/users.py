"""Users: export and erasing of a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from threadkeep.errors import InvalidInput
from threadkeep.memory.person_archive import archive
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import ADMINISTERS, CallerInUse
from threadkeep.web.erase_schemas import EraseView
from threadkeep.web.problems import documented
from threadkeep.web.routing import EncodedPathRoute
from threadkeep.web.schemas import GivenId

router = APIRouter(prefix="/api/v1/users", tags=["users"], route_class=EncodedPathRoute)


_ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The archive, or the lines.",
        "content": {
            "application/zip": {"schema": {"type": "string", "format": "binary"}},
            "application/jsonl": {"schema": {"type": "string"}},
        },
    }
}
type PersonId = Annotated[GivenId, Path(description="The person; a slash is %2F.", examples=["user-456"])]


@router.get(
    "/{user_id}",
    summary="Export a person",
    response_class=Response,
    responses={**_ARCHIVE, **documented(404, 422, 503)},
)
async def export_user(
    user_id: PersonId,
    app: AppInUse,
    caller: CallerInUse,
    form: Annotated[
        Literal["zip", "jsonl"], Query(alias="format", description="An archive with a readable page, or the lines.")
    ] = "zip",
    after: Annotated[
        str | None, Query(max_length=2000, description="For `jsonl`: the `after` of the last position line.")
    ] = None,
) -> StreamingResponse:
    """Stream what there is of a person, under all ids: what erasing the person would take.

    Each line is a JSON object with a `type`. `position` says how to go on after a broken connection; the last line is
    `end`. The archive has the lines in `person.jsonl`, and a page of them in `person.html`.
    """
    lines = app.memory.export(user_id=caller.user(user_id) or user_id, after=after)
    first = await anext(lines)  # errors before it become an HTTP status
    if form == "zip":
        if after is not None:
            raise InvalidInput("Only lines can go on after a position; ask for format=jsonl.")
        return StreamingResponse(archive(_chained(first, lines), app.memory.clock()), media_type="application/zip")
    return StreamingResponse(_encoded(first, lines), media_type="application/jsonl")


async def _chained(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for line in rest:
        yield line


async def _encoded(first: str, rest: AsyncIterator[str]) -> AsyncIterator[bytes]:
    async for line in _chained(first, rest):
        yield line.encode("utf-8", "replace")


@router.delete("/{user_id}", summary="Erase a person", responses=documented(404, 422, 503), openapi_extra=ADMINISTERS)
async def erase_user(
    user_id: PersonId,
    app: AppInUse,
    dry_run: Annotated[bool, Query(description="Say what would go, and write nothing.")] = False,
) -> EraseView:
    """Erase a person with all ids from every store, and return the signed receipt; a repeat goes on.

    Sessions of the person are deleted whole, messages in sessions of others become empty rows. `complete` is false if
    the person wrote meanwhile: repeat it.
    """
    return EraseView.of(await app.memory.erase(user_id=user_id, dry_run=dry_run))
