"""Group commit: turns that arrive during a transaction share the next transaction and its disk sync."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from threadkeep.boundary import Tasks
from threadkeep.errors import QuestionGone, StoreClosed, StoreError, StoreUnavailable, WrongUser
from threadkeep.records import Message, Receipt, Turn
from threadkeep.store.codec import GraphTurns, marked_message_of, session_parameters
from threadkeep.store.driver import (
    GROUP_LOCK_SECONDS,
    Connection,
    Driver,
    DuplicateRow,
    NewTurns,
    PreparedTurn,
    RowLocked,
    TurnRefused,
    check_loop,
)
from threadkeep.store.statements import load_statements
from threadkeep.store.superseding import SupersedingWriter


class _Winner(NamedTuple):
    """The stored complete answer that a new answer would duplicate. `told`: a caller has received it."""

    id: str
    seq: int
    told: bool


@dataclass
class _Sorted:
    """The messages of a turn, sorted into new messages, messages stored before, and duplicate answers.

    - `messages`: the new messages. `fresh`: their column values.
    - `there`: the `seq` of each message that is stored already, by id. `deleted`: the ids of those that were deleted.
    - `winner`: the stored answer that the turn's answer duplicates.
    - `losers`: the `seq` values of stored answers that the turn's answer supersedes.
    - `question`: the message that the turn answers.
    """

    fresh: list[dict[str, object]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    there: dict[str, int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    winner: _Winner | None = None
    losers: list[int] = field(default_factory=list)
    question: Message | None = None


class TurnWriter:
    """A writer that stores one turn at a time, and checks each message id.

    The question of a new answer may already have a complete answer with the same author and the same `ordinal`:

    - Usually the new answer is not stored, and the receipt names the stored one (`adopted`).
    - If only the new answer reached a caller, while the database was down (`Turn.told_at`), it supersedes the old one.
    - If both answers reached their callers, the new one is stored as superseded.

    An answer to a superseded question is stored as superseded. If an answer is the first message after a reset, and its
    question is before the reset, the reset is moved after the answer.
    """

    def __init__(self, graph_turns: GraphTurns | None = None) -> None:
        self._sql = load_statements("transcripts.sql", "graph_turns.sql")
        self._graph_turns = graph_turns
        self._superseding = SupersedingWriter()

    async def store(self, connection: Connection, prepared: PreparedTurn) -> Receipt:
        """Store a turn.

        Raises:
            WrongUser: the session belongs to another user.
            QuestionGone: the message that the turn answers is not in the session.
        """
        turn, found = prepared.turn, _Sorted()
        if turn.answers is not None:
            found.question = await self._question(connection, turn)
        if not await connection.fetch(self._sql["reserve"], session_parameters(turn, [], now=prepared.now)):
            raise WrongUser(turn.session_id)
        for message, columns in zip(prepared.messages, prepared.columns, strict=True):
            await self._sort(connection, prepared, message, columns, found)
        if found.fresh:
            return await self._insert(connection, prepared, found)
        seqs = [*found.there.values(), *([found.winner.seq] if found.winner else [])]
        return _with_duplicates(prepared.receipt(min(seqs), max(seqs) - min(seqs) + 1), found)

    async def _question(self, connection: Connection, turn: Turn) -> Message:
        # Lock the session first: a concurrent deletion must end before this turn is stored, or begin after it.
        await connection.execute(self._sql["lock_session"], {"session_id": turn.session_id})
        rows = await connection.fetch(self._sql["message_with_id"], {"session_id": turn.session_id, "id": turn.answers})
        if not rows:
            raise QuestionGone(turn.session_id)
        return marked_message_of(rows[0])

    async def _sort(
        self,
        connection: Connection,
        prepared: PreparedTurn,
        message: Message,
        columns: dict[str, object],
        found: _Sorted,
    ) -> None:
        """Record in `found` whether a message of the turn is new, stored already, or a duplicate answer."""
        session_id, message_id = prepared.turn.session_id, str(message.id)
        if rows := await connection.fetch(self._sql["seq_of"], {"session_id": session_id, "id": message_id}):
            [(seq, is_deleted), *_] = rows
            found.there[message_id] = seq
            if is_deleted:
                found.deleted.append(message_id)
            return
        if any(message_id == other.id for other in found.messages):
            found.there[message_id] = 0
            return
        superseded_at = prepared.now if found.question and found.question.superseded_at else None
        mark: dict[str, object] = {"superseded_at": superseded_at, "superseded_by": None}
        replaced = [] if prepared.turn.completes is None else [prepared.turn.completes]
        if (winner := await self._winner(connection, prepared.turn, columns)) is not None:
            if prepared.turn.told_at is None:
                found.winner = winner
                return
            if winner.told:
                found.winner = winner
                mark = {"superseded_at": prepared.now, "superseded_by": winner.id}
            replaced = [] if winner.told else [*replaced, winner.id]
        for loser in replaced:
            by = {"id": loser, "now": prepared.now, "superseded_by": message_id}
            rows = await connection.fetch(self._sql["supersede"], {"session_id": session_id, **by})
            found.losers += [seq for (seq,) in rows]
        found.messages.append(message)
        found.fresh.append({**columns, **mark})

    async def _winner(self, connection: Connection, turn: Turn, columns: dict[str, object]) -> _Winner | None:
        if columns["answers"] is None or columns["status"] != "complete":
            return None
        key = {name: columns[name] for name in ("answers", "author", "ordinal")}
        rows = await connection.fetch(self._sql["complete_answer"], {"session_id": turn.session_id, **key})
        return _Winner(*rows[0]) if rows else None

    async def _insert(self, connection: Connection, prepared: PreparedTurn, found: _Sorted) -> Receipt:
        turn, fresh = prepared.turn, found.fresh
        reserved = session_parameters(turn, found.messages, now=prepared.now)
        [(_, last_seq, _)] = await connection.fetch(self._sql["reserve"], reserved)
        first = last_seq - len(fresh) + 1
        rows = [{**row, "session_id": turn.session_id, "seq": seq} for seq, row in enumerate(fresh, start=first)]
        await connection.execute_many(self._sql["insert_marked"], rows)
        if found.question is not None:
            seqs = {"session_id": turn.session_id, "question_seq": found.question.seq, "first_seq": first}
            await connection.execute(self._sql["reset_after_answer"], seqs)
        if superseded := found.losers + [seq for seq, row in enumerate(fresh, start=first) if row["superseded_at"]]:
            await self._superseding.refresh(connection, turn.session_id, superseded)
        if self._graph_turns and (noted := self._graph_turns.row(turn, found.messages, now=prepared.now)):
            await connection.execute(self._sql["add_graph_turn"], {**noted, "first_seq": first, "last_seq": last_seq})
        return _with_duplicates(prepared.receipt(first, len(fresh)), found)


def _with_duplicates(receipt: Receipt, found: _Sorted) -> Receipt:
    adopted = found.winner.id if found.winner else None
    return replace(receipt, duplicates=tuple(found.there), deleted=tuple(found.deleted), adopted=adopted)


type _Outcome = Receipt | StoreError | WrongUser | QuestionGone

_GROUP_TURNS = 512
# Limit the waiting sessions, because each of them occupies a database connection while it waits for a lock.
_WAITING_SESSIONS = 2
# If this many sessions of a group are locked, the whole table probably is: let the turns of the other sessions fail.
_MOST_LOCKED = 4
_REFUSED = "The turn cannot be stored together with its other statements; store one after the other."


class GroupCommit:
    """A writer that stores the turns of a process in groups; `append` returns when its turn is durable.

    Most turns are new, so a group is first passed to the driver as a whole, without checking message ids. If the
    database rejects it, nothing of the group is stored. Its turns are then written again in one transaction, one by
    one, and each id is checked.

    If another transaction has locked the row of a session, a task waits for this lock. Later turns of the session are
    queued for this task, and turns of all other sessions are stored without waiting.
    """

    def __init__(self, driver: Driver, graph_turns: GraphTurns | None = None) -> None:
        self._driver = driver
        self._graph_turns = graph_turns
        self._turns = TurnWriter(graph_turns)
        self._queue: list[PreparedTurn] = []
        self._task: asyncio.Task[None] | None = None
        self._locked: dict[str, list[PreparedTurn]] = {}
        self._waiting = Tasks()
        self._waiting_slots = asyncio.Semaphore(_WAITING_SESSIONS)
        self._closed = False

    async def append(self, prepared: PreparedTurn) -> Receipt:
        """Store a turn in a group with other queued turns. Cancelling the caller does not stop the write."""
        if self._closed:
            raise StoreClosed("The memory was closed; append inside its `async with open_memory(...)` block.")
        check_loop(self._driver.loop)
        self._queue.append(prepared)
        if self._task is None:
            # Use an empty context, because the first caller's context would keep the caller's run in memory.
            self._task = asyncio.create_task(self._write_groups(), context=Context(), name="threadkeep-group-commit")
        return await prepared.stored

    async def close(self) -> None:
        """Reject further turns, and write the queued ones."""
        self._closed = True
        while self._task is not None:
            await asyncio.wait([self._task])
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def _write_groups(self) -> None:
        """Write the queued turns. Queue the turns of a locked session for the task that waits for its lock."""
        try:
            while self._queue:
                group, self._queue = self._queue[:_GROUP_TURNS], self._queue[_GROUP_TURNS:]
                free: list[PreparedTurn] = []
                for prepared in group:
                    self._locked.get(prepared.turn.session_id, free).append(prepared)
                if free and (locked := await self._write_free(free)) is not None:
                    await self._write_separately(free, locked)
        finally:
            self._task = None

    async def _write_free(self, turns: list[PreparedTurn]) -> RowLocked | None:
        """Write turns. If a session is locked, write nothing and return the error; callers get all other errors."""
        try:
            await self._write_group(turns)
        except RowLocked as error:
            return error
        except StoreUnavailable as error:
            _fail(turns, error)
        except Exception as error:  # noqa: BLE001 - the writer must survive any failure; callers get the error
            await self._write_alone(turns, error)
        return None

    async def _write_separately(self, group: list[PreparedTurn], error: RowLocked) -> None:
        """Write the turns of each session separately, so that a locked row delays only the turns of its session."""
        of_session = _by_session(group)
        if len(of_session) == 1:
            self._wait_for_lock(group)
            return
        locked: list[list[PreparedTurn]] = []
        for turns in of_session.values():
            if len(locked) >= _MOST_LOCKED:
                _fail(turns, error)
            elif await self._write_free(turns) is not None:
                locked.append(turns)
        for turns in locked:
            self._wait_for_lock(turns)

    def _wait_for_lock(self, turns: list[PreparedTurn]) -> None:
        session_id = turns[0].turn.session_id
        self._locked[session_id] = turns
        _ = self._waiting.start(self._write_locked(session_id), "threadkeep-locked-session", Context())

    async def _write_locked(self, session_id: str) -> None:
        """Wait up to the full timeout for a session's lock, then write its queued turns."""
        turns = self._locked[session_id]
        begun = 0
        async with self._waiting_slots:
            try:
                while begun < len(turns):
                    group, begun = turns[begun:], len(turns)
                    # Wait only briefly if the memory is closing, because many sessions may be locked.
                    seconds = GROUP_LOCK_SECONDS if self._closed else None
                    _settle(group, await self._store_each(group, lock_timeout_seconds=seconds))
            except StoreUnavailable as error:
                _fail(turns, error)
            except Exception as error:  # noqa: BLE001 - see above
                await self._write_alone(turns, error)
            finally:
                del self._locked[session_id]

    async def _write_group(self, group: list[PreparedTurn]) -> None:
        try:
            receipts = await self._store_new(group)
        except (DuplicateRow, WrongUser):
            receipts = await self._store_separately(group)
        except StoreUnavailable as error:
            if not error.interrupted:
                raise
            # Check each id, because the transaction may have been committed before the connection broke.
            receipts = await self._store_separately(group)
        _settle(group, receipts)

    async def _store_separately(self, group: Sequence[PreparedTurn]) -> list[_Outcome]:
        """Store a rejected group again: each `is_joined` turn in its own transaction, the rest after checking ids."""
        if len(group) > 1:
            for prepared in [one for one in group if one.is_joined]:
                await self._write_group([prepared])
        plain = [prepared for prepared in group if not prepared.is_joined]
        receipts = dict(zip(map(id, plain), await self._store_each(plain) if plain else (), strict=True))
        return [receipts.get(id(prepared)) or TurnRefused(_REFUSED) for prepared in group]

    async def _write_alone(self, group: list[PreparedTurn], error: Exception) -> None:
        """Write each turn separately after a group was rejected, so that only the invalid turn fails."""
        if len(group) == 1:
            _fail(group, error)
            return
        for prepared in group:
            try:
                await self._write_group([prepared])
            except Exception as its_own:  # noqa: BLE001 - see above
                _fail([prepared], its_own)

    async def _store_new(self, group: Sequence[PreparedTurn]) -> list[_Outcome]:
        """Store all turns of a group at once, without checking message ids."""
        sessions: list[dict[str, object]] = []
        rows: list[dict[str, object]] = []
        graph_turns: list[dict[str, object]] = []
        behind: dict[int, int] = {}
        # Lock sessions in the order of their ids, as all processes do, which prevents deadlocks.
        for session_id, turns in _by_session(group).items():
            if len({prepared.turn.user_id for prepared in turns}) > 1:
                raise WrongUser(session_id)
            messages = [message for prepared in turns for message in prepared.messages]
            sessions.append(session_parameters(turns[0].turn, messages, now=turns[-1].now))
            left = len(messages)
            for prepared in turns:
                behind[id(prepared)] = left - 1
                if self._graph_turns:
                    graph_turns += _graph_rows(self._graph_turns, prepared, left)
                for columns in prepared.columns:
                    left -= 1
                    question = prepared.turn.answers
                    rows.append({**columns, "session_id": session_id, "behind": left, "question": question})
        joined = [prepared for prepared in group if prepared.is_joined]
        before = [statement for prepared in joined for statement in prepared.before]
        after = [statement for prepared in joined for statement in prepared.after]
        appended = await self._driver.append(NewTurns(sessions, rows, graph_turns, before, after))
        rows_before, rows_after = iter(appended.before), iter(appended.after)
        for prepared in joined:
            prepared.rows += [*islice(rows_before, len(prepared.before)), *islice(rows_after, len(prepared.after))]
        last_seqs = appended.last_seqs
        return [
            prepared.receipt(last_seqs[session_id] - behind[id(prepared)], len(prepared.columns))
            if (session_id := prepared.turn.session_id) in last_seqs
            else WrongUser(session_id)
            for prepared in group
        ]

    async def _store_each(
        self, group: Sequence[PreparedTurn], *, lock_timeout_seconds: float | None = GROUP_LOCK_SECONDS
    ) -> list[_Outcome]:
        """Store those messages of a group that are new, turn by turn; return each turn's receipt or error."""
        receipts: dict[int, _Outcome] = {}
        async with self._driver.writing(lock_timeout_seconds=lock_timeout_seconds) as connection:
            for index, prepared in sorted(enumerate(group), key=lambda item: item[1].turn.session_id):
                if prepared.is_joined:
                    receipts[index] = TurnRefused(_REFUSED)
                    continue
                try:
                    receipts[index] = await self._turns.store(connection, prepared)
                except (WrongUser, QuestionGone) as error:
                    receipts[index] = error
        return [receipts[index] for index in range(len(group))]


