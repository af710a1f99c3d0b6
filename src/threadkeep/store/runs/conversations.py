"""Runs in conversations: their locks, their order, double texting, and the session that each user continues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, assert_never

from threadkeep.errors import SessionBusy
from threadkeep.records.runs import OWN_NAMES, ROLLED_BACK, DoubleTexting, NewRun, RunInput
from threadkeep.store.codec import time_text
from threadkeep.store.driver import Backend, Connection, Driver, Statement
from threadkeep.store.runs.rows import compressed_inputs, inputs_of
from threadkeep.store.runs.trace import RunTrace
from threadkeep.store.statements import ClockedTables, Tables, load_statements

type Lock = Literal["lock_order", "lock_order_of", "lock_tree", "lock_below"]


class RunLocks:
    """Locks for runs, held until the transaction ends; callers must take them in the order conversation, tree, run."""

    def __init__(self, backend: Backend) -> None:
        self._sql = load_statements(f"{backend}/runs.sql")

    def statements(self, name: Lock, **parameters: object) -> list[Statement]:
        """Return the statements that take a lock; none on SQLite, whose transactions are serial.

        `lock_order` locks the order of a session's runs; the session need not exist. `lock_tree` locks a tree of runs,
        so that no other transaction adds a run to the tree or cancels one of its runs.
        """
        return [(self._sql[name], parameters)] if name in self._sql else []

    async def lock_orders(self, connection: Connection, names: Iterable[str | None]) -> None:
        """Lock the order of runs in the given conversations, which need not exist."""
        for name in sorted({name for name in names if name is not None}):
            await self.hold(connection, "lock_order", place=name)

    async def hold(self, connection: Connection, name: Lock, **parameters: object) -> None:
        """Take a lock. `lock_order_of` locks all conversations of a run, `lock_below` a run and its descendants."""
        for statement in self.statements(name, **parameters):
            await connection.fetch(*statement)


class ActiveSessions(ClockedTables, sql=("runs_order.sql",)):
    """The table `chat_active_sessions`: for each user and workflow, the session that the user continues."""

    async def active_session(self, user_id: str, workflow: str, *, otherwise: str) -> str:
        """Return the session that a user continues; if there is none, set and return `otherwise`.

        Two concurrent first messages get the same session. A deleted, inactive or other user's session is replaced.
        """
        parameters = {"user_id": user_id, "workflow": workflow, "session_id": otherwise}
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["begin_active_session"], {**parameters, "now": time_text(self._clock())})
            [(session_id,)] = await connection.fetch(self._sql["active_session"], parameters)
        return str(session_id)


class RunPositions(Tables, sql=("runs_order.sql",)):
    """The order of runs in conversations that agents store under keys. A run gets a position once the key is known."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._locks = RunLocks(driver.backend)
        self._freed = asyncio.Event()

    async def has(self, run_id: str, conversation: str) -> bool:
        """Return True if a run or one of its ancestors (parent runs) belongs to a conversation."""
        return await self._is("inside", parent_run_id=run_id, place=conversation)

    async def take(self, run_id: str, conversation: str) -> None:
        """Put a queued or running run at the end of a conversation's order, unless it has a position there."""
        async with self._driver.writing() as connection:
            await self._locks.lock_orders(connection, [conversation])
            await connection.execute(self._sql["take_place"], {"run_id": run_id, "place": conversation})

    async def of(self, run_id: str) -> list[str]:
        """Return the names of the agents' conversations in which a run has a position; its session is not included."""
        return [name for (name,) in await self._driver.fetch(self._sql["places_of"], {"run_id": run_id})]

    async def forget(self, conversation: str) -> None:
        """Delete the positions that finished runs have in an erased conversation."""
        await self._driver.write([(self._sql["forget_place"], {"place": conversation})])

    async def leave(self, run_id: str, conversation: str) -> None:
        """Delete the position of a run in a conversation."""
        await self._driver.write([(self._sql["leave_place"], {"run_id": run_id, "place": conversation})])

    async def is_first(self, run_id: str, conversation: str) -> bool:
        """Return True if no earlier run is queued or running in a conversation."""
        return not await self._is("before_in", run_id=run_id, place=conversation)

    async def waits_for_itself(self, run_id: str) -> bool:
        """Return True if a run waits for itself, directly or through other runs."""
        known: set[str] = set()
        following = [run_id]
        async with self._driver.reading() as connection:
            while following:
                rows = await connection.fetch(self._sql["awaited"], {"run_id": following.pop()})
                found = {awaited for (awaited,) in rows} - known
                if run_id in found:
                    return True
                known |= found
                following += found
        return False

    def notify_freed(self) -> None:
        """Wake the tasks of this process that wait in `freed`, because a run has ended or waits for a person."""
        self._freed.set()
        self._freed = asyncio.Event()

    async def freed(self, seconds: float) -> None:
        """Wait up to `seconds` until `notify_freed` is called in this process; other processes' calls do not count."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._freed.wait(), seconds)

    async def _is(self, statement: str, **parameters: object) -> bool:
        return bool(await self._driver.fetch(self._sql[statement], parameters))


INTERRUPTED = "interrupted_by_message"


class OpenRun(NamedTuple):
    """A queued or running run of a conversation, with the columns by which `Policies` decides."""

    run_id: str
    workflow: str
    status: str
    user_id: str | None
    started_at: datetime | str | None
    root_run_id: str
    is_to_stop: bool
    session_id: str | None


class Policies:
    """The double-texting policies, which decide what happens to a message that arrives during a turn."""

    def __init__(self, backend: Backend, trace: RunTrace, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._trace = trace
        self._sql = load_statements("runs.sql", "runs_order.sql")
        self._locks = RunLocks(backend)

    async def apply(
        self, connection: Connection, new: NewRun, turns: Sequence[OpenRun], policy: DoubleTexting
    ) -> OpenRun | None:
        """Apply a policy to the earlier `turns`; return the run that the message joins, if any.

        Raises:
            SessionBusy: there is another turn, and the policy is `reject`.
        """
        match policy:
            case "enqueue":
                return None
            case "reject":
                if turns:
                    raise SessionBusy(new.session_id, turns[0].run_id)
                return None
            case "interrupt" | "rollback":
                reason = INTERRUPTED if policy == "interrupt" else ROLLED_BACK
                await self._stop(connection, [turn for turn in turns if turn.workflow not in OWN_NAMES], reason)
                return None
            case "coalesce":
                return await self._coalesce(connection, new, turns)
        assert_never(policy)

    async def _stop(self, connection: Connection, turns: Sequence[OpenRun], why: str) -> None:
        """Stop the turns that are running, and their descendants; mark queued turns to stop when they begin."""
        running = [turn for turn in turns if turn.status == "running"]
        for root_run_id in sorted({turn.root_run_id for turn in running}):
            await self._locks.hold(connection, "lock_tree", root_run_id=root_run_id)
        reason = {"reason": why, "now": time_text(self._clock())}
        for turn in running:
            await self._locks.hold(connection, "lock_below", run_id=turn.run_id)
            rows = await connection.fetch(self._sql["cancel"], {"run_id": turn.run_id, **reason})
            await self._trace.note_cancelled(connection, rows)
        for turn in turns:
            if turn.status == "queued" and turn.root_run_id == turn.run_id and not turn.is_to_stop:
                await connection.execute(self._sql["stop_as_it_begins"], {"run_id": turn.run_id, **reason})

    async def _coalesce(self, connection: Connection, new: NewRun, turns: Sequence[OpenRun]) -> OpenRun | None:
        """Add the message to the newest turn if possible, and return the turn; older turns are never extended."""
        newest = turns[-1] if turns else None
        if (
            newest is None
            or newest.status != "queued"
            or newest.started_at is not None
            or newest.root_run_id != newest.run_id
            or newest.is_to_stop
            or (newest.workflow, newest.user_id) != (new.workflow, new.user_id)
            or (newest.session_id != new.session_id and not (new.any_session and newest.session_id is not None))
        ):
            return None
        conversations = await connection.fetch(self._sql["places_of"], {"run_id": newest.run_id})
        if {conversation for (conversation,) in conversations} != set(new.conversations):
            return None
        [(text,)] = await connection.fetch(self._sql["input"], {"run_id": newest.run_id})
        grown = compressed_inputs([*inputs_of(text), RunInput(new.input, new.message_id)])
        await connection.execute(self._sql["set_input"], {"run_id": newest.run_id, "input": grown})
        return newest
