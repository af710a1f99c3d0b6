"""Group commit: turns that arrive while a transaction runs share the next one, and its disk sync."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from contextvars import Context
from dataclasses import dataclass, field

from threadkeep.errors import QuestionGone, StoreClosed, StoreError, StoreUnavailable, ThreadkeepError, WrongUser
from threadkeep.records import Message, Receipt, Turn
from threadkeep.store.codec import session_parameters
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Connection, Driver, DuplicateRow, RowLocked
from threadkeep.store.statements import load_statements

type _Outcome = Receipt | StoreError | WrongUser | QuestionGone

_QUEUE_TURNS = 10_000
_GROUP_TURNS = 512
# Each one that waits for a lock has a connection meanwhile, which others lack.
_WAITING_SESSIONS = 2
# When so many sessions of a group are locked it is the table, and there is no use in asking for the rest.
_MOST_LOCKED = 4


@dataclass
class PreparedTurn:
    """A turn ready to be stored: its messages cleaned, with ids, and their columns."""

    turn: Turn
    messages: list[Message]
    columns: list[dict[str, object]]
    now: str
    cleaned: tuple[str, ...] = ()
    stored: asyncio.Future[Receipt] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class GroupCommit:
    """The one writer of a process. `append` returns when the turn is durable.

    Most turns are new, so a group is first handed to the driver as a whole, without looking for their ids. When the
    database finds one that is there already, or what a turn answers is not there, or two users claim one session,
    nothing of the group is stored and it is written again turn by turn, with a look at each id, in one transaction.

    A session whose row somebody else has locked gets a task of its own, which waits for the lock: its later turns go
    behind it, and the turns of all other sessions are stored meanwhile.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sql = load_statements("transcripts.sql")
        self._queue: asyncio.Queue[PreparedTurn] = asyncio.Queue(_QUEUE_TURNS)
        self._task: asyncio.Task[None] | None = None
        self._locked: dict[str, list[PreparedTurn]] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._waiting_slots = asyncio.Semaphore(_WAITING_SESSIONS)
        self._closed = False

    async def append(self, prepared: PreparedTurn) -> Receipt:
        """Store a turn with whoever else is waiting. A caller that is cancelled does not stop the writing."""
        if self._closed:
            raise StoreClosed("The memory was closed; append inside its `async with open_memory(...)` block.")
        if self._task is None:
            # A context of its own: whoever comes first would be kept as long as the memory, with an agent's whole run.
            self._task = asyncio.create_task(self._write_groups(), context=Context(), name="threadkeep-group-commit")
        await self._queue.put(prepared)
        return await prepared.stored

    async def close(self) -> None:
        """Write what is waiting, then stop."""
        self._closed = True
        if self._task is None:
            return
        await self._queue.join()
        while self._waiting:
            await asyncio.gather(*self._waiting)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _write_groups(self) -> None:
        while True:
            group = [await self._queue.get()]
            while len(group) < _GROUP_TURNS and not self._queue.empty():
                group.append(self._queue.get_nowait())
            try:
                await self._write_free(group)
            finally:
                for _ in group:
                    self._queue.task_done()

    async def _write_free(self, group: list[PreparedTurn]) -> None:
        """Write the turns of a group, but for those of sessions that wait for a lock: these go behind what waits."""
        free: list[PreparedTurn] = []
        for prepared in group:
            self._locked.get(prepared.turn.session_id, free).append(prepared)
        if not free:
            return
        try:
            await self._write_group(free)
        except RowLocked as error:
            await self._write_apart(free, error)
        except StoreUnavailable as error:
            _fail_all(free, error)
        except Exception as error:  # noqa: BLE001 - the writer outlives any failure; each caller gets it
            await self._write_alone(free, error)

    async def _write_apart(self, group: list[PreparedTurn], error: RowLocked) -> None:
        """After a row was found locked: each session by itself, so that only those wait whose rows they are."""
        of_session = _by_session(group)
        if len(of_session) == 1:
            self._wait_for_lock(group)
            return
        locked: list[list[PreparedTurn]] = []
        for turns in of_session.values():
            if len(locked) >= _MOST_LOCKED:
                _fail_all(turns, error)
                continue
            try:
                await self._write_group(turns)
            except RowLocked:
                locked.append(turns)
            except StoreUnavailable as its_own:
                _fail_all(turns, its_own)
            except Exception as its_own:  # noqa: BLE001 - as above
                await self._write_alone(turns, its_own)
        for turns in locked:
            self._wait_for_lock(turns)

    def _wait_for_lock(self, turns: list[PreparedTurn]) -> None:
        session_id = turns[0].turn.session_id
        self._locked[session_id] = turns
        task = asyncio.create_task(self._write_locked(session_id), context=Context(), name="threadkeep-locked-session")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _write_locked(self, session_id: str) -> None:
        """Write the turns of a session whose row is locked, and those that come meanwhile, with all patience."""
        turns = self._locked[session_id]
        begun = 0
        async with self._waiting_slots:
            try:
                while begun < len(turns):
                    group, begun = turns[begun:], len(turns)
                    # Who closes the memory does not wait for one lock after the other.
                    seconds = GROUP_LOCK_SECONDS if self._closed else None
                    _settle(group, await self._store_each(group, lock_timeout_seconds=seconds))
            except StoreUnavailable as error:
                _fail_all(turns, error)
            except Exception as error:  # noqa: BLE001 - as above
                await self._write_alone(turns, error)
            finally:
                del self._locked[session_id]

    async def _write_group(self, group: list[PreparedTurn]) -> None:
        try:
            receipts = await self._store_new(group)
        except (DuplicateRow, WrongUser):
            receipts = await self._store_each(group)
        except StoreUnavailable as error:
            if not error.interrupted:
                raise
            # The commit may have happened before the connection broke: look at each id.
            receipts = await self._store_each(group)
        _settle(group, receipts)

    async def _write_alone(self, group: list[PreparedTurn], error: Exception) -> None:
        """After the database refused something of a group: each turn by itself, so that only the refused one fails."""
        if len(group) == 1:
            _fail(group[0], error)
            return
        for prepared in group:
            try:
                await self._write_group([prepared])
            except Exception as its_own:  # noqa: BLE001 - as above
                _fail(prepared, its_own)

    async def _store_new(self, group: Sequence[PreparedTurn]) -> list[_Outcome]:
        """All turns at once, with none of their ids looked for."""
        sessions: list[dict[str, object]] = []
        rows: list[dict[str, object]] = []
        behind: dict[int, int] = {}
        # In one order everywhere, so that two processes never wait for each other's rows in a circle.
        for session_id, turns in _by_session(group).items():
            if len({prepared.turn.user_id for prepared in turns}) > 1:
                raise WrongUser(session_id)
            messages = [message for prepared in turns for message in prepared.messages]
            sessions.append(session_parameters(turns[0].turn, messages, now=turns[-1].now))
            left = len(messages)
            for prepared in turns:
                behind[id(prepared)] = left - 1
                for columns in prepared.columns:
                    left -= 1
                    answers = prepared.turn.answers
                    rows.append({**columns, "session_id": session_id, "behind": left, "answers": answers})
        last_seqs: dict[str, int] = dict(await self._driver.append(sessions, rows))
        return [
            _receipt(prepared, last_seqs[session_id] - behind[id(prepared)], len(prepared.columns))
            if (session_id := prepared.turn.session_id) in last_seqs
            else WrongUser(session_id)
            for prepared in group
        ]

    async def _store_each(
        self, group: Sequence[PreparedTurn], *, lock_timeout_seconds: float | None = GROUP_LOCK_SECONDS
    ) -> list[_Outcome]:
        """Turn by turn in one transaction, leaving out the messages that are there already."""
        receipts: dict[int, _Outcome] = {}
        async with self._driver.writing(lock_timeout_seconds=lock_timeout_seconds) as connection:
            for place, prepared in sorted(enumerate(group), key=lambda item: item[1].turn.session_id):
                try:
                    receipts[place] = await self._store_one(connection, prepared)
                except (WrongUser, QuestionGone) as error:
                    receipts[place] = error
        return [receipts[place] for place in range(len(group))]

    async def _store_one(self, connection: Connection, prepared: PreparedTurn) -> Receipt:
        turn = prepared.turn
        if turn.answers is not None:
            # Held before it is looked: who deletes the session has done it by then, or waits for this turn.
            await connection.execute(self._sql["lock_session"], {"session_id": turn.session_id})
            question = {"session_id": turn.session_id, "id": turn.answers}
            if not await connection.fetch(self._sql["message_with_id"], question):
                raise QuestionGone(turn.session_id)
        if not await connection.fetch(self._sql["reserve"], session_parameters(turn, [], now=prepared.now)):
            raise WrongUser(turn.session_id)
        fresh: list[tuple[Message, dict[str, object]]] = []
        there: dict[str, int] = {}
        deleted: list[str] = []
        for message, columns in zip(prepared.messages, prepared.columns, strict=True):
            found = await connection.fetch(self._sql["seq_of"], {"session_id": turn.session_id, "id": message.id})
            if found:
                there[str(message.id)] = found[0][0]
                if found[0][1]:
                    deleted.append(str(message.id))
            elif any(message.id == other.id for other, _ in fresh):
                there[str(message.id)] = 0
            else:
                fresh.append((message, columns))
        if not fresh:
            count = max(there.values()) - min(there.values()) + 1
            return _receipt(prepared, min(there.values()), count, there, deleted)
        reserved = session_parameters(turn, [message for message, _ in fresh], now=prepared.now)
        [(_, last_seq, _)] = await connection.fetch(self._sql["reserve"], reserved)
        first = last_seq - len(fresh) + 1
        await connection.execute_many(self._sql["insert_message"], _numbered(prepared, [c for _, c in fresh], first))
        return _receipt(prepared, first, len(fresh), there, deleted)