def _by_session(group: Sequence[PreparedTurn]) -> dict[str, list[PreparedTurn]]:
    of_session: dict[str, list[PreparedTurn]] = {}
    for prepared in group:
        of_session.setdefault(prepared.turn.session_id, []).append(prepared)
    return dict(sorted(of_session.items()))


def _graph_rows(graph_turns: GraphTurns, prepared: PreparedTurn, left: int) -> list[dict[str, object]]:
    """Return the turn's Graphiti row, if any. `left` counts the session's messages in the group from this turn on."""
    row = graph_turns.row(prepared.turn, prepared.messages, now=prepared.now)
    seqs = {"first_behind": left - 1, "last_behind": left - len(prepared.columns)}
    return [] if row is None else [{**row, **seqs}]


def _settle(group: Sequence[PreparedTurn], outcomes: Sequence[Receipt | Exception]) -> None:
    """Pass each turn's receipt or error to its caller, unless the caller was cancelled."""
    for prepared, outcome in zip(group, outcomes, strict=True):
        if prepared.stored.done():
            continue
        if isinstance(outcome, Exception):
            prepared.stored.set_exception(outcome)
        else:
            prepared.stored.set_result(outcome)


def _fail(group: Sequence[PreparedTurn], error: Exception) -> None:
    _settle(group, [error] * len(group))
