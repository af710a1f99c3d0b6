"""Retention in the tables: archiving and deleting old messages, and deleting finished runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, Self

from threadkeep.records import Json, Retention, dump_json
from threadkeep.records.runs import RunStatus
from threadkeep.store.codec import TITLE_CHARACTERS, retention_of, short_time, shorten, time_of, time_text
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Connection, Driver, Parameters, Row
from threadkeep.store.partitions import index_statements
from threadkeep.store.statements import ClockedTables, Tables, for_values
from threadkeep.store.tables import delete_session, deletion_statements
from threadkeep.store.transcripts import END

type Action = Literal["archive", "delete"]

REDELIVERY: Final = timedelta(days=7)
"""The time for which ids of deleted messages are stored, because a repeated message must not begin a new turn."""

# Not every use of a text is recorded, so delete it only if its last recorded use is this much older than the messages.
_TEXT_RENEWAL = timedelta(days=1)
STEP_MESSAGES: Final = 200
"""The maximum number of messages that one step removes."""

_STEP_CHARACTERS = 100_000
_NEVER = "1970-01-01T00:00:00.000000+00:00"
_BEGIN: dict[Action, str] = {"archive": "begin_archiving", "delete": "begin_deleting"}


class Counts:
    """A base class for frozen dataclasses that can be added; their fields are numbers or other such dataclasses."""

    def __add__(self, other: Self) -> Self:
        added = vars(other)
        return type(self)(**{name: number + added[name] for name, number in vars(self).items()})

    def to_dict(self) -> dict[str, Json]:
        """Return the numbers as JSON values, by field name."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Prunable:
    """The data about a session that decide which of its messages are archived or deleted.

    `first_stored_at` is the time of the first existing message, and `first_live_at` the time of the first message that
    is not archived. `retention_text` is the stored JSON of the session's own limits. `message_count` is the number of
    active messages, including archived ones.
    """

    session_id: str
    last_seq: int
    last_user_seq: int
    archived_seq: int
    deleted_seq: int
    message_count: int
    updated_at: datetime
    retention_text: str | None
    first_stored_at: datetime | None
    first_live_at: datetime | None

    @property
    def retention(self) -> Retention | None:
        """The session's own retention limits, or None if those in the settings apply. Raises `RecordUnreadable`."""
        return retention_of(self.retention_text)

    @property
    def has_superseded(self) -> bool:
        """True if the session has superseded messages."""
        return self.message_count != self.last_seq - self.deleted_seq


@dataclass(frozen=True)
class Removal:
    """A request to archive or delete messages up to a `seq`, unless the session changed after `idle_before`."""

    session_id: str
    action: Action
    after_seq: int
    upto_seq: int
    idle_before: datetime | None = None

    @property
    def whole_session(self) -> bool:
        """True if the session itself is deleted too."""
        return self.action == "delete" and self.idle_before is not None


@dataclass(frozen=True)
class Removed:
    """The result of one step of a `Removal`: the last removed `seq`, and the numbers of removed messages and tokens."""

    upto_seq: int
    messages: int
    tokens: int


_STATEMENTS = ("transcripts.sql", "retention.sql", "{backend}/search.sql", "{backend}/retention.sql")


