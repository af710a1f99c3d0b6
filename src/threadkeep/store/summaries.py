"""The table of summaries. Each message is covered by at most one active summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from threadkeep.errors import InvalidInput
from threadkeep.records import Summary, View
from threadkeep.records.sessions import check_argument
from threadkeep.store.codec import WRONG_CLOCK_SECONDS, clean_text, time_of, time_text
from threadkeep.store.driver import Connection, Row
from threadkeep.store.statements import ClockedTables


@dataclass(frozen=True)
class Uncovered:
    """The messages of a session that no summary covers: those after `after_seq`, up to `last_seq`.

    `after_seq` is the last `seq` that is summarised, archived or before the last reset. `messages` and `tokens` count
    only active user and assistant messages.
    """

    after_seq: int = 0
    last_seq: int = 0
    messages: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class ArchivedSummary:
    """An exported summary, with data to verify that its messages are the same in another database.

    `messages` is the number of exported messages in its range. `first_id` and `last_id` are the ids of the first and
    the last of them.
    """

    summary: Summary
    messages: int
    first_id: str | None = None
    last_id: str | None = None


_MOST_CLAIM_SECONDS = 86_400 * 365


class Summaries(ClockedTables, sql=("summaries.sql", "{backend}/sessions.sql")):
    """The table `chat_summaries`, and the claims of processes on the work of summarising sessions.

    Guarantee: between the last reset and the end of the last summary, exactly one active summary covers each message
    that is not archived. A summary that would break this guarantee is not stored.
    """

    async def active(self, session_id: str, *, user_id: str | None = None) -> list[Summary]:
        """Return the active summaries (those after the last reset that are not merged into another), oldest first."""
        return await self._fetch("active", session_id, user_id=user_id)

    async def all_of(self, session_id: str, *, user_id: str | None = None) -> list[Summary]:
        """Return all summaries of a session, in the order of their first `seq`."""
        return await self._fetch("all", session_id, user_id=user_id)

    async def of_messages(self, session_id: str, first_seq: int, last_seq: int, limit: int) -> list[Summary]:
        """Return the first `limit` summaries made directly from active messages in a range, even if merged later."""
        between = {"first_seq": first_seq, "last_seq": last_seq, "limit": limit}
        return await self._fetch("of_messages", session_id, **between)

    async def newest_of_messages(self, session_id: str, first_seq: int, last_seq: int, limit: int) -> list[Summary]:
        """Return, in order, the last `limit` summaries of the kind that `of_messages` returns."""
        between = {"first_seq": first_seq, "last_seq": last_seq, "limit": limit}
        return (await self._fetch("newest_of_messages", session_id, **between))[::-1]

    async def merged(self, session_id: str, upto_seq: int, limit: int) -> dict[str, list[Summary]]:
        """Return the newest `limit` merged summaries up to `upto_seq`, grouped by the id of their replacement."""
        parameters = {"session_id": session_id, "upto_seq": upto_seq, "limit": limit}
        rows = await self._driver.fetch(self._sql["merged"], parameters)
        found: dict[str, list[Summary]] = {}
        for row in reversed(rows):
            found.setdefault(row[10], []).append(summary_of(row[:10]))
        return found

    async def for_export(self, session_id: str, *, view: View = "active") -> list[ArchivedSummary]:
        """Return the active summaries, each with the number and the first and last id of its messages in `view`."""
        check_argument("session_id", session_id, str, required=True)
        parameters = {"session_id": session_id, "history": view == "history"}
        rows = await self._driver.fetch(self._sql["for_export"], parameters)
        return [ArchivedSummary(summary_of(row[:10]), *row[10:]) for row in rows]

    async def add(
        self,
        summary: Summary,
        replaces: Sequence[str] = (),
        *,
        last_id: str | None = None,
        revision: int | None = None,
    ) -> bool:
        """Store a summary that follows the active summaries, or that replaces adjacent active summaries.

        Return False and store nothing if the session was changed or deleted, or if the class's guarantee would break.

        Args:
            summary: the summary; its `created_at` is stored unchanged.
            replaces: ids of the summaries that it merges; together, they must cover exactly its range.
            last_id: the id of its last message, which shows whether the session was deleted and created again.
            revision: the session's revision when the messages were read; if it has changed, messages may be superseded.
        """
        check_argument("summary", summary, Summary, required=True)
        async with self._driver.writing() as connection:
            held = await connection.fetch(self._sql["hold_session"], {"session_id": summary.session_id})
            if revision is not None and [row[3] for row in held] != [revision]:
                return False
            if last_id is not None:
                parameters = {"session_id": summary.session_id, "seq": summary.last_seq}
                if await connection.fetch(self._sql["message_at"], parameters) != [(last_id,)]:
                    return False
            return await add_summary(connection, self._sql, summary, frozenset(replaces), now=self._clock())

    async def uncovered(self, session_id: str) -> Uncovered:
        """Return the range and the counts of the messages that no summary covers; see `Uncovered`."""
        rows = await self._driver.fetch(self._sql["uncovered"], {"session_id": session_id})
        return Uncovered(*(int(value) for value in rows[0])) if rows else Uncovered()

    async def claim(self, session_id: str, purpose: str, owner: str, seconds: float) -> bool:
        """Claim work on a session for some seconds. Return False if another process has it, or if there is no session.

        A claim that ends over 30 minutes later than the new one comes from a wrong clock, and is replaced.
        """
        if not isinstance(seconds, int | float) or not 0 < seconds <= _MOST_CLAIM_SECONDS:
            raise InvalidInput(f"seconds is a number above 0 and at most {_MOST_CLAIM_SECONDS}.")
        now = self._clock()
        parameters = {
            "session_id": session_id,
            "purpose": purpose,
            "owner": owner,
            "until": time_text(now + timedelta(seconds=seconds)),
            "now": time_text(now),
            "beyond": time_text(now + timedelta(seconds=seconds + WRONG_CLOCK_SECONDS)),
        }
        async with self._driver.writing() as connection:
            if not await connection.fetch(self._sql["keep_session"], {"session_id": session_id}):
                return False
            return await connection.execute(self._sql["claim"], parameters) > 0

    async def release(self, session_id: str, purpose: str, owner: str) -> None:
        """Release a claim; do nothing if another process has the claim."""
        parameters = {"session_id": session_id, "purpose": purpose, "owner": owner}
        await self._driver.write([(self._sql["release"], parameters)])

    async def _fetch(self, statement: str, session_id: str, **others: object) -> list[Summary]:
        parameters = {"session_id": session_id, **others}
        for name, value in parameters.items():
            check_argument(name, value, str if name.endswith("_id") else int, required=name != "user_id")
        rows = await self._driver.fetch(self._sql[statement], parameters)
        return [summary_of(row) for row in rows]


async def add_summary(
    connection: Connection, sql: Mapping[str, str], summary: Summary, replaces: frozenset[str], *, now: datetime
) -> bool:
    """Store a summary in the caller's transaction; return False if it would break the guarantee of `Summaries`."""
    parameters = {"session_id": summary.session_id}
    held = await connection.fetch(sql["hold_session"], parameters)
    if not held:
        return False
    reset_seq, archived_seq, last_seq, _ = held[0]
    ranges = await connection.fetch(sql["ranges"], {**parameters, "reset_seq": reset_seq})
    if replaces:
        parts = [row for row in ranges if row[0] in replaces]
        fits = len(parts) == len(replaces) and (summary.first_seq, summary.last_seq) == (parts[0][1], parts[-1][2])
        fits = fits and not any(former[2] + 1 != latter[1] for former, latter in pairwise(parts))
    else:
        # Archived messages between the last summary and this one need no summary.
        lowest = ranges[-1][2] if ranges else reset_seq
        highest = max(lowest, archived_seq)
        fits = lowest < summary.first_seq <= highest + 1 and summary.last_seq <= last_seq
    if not fits:
        return False
    for replaced in replaces:
        await connection.execute(sql["supersede"], {**parameters, "id": replaced, "by": summary.id})
    await connection.execute(sql["insert_summary"], summary_row(summary, now=now))
    return True


def summary_of(row: Row) -> Summary:
    """Convert a row to a `Summary`; the columns are in the order of the fields."""
    *columns, created_at = row
    values = [*columns, time_of(created_at)]
    return Summary(*values)


def summary_row(summary: Summary, *, now: datetime) -> dict[str, object]:
    """Return the parameters of the statement `insert_summary`."""
    return {
        **vars(summary),
        "text": clean_text(summary.text),
        "model": clean_text(summary.model),
        "created_at": time_text(summary.created_at or now),
    }
