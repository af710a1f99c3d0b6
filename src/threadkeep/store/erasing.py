"""The erasure of a person's or a session's rows from all tables of a database."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import batched

from threadkeep.errors import RecordUnreadable, StoreError
from threadkeep.store.codec import ERASED, time_text
from threadkeep.store.compressed_json import json_of
from threadkeep.store.driver import Connection, Driver, Row, Statement
from threadkeep.store.manifests import erase_marker
from threadkeep.store.partitions import index_statements
from threadkeep.store.statements import ClockedTables, for_values, load_statements
from threadkeep.store.superseding import SupersedingWriter

# LangGraph's tables on SQLite and PostgreSQL; `thread_id` is the id of a run, or a thread id of the application.
_CHECKPOINTS = ("checkpoints", "writes", "checkpoint_writes", "checkpoint_blobs")
_TABLES = load_statements("foreign.sql")
_KEY_FIELDS = ("key_id", "user_id", "name", "scope", "created_at", "expires_at", "revoked_at", "last_used_at")
_IN_FLIGHT = timedelta(days=1)
_SESSIONS_AT_ONCE = 500
# Merging this many pages of the search index takes about 0.1 seconds.
_PAGES_AT_ONCE = 200
_MERGE_PAUSE_SECONDS = 0.05
_LOG_TRIES = 40
_LOG_PAUSE_SECONDS = 0.05
_LOG_WAIT_MILLISECONDS = 50


async def empty_log(driver: Driver, *, vacuum: bool) -> bool:
    """Empty the WAL of a SQLite file; with `vacuum`, rewrite the file first. Return False if a reader uses the WAL."""
    sql = load_statements("sqlite/retention.sql")
    async with driver.reading() as connection:
        if vacuum:
            await connection.execute(sql["vacuum"], {})
        [(usual,)] = await connection.fetch("PRAGMA busy_timeout", {})
        # While an attempt waits for a reader, no process can write, so each attempt waits only briefly.
        await connection.execute(f"PRAGMA busy_timeout = {_LOG_WAIT_MILLISECONDS}", {})
        try:
            for _ in range(_LOG_TRIES):
                if not (rows := await connection.fetch(sql["shorten_log"], {})) or not rows[0][0]:
                    return True
                await asyncio.sleep(_LOG_PAUSE_SECONDS)
        finally:
            await connection.execute(f"PRAGMA busy_timeout = {usual}", {})
    return False


@dataclass(frozen=True)
class Erasable:
    """A person (with all `ids`), or a session, whose data will be erased.

    Until the erasure is complete, the table `chat_channel_state` lists the sessions to erase, under the scope `noted`.
    """

    ids: tuple[str, ...] = ()
    session_id: str | None = None
    noted: str | None = None


_STATEMENTS = ("erase.sql", "retention.sql", "{backend}/search.sql", "{backend}/retention.sql")


class TableErasing(ClockedTables, sql=_STATEMENTS):
    """Access to the rows of persons and sessions in the tables. Each method can be repeated after an interruption."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        super().__init__(driver, clock=clock)
        self._superseding = SupersedingWriter()

    async def same_person(self, user_id: str) -> tuple[str, ...]:
        """Return the given id and all other ids of the same person."""
        rows = await self._driver.fetch(self._sql["same_person"], {"id": user_id})
        return tuple(dict.fromkeys([user_id, *(str(row[0]) for row in rows)]))

    async def sessions(self, wanted: Erasable) -> list[str]:
        """Return the ids of the sessions to delete completely, including those that `note_sessions` stored."""
        return [str(row[0]) for row in await self._fetch("own_sessions_of", wanted)]

    async def note_sessions(self, wanted: Erasable, session_ids: Sequence[str]) -> None:
        """Store the list of sessions to erase. A repeated erasure needs it if rows of the sessions are already gone."""
        async with self._driver.writing() as connection:
            rows = [{"noted": wanted.noted, "session_id": session_id} for session_id in session_ids]
            await connection.execute_many(self._sql["note_session"], rows)

    async def forget_notes(self, wanted: Erasable) -> None:
        """Delete the list of sessions that `note_sessions` stored, after the erasure is complete."""
        await self._driver.write([(self._sql["forget_notes"], {"noted": wanted.noted})])

    async def counts(self, wanted: Erasable) -> dict[str, int]:
        """Return the number of rows to erase from each table, including checkpoints."""
        threads, parameters = self._selecting("threads", wanted)
        async with self._driver.reading() as connection:
            rows = await connection.fetch(*self._selecting("counts", wanted))
            found = {str(name): int(count) for name, count in rows}
            messages = self._selecting("shared_messages", wanted)
            shared = await connection.fetch(*messages) if wanted.ids else []
            found["checkpoints"] = 0
            for table in await self._checkpoint_tables(connection):
                counting = f"SELECT count(*) FROM {table} WHERE thread_id"  # noqa: S608 - a fixed name
                [[count]] = await connection.fetch(f"{counting} IN ({threads})", parameters)
                found["checkpoints"] += int(count)
                for session_id in {row[0] for row in shared}:
                    [[count]] = await connection.fetch(f"{counting} = :session_id", {"session_id": session_id})
                    found["checkpoints"] += int(count)
        return {**found, "shared messages": len(shared)}

    async def shared(self, wanted: Erasable) -> dict[str, list[int]]:
        """Return the `seq` values of the person's messages in sessions that the person does not own, by session id."""
        found: dict[str, list[int]] = defaultdict(list)
        if wanted.ids:
            for session_id, seq in await self._fetch("shared_messages", wanted):
                found[str(session_id)].append(int(seq))
        return dict(found)

    async def empty(self, session_id: str, seqs: Sequence[int]) -> None:
        """Empty messages of a session, but keep their rows; delete the data derived from the messages.

        The LangGraph checkpoints of the session are deleted entirely, because graph states contain the messages.
        """
        async with self._driver.writing() as connection:
            for table in await self._checkpoint_tables(connection):
                deleting = f"DELETE FROM {table} WHERE thread_id = :session_id"  # noqa: S608 - a fixed name
                await connection.execute(deleting, {"session_id": session_id})
            marked, index = [], await index_statements(connection, self._sql)
            for seq in seqs:
                parameters = {"session_id": session_id, "seq": seq, "after": seq - 1, "upto": seq}
                await connection.execute(index["forget_range"], parameters)
                await self._drop_derived(connection, parameters)
                if await connection.execute(self._sql["mark_erased"], {**parameters, "now": time_text(self._clock())}):
                    marked.append(seq)
            session = {"session_id": session_id}
            await connection.execute(*for_values(self._sql["drop_facts_of_messages"], "seq", seqs, session))
            if marked:
                # Refresh the session before the texts are emptied, because its title is compared with a text.
                await self._superseding.refresh(connection, session_id, marked)
            else:
                await connection.execute(self._sql["note_change"], {"session_id": session_id})
            rows = [{"session_id": session_id, "seq": seq, "marker": ERASED} for seq in seqs]
            await connection.execute_many(self._sql["empty_message"], rows)
            noted = {"marker": erase_marker(session_id), "now": time_text(self._clock())}
            await connection.execute(self._sql["note_erase"], noted)
            before = {"before": time_text(self._clock() - _IN_FLIGHT)}
            await connection.execute(self._sql["forget_old_erases"], before)
            for name in ("drop_summaries", "drop_manifests", "drop_context_texts"):
                await connection.execute(self._sql[name], {"session_id": session_id, "seq": min(seqs)})

    async def _drop_derived(self, connection: Connection, parameters: Mapping[str, object]) -> None:
        names = ("hold_runs", "delete_runs", "drop_proposals_of_message")
        sent = ("drop_outgoing_of_message", "drop_deliveries_of_message")
        for name in (*names, *sent, "delete_vectors", "delete_recall_index", "delete_steps"):
            if name in self._sql:
                await connection.execute(self._sql[name], parameters)

    async def delete_person(self, ids: Sequence[str]) -> None:
        """Delete the rows of a person that belong to no session; `ids` are all ids of this person."""
        statements = ("delete_runs_of_user", "forget_answered_user", "delete_active_sessions", "delete_values")
        channels = ("delete_outgoing", "delete_channel_sessions")
        knowledge = ("delete_facts", "delete_procedures", "delete_person", "delete_api_keys", "delete_groups_of_user")
        async with self._driver.writing() as connection:
            for id_ in ids:
                for name in (*statements, *knowledge, *channels):
                    await connection.execute(self._sql[name], {"id": id_})

    async def values(self, ids: Sequence[str]) -> list[tuple[str, str, str]]:
        """Return the scopes, names and values that front ends and frameworks have stored for a person, sorted."""
        rows = [row for id_ in ids for row in await self._driver.fetch(self._sql["values_of_person"], {"id": id_})]
        return sorted((str(scope), str(name), str(value)) for scope, name, value in rows)

    async def facts(self, wanted: Erasable) -> list[str]:
        """Return the ids of facts in other scopes (such as workspaces) with evidence in sessions or runs to erase."""
        return [str(row[0]) for row in await self._fetch("facts_of_sessions", wanted)]

    async def steps(self, session_id: str) -> list[dict[str, object]]:
        """Return the tool calls of each answer, with its author, its `ordinal` and the question's `seq`."""
        rows = await self._driver.fetch(self._sql["steps_of_session"], {"session_id": session_id})
        return [
            {"author": author, "seq": seq, "ordinal": ordinal, "steps": _steps_of(body)}
            for author, seq, ordinal, body in rows
        ]

    async def keys(self, ids: Sequence[str]) -> list[dict[str, object]]:
        """Return the API keys of a person without their digests, in the order of the key ids."""
        rows = [row for id_ in ids for row in await self._driver.fetch(self._sql["keys_of_person"], {"id": id_})]
        return [dict(zip(_KEY_FIELDS, row, strict=True)) for row in sorted(rows, key=lambda row: str(row[0]))]

    async def forget_evidence(self, session_ids: Sequence[str]) -> None:
        """Delete facts with evidence in deleted sessions, and the threads and Graphiti groups of these sessions.

        If a Graphiti episode of a deleted fact has not been sent yet, it is dropped; otherwise, a worker deletes it.
        """
        async with self._driver.writing() as connection:
            for some in batched(session_ids, _SESSIONS_AT_ONCE):
                await connection.execute(*for_values(self._sql["drop_facts_of_sessions"], "session_id", some))
            rows = [{"session_id": session_id} for session_id in session_ids]
            await connection.execute_many(self._sql["delete_group_of_session"], rows)
            await connection.execute_many(self._sql["delete_created_thread"], rows)
            await connection.execute(self._sql["retract_lost_facts"], {})

    async def groups_without_session(self) -> list[str]:
        """Return the ids of deleted sessions whose Graphiti groups still have a row in `chat_graph_groups`."""
        return [str(row[0]) for row in await self._driver.fetch(self._sql["groups_without_session"], {})]

    async def forget_group(self, session_id: str) -> None:
        """Delete the row of a session's Graphiti group from `chat_graph_groups`."""
        await self._driver.write([(self._sql["delete_group_of_session"], {"session_id": session_id})])

    async def episodes_elsewhere(self, wanted: Erasable) -> int:
        """Return how many messages to erase stay in Graphiti, because they are in groups that other people use too."""
        return int((await self._fetch("episodes_elsewhere", wanted))[0][0])

    async def branches(self, session_id: str) -> int:
        """Return the number of branches of a session; a branch has copies of the session's messages."""
        return int((await self._driver.fetch(self._sql["branches"], {"session_id": session_id}))[0][0])

    async def child_sessions(self, session_id: str) -> int:
        """Return the number of sessions of the session's child runs; each begins with a text of the given session."""
        return int((await self._driver.fetch(self._sql["child_sessions"], {"session_id": session_id}))[0][0])

    async def retractions(self) -> int:
        """Return the number of episodes whose deletion Graphiti has not confirmed yet."""
        return int((await self._driver.fetch(self._sql["retractions"], {}))[0][0])

    async def delete_facts_of_runs(self, wanted: Erasable) -> None:
        """Delete facts of any scope with evidence in the runs to erase; call this before these runs are deleted."""
        await self._driver.write([self._selecting("drop_facts_of_runs", wanted)])

    async def delete_checkpoints(self, wanted: Erasable) -> None:
        """Delete the checkpoints of the sessions and runs to erase, and of all runs that were deleted before."""
        threads, parameters = self._selecting("threads", wanted)
        async with self._driver.reading() as connection:
            tables = await self._checkpoint_tables(connection)
        async with self._driver.writing() as connection:
            for table in tables:
                deleting = f"DELETE FROM {table} WHERE thread_id IN ({threads})"  # noqa: S608 - a fixed name
                await connection.execute(deleting, parameters)
            await connection.execute(self._sql["forget_checkpoints"], {})

    async def _checkpoint_tables(self, connection: Connection) -> list[str]:
        rows = await connection.fetch(_TABLES[f"columns_{self._driver.backend}"], {})
        return sorted({str(row[0]) for row in rows}.intersection(_CHECKPOINTS))

    async def known(self, *, sessions: bool) -> list[str]:
        """Return the ids of all users or, with `sessions`, the ids of all sessions and checkpoint threads."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["known_sessions" if sessions else "known_users"], {})
            for table in await self._checkpoint_tables(connection) if sessions else ():
                rows += await connection.fetch(f"SELECT DISTINCT thread_id FROM {table}", {})  # noqa: S608 - a fixed name
        return [str(row[0]) for row in rows]

    async def overwrite(self, *, vacuum: bool) -> bool:
        """Overwrite deleted texts in the search index and the WAL; return False if a reader uses the WAL.

        On PostgreSQL, dead rows stay until VACUUM. With `vacuum`, all tables of the schema are rewritten, which blocks
        access to them. The planner's statistics are rewritten too, because they contain values of rows.
        """
        if self._driver.backend == "postgres":
            if vacuum:
                await self._rewrite_tables()
            return True
        await self._merge_search()
        return await empty_log(self._driver, vacuum=vacuum)

    async def _merge_search(self) -> None:
        """Merge SQLite's search index in short steps, so that other processes can write between them."""
        [(stored,)] = await self._driver.fetch(self._sql["search_pages"], {})
        pages = -_PAGES_AT_ONCE
        for _ in range(2 * int(stored) // _PAGES_AT_ONCE + 10):
            async with self._driver.writing() as connection:
                [(before,)] = await connection.fetch(self._sql["total_changes"], {})
                await connection.execute(self._sql["merge_search"], {"pages": pages})
                [(after,)] = await connection.fetch(self._sql["total_changes"], {})
            # Stop if nothing was merged. FTS5 counts the statement itself as one change.
            if after - before <= 1:
                return
            pages = _PAGES_AT_ONCE
            await asyncio.sleep(_MERGE_PAUSE_SECONDS)
        # Merge all at once, because other processes add messages faster than the steps merge them.
        await self._driver.write([(self._sql["optimize_search"], {})])

    async def _rewrite_tables(self) -> None:
        async with self._driver.reading() as connection:
            for (table,) in await connection.fetch(self._sql["tables"], {}):
                await connection.execute(f"VACUUM (FULL, ANALYZE) {table}", {})
            # Missing rights do no harm: VACUUM then only warns, and the server makes its next checkpoint anyway.
            await connection.execute("VACUUM FULL pg_catalog.pg_statistic", {})
        with contextlib.suppress(StoreError):
            async with self._driver.reading() as connection:
                await connection.execute("CHECKPOINT", {})

    async def _fetch(self, name: str, wanted: Erasable) -> list[Row]:
        return await self._driver.fetch(*self._selecting(name, wanted))

    def _selecting(self, name: str, wanted: Erasable) -> Statement:
        # The statements need at least one row of ids. If there are no ids, pass an empty one, which no user has.
        others = {"session_id": wanted.session_id, "noted": wanted.noted}
        return for_values(self._sql[name], "id", wanted.ids or ("",), others)


def _steps_of(body: bytes) -> object:
    try:
        return json_of(body)
    except RecordUnreadable as error:
        return {"error": type(error).__name__}
