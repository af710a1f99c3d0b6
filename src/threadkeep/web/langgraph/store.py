"""Routes of the store in LangGraph's server API: JSON objects (items) under namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from langgraph.store.base import SearchItem
from pydantic import AfterValidator, BaseModel, Field, JsonValue

from threadkeep.app import App
from threadkeep.errors import InvalidInput
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.records.json_values import example
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import READS
from threadkeep.web.problems import ProblemRaised, documented, make_problem
from threadkeep.web.schemas import CLEANED, CleanText, Metadata

router = APIRouter(prefix="/store", tags=["langgraph"], responses=documented(400, 404, 413, 422, 503))

_RESERVED = "langgraph"
_MAX_MINUTES = 60 * 24 * 36_500
_PAGE = 100

type _ReadPage[T] = Callable[[int, int], Awaitable[Sequence[T]]]
Label = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^.]+$"), CLEANED]
Namespace = Annotated[list[Label], Field(max_length=20)]
Key = Annotated[str, Field(min_length=1, max_length=512), CLEANED]


def _storable_item(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return an item's value. Reject large integers, which LangGraph's stores cannot write or would change."""
    inner: list[JsonValue] = [value]
    while inner:
        part = inner.pop()
        if isinstance(part, int) and not -(2**63) <= part < 2**64:
            raise ValueError("a whole number of an item has at most 64 bits; store a larger one as text")
        inner += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return value


ItemValue = Annotated[Metadata, AfterValidator(_storable_item)]


def _in_utc(moment: datetime) -> datetime:
    """Return a time with a time zone. The store in SQLite returns times in UTC without a time zone."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


class ItemBody(BaseModel, from_attributes=True):
    """An item of the LangGraph store: a JSON object under a namespace and a key."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    created_at: Annotated[datetime, AfterValidator(_in_utc)]
    updated_at: Annotated[datetime, AfterValidator(_in_utc)]
    score: float | None = Field(None, exclude_if=lambda score: score is None)


class DeleteItemBody(BaseModel, json_schema_extra=example(namespace=["users", "u1"], key="theme")):
    """An item to delete."""

    namespace: Namespace
    key: Key


class PutItemBody(
    DeleteItemBody, json_schema_extra=example(namespace=["users", "u1"], key="theme", value={"dark": True})
):
    """An item to store."""

    value: ItemValue
    index: bool | Annotated[list[str], Field(max_length=50)] | None = Field(
        None, description="The fields to index, or false. A store without an index ignores it."
    )
    ttl: float | None = Field(
        None, gt=0, le=_MAX_MINUTES, description="Minutes until the item expires, if the store supports it."
    )


class SearchItemsBody(BaseModel, json_schema_extra=example(namespace_prefix=["users"], limit=10)):
    """A search for items."""

    namespace_prefix: Namespace = []
    filter: Metadata | None = Field(None, description="Values that an item must have.")
    query: str | None = Field(None, max_length=2000, description="Text to search by meaning; needs an index.")
    limit: int = Field(10, ge=1, le=1000, description="The maximum number of results.")
    offset: int = Field(0, ge=0, le=100_000, description="The number of results to skip.")


class ItemsBody(BaseModel):
    """Items that were found."""

    items: list[ItemBody]


