"""Summaries: each message is in at most one that counts, whoever makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from threadkeep.records import Summary
from threadkeep.store.codec import clean_text
from threadkeep.store.driver import Connection, Driver, Row
from threadkeep.store.statements import load_statements
from threadkeep.store.times import time_of, time_text


@dataclass(frozen=True)
class Uncovered:
    """What no summary stands for: after `after_seq`, up to the session's `last_seq`.

    `messages` and `tokens` count what user and assistant said there.
    """

    after_seq: int = 0
    last_seq: int = 0
    messages: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class ArchivedSummary:
    """A summary on its way to another database, and what tells whether its messages are the same there.

    `messages` is how many of its range are still there: the last ones of it, from `first_id` to `last_id`.
    """

    summary: Summary
    messages: int
    first_id: str | None = None
    last_id: str | None = None


class Summaries:
    """The table `chat_summaries`, and who is at work on a session.

    The law: the summaries that count stand for all messages from the last reset to the last one's end but for archived
    ones, each message in exactly one of them. A summary that would break it is not stored.
    """

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._clock = clock
        self._sql = load_statements("summaries.sql", f"{driver.backend}/sessions.sql")

    async def active(self, session_id: str, *, user_id: str | None = None) -> list[Summary]:
        """Those that count, oldest first: not taken up into another, and of what was said since the last reset."""
        return await self._fetch("active", session_id, user_id)

    async def all_of(self, session_id: str, *, user_id: str | None = None) -> list[Summary]:
        """All that were ever made of a session, by their ranges."""
        return await self._fetch("all", session_id, user_id)

    async def for_export(self, session_id: str) -> list[ArchivedSummary]:
        """Those that count, as they leave this database."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["for_export"], {"session_id": session_id})
        return [ArchivedSummary(summary_of(row[:10]), *row[10:]) for row in rows]

    async def add(self, summary: Summary, replaces: Sequence[str] = (), *, last_id: str | None = None) -> bool:
        """Store a summary of what follows the others, or one in the place of others that stand side by side.

        Args:
            summary: what to store; a `created_at` of its own is kept.
            replaces: ids of the summaries that it takes up. Together they have to stand for exactly its range.
            last_id: the id of the message at its end. Where another stands there, it is another session of this name.

        Answers False, and stores nothing, when the range does not fit: somebody was faster, the session was reset, or
        it is gone.
        """
        async with self._driver.writing() as connection:
            if last_id is not None:
                place = {"session_id": summary.session_id, "seq": summary.last_seq}
                await connection.fetch(self._sql["hold_session"], {"session_id": summary.session_id})
                if await connection.fetch(self._sql["message_at"], place) != [(last_id,)]:
                    return False
            return await add_summary(connection, self._sql, summary, frozenset(replaces), now=self._clock())

    async def uncovered(self, session_id: str) -> Uncovered:
        """How much no summary stands for since the last reset; reads that part of the transcript only."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["uncovered"], {"session_id": session_id})
        return Uncovered(*(int(value) for value in rows[0])) if rows else Uncovered()

    async def claim(self, session_id: str, purpose: str, owner: str, seconds: float) -> bool:
        """Take some work on a session for a time; False when somebody else has it, or the session is gone."""
        now = self._clock()
        parameters = {
            "session_id": session_id,
            "purpose": purpose,
            "owner": owner,
            "until": time_text(now + timedelta(seconds=seconds)),
            "now": time_text(now),
        }
        async with self._driver.writing() as connection:
            if not await connection.fetch(self._sql["keep_session"], {"session_id": session_id}):
                return False
            return await connection.execute(self._sql["claim"], parameters) > 0

    async def release(self, session_id: str, purpose: str, owner: str) -> None:
        """Let others take the work; nothing happens if somebody else has it by now."""
        parameters = {"session_id": session_id, "purpose": purpose, "owner": owner}
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["release"], parameters)

    async def _fetch(self, statement: str, session_id: str, user_id: str | None) -> list[Summary]:
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql[statement], {"session_id": session_id, "user_id": user_id})
        return [summary_of(row) for row in rows]


async def add_summary(
    connection: Connection, sql: Mapping[str, str], summary: Summary, replaces: frozenset[str], *, now: datetime
) -> bool:
    """Store a summary inside a transaction if it keeps the law; `sql` has the statements of `Summaries`."""
    place = {"session_id": summary.session_id}
    held = await connection.fetch(sql["hold_session"], place)
    if not held:
        return False
    reset_seq, archived_seq, last_seq = held[0]
    ranges = await connection.fetch(sql["ranges"], {**place, "reset_seq": reset_seq})
    if replaces:
        fits = _is_union(summary, [row for row in ranges if row[0] in replaces], len(replaces))
    else:
        # What is archived may be left out.
        lowest = ranges[-1][2] if ranges else reset_seq
        highest = max(lowest, archived_seq)
        fits = lowest < summary.first_seq <= highest + 1 and summary.last_seq <= last_seq
    if not fits:
        return False
    for replaced in replaces:
        await connection.execute(sql["supersede"], {**place, "id": replaced, "by": summary.id})
    await connection.execute(sql["insert_summary"], summary_row(summary, now=now))
    return True


def _is_union(summary: Summary, parts: Sequence[Row], expected: int) -> bool:
    """Whether some ranges (id, first, last), in order, are all that was expected and together exactly a summary's."""
    if len(parts) != expected or any(former[2] + 1 != latter[1] for former, latter in pairwise(parts)):
        return False
    return (summary.first_seq, summary.last_seq) == (parts[0][1], parts[-1][2])


def summary_of(row: Row) -> Summary:
    """The summary in a row of the columns that every statement for summaries selects."""
    session_id, first_seq, last_seq, text, model, prompt_version, tokens, level, id_, created_at = row
    return Summary(
        session_id,
        first_seq,
        last_seq,
        text,
        model,
        prompt_version,
        tokens=tokens,
        level=level,
        id=id_,
        created_at=time_of(created_at),
    )


def summary_row(summary: Summary, *, now: datetime) -> dict[str, object]:
    """The parameters of `insert_summary`."""
    return {
        "session_id": summary.session_id,
        "id": summary.id,
        "first_seq": summary.first_seq,
        "last_seq": summary.last_seq,
        "level": summary.level,
        "text": clean_text(summary.text),
        "model": clean_text(summary.model),
        "prompt_version": summary.prompt_version,
        "tokens": summary.tokens,
        "created_at": time_text(summary.created_at or now),
    }
