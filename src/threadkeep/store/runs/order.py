"""The order of turns: runs arrive in their session, and begin one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from threadkeep.errors import RunNotFound, WrongUser
from threadkeep.records.runs import RUN_ENDS, Begun, DoubleTexting, NewRun, NotYet, Over, Run, RunInput
from threadkeep.store.driver import Connection, Driver, DuplicateRow
from threadkeep.store.runs.double_texting import OpenRun, Policies
from threadkeep.store.runs.locks import RunLocks
from threadkeep.store.runs.rows import compact_inputs, fetch_run, json_text, run_of
from threadkeep.store.statements import load_statements
from threadkeep.store.times import time_text

_PARENT_CANCELLED = "ParentCancelled"


@dataclass(frozen=True)
class Added:
    """The run that answers what was asked: a `new` one, one that it `joined`, or one that was `known` before."""

    run: Run
    outcome: Literal["new", "joined", "known"]


@dataclass(frozen=True)
class _Place:
    """Where a new run stands: in its tree, in the order of its session or not; `late` when its parent is to stop."""

    root_run_id: str
    depth: int
    in_order: bool
    late: bool


class RunOrder:
    """Runs that arrive and begin.

    A run may begin when none of its session that arrived before it is queued or running. One that waits for a person
    blocks nobody. A child in the session of a run above it is a part of that turn, and in no order.
    """

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime], stale: timedelta) -> None:
        self._driver = driver
        self._clock = clock
        self._stale = stale
        self._sql = load_statements("runs_order.sql")
        self._locks = RunLocks(driver.backend)
        self._policies = Policies(driver.backend, clock=clock)

    async def add(self, new: NewRun, *, policy: DoubleTexting = "enqueue", owner: str | None = None) -> Added:
        """Store a run at the end of its session's order; the same again is the run that is there.

        `policy` says what becomes of a message while another turn of its session is queued or running; a child is
        always queued. With an `owner` the run begins at once, if it may. A child whose parent is to stop is cancelled.

        Raises:
            SessionBusy: the policy is `reject`, and there is another turn.
            RunNotFound: the parent is gone.
            WrongUser: the session is another user's.
        """
        try:
            run = await self._arrive(new, policy, owner) if new.parent_run_id is None else None
            return await self._add(new, policy, owner) if run is None else Added(run, "new")
        except DuplicateRow:
            # Another process claimed the message between our look and our write.
            return await self._add(new, policy, owner)

    async def begin(self, run_id: str, owner: str) -> Begun | NotYet | Over:
        """Take a run up, if it may begin now, or its owner is dead."""
        async with self._driver.writing() as connection:
            await self._locks.hold_session_of(connection, run_id)
            if run := await self._begin(connection, run_id, owner):
                return Begun(run)
            run = await fetch_run(connection, run_id)
            if run is None or not run.inputs or run.status not in ("queued", "running"):
                return Over(run)
            before = await connection.fetch(self._sql["before"], {"run_id": run_id})
        return NotYet(run, before[0][0] if before else run_id)

    async def next_of(self, session_id: str) -> str | None:
        """The run of a session that may begin now."""
        found = await self._ids("next", session_id=session_id)
        return found[0] if found else None

    async def open_of(self, session_id: str) -> list[str]:
        """The runs of a session that are queued or running, in order of arrival."""
        return await self._ids("open", session_id=session_id)

    async def ready(self, *, limit: int, waited_seconds: float = 0.0) -> list[str]:
        """Runs that may begin now, of all sessions, which were asked for at least so long ago; the oldest first."""
        # The time itself is meant to be among them: times are kept to a microsecond.
        before = self._clock() - timedelta(seconds=waited_seconds) + timedelta(microseconds=1)
        return await self._ids("ready", limit=limit, before=time_text(before))

    async def abandoned(self, *, limit: int) -> list[str]:
        """Runs whose owner is dead: whoever begins them takes them over."""
        return await self._ids("abandoned", limit=limit, stale=time_text(self._clock() - self._stale))

    async def _arrive(self, new: NewRun, policy: DoubleTexting, owner: str | None) -> Run | None:
        """Store a run with one wait for the database, if nothing stands in its way; most come so."""
        place = _Place(new.run_id, 0, in_order=new.session_id is not None, late=False)
        asked = {"message_key": _message_key(new), "policy": policy, "owner": owner}
        latest = time_text(self._clock() + self._stale)
        parameters = {**self._parameters(new, place), **asked, "latest": latest}
        locks = self._locks.tree(new.run_id) if new.session_id is None else self._locks.session(new.session_id)
        names = ["arrive"]
        if owner is not None:
            names.append("begun_may_have_checkpoints")
        if new.session_id is not None and new.user_id is not None:
            names.append("note_active_session_of")
        rows = await self._driver.write([*locks, *((self._sql[name], parameters) for name in names)])
        arrived = rows[len(locks)]
        return run_of(arrived[0]) if arrived else None

    async def _add(self, new: NewRun, policy: DoubleTexting, owner: str | None) -> Added:
        async with self._driver.writing() as connection:
            place = await self._place(connection, new)
            key = {"run_id": new.run_id, "session_id": new.session_id, "message_id": _message_key(new)}
            known = await connection.fetch(self._sql["known"], key)
            if known:
                return Added(await _there(connection, known[0][0]), "known")
            await self._check_user(connection, new)
            into = await self._join(connection, new, policy) if place.in_order and new.parent_run_id is None else None
            if into is None:
                await self._insert(connection, new, place)
            await self._note_session(connection, new)
            if owner is not None and not place.late and into is None:
                await self._begin(connection, new.run_id, owner)
            run = await _there(connection, into or new.run_id)
        return Added(run, "joined" if into else "new")

    async def _place(self, connection: Connection, new: NewRun) -> _Place:
        """Lock what a new run is added to, and see where it stands there."""
        if new.session_id is not None:
            await self._locks.hold_session(connection, new.session_id)
        if new.parent_run_id is None:
            if new.session_id is None:
                await self._locks.hold_tree(connection, new.run_id)
            return _Place(new.run_id, 0, in_order=new.session_id is not None, late=False)
        above = {"parent_run_id": new.parent_run_id, "session_id": new.session_id}
        parents = await connection.fetch(self._sql["parent"], above)
        if parents:
            await self._locks.hold_tree(connection, parents[0][0])
            parents = await connection.fetch(self._sql["parent"], above)
        if not parents:
            raise RunNotFound(new.parent_run_id)
        root_run_id, depth, status, cancel_requested_at = parents[0]
        in_order = new.session_id is not None and not await connection.fetch(self._sql["inside"], above)
        late = status in RUN_ENDS or cancel_requested_at is not None
        return _Place(root_run_id, depth + 1, in_order=in_order and not late, late=late)

    async def _check_user(self, connection: Connection, new: NewRun) -> None:
        if new.session_id is None or new.user_id is None:
            return
        whose = {"session_id": new.session_id, "user_id": new.user_id}
        if await connection.fetch(self._sql["users_other"], whose):
            raise WrongUser(new.session_id)

    async def _join(self, connection: Connection, new: NewRun, policy: DoubleTexting) -> str | None:
        """The run that a message joins; None when it is to be one of its own."""
        rows = await connection.fetch(self._sql["open"], {"session_id": new.session_id})
        turns = [OpenRun(*row) for row in rows]
        into = await self._policies.apply(connection, new, turns, policy)
        if into is None:
            return None
        place = {"run_id": into, "session_id": new.session_id, "message_id": _message_key(new)}
        await connection.execute(self._sql["join"], place)
        return into

    async def _insert(self, connection: Connection, new: NewRun, place: _Place) -> None:
        await connection.execute(self._sql["insert"], self._parameters(new, place))

    def _parameters(self, new: NewRun, place: _Place) -> dict[str, object]:
        now = time_text(self._clock())
        return {
            "run_id": new.run_id,
            "session_id": new.session_id,
            "message_id": new.message_id,
            "workflow": new.workflow,
            "status": "cancelled" if place.late else "queued",
            "error": _PARENT_CANCELLED if place.late else None,
            "ended_at": now if place.late else None,
            "version": new.version,
            "user_id": new.user_id,
            "parent_run_id": new.parent_run_id,
            "root_run_id": place.root_run_id,
            "depth": place.depth,
            "node_id": new.node_id,
            "trigger": new.trigger,
            "in_order": place.in_order,
            "input": compact_inputs([RunInput(new.input, new.message_id)]),
            "budget": json_text(new.budget.to_dict()) if new.budget.to_dict() else None,
            "now": now,
            "deadline_at": new.deadline_at and time_text(new.deadline_at),
        }

    async def _note_session(self, connection: Connection, new: NewRun) -> None:
        """A person's next message goes on where the last one was."""
        if new.session_id is None or new.user_id is None or new.parent_run_id is not None:
            return
        active = {"user_id": new.user_id, "workflow": new.workflow, "session_id": new.session_id}
        await connection.execute(self._sql["note_active_session"], {**active, "now": time_text(self._clock())})

    async def _begin(self, connection: Connection, run_id: str, owner: str) -> Run | None:
        now = self._clock()
        parameters = {"run_id": run_id, "owner": owner, "now": time_text(now), "stale": time_text(now - self._stale)}
        if not await connection.fetch(self._sql["begin"], parameters):
            return None
        await connection.execute(self._sql["may_have_checkpoints"], {"run_id": run_id})
        return await _there(connection, run_id)

    async def _ids(self, statement: str, **parameters: object) -> list[str]:
        """The runs that a statement finds, by its first column."""
        async with self._driver.reading() as connection:
            return [row[0] for row in await connection.fetch(self._sql[statement], parameters)]


def _message_key(new: NewRun) -> str:
    """What a message is known by: one without an id, by the id that its run would have."""
    return new.run_id if new.message_id is None else new.message_id


async def _there(connection: Connection, run_id: str) -> Run:
    run = await fetch_run(connection, run_id)
    if run is None:
        raise RunNotFound(run_id)
    return run