class NamespacesSearchBody(BaseModel, json_schema_extra=example(prefix=["users"], max_depth=2)):
    """A search for namespaces."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: int | None = Field(None, ge=1, le=20)
    limit: int = Field(100, ge=1, le=1000, description="The maximum number of results.")
    offset: int = Field(0, ge=0, le=100_000, description="The number of results to skip.")


class NamespacesBody(BaseModel):
    """Namespaces that were found."""

    namespaces: list[list[str]]


async def _history_roots(app: App) -> frozenset[str]:
    """Return the first labels of namespaces that store conversations. Clients do not see these namespaces."""
    layouts = [GraphLayout(), *(layout for _, layout, _ in await app.memory.namespaces())]
    roots = [layout.namespace[0] for layout in layouts]
    return frozenset((*roots, *(f"{root}_ids" for root in roots)))


async def _visible[T](
    app: App,
    asked: SearchItemsBody | NamespacesSearchBody,
    read: _ReadPage[T],
    namespace_of: Callable[[T], Sequence[str]],
) -> Sequence[T]:
    """Return a page of items or namespaces. Leave out namespaces that store conversations."""
    hidden, found, position = await _history_roots(app), list[T](), 0
    if prefix := asked.namespace_prefix if isinstance(asked, SearchItemsBody) else asked.prefix:
        return [] if prefix[0] in hidden else await read(asked.limit, asked.offset)
    while len(found) < asked.offset + asked.limit:
        page = await read(_PAGE, position)
        found += [one for one in page if namespace_of(one)[0] not in hidden]
        position += _PAGE
        if len(page) < _PAGE:
            break
    return found[asked.offset : asked.offset + asked.limit]


async def _checked(app: App, labels: Sequence[str]) -> tuple[str, ...]:
    """Return a namespace after checking that clients may use it.

    Raises:
        InvalidInput: the namespace is not valid, or it contains histories of conversations.
    """
    if not labels or not all(labels) or any("." in label for label in labels) or labels[0] == _RESERVED:
        raise InvalidInput(f"A namespace has one or more labels, without full stops, and none below {_RESERVED!r}.")
    if labels[0] in await _history_roots(app):
        raise InvalidInput(f"{labels[0]!r} holds histories of conversations; use the routes of threads for them.")
    return tuple(labels)


@router.put("/items", summary="Store an item", status_code=204)
async def put_item(body: PutItemBody, app: AppInUse) -> None:
    """Store an item, or replace it."""
    store = await app.memory.graph_store()
    if body.ttl is not None and not store.supports_ttl:
        raise InvalidInput("Items of this service's store do not expire; omit ttl.")
    ttl = {} if body.ttl is None else {"ttl": body.ttl}
    index = None if body.index is True else body.index
    await store.aput(await _checked(app, body.namespace), body.key, body.value, index=index, **ttl)


@router.get("/items", summary="Read an item")
async def get_item(
    app: AppInUse,
    key: Annotated[CleanText, Query(min_length=1, max_length=512)],
    namespace: Annotated[
        list[CleanText] | None, Query(description="The labels, or one string of labels separated by dots.")
    ] = None,
) -> ItemBody:
    """Return an item; 404 if there is none."""
    labels = namespace or []
    if len(labels) == 1:
        labels = labels[0].split(".")
    item = await (await app.memory.graph_store()).aget(await _checked(app, labels), key)
    if item is None:
        sentence = "There is no such item; POST /store/items/search lists the existing ones."
        raise ProblemRaised(make_problem(404, "item-not-found", sentence))
    return ItemBody.model_validate(item)


@router.delete("/items", summary="Delete an item", status_code=204)
async def delete_item(body: DeleteItemBody, app: AppInUse) -> None:
    """Delete an item, if there is one."""
    await (await app.memory.graph_store()).adelete(await _checked(app, body.namespace), body.key)


@router.post("/items/search", summary="Find items", openapi_extra=READS)
async def search_items(body: SearchItemsBody, app: AppInUse) -> ItemsBody:
    """Return the items below a namespace; with a `query`, the best first, otherwise the newest first.

    Histories of conversations are omitted.
    """
    store = await app.memory.graph_store()
    if body.query is not None and getattr(store, "index_config", None) is None:
        raise InvalidInput("The store of this service has no index to search by meaning; omit `query`.")

    async def read(limit: int, offset: int) -> list[SearchItem]:
        prefix = tuple(body.namespace_prefix)
        return await store.asearch(prefix, query=body.query, filter=body.filter, limit=limit, offset=offset)

    try:
        found = await _visible(app, body, read, lambda item: item.namespace)
    except (ValueError, TypeError):  # do not show the errors of stores, which may quote values
        sentence = "`filter` maps fields to values, or to $eq, $ne, $gt, $gte, $lt or $lte with values of their kind."
        raise InvalidInput(sentence) from None
    return ItemsBody(items=[ItemBody.model_validate(item) for item in found])


@router.post("/namespaces", summary="List namespaces", openapi_extra=READS)
async def list_namespaces(app: AppInUse, body: NamespacesSearchBody | None = None) -> NamespacesBody:
    """Return the namespaces that have items."""
    asked, store = body or NamespacesSearchBody(), await app.memory.graph_store()
    ends = {name: tuple(labels) for name in ("prefix", "suffix") if (labels := getattr(asked, name)) is not None}

    async def read(limit: int, offset: int) -> list[tuple[str, ...]]:
        return await store.alist_namespaces(**ends, max_depth=asked.max_depth, limit=limit, offset=offset)

    found = await _visible(app, asked, read, lambda namespace: namespace)
    return NamespacesBody(namespaces=[list(one) for one in found])
