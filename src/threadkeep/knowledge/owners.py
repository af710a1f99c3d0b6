"""Owners of knowledge: sessions, workspaces and persons, as facts and procedures name them in their rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from threadkeep.errors import InvalidInput, KnowledgeNotFound, SessionNotFound
from threadkeep.records.knowledge import Scope
from threadkeep.store.codec import time_text
from threadkeep.store.driver import Backend, Connection, Row
from threadkeep.store.statements import load_statements

MAX_PAGE = 1000

# The cursor of the first page of a list.
_LAST_TIME = "9999-12-31T23:59:59.999999+00:00"
_LAST_ID = "~"


def owner_statements(backend: Backend, *files: str) -> Mapping[str, str]:
    """Return the statements of some files, and those that this module needs."""
    locks = ("postgres/knowledge.sql",) if backend == "postgres" else ()
    return load_statements("persons.sql", "facts.sql", f"{backend}/sessions.sql", *locks, *files)


async def known_owner(connection: Connection, sql: Mapping[str, str], scope: Scope, now: datetime) -> Scope:
    """Return the scope under which knowledge is written: that of the person's canonical id; a new person becomes known.

    Raises:
        SessionNotFound: the scope is a session that is not there.
    """
    if scope.kind == "session" and not await connection.fetch(sql["keep_session"], {"session_id": scope.owner}):
        raise SessionNotFound(scope.owner)
    if scope.kind != "user":
        return scope
    await connection.execute(sql["insert_person"], {"person_id": scope.owner, "now": time_text(now)})
    [(_, canonical_id, *_)] = await connection.fetch(sql["person"], {"person_id": scope.owner})
    return Scope("user", canonical_id)


def owner_columns(scope: Scope) -> dict[str, object]:
    """Return the columns of a row in this scope; two of them let the row go with its owner."""
    return {
        "scope": scope.kind,
        "owner": scope.owner,
        "session_id": scope.owner if scope.kind == "session" else None,
        "person_id": scope.owner if scope.kind == "user" else None,
    }


async def check_sees(connection: Connection, sql: Mapping[str, str], scope: Scope, user_id: str | None) -> None:
    """Let a user who is limited to the own knowledge pass only for the own scopes; None may see everything.

    Raises:
        KnowledgeNotFound: the scope is another's.
    """
    if user_id is None:
        return
    asked = {"scope": scope.kind, "owner": scope.owner, "user_id": user_id}
    if not await connection.fetch(sql["sees"], asked):
        raise KnowledgeNotFound("scope", f"{scope.kind}:{scope.owner}")


def scope_of(row: Row) -> Scope:
    """Return the scope of a row that begins with an id, a scope and an owner."""
    return Scope(row[1], row[2])


def page_parameters(limit: int, cursor: tuple[datetime, str] | None, id_name: str) -> dict[str, object]:
    """Return the parameters of a page: one row more than the limit, which says whether there is a next page.

    Raises:
        InvalidInput: a page has 1 to 1,000 entries.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"A page has 1 to {MAX_PAGE} entries; ask for more with its cursor.")
    moment, name = cursor or (None, _LAST_ID)
    return {
        "updated_at": _LAST_TIME if moment is None else time_text(moment),
        id_name: name,
        "limit": limit + 1,
    }
