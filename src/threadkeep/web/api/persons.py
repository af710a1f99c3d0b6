"""Persons and their ids."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from threadkeep.errors import KnowledgeNotFound
from threadkeep.knowledge.views import MergeInput, PersonInput, PersonList, PersonView
from threadkeep.memory import Memory
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, Person, PersonQuery
from threadkeep.web.api.parameters import DEFAULT_LIMIT, AppInUse, Cursor, KnowledgeUser, Limit
from threadkeep.web.cursors import read_cursor, write_cursor
from threadkeep.web.problems import documented
from threadkeep.web.routing import EncodedPathRoute

router = APIRouter(prefix="/api/v1/persons", tags=["knowledge"], route_class=EncodedPathRoute)

_FAILURES = documented(404, 422, 503)
_WRITING = {**_FAILURES, **documented(400, 413)}

type PersonId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_OWNER_CHARACTERS,
        description="Any id of the person; a slash is %2F.",
        examples=["telegram:123"],
    ),
]


@router.get("", summary="List persons", responses=documented(422, 503))
async def list_persons(
    app: AppInUse,
    q: Annotated[str | None, Query(max_length=200, description="Only those with this text in an id or a name.")] = None,
    user_id: KnowledgeUser = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> PersonList:
    """List persons, most recently seen first; with a `user_id` that person only."""
    persons = app.memory.persons
    if user_id is not None:
        try:
            return PersonList(persons=[PersonView.of(await persons.get(user_id))], next_cursor=None)
        except KnowledgeNotFound:
            return PersonList(persons=[], next_cursor=None)
    found, following = await persons.page(PersonQuery(q, limit, read_cursor(cursor)))
    next_cursor = write_cursor(following)
    return PersonList(persons=[PersonView.of(person) for person in found], next_cursor=next_cursor)


@router.put("", summary="Resolve a person", responses=_WRITING)
async def resolve_person(known: PersonInput, app: AppInUse) -> PersonView:
    """Return the person with an id; create the person if the id is new."""
    return PersonView.of(await app.memory.persons.resolve(known.id, name=known.name))


@router.get("/{person_id}", summary="See a person", responses=_FAILURES)
async def get_person(person_id: PersonId, app: AppInUse, user_id: KnowledgeUser = None) -> PersonView:
    """Return all ids, names and preferences of a person."""
    return PersonView.of(await _seen(app.memory, person_id, user_id))


@router.delete("/{person_id}", summary="Forget a person", status_code=204, responses=_FAILURES)
async def forget_person(person_id: PersonId, app: AppInUse, user_id: KnowledgeUser = None) -> None:
    """Delete a person under all ids, with all facts and procedures of the person, permanently. Sessions stay."""
    await _seen(app.memory, person_id, user_id)
    await app.memory.persons.forget(person_id)


@router.post("/{person_id}/merge", summary="Merge two persons", responses=_WRITING)
async def merge_persons(person_id: PersonId, merge: MergeInput, app: AppInUse) -> PersonView:
    """Merge two persons; the result has the id of the second. No data moves, so the merge can be undone."""
    return PersonView.of(await app.memory.persons.merge(person_id, merge.into))


@router.post("/{person_id}/unmerge", summary="Undo a merge", responses=_FAILURES)
async def unmerge_person(person_id: PersonId, app: AppInUse) -> PersonView:
    """Undo the merge of an id into another. Facts remembered since then stay with the other."""
    return PersonView.of(await app.memory.persons.unmerge(person_id))


async def _seen(memory: Memory, person_id: str, user_id: str | None) -> Person:
    """Return a person if this user is that person or may see all persons.

    Raises:
        KnowledgeNotFound: the person does not exist, or this user may not see them.
    """
    person = await memory.persons.get(person_id)
    if user_id is not None and user_id not in person.aliases:
        raise KnowledgeNotFound("person", person_id)
    return person
