"""Double texting: policies for a message that arrives while another turn of its session is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, assert_never

from threadkeep.errors import SessionBusy
from threadkeep.records.runs import OWN_NAMES, ROLLED_BACK, DoubleTexting, NewRun, RunInput
from threadkeep.store.codec import time_text
from threadkeep.store.driver import Backend, Connection
from threadkeep.store.runs.locks import RunLocks
from threadkeep.store.runs.rows import compact_inputs, inputs_of
from threadkeep.store.statements import load_statements

INTERRUPTED = "interrupted_by_message"


class OpenRun(NamedTuple):
    """A run of a conversation that is queued or running."""

    run_id: str
    workflow: str
    status: str
    user_id: str | None
    started_at: datetime | str | None
    root_run_id: str
    is_to_stop: bool
    session_id: str | None


class Policies:
    """The double-texting policies, applied in the transaction in which the message arrives."""

    def __init__(self, backend: Backend, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._sql = load_statements("runs.sql", "runs_order.sql")
        self._locks = RunLocks(backend)

    async def apply(
        self, connection: Connection, new: NewRun, turns: Sequence[OpenRun], policy: DoubleTexting
    ) -> OpenRun | None:
        """Return the run that the message has joined; None if it becomes a run of its own.

        Raises:
            SessionBusy: there is another turn, and the policy rejects messages.
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
        """Stop running turns with all runs below them, and let queued ones stop as they begin."""
        running = [turn for turn in turns if turn.status == "running"]
        for root_run_id in sorted({turn.root_run_id for turn in running}):
            await self._locks.hold_tree(connection, root_run_id)
        reason = {"reason": why, "now": time_text(self._clock())}
        for turn in running:
            await self._locks.hold_below(connection, turn.run_id)
            await connection.fetch(self._sql["cancel"], {"run_id": turn.run_id, **reason})
        for turn in turns:
            if turn.status == "queued" and turn.root_run_id == turn.run_id and not turn.is_to_stop:
                await connection.execute(self._sql["stop_as_it_begins"], {"run_id": turn.run_id, **reason})

    async def _coalesce(self, connection: Connection, new: NewRun, turns: Sequence[OpenRun]) -> OpenRun | None:
        """Join the newest turn, if it has not begun and matches: the message must not overtake others."""
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
        places = await connection.fetch(self._sql["places_of"], {"run_id": newest.run_id})
        if {place for (place,) in places} != set(new.places):
            return None
        [(text,)] = await connection.fetch(self._sql["input"], {"run_id": newest.run_id})
        grown = compact_inputs([*inputs_of(text), RunInput(new.input, new.message_id)])
        await connection.execute(self._sql["set_input"], {"run_id": newest.run_id, "input": grown})
        return newest