def _numbered(prepared: PreparedTurn, columns: Sequence[dict[str, object]], first_seq: int) -> list[dict[str, object]]:
    session_id = prepared.turn.session_id
    return [{**row, "session_id": session_id, "seq": seq} for seq, row in enumerate(columns, start=first_seq)]


def _receipt(
    prepared: PreparedTurn, first_seq: int, count: int, there: Collection[str] = (), deleted: Collection[str] = ()
) -> Receipt:
    return Receipt(
        first_seq=first_seq,
        last_seq=first_seq + count - 1,
        duplicates=tuple(there),
        cleaned=prepared.cleaned,
        ids=tuple(str(message.id) for message in prepared.messages),
        deleted=tuple(deleted),
    )


def _by_session(group: Sequence[PreparedTurn]) -> dict[str, list[PreparedTurn]]:
    """The turns of each session, the sessions in their order."""
    of_session: dict[str, list[PreparedTurn]] = {}
    for prepared in group:
        of_session.setdefault(prepared.turn.session_id, []).append(prepared)
    return dict(sorted(of_session.items()))


def _settle(group: Sequence[PreparedTurn], receipts: Sequence[_Outcome]) -> None:
    for prepared, receipt in zip(group, receipts, strict=True):
        if isinstance(receipt, ThreadkeepError):
            _fail(prepared, receipt)
        elif not prepared.stored.done():
            prepared.stored.set_result(receipt)


def _fail_all(group: Sequence[PreparedTurn], error: Exception) -> None:
    for prepared in group:
        _fail(prepared, error)


def _fail(prepared: PreparedTurn, error: Exception) -> None:
    if not prepared.stored.done():
        prepared.stored.set_exception(error)
