"""The order of turns: the runs of a conversation begin one after another, in the order of their arrival.

Here are also the locks of runs, double texting, and the session that each user continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from threadkeep.errors import RunNotFound, SessionBusy, WrongUser
from threadkeep.records.runs import (
    NO_BUDGET,
    OWN_NAMES,
    ROLLED_BACK,
    RUN_ENDS,
    Begun,
    DoubleTexting,
    NewRun,
    NotYet,
    Over,
    Run,
    RunInput,
)
from threadkeep.store.codec import clean_json, json_text, time_of, time_text
from threadkeep.store.driver import Backend, Connection, Driver, DuplicateRow, Joined, Row, Statement
from threadkeep.store.runs.rows import compressed_inputs, fetch_run, inputs_of
from threadkeep.store.runs.trace import RunTrace
from threadkeep.store.statements import ClockedTables, Tables, for_values, load_statements

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
        return bool(await self._driver.fetch(self._sql["inside"], {"parent_run_id": run_id, "place": conversation}))

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
        return not await self._driver.fetch(self._sql["before_in"], {"run_id": run_id, "place": conversation})

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


INTERRUPTED = "interrupted_by_message"


class OpenRun(NamedTuple):
    """A queued or running run of a conversation, with the columns by which the double-texting policy decides."""

    run_id: str
    workflow: str
    status: str
    user_id: str | None
    started_at: datetime | str | None
    root_run_id: str
    is_to_stop: bool
    session_id: str | None


_PARENT_CANCELLED = "ParentCancelled"
_CLOCKS_DIFFER = timedelta(seconds=15.0)
"""The largest expected difference between the clocks of two processes. Do not trust a time further in the future."""

DISOWNED = "1970-01-01T00:00:00.000000+00:00"
"""The `heartbeat_at` of a run whose process was found dead. For other runs it is the time when the attempt began."""


@dataclass(frozen=True)
class Added:
    """The run for a request: a `new` run, a queued run that it `joined`, or the `known` run of an earlier request."""

    run: Run
    outcome: Literal["new", "joined", "known"]


@dataclass(frozen=True)
class _Position:
    """The position of a new run in its tree of runs. If `in_order`, it also gets a position in its session."""

    root_run_id: str
    depth: int
    in_order: bool
    is_cancelled: bool


class RunOrder(ClockedTables, sql=("runs.sql", "runs_order.sql")):
    """The order in which runs arrive and begin.

    A run may begin when none of its conversations has an earlier run that is queued or running. Its conversations are
    its session and the conversations that its agents store under their own keys. A run that waits for a person does not
    block others. A child run in a conversation of an ancestor is part of the ancestor's turn and has no position of its
    own.
    """

    def __init__(self, driver: Driver, trace: RunTrace, *, clock: Callable[[], datetime]) -> None:
        super().__init__(driver, clock=clock)
        self._locks = RunLocks(driver.backend)
        self._trace = trace

    async def add(self, new: NewRun, *, policy: DoubleTexting = "enqueue", owner: str | None = None) -> Added:
        """Store a run at the end of its session's order; for a repeated request, return the existing run.

        `policy` decides about a message that arrives during another turn of its session; a child is always queued.
        With an `owner`, the run begins at once, unless an earlier run blocks it. A child is stored as cancelled if its
        parent has ended or will be stopped.

        Raises:
            SessionBusy: the policy is `reject`, and there is another turn.
            RunNotFound: the parent run does not exist.
            WrongUser: the session belongs to another user, or `new` has a user but the session has none.
        """
        try:
            if new.parent_run_id is None and not new.conversations:
                # Try to store the run in one round trip, which stores nothing if something blocks the run.
                arrival = self.beginning(new, policy, owner)
                rows = await self._driver.write([*arrival.before, *arrival.after])
                if rows[len(arrival.before) - 1]:
                    return Added(self.begun(new, arrival, rows), "new")
            return await self._add(new, policy, owner)
        except DuplicateRow:
            # Another process has stored a run for the message since this call looked for one, so try again.
            return await self._add(new, policy, owner)

    async def release(self, session_id: str, message_id: str) -> bool:
        """Allow another run to answer a message; return False if the message's run is active or can be retried."""
        key = {"session_id": session_id, "message_id": message_id}
        async with self._driver.writing() as connection:
            await self._locks.lock_orders(connection, [session_id])
            # A run whose message has no id is found by its own id, but only if no other run has answered the message.
            found = await connection.fetch(self._sql["known"], {**key, "run_id": ""})
            for (run_id,) in found or await connection.fetch(self._sql["known"], {**key, "run_id": message_id}):
                run = await fetch_run(connection, run_id)
                if run is None or (run.status not in ("done", "cancelled") and not run.set_aside):
                    return False
                released = {**key, "run_id": run_id, "input": compressed_inputs(run.inputs)}
                await connection.execute(self._sql["release_message"], released)
            for name in ("release_joined", "release_answered"):
                await connection.execute(self._sql[name], key)
        return True

    async def begin(self, run_id: str, owner: str) -> Begun | NotYet | Over:
        """Begin a run that may begin now, or take it over if its owner is dead."""
        async with self._driver.writing() as connection:
            await self._locks.hold(connection, "lock_order_of", run_id=run_id)
            if begun := await self._begin(connection, run_id, owner):
                return begun
            run = await fetch_run(connection, run_id)
            if run is None or not run.inputs or run.status not in ("queued", "running"):
                return Over(run)
            before = await connection.fetch(self._sql["before"], {"run_id": run_id})
        return NotYet(run, before[0][0] if before else run_id)

    async def stop_as_it_begins(self, run_id: str) -> bool:
        """Mark a queued run to be stopped when its turn comes; return False if it is not queued."""
        parameters = {"run_id": run_id, "reason": "requested", "now": time_text(self._clock())}
        async with self._driver.writing() as connection:
            await self._locks.hold(connection, "lock_order_of", run_id=run_id)
            return await connection.execute(self._sql["stop_as_it_begins"], parameters) > 0

    async def take_back(self, run_id: str, message_id: str) -> bool:
        """Remove a message from a run; return False if the run has begun, lacks the message, or has only this one."""
        async with self._driver.writing() as connection:
            await self._locks.hold(connection, "lock_order_of", run_id=run_id)
            run = await fetch_run(connection, run_id)
            left = [one for one in run.inputs if one.message_id != message_id] if run and run.unbegun else []
            if run is None or not left or len(left) == len(run.inputs):
                return False
            await connection.execute(self._sql["set_input"], {"run_id": run_id, "input": compressed_inputs(left)})
        return True

    async def is_next(self, run_id: str) -> bool:
        """Return True if a run is queued and may begin now."""
        return bool(await self._ids("is_next", run_id=run_id))

    async def following(self, run_id: str) -> list[str]:
        """Delete an ended run's positions; return the ids of runs that may begin now in its conversations.

        A run that did not succeed keeps its positions, because it may be retried.
        """
        async with self._driver.reading() as connection:
            parameters = {"run_id": run_id}
            wanted = [(self._sql[name], parameters) for name in ("following", "places_of")]
            following, positions = await connection.fetch_each(wanted)
        if positions:
            await self._driver.write([(self._sql["forget_places"], parameters)])
        return list(dict.fromkeys(run_id for (run_id,) in following))

    async def has_concurrent_runs(self, run_id: str) -> bool:
        """Return True if other runs are queued or running in the conversations of a run."""
        return bool(await self._ids("open_beside", run_id=run_id))

    async def ready(self, *, limit: int, waited_seconds: float = 0.0) -> list[str]:
        """Return up to `limit` runs that may begin now and have waited for `waited_seconds`, oldest first.

        Runs stored by a process whose clock is ahead, with a time in the future, are included: their wait is unknown.
        """
        now = self._clock()
        # Add a microsecond, because the statement excludes runs that arrived exactly at `before`.
        before = now - timedelta(seconds=waited_seconds) + timedelta(microseconds=1)
        ahead = time_text(now + _CLOCKS_DIFFER)
        return await self._ids("ready", limit=limit, before=time_text(before), ahead=ahead)

    async def abandoned(self, *, limit: int) -> list[str]:
        """Return up to `limit` running runs of dead processes; a process that begins such a run takes it over."""
        return await self._ids("abandoned", limit=limit, disowned=DISOWNED)

    def beginning(
        self, new: NewRun, policy: DoubleTexting, owner: str | None, question_id: str | None = None
    ) -> Joined:
        """Return the statements that store and begin a run if nothing blocks it; the last one in `before` inserts it.

        With a `question_id`, they are for the transaction that stores this question. They make it fail if the run may
        not begin now, or if its message already has a run.
        """
        position = _Position(new.run_id, 0, in_order=new.session_id is not None, is_cancelled=False)
        asked = {"message_key": new.message_id or new.run_id, "policy": policy, "owner": owner}
        latest = time_text(self._clock() + _CLOCKS_DIFFER)
        parameters = {**self._parameters(new, position), **asked, "latest": latest}
        locks = (
            self._locks.statements("lock_tree", root_run_id=new.run_id)
            if new.session_id is None
            else self._locks.statements("lock_order", place=new.session_id)
        )
        has_user = new.session_id is not None and new.user_id is not None
        after = [(self._sql["note_active_session_of"], parameters)] if has_user else []
        if question_id is not None:
            after.append((self._sql["refuse_unless_begun"], {**parameters, "question_id": question_id}))
        return Joined([*locks, (self._sql["arrive"], parameters)], after)

    def begun(self, new: NewRun, joined: Joined, rows: Sequence[list[Row]]) -> Run:
        """Return the run that `beginning` has stored; `rows` are the results of its statements."""
        _, given = joined.before[-1]
        [(status, owner, started_at, arrival)] = rows[len(joined.before) - 1]
        started = None if started_at is None else time_of(started_at)
        # The columns that are not read contain the values of `new`.
        return Run(
            run_id=new.run_id,
            session_id=new.session_id,
            message_id=new.message_id,
            workflow=new.workflow,
            status=status,
            owner=owner,
            started_at=started,
            heartbeat_at=started,
            ended_at=None,
            version=new.version,
            user_id=new.user_id,
            root_run_id=new.run_id,
            node_id=new.node_id,
            trigger=new.trigger,
            arrival=arrival,
            inputs=(RunInput(clean_json(new.input), new.message_id),),
            budget=new.budget,
            attempts=0 if started is None else 1,
            created_at=time_of(given["now"]),
            deadline_at=new.deadline_at,
        )

    async def _add(self, new: NewRun, policy: DoubleTexting, owner: str | None) -> Added:
        async with self._driver.writing() as connection:
            position = await self._position(connection, new)
            key = {"run_id": new.run_id, "session_id": new.session_id, "message_id": new.message_id or new.run_id}
            known = await connection.fetch(self._sql["known"], key)
            if known:
                return Added(await _existing_run(connection, known[0][0]), "known")
            owned = None not in (new.session_id, new.user_id)
            session = {"session_id": new.session_id, "user_id": new.user_id}
            if owned and await connection.fetch(self._sql["users_other"], session):
                raise WrongUser(str(new.session_id))
            into = await self._join(connection, new, policy) if new.parent_run_id is None else None
            if into is None:
                await self._insert(connection, new, position)
            if owned and new.parent_run_id is None:  # the user's next message continues this session
                active = {**session, "workflow": new.workflow, "now": time_text(self._clock())}
                await connection.execute(self._sql["note_active_session"], active)
            if owner is not None and not position.is_cancelled and into is None:
                await self._begin(connection, new.run_id, owner)
            run = await _existing_run(connection, into or new.run_id)
        return Added(run, "joined" if into else "new")

    async def _position(self, connection: Connection, new: NewRun) -> _Position:
        """Lock the conversations of a new run, and its tree if needed; return the run's position."""
        await self._locks.lock_orders(connection, _conversations(new))
        if new.parent_run_id is None:
            if new.session_id is None:
                await self._locks.hold(connection, "lock_tree", root_run_id=new.run_id)
            return _Position(new.run_id, 0, in_order=new.session_id is not None, is_cancelled=False)
        above = {"parent_run_id": new.parent_run_id, "place": new.session_id}
        parents = await connection.fetch(self._sql["parent"], above)
        if parents:
            await self._locks.hold(connection, "lock_tree", root_run_id=parents[0][0])
            parents = await connection.fetch(self._sql["parent"], above)
        if not parents:
            raise RunNotFound(new.parent_run_id)
        root_run_id, depth, status, cancel_requested_at = parents[0]
        in_order = new.session_id is not None and not await connection.fetch(self._sql["inside"], above)
        is_cancelled = status in RUN_ENDS or cancel_requested_at is not None
        return _Position(root_run_id, depth + 1, in_order=in_order and not is_cancelled, is_cancelled=is_cancelled)

    async def _join(self, connection: Connection, new: NewRun, policy: DoubleTexting) -> str | None:
        """Apply the double-texting policy to a new message; return the id of the run that the message joins, if any."""
        if not (conversations := _conversations(new)):
            return None
        rows = await connection.fetch(*for_values(self._sql["open"], "place", conversations))
        turns = [OpenRun(*row) for row in rows]
        into: OpenRun | None = None
        if policy == "reject" and turns:
            raise SessionBusy(new.session_id, turns[0].run_id)
        if policy in ("interrupt", "rollback"):
            reason = INTERRUPTED if policy == "interrupt" else ROLLED_BACK
            await self._stop(connection, [turn for turn in turns if turn.workflow not in OWN_NAMES], reason)
        elif policy == "coalesce":
            into = await self._coalesce(connection, new, turns)
        if into is None:
            return None
        if into.session_id is not None:
            key = {"session_id": into.session_id, "message_id": new.message_id or new.run_id}
            await connection.execute(self._sql["join"], {"run_id": into.run_id, **key})
        return into.run_id

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

    async def _insert(self, connection: Connection, new: NewRun, position: _Position) -> None:
        await connection.execute(self._sql["insert"], self._parameters(new, position))
        conversations = [{"run_id": new.run_id, "place": conversation} for conversation in new.conversations]
        if conversations and not position.is_cancelled:
            await connection.execute_many(self._sql["take_place"], conversations)

    def _parameters(self, new: NewRun, position: _Position) -> dict[str, object]:
        now = time_text(self._clock())
        return {
            **vars(new),
            "status": "cancelled" if position.is_cancelled else "queued",
            "error": _PARENT_CANCELLED if position.is_cancelled else None,
            "ended_at": now if position.is_cancelled else None,
            "root_run_id": position.root_run_id,
            "depth": position.depth,
            "in_order": position.in_order,
            "input": compressed_inputs([RunInput(new.input, new.message_id)]),
            "budget": None if new.budget == NO_BUDGET else json_text(new.budget.to_dict()),
            "now": now,
            "deadline_at": new.deadline_at and time_text(new.deadline_at),
        }

    async def _begin(self, connection: Connection, run_id: str, owner: str) -> Begun | None:
        parameters = {"run_id": run_id, "owner": owner, "now": time_text(self._clock()), "disowned": DISOWNED}
        new, begun = await connection.fetch_each([(self._sql[name], parameters) for name in ("is_new", "begin")])
        return Begun(await _existing_run(connection, run_id), new=bool(new)) if begun else None

    async def _ids(self, statement: str, **parameters: object) -> list[str]:
        """Return the ids of the runs that the named statement finds; the id must be its first column."""
        return [row[0] for row in await self._driver.fetch(self._sql[statement], parameters)]


def _conversations(new: NewRun) -> list[str]:
    """Return the ids of the conversations that a new run uses; its session is the first."""
    return list(dict.fromkeys((*filter(None, [new.session_id]), *new.conversations)))


async def _existing_run(connection: Connection, run_id: str) -> Run:
    if (run := await fetch_run(connection, run_id)) is None:
        raise RunNotFound(run_id)
    return run