class RetentionRows(ClockedTables, sql=_STATEMENTS):
    """Access to the tables of sessions, for archiving and deleting old messages.

    Guarantees: a step is atomic, and continues where earlier removals ended; remaining messages keep their `seq`. A
    step locks the session's row (on SQLite the file) while it removes up to 200 messages.
    """

    archives = True

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        super().__init__(driver, clock=clock)
        self._deletion = deletion_statements(driver.backend)

    async def sessions(
        self, *, after: str, limit: int, user_id: str | None = None, with_own: bool = False
    ) -> list[Prunable]:
        """Return up to `limit` sessions, sorted by id, whose ids come after `after`.

        If `with_own` is true, return only sessions that have limits of their own.
        """
        parameters = {"after": after, "limit": limit, "user_id": user_id}
        statement = self._sql["sessions_with_own" if with_own else "sessions"]
        return [_prunable(row) for row in await self._driver.fetch(statement, parameters)]

    async def session(self, session_id: str, *, user_id: str | None = None) -> Prunable | None:
        """Return the `Prunable` of one session, or None if the user has no such session."""
        parameters = {"session_id": session_id, "user_id": user_id}
        rows = await self._driver.fetch(self._sql["session"], parameters)
        return _prunable(rows[0]) if rows else None

    async def end_of_older(self, session: Prunable, *, after: int, moment: datetime) -> int:
        """Return the `seq` up to which all messages after `after` are older than `moment` (the last one if all are)."""
        parameters = {"session_id": session.session_id, "after": after, "moment": time_text(moment)}
        rows = await self._driver.fetch(self._sql["first_since"], parameters)
        return int(rows[0][0]) - 1 if rows else session.last_seq

    async def end_before_newest(self, session: Prunable, messages: int) -> int:
        """Return the `seq` just before the newest `messages` active messages begin, or 0 if there are not as many."""
        parameters = {"session_id": session.session_id, "after": session.deleted_seq, "others": messages - 1}
        rows = await self._driver.fetch(self._sql["first_of_newest"], parameters)
        return int(rows[0][0]) - 1 if rows else 0

    async def extent(self, removal: Removal) -> Removed:
        """Return how many messages and tokens would be removed if the request `removal` were executed now."""
        between = {"session_id": removal.session_id, "after": removal.after_seq, "upto": removal.upto_seq}
        [(messages, tokens)] = await self._driver.fetch(self._sql["extent"], between)
        return Removed(removal.upto_seq, int(messages), int(tokens))

    async def step(self, removal: Removal, *, messages: int = STEP_MESSAGES) -> Removed | None:
        """Archive or delete up to `messages` more messages; return None if none are left or the session has changed.

        Raises:
            RowLocked: another transaction has locked the session.
        """
        # Read only the range of one step, so that no query plan reads the whole session.
        upto = min(removal.upto_seq, removal.after_seq + messages)
        parameters = {"session_id": removal.session_id, "after": removal.after_seq, "upto": upto}
        rows = _of_one_step(await self._driver.fetch(self._sql["sizes"], parameters))
        if not rows:
            return None
        upto, id_, _, _, created_at = rows[-1]
        removed = Removed(upto, len(rows), sum(row[3] for row in rows))
        parameters["upto"] = upto
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            newest = {**parameters, "id": id_}
            if not await self._begins(connection, _BEGIN[removal.action], newest, removal.idle_before):
                return None
            await self._forget(connection, parameters)
            if removal.action == "archive":
                await connection.execute(self._sql["archive"], parameters)
            else:
                await self._retitle(connection, parameters, removal.upto_seq)
                await self._delete(connection, parameters, time_of(created_at))
        return removed

    async def delete_session(self, session_id: str, *, idle_before: datetime) -> bool:
        """Delete a session that has no messages left; return False if it changed after `idle_before`."""
        parameters = {"session_id": session_id}
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            if not await self._begins(connection, "begin_deleting_session", parameters, idle_before):
                return False
            return bool(await delete_session(connection, self._deletion, session_id))

    async def forget_ids(self) -> None:
        """Delete the ids of deleted messages that are older than 7 days, because platforms do not send them again."""
        parameters = {"before": time_text(self._clock() - REDELIVERY), "limit": STEP_MESSAGES}
        while True:
            async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
                if await connection.execute(self._sql["forget_ids"], parameters) < STEP_MESSAGES:
                    return

    async def retention(self, session_id: str, *, user_id: str | None = None) -> tuple[bool, Retention | None]:
        """Return a pair: True if the user has the session, and the session's own limits (None if it has none)."""
        rows = await self._driver.fetch(self._sql["retention"], {"session_id": session_id, "user_id": user_id})
        return bool(rows), retention_of(rows[0][0]) if rows else None

    async def set_retention(self, session_id: str, retention: Retention | None, *, user_id: str | None = None) -> bool:
        """Set or remove a session's own retention limits; return False if the user has no such session."""
        value = None if retention is None else dump_json(retention.to_dict())
        parameters = {"session_id": session_id, "user_id": user_id, "retention": value}
        return await self._execute("set_retention", parameters) > 0

    async def reclaim_space(self) -> bool:
        """Shrink the SQLite file, while other writes wait. Return False on PostgreSQL, which uses autovacuum."""
        if "vacuum" not in self._sql:
            return False
        await self._driver.write([(self._sql["optimize_search"], {})])
        async with self._driver.reading() as connection:
            await connection.execute(self._sql["vacuum"], {})
            await connection.fetch(self._sql["shorten_log"], {})
        return True

    async def _begins(
        self, connection: Connection, statement: str, session: Parameters, idle_before: datetime | None
    ) -> bool:
        if "hold" in self._sql:
            await connection.fetch(self._sql["hold"], session)
        parameters = {**session, "idle_before": idle_before and time_text(idle_before)}
        return await connection.execute(self._sql[statement], parameters) > 0

    async def _forget(self, connection: Connection, parameters: Parameters) -> None:
        """Delete data derived from messages: search entries, tool calls, vectors and the recall index."""
        sql = await index_statements(connection, self._sql)
        for name in ("forget_range", "delete_steps", "delete_vectors", "delete_recall_index"):
            await connection.execute(sql[name], parameters)

    async def _delete(self, connection: Connection, parameters: dict[str, object], created_at: datetime) -> None:
        # Count active messages while the session is locked: another process may have superseded some before that.
        [(active,)] = await connection.fetch(self._sql["count_active"], parameters)
        times = {
            "remember_since": time_text(self._clock() - REDELIVERY),
            "manifests_upto": short_time(created_at, self._driver.backend),
            "unused_since": time_text(created_at - _TEXT_RENEWAL),
        }
        runs = ("remember_ids", "hold_runs", "delete_runs", "forget_answered")
        records = ("delete_manifests", "delete_context_texts", "delete_superseded", "delete_messages")
        for name in (*runs, *records):
            if name in self._sql:
                await connection.execute(self._sql[name], {**parameters, **times})
        await connection.execute(self._sql["delete"], {**parameters, "active": active})

    async def _retitle(self, connection: Connection, parameters: Parameters, last_seq: int) -> None:
        """Derive a new title from the remaining messages if the session's title comes from a deleted message."""
        removed = await connection.fetch(self._sql["first_user"], parameters)
        if not removed:
            return
        titled = await connection.fetch(self._sql["title"], parameters)
        if titled != [(shorten(removed[0][0], TITLE_CHARACTERS),)]:
            return
        rest = {**parameters, "after": last_seq, "upto": END}
        staying = await connection.fetch(self._sql["first_user"], rest)
        title = shorten(staying[0][0], TITLE_CHARACTERS) if staying else None
        await connection.execute(self._sql["retitle"], {**parameters, "title": title})


