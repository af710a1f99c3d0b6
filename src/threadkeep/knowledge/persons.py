"""Persons: the ids and names of each person. A person's facts are found under any of the ids."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from threadkeep.errors import InvalidInput, KnowledgeNotFound
from threadkeep.knowledge.rows import OWNER_SQL, page_parameters
from threadkeep.records.knowledge import (
    CONTROLS,
    MAX_KEY_CHARACTERS,
    MAX_OWNER_CHARACTERS,
    Person,
    PersonQuery,
    check_name,
)
from threadkeep.records.sessions import check_argument
from threadkeep.store.codec import time_of, time_text
from threadkeep.store.driver import Connection
from threadkeep.store.statements import ClockedTables, text_filter

SEEN_INTERVAL = timedelta(hours=1)
"""The precision of `last_seen_at`. A finer precision would cost a write per message."""


class Persons(ClockedTables, sql=OWNER_SQL):
    """The persons in a database, with all ids of each person.

    An id is a `user_id` or a channel's sender, such as `telegram:123`. Each id is a separate person until it is merged
    into another. A merge moves no data, so it can be undone: facts stay under their id and are found under all ids.
    """

    async def resolve(self, alias: str, *, name: str | None = None) -> Person:
        """Return the person who has the id `alias`; create the person if the id is new.

        `name` is the current name of the person in the channel.

        Raises:
            InvalidInput: the id is blank, too long, or contains characters that cannot be printed.
            StoreUnavailable: the database did not store the person.
        """
        check_name("person's id", alias, MAX_OWNER_CHARACTERS)
        called = None if name is None else _name(name)
        now = self._clock()
        async with self._driver.reading() as connection:
            known = await self._find(connection, alias)
        if (
            known is not None
            and (called is None or called in known.names[:1])
            and now - known.last_seen_at < SEEN_INTERVAL
        ):
            return known
        parameters = {"person_id": alias, "now": time_text(now)}
        async with self._driver.writing() as connection:
            new = await connection.execute(self._sql["insert_person"], parameters) > 0
            await connection.execute(self._sql["see_person"], parameters)
            if called is not None:
                await connection.execute(self._sql["see_name"], {**parameters, "name": called})
            return await self._get(connection, alias, new=new)

    async def get(self, person_id: str) -> Person:
        """Return the person with the given id.

        Raises:
            KnowledgeNotFound: no person has this id.
        """
        async with self._driver.reading() as connection:
            return await self._get(connection, person_id)

    async def all(self, *, text: str | None = None, limit: int = 100) -> list[Person]:
        """Return up to `limit` persons, last seen first. If `text` is given, an id or a name contains it."""
        return (await self.page(PersonQuery(text, limit)))[0]

    async def page(self, query: PersonQuery) -> tuple[list[Person], tuple[datetime, str] | None]:
        """Return one page of persons, and the cursor of the next page.

        Raises:
            InvalidInput: the page size is out of range.
        """
        check_argument("query", query, PersonQuery, required=True)
        parameters = {**page_parameters(query.limit, query.cursor, "person_id"), **text_filter(query.text)}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["persons"], parameters)
            found = [await self._find(connection, row[0]) for row in rows[: query.limit]]
        more = len(rows) > query.limit
        last = (time_of(rows[query.limit - 1][1]), rows[query.limit - 1][0]) if more else None
        return [person for person in found if person is not None], last

    async def merge(self, person_id: str, into: str) -> Person:
        """Merge a person into another person, and return the merged person, who has the id `into`.

        Merging two ids of the same person changes nothing. If both persons have a fact with the same key, both facts
        are kept, and recall returns the fact that changed last.

        Raises:
            KnowledgeNotFound: one of the ids belongs to no person.
        """
        async with self._driver.writing() as connection:
            await self._lock_merges(connection)
            merged, canonical = [await self._canonical(connection, name) for name in (person_id, into)]
            if merged != canonical:
                await connection.execute(self._sql["merge"], {"person_id": merged, "into": canonical})
                row = {"person_id": merged, "canonical_id": canonical}
                await connection.execute(self._sql["set_canonical"], row)
            return await self._get(connection, into)

    async def unmerge(self, person_id: str) -> Person:
        """Undo the merge of an id into another, and return the separated person.

        Ids that were merged into this id stay with it. Facts remembered after the merge stay with the other id.

        Raises:
            KnowledgeNotFound: no person has this id.
            InvalidInput: the id was not merged into another.
        """
        async with self._driver.writing() as connection:
            await self._lock_merges(connection)
            await self._canonical(connection, person_id)
            if not await connection.execute(self._sql["unmerge"], {"person_id": person_id}):
                raise InvalidInput("This id was not merged into another; unmerge an id that was.")
            row = {"person_id": person_id, "canonical_id": person_id}
            await connection.execute(self._sql["set_canonical"], row)
            return await self._get(connection, person_id)

    async def forget(self, person_id: str) -> bool:
        """Delete a person with all ids, facts and procedures; return False if there is none."""
        check_name("person's id", person_id, MAX_OWNER_CHARACTERS)
        async with self._driver.writing() as connection:
            await self._lock_merges(connection)
            rows = await connection.fetch(self._sql["person"], {"person_id": person_id})
            if not rows:
                return False
            owner = {"scope": "user", "owner": person_id, "now": time_text(self._clock())}
            await connection.execute(self._sql["retract_facts_of_owner"], owner)
            return await connection.execute(self._sql["forget_person"], {"person_id": rows[0][1]}) > 0

    async def _lock_merges(self, connection: Connection) -> None:
        if self.backend == "postgres":
            await connection.fetch(self._sql["lock_merges"], {})

    async def _canonical(self, connection: Connection, person_id: str) -> str:
        check_name("person's id", person_id, MAX_OWNER_CHARACTERS)
        rows = await connection.fetch(self._sql["person"], {"person_id": person_id})
        if not rows:
            raise KnowledgeNotFound("person", person_id)
        return str(rows[0][1])

    async def _get(self, connection: Connection, person_id: str, *, new: bool = False) -> Person:
        found = await self._find(connection, person_id, new=new)
        if found is None:
            raise KnowledgeNotFound("person", person_id)
        return found

    async def _find(self, connection: Connection, person_id: str, *, new: bool = False) -> Person | None:
        check_name("person's id", person_id, MAX_OWNER_CHARACTERS)
        asked = {"person_id": person_id}
        wanted = [(self._sql[name], asked) for name in ("aliases", "names", "preferences")]
        aliases, names, preferences = await connection.fetch_each(wanted)
        if not aliases:
            return None
        return Person(
            id=aliases[0][1],
            aliases=tuple(row[0] for row in aliases),
            names=tuple(dict.fromkeys(row[0] for row in names)),
            merged={row[0]: row[2] for row in aliases if row[2] is not None},
            preferences={key: json.loads(value) for key, value in preferences},
            first_seen_at=min(time_of(row[3]) for row in aliases),
            last_seen_at=max(time_of(row[4]) for row in aliases),
            new=new,
        )


def _name(name: str) -> str:
    """Return a name in its stored form: one line, cut if it is too long.

    Raises:
        InvalidInput: the name is not a text, or is blank.
    """
    if not isinstance(name, str):
        raise InvalidInput("A person's name must be a text, or None.")
    kept = " ".join(CONTROLS.sub(" ", name).split())[:MAX_KEY_CHARACTERS]
    check_name("person's name", kept, MAX_KEY_CHARACTERS)
    return kept
