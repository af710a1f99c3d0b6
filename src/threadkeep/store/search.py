"""Full-text search in the tables.

Indexing a message takes longer than storing it, so `append` does not index. `catch_up` indexes in small transactions;
`MessageSearch` calls it before each search, so that all messages stored before are found. Any process may index any
session: a step is applied only if the last indexed `seq` has not changed since it was read.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol
from unicodedata import normalize

from threadkeep.errors import StoreUnavailable
from threadkeep.records import SearchHit, dump_json
from threadkeep.store.codec import clean_text, message_of
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Connection, Driver, Parameters, Row, RowLocked
from threadkeep.store.partitions import index_statements
from threadkeep.store.search_terms import (
    TRIGRAM,
    fingerprints,
    fold,
    indexed_terms,
    is_indexed,
    rarity,
    relevance_words,
    search_terms,
    short_pattern,
    term_pattern,
    trigram_expression,
)
from threadkeep.store.statements import Tables

MUCH_UNINDEXED = 10_000
"""A number of unindexed messages, above which indexing takes noticeable time."""

_SEARCH_SECONDS = 5.0
# The number of concurrent searches: fewer than a pool's connections, so that chats can still read the database.
_SEARCHES = 2
_STEP_MESSAGES = 200
_STEP_CHARACTERS = 200_000
_SESSIONS = 100
# The database checks and ranks texts by at most this many words. The texts that it returns are checked for all words.
_PATTERNS = 16
_PATTERN_CHARACTERS = 64  # PostgreSQL rejects a very long pattern
_WEIGHED_WORDS = 16
_MORE = 4
# Only the newest matching texts are ranked, at most this many.
_CANDIDATES = 2_000
_COMMON = 0.1


class Search(Protocol):
    """A full-text search in transcripts: those in Threadkeep's own tables, or those in a LangGraph store."""

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Update the index for at most `seconds`; return True if the index is complete then."""

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """Return the number of messages that searches cannot find yet."""

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return up to `limit` messages that contain all words of a query, best first.

        `user_id` selects a user's sessions, `session_id` one session, and `after` its messages above that `seq`.
        """