def _of_one_step(rows: list[Row]) -> list[Row]:
    """Return the first rows, at least one, whose texts are together short enough for one step."""
    characters = 0
    for count, row in enumerate(rows):
        characters += row[2]
        if count and characters > _STEP_CHARACTERS:
            return rows[:count]
    return rows


def _prunable(row: Row) -> Prunable:
    *first, updated_at, retention_text, first_stored_at, first_live_at = row
    times = [time_of(moment) for moment in (first_stored_at, first_live_at)]
    return Prunable(*first, *[time_of(updated_at), retention_text], *times)


@dataclass(frozen=True)
class Cutoffs:
    """The times before which runs must have ended to be deleted. The second is for set-aside runs; None keeps these."""

    before: datetime
    set_aside_before: datetime | None = None

    def parameters(self) -> Parameters:
        """Return both times as parameters of SQL statements."""
        aside = self.set_aside_before
        return {"before": time_text(self.before), "set_aside_before": _NEVER if aside is None else time_text(aside)}


@dataclass(frozen=True)
class FinishedTree:
    """An expired run with all its descendants; `workflow`, `status` and `ended_at` are the root run's."""

    root_run_id: str
    workflow: str
    status: RunStatus
    ended_at: datetime
    runs: int
    events: int
    cursor: tuple[datetime, str]


@dataclass(frozen=True)
class PrunedRuns(Counts):
    """The numbers of deleted trees, runs and events, and of deleted workflow versions that no run used.

    `busy` is the number of trees that stay for now, because another transaction has locked one of their runs.
    """

    trees: int = 0
    runs: int = 0
    events: int = 0
    versions: int = 0
    busy: int = 0


class FinishedRuns(Tables, sql=("retention.sql", "{backend}/retention.sql")):
    """Access to the tables of runs, for deleting runs that ended long ago.

    Guarantees: the runs of a tree are deleted together or not at all (events of a large tree are deleted earlier). A
    tree with a running, waiting or resumed run stays. The record that a message was answered stays as long as the
    message.
    """

    async def trees(self, cutoffs: Cutoffs, *, after: tuple[datetime, str] | None, limit: int) -> list[FinishedTree]:
        """Return up to `limit` trees of runs that ended before the cutoffs, oldest first, after the cursor `after`."""
        created_at, run_id = after or (None, "")
        parameters = {"created_at": time_text(created_at) if created_at else _NEVER, "run_id": run_id, "limit": limit}
        rows = await self._driver.fetch(self._sql["over_for_long"], {**parameters, **cutoffs.parameters()})
        return [
            FinishedTree(root, workflow, status, time_of(ended), int(runs), int(events), (time_of(created), run_id))
            for root, workflow, status, created, run_id, ended, runs, events in rows
        ]

    async def delete(self, trees: Sequence[FinishedTree], cutoffs: Cutoffs) -> PrunedRuns:
        """Delete the given trees that are still expired, with their traces and usage.

        Raises:
            RowLocked: another transaction has locked one of the runs.
        """
        sizes = {tree.root_run_id: tree for tree in trees}
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            roots = await self._still_over(connection, sorted(sizes), cutoffs)
            if not roots:
                return PrunedRuns()
            await connection.execute(*for_values(self._sql["remember"], "root_run_id", roots))
            deleted = await connection.fetch(*for_values(self._sql["delete_trees"], "root_run_id", roots))
        pruned = {root for (root,) in deleted}  # another process may have deleted the others
        return PrunedRuns(len(pruned), len(deleted), sum(sizes[root].events for root in pruned))

    async def delete_some_events(self, tree: FinishedTree, cutoffs: Cutoffs, *, limit: int) -> PrunedRuns:
        """Delete up to `limit` events of a large expired tree before the tree itself."""
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            if not await self._still_over(connection, [tree.root_run_id], cutoffs):
                return PrunedRuns()
            parameters = {"root_run_id": tree.root_run_id, "limit": limit}
            return PrunedRuns(events=await connection.execute(self._sql["delete_some_events"], parameters))

    async def _still_over(self, connection: Connection, roots: Sequence[str], cutoffs: Cutoffs) -> list[str]:
        if "hold_trees" in self._sql:
            await connection.fetch(*for_values(self._sql["hold_trees"], "root_run_id", roots))
        wanted = for_values(self._sql["still_over"], "root_run_id", roots, cutoffs.parameters())
        return [root for (root,) in await connection.fetch(*wanted)]
