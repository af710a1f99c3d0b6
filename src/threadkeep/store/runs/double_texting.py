"""What becomes of a message that arrives while another turn of its session is queued or at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, assert_never

from threadkeep.errors import SessionBusy
from threadkeep.records.runs import OWN_NAMES, DoubleTexting, NewRun, RunInput
from threadkeep.store.driver import Backend, Connection
from threadkeep.store.runs.locks import RunLocks
from threadkeep.store.runs.rows import compact_inputs, inputs_of
from threadkeep.store.statements import load_statements
from threadkeep.store.times import time_text

INTERRUPTED = "interrupted_by_message"


class OpenRun(NamedTuple):
    """A run of a session that is queued or at work."""

    run_id: str
    workflow: str
    status: str
    user_id: str | None
    started_at: datetime | str | None
    root_run_id: str
    is_to_stop: bool


class Policies:
    """The four policies, each inside the transaction in which the message arrives."""

    def __init__(self, backend: Backend, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._sql = load_statements("runs.sql", "runs_order.sql")
        self._locks = RunLocks(backend)

    async def apply(
        self, connection: Connection, new: NewRun, turns: Sequence[OpenRun], policy: DoubleTexting
    ) -> str | None:
        """The run that the message has joined; None when it is to be a run of its own.

        Raises:
            SessionBusy: there is another turn, and messages are rejected then.
        """
        match policy:
            case "enqueue":
                return None
            case "reject":
                if turns and new.session_id is not None:
                    raise SessionBusy(new.session_id, turns[0].run_id)
                return None
            case "interrupt":
                await self._interrupt(connection, [turn for turn in turns if turn.workflow not in OWN_NAMES])
                return None
            case "coalesce":
                return await self._coalesce(connection, new, turns)
        assert_never(policy)

    async def _interrupt(self, connection: Connection, turns: Sequence[OpenRun]) -> None:
        """Stop what is at work with all below it, and have what is queued stop as it begins."""
        running = [turn for turn in turns if turn.status == "running"]
        for root_run_id in sorted({turn.root_run_id for turn in running}):
            await self._locks.hold_tree(connection, root_run_id)
        reason = {"reason": INTERRUPTED, "now": time_text(self._clock())}
        for turn in running:
            await self._locks.hold_below(connection, turn.run_id)
            await connection.fetch(self._sql["cancel"], {"run_id": turn.run_id, **reason})
        for turn in turns:
            if turn.status == "queued" and turn.root_run_id == turn.run_id and not turn.is_to_stop:
                await connection.execute(self._sql["stop_as_it_begins"], {"run_id": turn.run_id, **reason})

    async def _coalesce(self, connection: Connection, new: NewRun, turns: Sequence[OpenRun]) -> str | None:
        """Into the newest turn, if it has not begun and is such a one: nothing may overtake what is between."""
        newest = turns[-1] if turns else None
        if (
            newest is None
            or newest.status != "queued"
            or newest.started_at is not None
            or newest.root_run_id != newest.run_id
            or newest.is_to_stop
            or (newest.workflow, newest.user_id) != (new.workflow, new.user_id)
        ):
            return None
        [(text,)] = await connection.fetch(self._sql["input"], {"run_id": newest.run_id})
        grown = compact_inputs([*inputs_of(text), RunInput(new.input, new.message_id)])
        await connection.execute(self._sql["set_input"], {"run_id": newest.run_id, "input": grown})
        return newest.run_id