class SearchIndex(Tables, sql=("search.sql", "{backend}/search.sql")):
    """The search index of a database: FTS5 trigrams on SQLite, words and character pairs on PostgreSQL.

    The index returns messages that may match. Their texts are then read to keep only real matches.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._turn = asyncio.Lock()
        self._searches = asyncio.Semaphore(_SEARCHES)

    async def catch_up(
        self, *, seconds: float | None = None, user_id: str | None = None, session_id: str | None = None
    ) -> bool:
        """Index new messages for at most `seconds`; return True if none are left.

        A session whose row is locked is left for the next call.
        """
        parameters = {"user_id": user_id, "session_id": session_id, "limit": _SESSIONS}
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        locked: set[str] = set()
        while True:
            behind = await self._driver.fetch(self._sql["to_index"], parameters)
            behind = [row for row in behind if row[0] not in locked]
            if not behind:
                return not locked
            # Lock sessions in the order of their ids, as appends do, which prevents deadlocks.
            if not await self._index(sorted(_Behind(*row) for row in behind), locked, deadline=deadline):
                return False

    async def unindexed(self, *, user_id: str | None = None, session_id: str | None = None) -> int:
        """Return the number of messages that are not indexed yet."""
        parameters = {"user_id": user_id, "session_id": session_id}
        [(messages,)] = await self._driver.fetch(self._sql["unindexed"], parameters)
        return int(messages)

    async def _index(self, behind: Sequence[_Behind], locked: set[str], *, deadline: float) -> bool:
        """Index sessions step by step; return False if the deadline passes first."""
        waiting = list(behind)
        while waiting:
            # One transaction indexes several sessions if they have few messages to index.
            count = max(1, bisect_right(list(accumulate(one.messages for one in waiting)), _STEP_MESSAGES))
            # Hold the lock for one step only, so that no search waits until a whole import is indexed.
            async with self._turn:
                left = await self._try_step(waiting[:count], locked)
            waiting[:count] = left
            if time.monotonic() > deadline:
                return False
        return True

    async def _try_step(self, sessions: Sequence[_Behind], locked: set[str]) -> list[_Behind]:
        """Index the next messages of each session. Return sessions with more messages; add locked ones to `locked`."""
        try:
            return await self._step(sessions)
        except RowLocked:
            if len(sessions) == 1:
                locked.add(sessions[0].session_id)
                return []
        return [left for session in sessions for left in await self._try_step([session], locked)]

    async def search(
        self, query: str, *, limit: int, user_id: str | None = None, session_id: str | None = None, after: int = 0
    ) -> list[SearchHit]:
        """Return up to `limit` messages that contain all words of a query, best first.

        Only the newest 2,000 matches are ranked. On SQLite, matches are not ranked if no word has three characters.

        Raises:
            StoreUnavailable: the search takes longer than 5 seconds, including the wait for other searches.
        """
        words = list(dict.fromkeys(clean_text(query).split()))
        if not words or limit <= 0:
            return []
        parameters: Parameters = {"user_id": user_id, "session_id": session_id, "after": after}
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), self._searches, self._driver.reading() as connection:
                if self._driver.backend == "postgres":
                    # Also search for the words as they are written: earlier builds have not indexed the form NFC.
                    forms = dict.fromkeys((" ".join(words), normalize("NFC", " ".join(words))))
                    each = [await self._search_terms(connection, form, parameters, limit) for form in forms]
                    found = {(row[0], row[2]): row for hits in each for row in hits}.values()
                    rows = sorted(found, key=lambda row: (row[1], row[14]), reverse=True)[:limit]
                else:
                    rows = await self._search_trigrams(connection, words, parameters, limit)
        except TimeoutError:
            raise StoreUnavailable(
                f"The search took longer than {_SEARCH_SECONDS:g} seconds; use a longer or rarer word."
            ) from None
        return [SearchHit(row[0], message_of(row[2:]), float(row[1])) for row in rows]

    async def _search_terms(self, connection: Connection, query: str, scope: Parameters, limit: int) -> list[Row]:
        """Find texts by fingerprints of terms, or all texts if no term is indexed. Drop texts that lack a term."""
        terms = search_terms(query) or query.split()
        whose = "found" if scope["user_id"] is None else "found_of_user"
        sql = await index_statements(connection, self._sql)
        found = sql[whose if scope["session_id"] is None else "found_of_session"]
        statement = f"WITH found AS MATERIALIZED ({found}) {self._sql['ranked']}"
        words = [term[:_PATTERN_CHARACTERS] for term in terms[:_PATTERNS]]
        whole = {term for term in terms if is_indexed(term)}
        others = [fold(term) for term in terms if term not in whole]
        wanted = {"terms": fingerprints(whole), "patterns": [term_pattern(word) for word in words], "words": words}
        asked = limit
        while True:
            bounds = {"limit": asked, "candidates": max(_CANDIDATES, asked)}
            rows = await connection.fetch(statement, {**scope, **wanted, **bounds})
            kept = [row for row in rows if whole.issubset(indexed_terms(row[5]))]
            folded = [(row, fold(f"{row[5]}\n{normalize('NFC', row[5])}")) for row in kept]
            right = [row for row, text in folded if all(term in text for term in others)]
            if len(right) >= limit or len(rows) < asked:
                return right[:limit]
            asked *= _MORE

    async def _search_trigrams(
        self, connection: Connection, words: Sequence[str], scope: Parameters, limit: int
    ) -> list[Row]:
        """Search by trigrams; if no word has three characters, search the texts themselves.

        A text may have the words as in the query, or with composed (NFC) or separate (NFD) accents.
        """
        changes = (str, partial(normalize, "NFC"), partial(normalize, "NFD"))
        forms = list(dict.fromkeys(tuple(map(change, words)) for change in changes))
        expressions = [trigram_expression(form) for form in forms]
        if all(expressions):
            expression = " OR ".join(f"({each})" for each in expressions)
            weighed = relevance_words(words, await self._rarities(connection, words))
            bounds = {"limit": limit, "candidates": max(_CANDIDATES, limit)}
            parameters = {**scope, **bounds, "expression": expression, "words": weighed}
            return await connection.fetch(self._sql["match"], parameters)
        of_user = "match_short" if scope["user_id"] is None else "match_short_of_user"
        short = of_user if scope["session_id"] is None else "match_short_of_session"
        patterns = dump_json([list(map(short_pattern, dict.fromkeys(each))) for each in zip(*forms, strict=True)])
        return await connection.fetch(self._sql[short], {**scope, "patterns": patterns, "limit": limit})

    async def _rarities(self, connection: Connection, words: Sequence[str]) -> Sequence[float]:
        expressions = [trigram_expression([word]) for word in words[:_WEIGHED_WORDS] if len(word) >= TRIGRAM]
        if len(words) == 1:
            return [1.0]
        rows = await connection.fetch(self._sql["occurrences"], {"expressions": dump_json(expressions)})
        weights = iter([rarity(with_word, texts) for with_word, texts in rows])
        return [next(weights, _COMMON) if len(word) >= TRIGRAM else _COMMON for word in words]

    async def _step(self, sessions: Sequence[_Behind]) -> list[_Behind]:
        """Index the next messages in one transaction; return the sessions with more to index."""
        async with self._driver.reading() as connection:
            found = await connection.fetch_each([(self._sql["texts"], session.step) for session in sessions])
        steps = _in_budget(sessions, found)
        # This runs in an OS thread, because it takes tens of milliseconds.
        is_postgres = self._driver.backend == "postgres"
        rows = await asyncio.to_thread(_indexed_rows, steps) if is_postgres else [""] * len(steps)
        left, sql = list(sessions[len(steps) :]), None
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            for step, documents in zip(steps, rows, strict=True):
                if not await connection.execute(self._sql["advance"], step.parameters):
                    continue
                # Choose `sql` once: `advance` has locked a row, so no process can partition tables before the commit.
                sql = sql or await index_statements(connection, self._sql)
                await connection.execute(sql["add_text"], {**step.parameters, "rows": documents})
                if step.upto < step.session.last_seq:
                    left.append(step.session._replace(after=step.upto))
        return left


class _Behind(NamedTuple):
    """A session whose messages after `after`, up to `last_seq`, are not indexed."""

    session_id: str
    after: int
    last_seq: int

    @property
    def step(self) -> Parameters:
        """The parameters of the statement that reads the messages of the next step."""
        return {"session_id": self.session_id, "after": self.after, "upto": self.after + self.messages}

    @property
    def messages(self) -> int:
        """The number of messages in the next step."""
        return min(self.last_seq - self.after, _STEP_MESSAGES)


class _Step(NamedTuple):
    """The next messages of a session to index in one step, up to a `seq`."""

    session: _Behind
    upto: int
    texts: Sequence[Row]

    @property
    def parameters(self) -> Parameters:
        """The parameters of the statements `advance` and `add_text`.

        The id of the last message is checked, because the session may have been deleted and created again.
        """
        seq, id_ = self.texts[-1][:2] if self.texts else (None, None)
        return {**self.session.step, "upto": self.upto, "seq": seq, "id": id_}


def _in_budget(sessions: Sequence[_Behind], found: Sequence[Sequence[Row]]) -> list[_Step]:
    """Return steps with as many of the first texts as fit into one transaction, but at least one text."""
    steps: list[_Step] = []
    room = _STEP_CHARACTERS
    for session, texts in zip(sessions, found, strict=True):
        ends = list(accumulate(len(row[2]) for row in texts))
        count = bisect_right(ends, room)
        if count == len(texts):
            steps.append(_Step(session, session.after + session.messages, texts))
            room -= ends[-1] if ends else 0
            continue
        count = count or not steps
        if count:
            steps.append(_Step(session, texts[count - 1][0], texts[:count]))
        break
    return steps


def _indexed_rows(steps: Sequence[_Step]) -> list[str]:
    """Return one JSON array per step, with the documents and terms of the step's messages."""
    return [
        json.dumps(
            [{"seq": row[0], "document": row[3], "terms": fingerprints(indexed_terms(row[2]))} for row in step.texts],
            separators=(",", ":"),
        )
        for step in steps
    ]
