"""Facts of sessions, workspaces and persons, with the history of their values."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import batched, chain, groupby

from langchain_core.utils.uuid import uuid7

from threadkeep.context.recall.embedding import Embedder
from threadkeep.errors import KnowledgeNotFound
from threadkeep.knowledge.recall import FactVectors, FactWords, normalised, take_of_each, without_shadowed
from threadkeep.knowledge.rows import (
    MAX_PAGE,
    OWNER_SQL,
    canonical,
    check_sees,
    fact_of,
    fact_row,
    known_owner,
    owner_columns,
    page_parameters,
    seen_row,
)
from threadkeep.observe import Observer
from threadkeep.records.json_values import Json
from threadkeep.records.knowledge import (
    MAX_KEY_CHARACTERS,
    SCOPE_KINDS,
    Evidence,
    Fact,
    FactKind,
    FactQuery,
    NewFact,
    Scope,
    canonical_key,
    check_name,
)
from threadkeep.records.sessions import check_argument, check_each
from threadkeep.store.codec import clean_text, time_text
from threadkeep.store.driver import Connection, Driver, Row, Statement
from threadkeep.store.statements import ClockedTables, for_values, text_filter

MAX_EVIDENCE = 20
"""The maximum number of origins that are stored for a fact."""
_MOST_REMEMBERED = 5_000
_MOST_RANKED = 10_000
"""The maximum number of facts of a scope that `recall` reads, newest first."""
_MOST_INDEXES, _MOST_ENTRIES = 500, 10_000_000
"""The maximum number of owners whose facts are indexed in this process, and of the entries of all indexes."""
_AT_ONCE = 500
_COMPUTED_AT_ONCE = 2_000
"""With more facts, reading or ranking runs in an OS thread: a new fact takes about 100 microseconds of CPU."""


class Knowledge(ClockedTables, sql=OWNER_SQL):
    """The facts in a database: values of keys, such as `diet`, for sessions, workspaces and persons.

    A key has one valid fact in its scope, even with several writers and processes. Remembering the same value again
    confirms the fact. A different value ends its validity and creates a new fact, so nothing is overwritten.
    """

    def __init__(self, driver: Driver, *, observer: Observer, clock: Callable[[], datetime]) -> None:
        super().__init__(driver, clock=clock)
        self._vectors = FactVectors(observer)
        self._words: OrderedDict[Scope, FactWords] = OrderedDict()
        self._remembered: dict[tuple[Scope, ...], tuple[Sequence[Row], list[Fact]]] = {}

    async def remember(
        self,
        scope: Scope,
        key: str,
        value: Json,
        *,
        kind: FactKind | None = None,
        confidence: float = 1.0,
        evidence: Evidence | None = None,
        user_id: str | None = None,
    ) -> Fact:
        """Remember a value of a key, and return the valid fact.

        The same value confirms the fact, which keeps the highest confidence. But if the fact already has this
        `evidence`, the call is a repetition, and changes only `updated_at`. A different value ends the fact's validity
        and creates a new fact.

        Args:
            scope: the session, the workspace or the person that the fact is about.
            key: a name that is unique in the scope, such as `diet` or `editor.theme`. It is stored in its canonical
                form: `Home City`, `home-city` and `homeCity` become `home_city`.
            value: any JSON value except None.
            kind: a kind of facts; by default the kind of the previous value, or `world_knowledge`.
            confidence: from 0 to 1.
            evidence: the message or the run that the fact comes from.
            user_id: the user on whose behalf the call is made, who must have access to the scope.

        Raises:
            InvalidInput: a field cannot be stored; the error names it.
            SessionNotFound: the scope is a session that does not exist.
            KnowledgeNotFound: the user may not see the scope.
            StoreUnavailable: the database does not answer.
        """
        fact = NewFact(key, value, kind, confidence, evidence)
        async with self._driver.writing() as connection:
            await check_sees(connection, self._sql, scope, user_id)
            return await self.remember_in(connection, scope, fact)

    async def remember_in(self, connection: Connection, scope: Scope, fact: NewFact) -> Fact:
        """Remember a fact in the caller's transaction, and return the valid fact.

        Raises:
            SessionNotFound: the scope is a session that does not exist.
        """
        now = self._clock()
        owner = await known_owner(connection, self._sql, scope, now)
        before = await self._lock(connection, owner, fact.key, now)
        if before is not None and canonical(before.value) == canonical(fact.value):
            fact_id = before.id
            await self._confirm(connection, before, fact, now)
        else:
            fact_id = await self._begin(connection, owner, fact, before, now)
        return await self._find(connection, fact_id, None)

    async def fact(self, fact_id: str, *, user_id: str | None = None) -> Fact:
        """Return the fact with the given id, even if it is no longer valid.

        Raises:
            InvalidInput: the id is not a valid id of a fact.
            KnowledgeNotFound: the fact does not exist, or the user may not see it.
        """
        async with self._driver.reading() as connection:
            return await self._find(connection, fact_id, user_id)

    async def facts(
        self,
        scope: Scope | None = None,
        *,
        kind: FactKind | None = None,
        key: str | None = None,
        text: str | None = None,
        past: bool = False,
        limit: int = 100,
    ) -> list[Fact]:
        """Return facts of one scope or of all scopes, most recently changed first.

        Args:
            scope: a session, a workspace or a person; a person has the facts of all merged ids.
            kind: only facts of this kind.
            key: only facts of this key; if `past` is true, these are the history of the key.
            text: only facts with this text in key or value, up to 10,000 characters.
            past: include facts that are no longer valid.
            limit: the maximum number of facts, up to 1,000; use `facts_page` for more.
        """
        return (await self.facts_page(FactQuery(scope, None, kind, key, text, past, limit=limit)))[0]

    async def facts_page(self, query: FactQuery) -> tuple[list[Fact], tuple[datetime, str] | None]:
        """Return one page of facts, and the cursor of the next page (None at the end).

        Raises:
            InvalidInput: the page size is out of range, or the text is too long.
            KnowledgeNotFound: the user may not see the scope.
        """
        check_argument("query", query, FactQuery, required=True)
        for name in ("scope_kind", "kind", "key", "user_id"):
            check_argument(name, getattr(query, name), str)
        parameters = {
            **page_parameters(query.limit, query.cursor, "fact_id"),
            "scope": query.scope_kind,
            "kind": query.kind,
            "key": None if query.key is None else canonical_key(clean_text(query.key)),
            "former_key": None if query.key is None else clean_text(query.key),
            **text_filter(query.text),
            # Search for the escaped text too, because values are stored as JSON.
            "escaped": None if query.text is None else text_filter(canonical(query.text)[1:-1])["pattern"],
            "past": query.past,
            "user_id": query.user_id,
        }
        async with self._driver.reading() as connection:
            if query.scope is None:
                rows = await connection.fetch(self._sql["facts"], parameters)
            else:
                await check_sees(connection, self._sql, query.scope, query.user_id)
                owner = {"scope": query.scope.kind, "owner": query.scope.owner}
                rows = await connection.fetch(self._sql["facts_of"], {**parameters, **owner})
            found = await self._with_evidence(connection, [fact_of(row) for row in rows[: query.limit]])
        more = len(rows) > query.limit
        return found, (found[-1].updated_at, found[-1].id) if more else None

    async def recall(
        self,
        query: str,
        scopes: Sequence[Scope],
        *,
        recent: Sequence[str] = (),
        limit: int = 10,
        embedder: Embedder | None = None,
    ) -> list[Fact]:
        """Return the valid facts that are relevant to a query, the most specific scope first.

        The limit is divided among the scopes; a scope receives more only if others need less. If two scopes have the
        same statement, the more specific scope wins. Of each scope, the newest 10,000 facts are searched.

        Args:
            query: the new input, or a description of the wanted facts.
            scopes: the scopes to search.
            recent: the last messages before the query, oldest first, for inputs that refer to them with "it" or "that".
            limit: the maximum number of facts.
            embedder: an embedding model, which also finds facts that share no word with the query.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        check_argument("query", query, str, required=True)
        check_each("scopes", scopes, Scope)
        rows = await self._read(self.valid_statements(scopes, _MOST_RANKED, _MOST_RANKED))
        known = await _computed(len(rows), lambda: without_shadowed(map(fact_of, rows)))
        found = await self.rank(query, known, recent=recent, limit=limit, embedder=embedder)
        async with self._driver.reading() as connection:
            return await self._with_evidence(connection, found)

    async def rank(
        self,
        query: str,
        facts: Sequence[Fact],
        *,
        recent: Sequence[str] = (),
        limit: int = 10,
        embedder: Embedder | None = None,
    ) -> list[Fact]:
        """Return the facts in `facts` that are relevant to a query. `facts` must be sorted as `valid` returns them."""
        check_argument("query", query, str, required=True)
        check_argument("limit", limit, int, required=True)
        check_each("facts", facts, Fact)
        check_each("recent", recent, str)
        similar = await self._vectors.similar(query, facts, embedder) if embedder and facts else {}
        by_scope = [list(group) for _, group in groupby(facts, key=lambda fact: fact.scope.kind)]
        ranks = [partial(self._words_of(group).rank, query, group) for group in by_scope]
        ranked = await _computed(len(facts), lambda: [rank(recent=recent, similar=similar) for rank in ranks])
        return take_of_each(ranked, limit, lambda fact: (fact.id, normalised(fact.text)))

    def _words_of(self, facts: Sequence[Fact]) -> FactWords:
        """Return the word index for the owner of `facts`. Beyond the maximum, drop the least recently used indexes."""
        scope = facts[0].scope
        index = self._words.pop(scope, None)
        if index is None or index.is_outdated:
            index = FactWords()
            entries = sum(one.entries for one in self._words.values())
            while self._words and (len(self._words) >= _MOST_INDEXES or entries > _MOST_ENTRIES):
                entries -= self._words.popitem(last=False)[1].entries
        self._words[scope] = index
        return index

    async def valid(self, scopes: Sequence[Scope], *, limit: int = MAX_PAGE, shadowed: bool = False) -> list[Fact]:
        """Return the valid facts of scopes, most specific scope first.

        If several scopes have a fact with the same key, only the first is returned; if `shadowed` is true, all are.
        From each scope, up to `limit` facts (at most 1,000) are read, last changed first.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        check_each("scopes", scopes, Scope)
        found = await self.valid_in(await self._read(self.valid_statements(scopes, limit)), scopes)
        return list(found) if shadowed else without_shadowed(found)

    async def valid_in(self, rows: Sequence[Row], scopes: Sequence[Scope]) -> Sequence[Fact]:
        """Convert the rows of `valid_statements` to facts with evidence; cache the facts until a row changes."""
        before, facts = self._remembered.get(tuple(scopes), ([], []))
        if rows != before:
            async with self._driver.reading() as connection:
                facts = await self._with_evidence(connection, [fact_of(row) for row in rows])
            if sum(len(kept) for kept, _ in self._remembered.values()) + len(rows) > _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[tuple(scopes)] = rows, facts
        return facts

    async def forget(self, scope: Scope, key: str, *, user_id: str | None = None) -> int:
        """Delete all values of a key, including past ones, and return their number.

        Proposals of the key are deleted too. Copies of the facts that wait to be sent to Graphiti are dropped. Copies
        that Graphiti already has are deleted there later, in the background.

        Raises:
            InvalidInput: the key is not a valid key of a fact.
            KnowledgeNotFound: the user may not see the scope.
        """
        return (await self.forget_keys(scope, [key], user_id=user_id))[key]

    async def forget_keys(self, scope: Scope, keys: Sequence[str], *, user_id: str | None = None) -> dict[str, int]:
        """Delete all values of some keys, as `forget` does, in one transaction; return the number of values by key.

        Raises:
            InvalidInput: a key is not a valid key of a fact; nothing was deleted.
            KnowledgeNotFound: the user may not see the scope.
        """
        check_argument("keys", keys, Collection, required=True)
        for key in keys:
            check_name("fact's key", key, MAX_KEY_CHARACTERS)
        async with self._driver.writing() as connection:
            await check_sees(connection, self._sql, scope, user_id)
            return await self._forget(connection, scope, keys)

    async def forget_facts(self, fact_ids: Sequence[str], *, user_id: str | None = None) -> tuple[int, list[str]]:
        """Delete facts by id, each with all values of its key, in one transaction.

        Returns the number of deleted values, and the ids that do not exist or that this user may not see.

        Raises:
            InvalidInput: an id is not a valid id of a fact; nothing was deleted.
        """
        check_each("fact_ids", fact_ids, str)
        keys: defaultdict[Scope, set[str]] = defaultdict(set)
        missing: list[str] = []
        async with self._driver.writing() as connection:
            for fact_id in dict.fromkeys(fact_ids):
                try:
                    fact = await self._find(connection, fact_id, user_id)
                    keys[fact.scope].add(canonical_key(fact.key))
                except KnowledgeNotFound:
                    missing.append(fact_id)
            deleted = 0
            for scope in sorted(keys, key=lambda one: (one.kind, one.owner)):
                deleted += sum((await self._forget(connection, scope, keys[scope])).values())
        return deleted, missing

    async def _forget(
        self, connection: Connection, scope: Scope, keys: Collection[str] | None = None
    ) -> dict[str, int]:
        """Delete all values of some or all keys, even those stored under an older spelling of the key."""
        wanted = None if keys is None else {canonical_key(key) for key in keys}
        owner = {"scope": scope.kind, "owner": scope.owner}
        found = {stored: canonical_key(stored) for (stored,) in await connection.fetch(self._sql["keys_of"], owner)}
        named = sorted(stored for stored, key in found.items() if wanted is None or key in wanted)
        # All calls lock all proposals and then all facts, each in the order of the keys, which prevents deadlocks.
        lock = "lock_" if self.backend == "postgres" else ""
        names, parts = (f"{lock}proposals_of_keys", f"{lock}facts_of_keys"), list(batched(named, _AT_ONCE))
        locks = [for_values(self._sql[name], "key", some, owner) for name in names for some in parts]
        locked = await connection.fetch_each(locks)
        proposals, facts = (list(chain(*rows)) for rows in (locked[: len(parts)], locked[len(parts) :]))
        # Delete only locked rows: a row that is stored meanwhile may be locked by a call that waits for this one.
        deletions = [
            for_values(self._sql["forget_proposals"], "id", [row[0] for row in some])
            for some in batched(proposals, _AT_ONCE)
        ]
        for some in batched(facts, _AT_ONCE):
            deletions += self._deletion([row[0] for row in some])
        await connection.fetch_each(deletions)
        gone = Counter(found[stored] for _, stored in facts)
        return {key: gone.pop(canonical_key(key), 0) for key in (list(gone) if keys is None else keys)}

    def _deletion(self, fact_ids: Sequence[str]) -> list[Statement]:
        """Return statements that delete facts and drop their copies that wait to be sent to Graphiti.

        Copies that were sent already are deleted there later.
        """
        now = {"now": time_text(self._clock())}
        retraction = for_values(self._sql["retract_facts"], "id", fact_ids, now)
        return [retraction, for_values(self._sql["forget_facts"], "id", fact_ids)]

    async def take_back(self, fact_id: str, evidence: Evidence | None = None) -> bool:
        """Undo one call of `remember`; return False if there is nothing to undo.

        If you pass the `evidence` of that call, it is undone only once; otherwise each `take_back` undoes one more
        call. If no other call has confirmed the value, it is deleted, and the previous value is valid again. Otherwise
        the value stays, with one confirmation fewer.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        now = time_text(self._clock())
        async with self._driver.writing() as connection:
            if not (rows := await connection.fetch(self._sql["fact"], {"fact_id": fact_id})):
                return False
            fact = fact_of(rows[0])
            await self._lock(connection, fact.scope, fact.key, self._clock())
            # Another call may have changed the fact before the key was locked.
            if not (rows := await connection.fetch(self._sql["fact"], {"fact_id": fact_id})):
                return False
            fact = fact_of(rows[0])
            if evidence is not None:
                row = {"fact_id": fact_id, **evidence._asdict()}
                if not await connection.execute(self._sql["remove_evidence"], row):
                    return False
            if fact.confirmed > 1:
                await connection.execute(self._sql["unconfirm"], {"fact_id": fact_id, "now": now})
                return True
            await connection.fetch_each(self._deletion([fact_id]))
            period = {"valid_from": time_text(fact.valid_from), "valid_to": fact.valid_to and time_text(fact.valid_to)}
            named = {"scope": fact.scope.kind, "owner": fact.scope.owner, "key": fact.key, "now": now}
            await connection.execute(self._sql["reopen"], {**named, **period})
            return True

    async def forget_all(self, scope: Scope, *, user_id: str | None = None) -> int:
        """Delete all facts of a scope with their proposals, and return the number of deleted values.

        Raises:
            KnowledgeNotFound: the user may not see the scope.
        """
        async with self._driver.writing() as connection:
            await check_sees(connection, self._sql, scope, user_id)
            return sum((await self._forget(connection, scope)).values())

    async def restore(self, facts: Sequence[Fact]) -> int:
        """Store exported facts with their ids, times and counts, and return the number of new facts.

        A stored fact with the same id is not changed, and a value that is already valid is not stored again. Of two
        valid values of a key, the newer one stays valid, and the older one ends when the newer one begins.

        Raises:
            InvalidInput: a fact cannot be stored; nothing was stored.
            SessionNotFound: the session of a fact does not exist; nothing was stored.
            StoreUnavailable: the database does not answer; a retry is safe.
        """
        check_each("facts", facts, Fact)
        facts = [replace(fact, key=NewFact(fact.key, fact.value, fact.kind, fact.confidence).key) for fact in facts]
        # All calls lock keys in the same order, which prevents deadlocks.
        ordered = sorted(facts, key=lambda one: (one.scope.kind, one.scope.owner, one.key, one.valid_from))
        async with self._driver.writing() as connection:
            return sum([await self._restore(connection, fact) for fact in ordered])

    async def _restore(self, connection: Connection, fact: Fact) -> bool:
        known = self._sql["fact"], {"fact_id": fact.id}
        if await connection.fetch(*known):
            return False
        fact = replace(fact, scope=await known_owner(connection, self._sql, fact.scope, self._clock()))
        # A past value does not change the valid one, which keeps its time.
        changed_at = fact.updated_at if fact.valid_to is None else datetime.min.replace(tzinfo=UTC)
        before = await self._lock(connection, fact.scope, fact.key, changed_at)
        if await connection.fetch(*known):  # a concurrent call stored the fact before this one had the lock
            return False
        if fact.valid_to is None and before is not None:
            if canonical(before.value) == canonical(fact.value):
                return False
            if before.valid_from > fact.valid_from:
                fact = replace(fact, valid_to=before.valid_from)
            else:
                closing = {"fact_id": before.id, "valid_to": time_text(fact.valid_from)}
                await connection.execute(self._sql["close"], closing)
        await self._insert(connection, fact)
        return True

    def valid_statements(self, scopes: Sequence[Scope], limit: int, most: int = MAX_PAGE) -> list[Statement]:
        """Return one SQL statement per scope, most specific first, for the newest `limit` valid facts of the scope."""
        ordered = sorted(dict.fromkeys(scopes), key=lambda scope: SCOPE_KINDS.index(scope.kind))
        page = {**page_parameters(limit, None, "fact_id", most), "limit": limit}
        unfiltered = dict.fromkeys(("kind", "key", "former_key", "escaped"))
        asked = {**page, **unfiltered, **text_filter(None), "past": False}
        return [(self._sql["facts_of"], {**asked, "scope": one.kind, "owner": one.owner}) for one in ordered]

    async def _read(self, statements: Sequence[Statement]) -> list[Row]:
        async with self._driver.reading() as connection:
            return [row for rows in await connection.fetch_each(statements) for row in rows]

    async def _find(self, connection: Connection, fact_id: str, user_id: str | None) -> Fact:
        row = await seen_row(connection, self._sql, "fact", fact_id, user_id)
        return (await self._with_evidence(connection, [fact_of(row)]))[0]

    async def _lock(self, connection: Connection, scope: Scope, key: str, now: datetime) -> Fact | None:
        """Lock a key until the transaction ends, and return its valid fact."""
        parameters = {"scope": scope.kind, "owner": scope.owner, "key": key}
        lock = [(self._sql["lock_key"], parameters)] if self.backend == "postgres" else []
        hold = (self._sql["hold_valid"], {**parameters, "now": time_text(now)})
        *_, held = await connection.fetch_each([*lock, hold])
        return fact_of(held[0]) if held else None

    async def _begin(
        self, connection: Connection, scope: Scope, fact: NewFact, before: Fact | None, now: datetime
    ) -> str:
        """Store a fact that is valid from now on, end the previous value, and return the new id."""
        valid_from = now if before is None else max(now, before.valid_from)
        if before is not None:
            await connection.execute(self._sql["close"], {"fact_id": before.id, "valid_to": time_text(valid_from)})
        begun = Fact(
            id=str(uuid7()),
            scope=scope,
            key=fact.key,
            value=fact.value,
            kind=fact.kind or (before.kind if before is not None else "world_knowledge"),
            confidence=fact.confidence,
            confirmed=1,
            contradicted=0,
            valid_from=valid_from,
            valid_to=None,
            updated_at=now,
            evidence=() if fact.evidence is None else (fact.evidence,),
        )
        await self._insert(connection, begun)
        return begun.id

    async def _insert(self, connection: Connection, fact: Fact) -> None:
        await connection.execute(self._sql["insert_fact"], {**owner_columns(fact.scope), **fact_row(fact)})
        for origin in fact.evidence:
            await self._add_evidence(connection, fact.id, origin, fact.updated_at)

    async def _confirm(self, connection: Connection, before: Fact, fact: NewFact, now: datetime) -> None:
        if fact.evidence is not None:
            named = {"fact_id": before.id, **fact.evidence._asdict()}
            if await connection.fetch(self._sql["has_evidence"], named):
                return
            await self._add_evidence(connection, before.id, fact.evidence, now)
        row = {"fact_id": before.id, "kind": fact.kind or before.kind, "confidence": float(fact.confidence)}
        await connection.execute(self._sql["confirm"], row)

    async def _add_evidence(self, connection: Connection, fact_id: str, evidence: Evidence, now: datetime) -> None:
        row = {"fact_id": fact_id, **evidence._asdict(), "now": time_text(now), "most": MAX_EVIDENCE}
        await connection.execute(self._sql["add_evidence"], row)

    async def _with_evidence(self, connection: Connection, facts: Sequence[Fact]) -> list[Fact]:
        if not facts:
            return []
        ids = [fact.id for fact in facts]
        rows = await connection.fetch(*for_values(self._sql["evidence"], "fact_id", ids))
        origins: defaultdict[str, list[Evidence]] = defaultdict(list)
        for fact_id, *origin in rows:
            origins[fact_id].append(Evidence(*origin))
        return [replace(fact, evidence=tuple(origins[fact.id])) if fact.id in origins else fact for fact in facts]


async def _computed[T](facts: int, compute: Callable[[], T]) -> T:
    """Call `compute` and return its result; use a thread if the number of `facts` is large."""
    return await asyncio.to_thread(compute) if facts > _COMPUTED_AT_ONCE else compute()
