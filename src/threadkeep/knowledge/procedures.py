"""Procedures: instructions that agents were taught or have learned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from threadkeep.context.recall import IndexedTurn, RecallIndex
from threadkeep.errors import KnowledgeNotFound
from threadkeep.knowledge.rows import (
    MAX_PAGE,
    OWNER_SQL,
    check_sees,
    known_owner,
    owner_columns,
    page_parameters,
    procedure_of,
    procedure_row,
    seen_row,
)
from threadkeep.records.knowledge import SCOPE_KINDS, Procedure, ProcedureQuery, Scope
from threadkeep.records.sessions import check_argument, check_each
from threadkeep.store.codec import clean_text, time_of, time_text
from threadkeep.store.search_terms import fold_fully
from threadkeep.store.statements import ClockedTables, text_filter


class Procedures(ClockedTables, sql=(*OWNER_SQL, "procedures.sql")):
    """The procedures in a database. Each name is unique for its session, workspace or person."""

    async def teach(self, procedure: Procedure, *, user_id: str | None = None) -> Procedure:
        """Store a procedure, or replace the procedure with the same name, and return it.

        New content resets the usage counts.

        Raises:
            SessionNotFound: the scope is a session that does not exist.
            KnowledgeNotFound: the user may not see the scope.
            StoreUnavailable: the database does not answer.
        """
        check_argument("procedure", procedure, Procedure, required=True)
        now = self._clock()
        async with self._driver.writing() as connection:
            await check_sees(connection, self._sql, procedure.scope, user_id)
            owner = await known_owner(connection, self._sql, procedure.scope, now)
            row = {**owner_columns(owner), **procedure_row(procedure), "now": time_text(now)}
            [saved] = await connection.fetch(self._sql["save_procedure"], row)
        return procedure_of(saved)

    async def procedure(self, procedure_id: str, *, user_id: str | None = None) -> Procedure:
        """Return the procedure with the given id.

        Raises:
            KnowledgeNotFound: the procedure does not exist, or the user may not see it.
        """
        async with self._driver.reading() as connection:
            return procedure_of(await seen_row(connection, self._sql, "procedure", procedure_id, user_id))

    async def all(
        self, scope: Scope | None = None, *, text: str | None = None, active: bool | None = None, limit: int = 100
    ) -> list[Procedure]:
        """Return up to `limit` procedures of one scope or of all scopes, last changed first.

        If `text` is given, the name or the description contains it. `active` selects active or inactive procedures.
        """
        return (await self.page(ProcedureQuery(scope, text=text, active=active, limit=limit)))[0]

    async def page(self, query: ProcedureQuery) -> tuple[list[Procedure], tuple[datetime, str] | None]:
        """Return one page of procedures, and the cursor of the next page.

        Raises:
            InvalidInput: the page size is out of range.
            KnowledgeNotFound: the user may not see the scope.
        """
        check_argument("query", query, ProcedureQuery, required=True)
        parameters = {
            **page_parameters(query.limit, query.cursor, "procedure_id"),
            "scope": query.scope_kind,
            "name": None if query.name is None else clean_text(query.name),
            "active": query.active,
            **text_filter(query.text),
            "user_id": query.user_id,
        }
        async with self._driver.reading() as connection:
            if query.scope is None:
                rows = await connection.fetch(self._sql["procedures"], parameters)
            else:
                await check_sees(connection, self._sql, query.scope, query.user_id)
                owner = {"scope": query.scope.kind, "owner": query.scope.owner}
                rows = await connection.fetch(self._sql["procedures_of"], {**parameters, **owner})
        found = [procedure_of(row) for row in rows[: query.limit]]
        last = rows[query.limit - 1] if len(rows) > query.limit else None
        return found, None if last is None else (time_of(last[15]), last[0])

    async def recall(
        self, goal: str, scopes: Sequence[Scope], *, context: Collection[str] = (), limit: int = 3
    ) -> list[Procedure]:
        """Return the active procedures that apply to a goal, best first.

        Args:
            goal: the task, in words.
            scopes: the scopes to search.
            context: the names of the available inputs.
            limit: the maximum number of procedures.
        """
        check_argument("goal", goal, str, required=True)
        check_each("scopes", scopes, Scope)
        page = {**page_parameters(MAX_PAGE, None, "procedure_id"), "name": None, "active": True, **text_filter(None)}
        ordered = sorted(dict.fromkeys(scopes), key=lambda scope: SCOPE_KINDS.index(scope.kind))
        statements = [(self._sql["procedures_of"], {**page, "scope": one.kind, "owner": one.owner}) for one in ordered]
        async with self._driver.reading() as connection:
            pages = await connection.fetch_each(statements)
        return applying([procedure_of(row) for rows in pages for row in rows], goal, frozenset(context))[:limit]

    async def used(self, procedure_id: str, *, succeeded: bool | None = None) -> None:
        """Count a use of a procedure, and its outcome, if known.

        Raises:
            KnowledgeNotFound: there is no such procedure.
        """
        row = {"procedure_id": procedure_id, "succeeded": int(succeeded is True), "failed": int(succeeded is False)}
        async with self._driver.writing() as connection:
            if not await connection.execute(self._sql["count_use"], row):
                raise KnowledgeNotFound("procedure", procedure_id)

    async def forget(self, procedure_ids: Sequence[str], *, user_id: str | None = None) -> tuple[int, list[str]]:
        """Delete procedures by id, in one transaction.

        Returns the number of deleted procedures, and the ids that do not exist or that this user may not see.
        """
        check_each("procedure_ids", procedure_ids, str)
        missing: list[str] = []
        deleted = 0
        async with self._driver.writing() as connection:
            for procedure_id in dict.fromkeys(procedure_ids):
                try:
                    await seen_row(connection, self._sql, "procedure", procedure_id, user_id)
                except KnowledgeNotFound:
                    missing.append(procedure_id)
                else:
                    row = {"procedure_id": procedure_id}
                    deleted += await connection.execute(self._sql["forget_procedure"], row)
        return deleted, missing


def applying(procedures: Sequence[Procedure], goal: str, context: Collection[str]) -> list[Procedure]:
    """Return the procedures that apply to a goal, best first.

    A procedure applies only if `context` contains all inputs that it needs. If several have the same name, only the
    first counts. Procedures with a phrase that occurs in the goal come first, sorted by success. Procedures without
    phrases follow if their names or descriptions match the goal.
    """
    words = fold_fully(goal)
    index = RecallIndex()
    possible: dict[str, Procedure] = {}
    for one in procedures:
        if frozenset(context).issuperset(one.context_has):
            possible.setdefault(fold_fully(one.name), one)
    for name, one in possible.items():
        index.add(IndexedTurn(name, f"{one.name.replace('_', ' ')} {one.description}", session=name))
    by_phrase = [one for one in possible.values() if any(fold_fully(phrase) in words for phrase in one.goal_contains)]
    ranked = [possible[entry.id] for entry in index.rank(goal, limit=len(possible)) if entry.why]
    by_words = [one for one in ranked if not one.goal_contains]
    # Sort by the expected success rate, which is 0.5 before any use.
    by_phrase.sort(key=lambda one: (one.succeeded + 1) / (one.succeeded + one.failed + 2), reverse=True)
    return [*by_phrase, *by_words]
