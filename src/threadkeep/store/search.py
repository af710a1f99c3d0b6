"""Full text search: an index that follows the transcript, kept up outside of the appends.

Indexing a message costs more than storing it, so `append` does not. `catch_up` brings the index to the newest message
in small transactions; a search does that first, so that what was stored before it is found. Any process may catch up
for any other: each session says how far its index has come, and a step is taken only from where that still is.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Protocol

from threadkeep.errors import StoreUnavailable
from threadkeep.records import SearchHit, dump_json
from threadkeep.store.codec import clean_text, message_of
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Connection, Driver, Parameters, Row, RowLocked
from threadkeep.store.relevance import rarity, relevance_words
from threadkeep.store.search_terms import TRIGRAM, fingerprints, search_terms, term_pattern, trigram_expression
from threadkeep.store.statements import load_statements
from threadkeep.store.tables import like_pattern

MUCH_UNINDEXED = 10_000
"""Messages that it takes a while to index: after an import, or when the index has got another form."""

_SEARCH_SECONDS = 5.0
# Fewer than an engine has connections: chats read beside the searches.
_SEARCHES = 2
_STEP_MESSAGES = 200
_STEP_CHARACTERS = 200_000
_SESSIONS = 100
# Of the words of a query; that a text has the others too is seen when it is read.
_PATTERNS = 16
_WEIGHED_WORDS = 16
_MORE = 4
# So many texts with the words are ranked; of more, those that were stored last.
_CANDIDATES = 2_000
_COMMON = 0.1


class Search(Protocol):
    """Whoever finds messages by their words, where transcripts are kept."""

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Bring up what searches (of one user, of one session) need, for at most some seconds; True when all is."""
        ...

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """How many messages no search can find yet."""
        ...

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Messages with all the words of a query, best first; of one user, or of one session after a place."""
        ...


class SearchIndex:
    """The search index of a database: FTS5 trigrams on SQLite, words and character pairs on PostgreSQL.

    On both it says which texts may have the words of a query, and these are read to see which do.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("search.sql", f"{driver.backend}/search.sql")
        self._turn = asyncio.Lock()
        self._searches = asyncio.Semaphore(_SEARCHES)

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Index what is not indexed yet (of one user, of one session), for at most some seconds; True when all is.

        A session whose row somebody has locked is left for the next time.
        """
        place = {"user_id": user_id, "session_id": session_id, "limit": _SESSIONS}
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        locked: set[str] = set()
        while True:
            async with self._driver.reading() as connection:
                behind = await connection.fetch(self._sql["to_index"], place)
            behind = [row for row in behind if row[0] not in locked]
            if not behind:
                return not locked
            for next_id, after, last_seq in behind:
                try:
                    if not await self._index(next_id, after, last_seq, deadline=deadline):
                        return False
                except RowLocked:
                    locked.add(next_id)
                    if time.monotonic() > deadline:
                        return False

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """How many messages (of one user, of one session) are not in the index yet."""
        async with self._driver.reading() as connection:
            place = {"user_id": user_id, "session_id": session_id}
            [(messages,)] = await connection.fetch(self._sql["unindexed"], place)
        return int(messages)

    async def _index(self, session_id: str, after: int, last_seq: int, *, deadline: float) -> bool:
        """Index the messages of a session step by step; False when the time is over."""
        position: int | None = after
        while position is not None and position < last_seq:
            # A search does not wait until all of an import is indexed by another task.
            async with self._turn:
                position = await self._step(session_id, position, last_seq)
            if time.monotonic() > deadline:
                return False
        return True

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Messages with all the words of a query, best first; of one user, or of one session after a place.

        Raises:
            StoreUnavailable: it takes too long, with whoever else is searching.
        """
        words = clean_text(query).split()
        if not words or limit <= 0:
            return []
        place: Parameters = {"user_id": user_id, "session_id": session_id, "after": after}
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), self._searches, self._driver.reading() as connection:
                if self._driver.backend == "postgres":
                    rows = await self._search_terms(connection, search_terms(query), place, limit)
                else:
                    rows = await self._search_trigrams(connection, list(dict.fromkeys(words)), place, limit)
        except TimeoutError:
            raise StoreUnavailable(
                f"The search took longer than {_SEARCH_SECONDS:g} seconds; ask for a longer or a rarer word."
            ) from None
        return [SearchHit(row[0], message_of(row[2:]), float(row[1])) for row in rows]

    async def _search_terms(
        self, connection: Connection, terms: Sequence[str], place: Parameters, limit: int
    ) -> list[Row]:
        """By the fingerprints of the terms, without the texts that only look as if they had them."""
        if not terms:
            return []
        whose = "found" if place["user_id"] is None else "found_of_user"
        found = self._sql[whose if place["session_id"] is None else "found_of_session"]
        statement = f"WITH found AS MATERIALIZED ({found}) {self._sql['ranked']}"
        words = list(terms[:_PATTERNS])
        wanted = {"terms": fingerprints(terms), "patterns": [term_pattern(word) for word in words], "words": words}
        asked = limit
        while True:
            bounds = {"limit": asked, "candidates": max(_CANDIDATES, asked)}
            rows = await connection.fetch(statement, {**place, **wanted, **bounds})
            right = [row for row in rows if set(terms).issubset(search_terms(row[5]))]
            if len(right) >= limit or len(rows) < asked:
                return right[:limit]
            asked *= _MORE

    async def _search_trigrams(
        self, connection: Connection, words: Sequence[str], place: Parameters, limit: int
    ) -> list[Row]:
        """By trigrams; words too short for one are looked for in the texts themselves."""
        if expression := trigram_expression(words):
            weighed = relevance_words(words, await self._rarities(connection, words))
            bounds = {"limit": limit, "candidates": max(_CANDIDATES, limit)}
            parameters = {**place, **bounds, "expression": expression, "words": weighed}
            return await connection.fetch(self._sql["match"], parameters)
        of_user = "match_short" if place["user_id"] is None else "match_short_of_user"
        short = of_user if place["session_id"] is None else "match_short_of_session"
        patterns = dump_json([like_pattern(word) for word in words])
        return await connection.fetch(self._sql[short], {**place, "patterns": patterns, "limit": limit})

    async def _rarities(self, connection: Connection, words: Sequence[str]) -> Sequence[float]:
        """What each word weighs beside the others; those without a trigram as little as one that all texts have."""
        expressions = [trigram_expression([word]) for word in words[:_WEIGHED_WORDS] if len(word) >= TRIGRAM]
        if len(words) == 1:
            return [1.0]
        rows = await connection.fetch(self._sql["occurrences"], {"expressions": dump_json(expressions)})
        weights = iter([rarity(with_word, texts) for with_word, texts in rows])
        return [next(weights, _COMMON) if len(word) >= TRIGRAM else _COMMON for word in words]

    async def _step(self, session_id: str, after: int, last_seq: int) -> int | None:
        """Index the next messages of a session; None when it is not as it was: another process was at it."""
        async with self._driver.reading() as connection:
            upto = min(last_seq, after + _STEP_MESSAGES)
            texts = await connection.fetch(self._sql["texts"], {"session_id": session_id, "after": after, "upto": upto})
        kept, characters = 0, 0
        for row in texts:
            characters += len(row[2])
            if kept and characters > _STEP_CHARACTERS:
                break
            kept += 1
        if kept < len(texts):
            upto = texts[kept - 1][0]
        # What was read last must still be there: the session may have been deleted and begun anew since.
        seq, id_ = texts[kept - 1][:2] if texts else (None, None)
        place = {"session_id": session_id, "after": after, "upto": upto}
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            if not await connection.execute(self._sql["advance"], {**place, "seq": seq, "id": id_}):
                return None
            if self._driver.backend == "postgres":
                rows = [
                    {"document": document, "terms": fingerprints(search_terms(text))}
                    for _, _, text, document in texts[:kept]
                ]
                await connection.execute_many(self._sql["add_text"], rows)
            else:
                await connection.execute(self._sql["add_text"], place)
        return upto
