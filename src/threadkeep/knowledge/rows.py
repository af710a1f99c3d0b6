"""Rows of facts and procedures, and their owners: sessions, workspaces and persons."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import lru_cache
from typing import Literal

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import InvalidInput, KnowledgeNotFound, SessionNotFound
from threadkeep.records import Message, dump_json
from threadkeep.records.json_values import Json
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, Fact, Procedure, Scope, check_name
from threadkeep.records.sessions import check_argument, check_cursor
from threadkeep.store.codec import clean_json, clean_text, cursor_parameters, time_of, time_text
from threadkeep.store.driver import Connection, Row

MAX_PAGE = 1000
OWNER_SQL = ("persons.sql", "facts.sql", "{backend}/sessions.sql", "postgres/knowledge.sql")
"""The SQL files that this module needs; the last one, with locks, is only used on PostgreSQL."""

type MessagesAt = Callable[[str, Collection[int]], Awaitable[Sequence[Message]]]
"""A reader of a session's messages by their `seq`, for sessions whose rows have no texts."""


async def known_owner(connection: Connection, sql: Mapping[str, str], scope: Scope, now: datetime) -> Scope:
    """Return the scope under which to store new knowledge. For a person, use the canonical id; create new persons.

    Raises:
        SessionNotFound: the scope is a session that does not exist.
    """
    check_argument("scope", scope, Scope, required=True)
    if scope.kind == "session" and not await connection.fetch(sql["keep_session"], {"session_id": scope.owner}):
        raise SessionNotFound(scope.owner)
    if scope.kind != "user":
        return scope
    await connection.execute(sql["insert_person"], {"person_id": scope.owner, "now": time_text(now)})
    [(_, canonical_id, *_)] = await connection.fetch(sql["person"], {"person_id": scope.owner})
    return Scope("user", canonical_id)


def owner_columns(scope: Scope) -> dict[str, object]:
    """Return the columns that name the owner of a row. If the owner is deleted, the database deletes the row too."""
    return {
        "scope": scope.kind,
        "owner": scope.owner,
        "session_id": scope.owner if scope.kind == "session" else None,
        "person_id": scope.owner if scope.kind == "user" else None,
    }


async def check_sees(connection: Connection, sql: Mapping[str, str], scope: Scope, user_id: str | None) -> None:
    """Check that a user may see a scope; a `user_id` of None sees all scopes.

    Users see their own person, under any of its ids, and their own sessions, but no workspaces.

    Raises:
        KnowledgeNotFound: the user may not see the scope.
    """
    check_argument("scope", scope, Scope, required=True)
    if user_id is None:
        return
    asked = {"scope": scope.kind, "owner": scope.owner, "user_id": user_id}
    if not await connection.fetch(sql["sees"], asked):
        raise KnowledgeNotFound("scope", f"{scope.kind}:{scope.owner}")


async def seen_row(
    connection: Connection,
    sql: Mapping[str, str],
    kind: Literal["fact", "procedure", "proposal"],
    row_id: str,
    user_id: str | None,
) -> Row:
    """Return the row of a fact, procedure or proposal. Its first columns are the id, the scope and the owner.

    Raises:
        InvalidInput: the id is not a valid id.
        KnowledgeNotFound: there is no such row, or the user may not see its scope.
    """
    check_name(f"{kind}'s id", row_id, MAX_OWNER_CHARACTERS)
    rows = await connection.fetch(sql[kind], {f"{kind}_id": row_id})
    if not rows:
        raise KnowledgeNotFound(kind, row_id)
    try:
        await check_sees(connection, sql, Scope(rows[0][1], rows[0][2]), user_id)
    except KnowledgeNotFound:
        raise KnowledgeNotFound(kind, row_id) from None
    return rows[0]


def page_parameters(
    limit: int, cursor: tuple[datetime, str] | None, id_name: str, most: int = MAX_PAGE
) -> dict[str, object]:
    """Return the SQL parameters that select a page of rows, and one more row to detect a next page.

    Raises:
        InvalidInput: the limit is not from 1 to `most`.
    """
    check_argument("limit", limit, int, required=True)
    if not 1 <= limit <= most:
        raise InvalidInput(f"A page has 1 to {most} entries; use its cursor to get more.")
    check_cursor("cursor", cursor, datetime, str)
    return {**cursor_parameters(cursor, "updated_at", id_name), "limit": limit + 1}


def _fields_of(record: type[Fact | Procedure]) -> list[str]:
    """Return the field names of a record, except its id and scope, in the order of the columns in all SELECTs."""
    return [field.name for field in fields(record) if field.name not in ("id", "scope", "evidence")]


_FACT_FIELDS, _PROCEDURE_FIELDS = _fields_of(Fact), _fields_of(Procedure)


def canonical(value: Json) -> str:
    """Return the canonical JSON text of a value; equal values have equal texts."""
    return json.dumps(clean_json(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fact_row(fact: Fact) -> dict[str, object]:
    """Return the SQL parameters for storing a fact, except the owner columns."""
    return {
        "fact_id": fact.id,
        "key": fact.key,
        "value": canonical(fact.value),
        "kind": fact.kind,
        "confidence": float(fact.confidence),
        "confirmed": fact.confirmed,
        "contradicted": fact.contradicted,
        "valid_from": time_text(fact.valid_from),
        "valid_to": None if fact.valid_to is None else time_text(fact.valid_to),
        "updated_at": time_text(fact.updated_at),
    }


def fact_of(row: Row) -> Fact:
    """Convert a row of a SELECT of facts to a fact, without its evidence.

    Facts are cached, because a chat reads the same facts in each turn. Long values are not cached, and neither are
    lists and objects, because a caller could change them.
    """
    value = row[4]
    return _parsed_fact(row) if len(value) > _LONG_VALUE or value.startswith(("[", "{")) else _known_fact(row)


def _parsed_fact(row: Row) -> Fact:
    fact_id, scope, owner, *columns = row
    values = dict(zip(_FACT_FIELDS, columns, strict=True))
    values |= {name: time_of(values[name]) for name in ("valid_from", "valid_to", "updated_at")}
    values["value"] = json.loads(values["value"])
    return Fact(id=fact_id, scope=Scope(scope, owner), **values)


_LONG_VALUE = 2_000
_known_fact = lru_cache(maxsize=20_000)(_parsed_fact)


def procedure_row(procedure: Procedure) -> dict[str, object]:
    """Return the SQL parameters for storing a procedure, except the owner columns."""
    return {
        "procedure_id": str(uuid7()),
        "name": procedure.name,
        "description": clean_text(procedure.description),
        "goal_contains": dump_json(procedure.goal_contains),
        "context_has": dump_json(procedure.context_has),
        "content_type": procedure.content_type,
        "content": canonical(procedure.content),
        "source": procedure.source,
        "active": procedure.active,
        "used": procedure.used,
        "succeeded": procedure.succeeded,
        "failed": procedure.failed,
    }


def procedure_of(row: Row) -> Procedure:
    """Convert a row of a SELECT of procedures to a procedure."""
    procedure_id, scope, owner, *columns = row
    values = dict(zip(_PROCEDURE_FIELDS, columns, strict=True))
    for name in ("goal_contains", "context_has", "content"):
        values[name] = json.loads(values[name])
    values |= {name: time_of(values[name]) for name in ("created_at", "updated_at")} | {
        "active": bool(values["active"])
    }
    return Procedure(id=procedure_id, scope=Scope(scope, owner), **values)
