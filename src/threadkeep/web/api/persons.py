"""Routes of persons: their ids, merging, export and erasing."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from threadkeep.errors import InvalidInput, KnowledgeNotFound
from threadkeep.knowledge.views import MergeInput, PersonInput, PersonList
from threadkeep.memory import Memory
from threadkeep.memory.person_archive import archive
from threadkeep.records.erasure import ErasedKind, ErasedStore
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, Person, PersonQuery
from threadkeep.web.api.parameters import (
    DEFAULT_LIMIT,
    AppInUse,
    Cursor,
    EncodedPathRoute,
    Limit,
    UserId,
    read_cursor,
    write_cursor,
)
from threadkeep.web.callers import ADMINISTERS, CallerInUse
from threadkeep.web.problems import documented
from threadkeep.web.schemas import GivenId
from threadkeep.web.streams import begin_with

router = APIRouter(prefix="/api/v1/persons", tags=["knowledge"], route_class=EncodedPathRoute)

_FAILURES = documented(404, 422, 503)
_WRITING = {**_FAILURES, **documented(400, 413)}

type PersonId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_OWNER_CHARACTERS,
        description="Any id of the person. Encode a slash as %2F.",
        examples=["telegram:123"],
    ),
]


@router.get("", summary="List persons", responses=documented(422, 503))
async def list_persons(
    app: AppInUse,
    q: Annotated[str | None, Query(max_length=200, description="Only persons with this text in an id or name.")] = None,
    user_id: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PersonList:
    """List persons, most recently seen first; with a `user_id`, only that person."""
    persons = app.memory.persons
    if user_id is not None:
        try:
            person = await persons.get(user_id)
        except KnowledgeNotFound:
            return PersonList(persons=[], next_cursor=None)
        known = any((q or "").lower() in text.lower() for text in (*person.aliases, *person.names))
        return PersonList(persons=[person] if known else [], next_cursor=None)
    found, following = await persons.page(PersonQuery(q, limit, read_cursor("persons", cursor)))
    return PersonList(persons=found, next_cursor=write_cursor("persons", following))


@router.put("", summary="Resolve a person", responses=_WRITING)
async def resolve_person(known: PersonInput, app: AppInUse) -> Person:
    """Return the person to whom an id belongs. If the id is unknown, create a person with it."""
    return await app.memory.persons.resolve(known.id, name=known.name)


@router.get("/{person_id}", summary="See a person", responses=_FAILURES)
async def get_person(person_id: PersonId, app: AppInUse, user_id: UserId = None) -> Person:
    """Return all ids, names and preferences of a person."""
    return await _visible_person(app.memory, person_id, user_id)


@router.delete("/{person_id}", summary="Forget a person", status_code=204, responses=_FAILURES)
async def forget_person(person_id: PersonId, app: AppInUse, user_id: UserId = None) -> None:
    """Permanently delete a person with all ids, facts and procedures. Sessions stay."""
    await _visible_person(app.memory, person_id, user_id)
    await app.memory.persons.forget(person_id)


@router.post("/{person_id}/merge", summary="Merge two persons", responses=_WRITING)
async def merge_persons(person_id: PersonId, merge: MergeInput, app: AppInUse) -> Person:
    """Merge a person into another person, who gets the ids of both. No data moves, so the merge can be undone."""
    return await app.memory.persons.merge(person_id, merge.into)


@router.post("/{person_id}/unmerge", summary="Undo a merge", responses=_FAILURES)
async def unmerge_person(person_id: PersonId, app: AppInUse) -> Person:
    """Undo the merge of a person into another. Facts remembered after the merge stay with the other person."""
    return await app.memory.persons.unmerge(person_id)


async def _visible_person(memory: Memory, person_id: str, user_id: str | None) -> Person:
    """Return a person, if `user_id` is one of the person's ids.

    Raises:
        KnowledgeNotFound: the person does not exist, or this user may not see them.
    """
    person = await memory.persons.get(person_id)
    if user_id is not None and user_id not in person.aliases:
        raise KnowledgeNotFound("person", person_id)
    return person


class EraseView(BaseModel, from_attributes=True):
    """The receipt for erasing a person. It contains no text and no id of the person."""

    kind: ErasedKind
    subject: str = Field(description="A keyed digest of the id.")
    ids: list[str] = Field(description="Keyed digests of all ids of the person.")
    begun_at: datetime
    ended_at: datetime
    dry_run: bool
    complete: bool = Field(description="True if no store returned data of the person afterwards.")
    sessions: int = Field(description="Sessions that were deleted as a whole.")
    shared_sessions: int = Field(description="Sessions of others with messages of the person.")
    shared_messages: int = Field(description="Messages in those sessions that became empty rows.")
    stores: list[ErasedStore]
    not_reached: list[str] = Field(description="Copies that remain, such as backups.")
    signature: str


users_router = APIRouter(prefix="/api/v1/users", tags=["users"], route_class=EncodedPathRoute)


_ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The archive, or lines of JSON.",
        "content": {
            "application/zip": {"schema": {"type": "string", "format": "binary"}},
            "application/jsonl": {"schema": {"type": "string"}},
        },
    }
}
type UserInPath = Annotated[GivenId, Path(description="The person. Encode a slash as %2F.", examples=["user-456"])]


@users_router.get(
    "/{user_id}",
    summary="Export a person",
    response_class=Response,
    responses={**_ARCHIVE, **documented(404, 422, 503)},
)
async def export_user(
    user_id: UserInPath,
    app: AppInUse,
    caller: CallerInUse,
    form: Annotated[
        Literal["zip", "jsonl"], Query(alias="format", description="An archive with a readable page, or lines of JSON.")
    ] = "zip",
    after: Annotated[
        str | None, Query(max_length=2000, description="For `jsonl`: the `after` of the last position line.")
    ] = None,
) -> StreamingResponse:
    """Stream all data that is stored under any id of a person. Erasing the person would delete the same data.

    Each line is a JSON object with a `type`. The last line has the type `end`; after a broken connection, resume from
    the last line of type `position`. An archive (`zip`) has these lines in `person.jsonl`, and a page, `person.html`.
    """
    lines = (line async for line in app.memory.export(user_id=caller.user(user_id) or user_id, after=after))
    first = await anext(lines)  # an error before the first line becomes an HTTP error response
    if form == "zip":
        if after is not None:
            raise InvalidInput("`after` needs format=jsonl: an archive cannot be resumed.")
        return StreamingResponse(archive(begin_with(first, lines), app.memory.clock()), media_type="application/zip")
    encoded = (line.encode("utf-8", "replace") async for line in begin_with(first, lines))
    return StreamingResponse(encoded, media_type="application/jsonl")


@users_router.delete(
    "/{user_id}", summary="Erase a person", responses=documented(404, 422, 503), openapi_extra=ADMINISTERS
)
async def erase_user(
    user_id: UserInPath,
    app: AppInUse,
    dry_run: Annotated[bool, Query(description="Report what would be erased; erase nothing.")] = False,
) -> EraseView:
    """Erase all data of a person, under every id, from every store, and return the signed receipt.

    The person's own sessions are deleted. In other sessions, the person's messages become empty rows. Repeat the
    request if it was interrupted, or if `complete` is false because the person wrote in the meantime.
    """
    return EraseView.model_validate(await app.memory.erase(user_id=user_id, dry_run=dry_run))
