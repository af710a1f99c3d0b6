"""Full text search: an index that follows the transcript, updated outside of appends.

Indexing a message costs more than storing it, so `append` does not index. `catch_up` updates the index in small
transactions; a search calls it first, so that earlier messages are found. Any process may index any session: each
session has its indexed position, and a step is applied only if that has not changed.
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
from threadkeep.store.search_terms import (
    TRIGRAM,
    fingerprints,
    rarity,
    relevance_words,
    search_terms,
    term_pattern,
    trigram_expression,
)
from threadkeep.store.statements import load_statements
from threadkeep.store.tables import like_pattern

MUCH_UNINDEXED = 10_000
"""The number of unindexed messages that takes noticeable time: after an import or a change of the index."""

_SEARCH_SECONDS = 5.0
# Fewer than an engine's connections: chats read during searches.
_SEARCHES = 2
_STEP_MESSAGES = 200
_STEP_CHARACTERS = 200_000
_SESSIONS = 100
# Only so many words of a query; the remaining words are checked when a text is read.
_PATTERNS = 16
_WEIGHED_WORDS = 16
_MORE = 4
# Only so many texts are ranked; of more, the newest ones.
_CANDIDATES = 2_000
_COMMON = 0.1


class Search(Protocol):
    """A search for messages by their words, for one kind of transcripts."""

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Update the index (of one user, of one session) for at most `seconds`; return True when it is complete."""
        ...

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """Return the number of messages that no search can find yet."""
        ...

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return messages that contain all words of a query, best first; filter by user, or by session and `seq`."""
        ...


class SearchIndex:
    """The search index of a database: FTS5 trigrams on SQLite, words and character pairs on PostgreSQL.

    On both engines the index selects candidates, and their texts are read to find the real matches.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("search.sql", f"{driver.backend}/search.sql")
        self._turn = asyncio.Lock()
        self._searches = asyncio.Semaphore(_SEARCHES)

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Index new messages (of one user, of one session) for at most `seconds`; return True when none is left.

        A session whose row is locked is left for the next call.
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
        """Return the number of messages (of one user, of one session) that are not indexed yet."""
        async with self._driver.reading() as connection:
            place = {"user_id": user_id, "session_id": session_id}
            [(messages,)] = await connection.fetch(self._sql["unindexed"], place)
        return int(messages)

    async def _index(self, session_id: str, after: int, last_seq: int, *, deadline: float) -> bool:
        """Index the messages of a session in steps; return False when the time is over."""
        position: int | None = after
        while position is not None and position < last_seq:
            # A search must not wait until another task has indexed a whole import.
            async with self._turn:
                position = await self._step(session_id, position, last_seq)
            if time.monotonic() > deadline:
                return False
        return True

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return messages that contain all words of a query, best first; filter by user, or by session and `seq`.

        Raises:
            StoreUnavailable: it takes too long, with other searches.
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
        """Search by fingerprints of the terms, and drop texts whose fingerprints match by chance."""
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
        """Search by trigrams; words that are too short for one are searched in the texts themselves."""
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
        """Return the relative weight of each word; a word without a trigram weighs as little as a very common one."""
        expressions = [trigram_expression([word]) for word in words[:_WEIGHED_WORDS] if len(word) >= TRIGRAM]
        if len(words) == 1:
            return [1.0]
        rows = await connection.fetch(self._sql["occurrences"], {"expressions": dump_json(expressions)})
        weights = iter([rarity(with_word, texts) for with_word, texts in rows])
        return [next(weights, _COMMON) if len(word) >= TRIGRAM else _COMMON for word in words]

    async def _step(self, session_id: str, after: int, last_seq: int) -> int | None:
        """Index the next messages of a session; return None if another process has changed it."""
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
        # The last message must still exist: the session may have been deleted and created again.
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
