"""Who carries runs out, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from threadkeep.records import Json
from threadkeep.records.runs import Run, RunBudget, RunEnd, RunInput
from threadkeep.store.codec import clean_json
from threadkeep.store.compact_json import compact
from threadkeep.store.driver import Driver, Parameters, Row
from threadkeep.store.runs.active_sessions import ActiveSessions
from threadkeep.store.runs.locks import RunLocks
from threadkeep.store.runs.order import RunOrder
from threadkeep.store.runs.records import RunRecords
from threadkeep.store.runs.retention import FinishedRuns
from threadkeep.store.runs.rows import fetch_run, json_of, json_text, lacks_text, run_of, short_inputs
from threadkeep.store.runs.said import short_result
from threadkeep.store.runs.trace import RunTrace, TraceGroup, TraceLimits
from threadkeep.store.runs.workflows import WorkflowVersions
from threadkeep.store.statements import load_statements
from threadkeep.store.times import time_text

STALE_SECONDS = 15.0
_NEVER = "1970-01-01T00:00:00.000000+00:00"


def _result_parameters(result: Mapping[str, Json] | None) -> dict[str, object]:
    short = None if result is None else short_result(result)
    message_id, text = (None, None) if result is None or short is None else (result["message_id"], result["text"])
    return {
        "result": None if result is None else compact(json_text(dict(result))),
        "short_result": None if short is None else compact(json_text(short)),
        "message_id": message_id,
        "text": clean_json(text),
    }


@dataclass(frozen=True)
class RunEnding:
    """How a run ended; `asked` is the run as its owner began it."""

    status: RunEnd
    result: Mapping[str, Json] | None = None
    error: str | None = None
    set_aside: bool = False
    asked: Run | None = None

    def inputs(self) -> Sequence[RunInput]:
        """What need not be kept again if the transcript has it: only what has succeeded is never tried again."""
        return self.asked.inputs if self.asked is not None and self.status == "done" else ()


class Runs:
    """The table of runs, and what hangs on it.

    Its laws: of the runs of a session that have an arrival one at a time is running, and they begin in its order.
    Only the owner of a run ends it; an owner that has not sent a heartbeat for `stale_seconds` is taken for dead, and
    another may begin its runs again. All of it goes with the session.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        clock: Callable[[], datetime],
        stale_seconds: float = STALE_SECONDS,
        trace_limits: TraceLimits | None = None,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._stale = timedelta(seconds=stale_seconds)
        self._sql = load_statements("runs.sql", f"{driver.backend}/runs.sql")
        self._locks = RunLocks(driver.backend)
        self.order = RunOrder(driver, clock=clock, stale=self._stale)
        self.trace = RunTrace(driver, clock=clock, limits=trace_limits or TraceLimits())
        self.records = RunRecords(driver)
        self.finished = FinishedRuns(driver)
        self.workflows = WorkflowVersions(driver, clock=clock)
        self.sessions = ActiveSessions(driver, clock=clock)

    async def run(self, run_id: str) -> Run | None:
        """The run with an id."""
        async with self._driver.reading() as connection:
            return await fetch_run(connection, run_id)

    async def keep_alive(self, owner: str) -> int:
        """Say that the owner is alive, of all its runs in one statement; answers how many it heard of."""
        return await self._change("keep_alive", {"owner": owner, "now": self._now()})

    async def held_by(self, owner: str) -> dict[str, str | None]:
        """The runs that an owner carries out, each with the reason why it is to be stopped, if it is.

        One that is missing is not the owner's any more: another has it, or it went with its session.
        """
        async with self._driver.reading() as connection:
            return dict(await connection.fetch(self._sql["held"], {"owner": owner}))

    async def disown(self, owner: str) -> list[str]:
        """Take an owner for dead at once; answers its runs, which anybody may begin now."""
        async with self._driver.writing() as connection:
            rows = await connection.fetch(self._sql["disown"], {"owner": owner, "never": _NEVER})
        return [run_id for (run_id,) in rows]

    async def begin_with(self, run_id: str, owner: str, version: str) -> bool:
        """Let a run that has done nothing yet go on with a version; False when it is not the owner's any more."""
        return await self._change("begin_with", {"run_id": run_id, "owner": owner, "version": version}) > 0

    async def finish(
        self,
        run_id: str,
        owner: str,
        status: RunEnd,
        *,
        result: Mapping[str, Json] | None = None,
        error: str | None = None,
        set_aside: bool = False,
    ) -> bool:
        """Record how a run ended; False when it is not the owner's any more. The same again changes nothing.

        `error` names a kind, never a text of people. One that is `set_aside` waits for a person to have it tried again.
        """
        ending = RunEnding(status, result, error, set_aside)
        return await self.end(run_id, owner, ending) is not None

    async def end(self, run_id: str, owner: str, ending: RunEnding, group: TraceGroup | None = None) -> Run | None:
        """Record how a run ended, and the last of its trace with it; the run, None when it is not the owner's any more.

        The same again changes nothing.
        """
        key = {"run_id": run_id, "owner": owner, "status": ending.status}
        parameters = {
            **key,
            **_result_parameters(ending.result),
            **short_inputs(ending.inputs(), ending.asked.message_id if ending.asked else None),
            "error": ending.error,
            "set_aside": ending.set_aside,
            "now": self._now(),
        }
        finish = (self._sql["finish"], parameters)
        async with self._driver.writing() as connection:
            held: Sequence[list[Row]]
            ended, *held = await connection.fetch_each([finish, *self.trace.hold(run_id, group, ends=True)])
            if ended and group is not None:
                await self.trace.store(connection, run_id, held, group, ends=True)
            if not ended and not await connection.fetch(self._sql["ended"], key):
                return None
            if not ended or ending.result is None:
                return await fetch_run(connection, run_id)
        run, result = run_of(ended[0]), parameters["result"]
        inputs = ending.inputs() if any(map(lacks_text, run.inputs)) else run.inputs
        return replace(run, result=json_of(result if isinstance(result, bytes) else None), inputs=tuple(inputs))

    async def set_aside(self, run_id: str, error: str) -> bool:
        """Let a run fail that nobody carries out any more, and wait for a person; False when it is over, or waits.

        For those who know that nobody does, whoever its owner was.
        """
        return await self._change("set_aside", {"run_id": run_id, "error": error, "now": self._now()}) > 0

    async def wait(self, run_id: str, owner: str, interrupt: Json) -> bool:
        """Let a run wait for a person, who is asked `interrupt`; others of its session go on meanwhile.

        False when it is not the owner's any more, or is to be stopped.
        """
        return await self._change("wait", {"run_id": run_id, "owner": owner, "interrupt": json_text(interrupt)}) > 0

    async def give_back(self, run_id: str, owner: str) -> bool:
        """Let another process go on with a run, which stays the first of its session: this one stops.

        False when it is not the owner's any more, or is to be stopped.
        """
        return await self._change("give_back", {"run_id": run_id, "owner": owner}) > 0

    async def resume(self, run_id: str, value: Json) -> bool:
        """Give a run that waits its answer: it arrives anew. False when it does not wait (any more)."""
        return await self._arrive_again("resume", {"run_id": run_id, "resume_value": json_text(value)})

    async def retry(self, run_id: str, *, budget: RunBudget | None = None) -> bool:
        """Let a run that did not succeed arrive anew, with all its tries. False when it is not such a one.

        With a `budget` that is what it may take in all from now on.
        """
        limits = {} if budget is None else budget.to_dict()
        given = {"has_budget": budget is not None, "budget": json_text(limits) if limits else None}
        return await self._arrive_again("retry", {"run_id": run_id, **given})

    async def request_cancel(self, run_id: str, *, reason: str = "requested") -> list[str]:
        """Stop a run and all below it, in one transaction; answers those that were not over.

        What nobody carries out is cancelled at once. What is at work stays `running` until its owner has let go of it.
        `reason` is a word, for those who ask later why.
        """
        parameters = {"run_id": run_id, "reason": reason, "now": self._now()}
        async with self._driver.writing() as connection:
            roots = await connection.fetch(self._sql["root"], parameters)
            if not roots:
                return []
            await self._locks.hold_tree(connection, roots[0][0])
            await self._locks.hold_below(connection, run_id)
            rows = await connection.fetch(self._sql["cancel"], parameters)
        return [cancelled for (cancelled,) in rows]

    async def _arrive_again(self, statement: str, parameters: Parameters) -> bool:
        async with self._driver.writing() as connection:
            await self._locks.hold_session_of(connection, str(parameters["run_id"]))
            return await connection.execute(self._sql[statement], parameters) > 0

    async def _change(self, statement: str, parameters: Parameters) -> int:
        async with self._driver.writing() as connection:
            return await connection.execute(self._sql[statement], parameters)

    def _now(self) -> str:
        return time_text(self._clock())
