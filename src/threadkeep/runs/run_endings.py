"""How runs ended that were carried out here, as it is recorded; the database says whether they still were."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from threadkeep.errors import StoreError, StoreUnavailable
from threadkeep.graphs.resources import Resources
from threadkeep.history.memory import Memory
from threadkeep.observe import RunTrouble
from threadkeep.records.runs import STATUS, Run
from threadkeep.runs.carried import Carried
from threadkeep.runs.execution import RunMeans
from threadkeep.runs.insisting import insist
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.turn_endings import TurnEndings
from threadkeep.runs.versions import RunWorkflows
from threadkeep.store.runs.runs import RunEnding

_PAUSE_SECONDS: Final = 0.25


class RunEndings:
    """Ends runs, each with its turn, or leaves them to others."""

    def __init__(self, memory: Memory, workflows: RunWorkflows) -> None:
        self._runs = memory.runs
        self._observer = memory.observers
        self._turns = TurnEndings(memory, workflows)

    async def end(self, carried: Carried, outcome: Outcome, means: RunMeans) -> Outcome | None:
        """Record how a run ended; None when it is not this process's any more."""
        carried.live.came_out(outcome)
        if outcome.status == "failed" and await insist(lambda: self._is_to_stop(carried.run)):
            # It fails because a part of it has been stopped already, or would have been stopped next.
            outcome = Outcome("cancelled")
        told = {"status": outcome.status, "error": outcome.error, "interrupt": outcome.interrupt}
        carried.tracer.note(STATUS, data={name: value for name, value in told.items() if value is not None})
        if outcome.status != "done":
            await self._keep_progress(carried, means.options.keep_progress_seconds)
        return await insist(lambda: self._record(carried, outcome, means.resources))

    async def set_aside(self, run: Run, owner: str, resources: Resources) -> Outcome:
        """Let a run wait for a person, since the engine does not try it any more."""
        outcome = Outcome("failed", error="GaveUp", set_aside=True)
        await self._turns.end(run, resources)
        await self._runs.finish(run.run_id, owner, "failed", error=outcome.error, set_aside=True)
        return outcome

    async def leave(self, run: Run) -> None:
        """Keep nothing of what was said: the run is another process's."""
        await self._turns.leave(run)

    async def let_go(self, carried: Carried, resources: Resources) -> None:
        """Leave a run that is stopped from outside in the state that others need.

        A child stays its parent's, and one that has got an answer stays as it is: who takes it over knows that the
        answer may have been heard.
        """
        run = carried.run
        with contextlib.suppress(StoreError):
            if carried.stop == "cancelled":
                carried.tracer.note(STATUS, data={"status": "cancelled"})
                await self._is_kept(carried)
                await self._record(carried, Outcome("cancelled"), resources)
            else:
                await self._turns.leave(run)
            if carried.stop == "closing":
                await self._is_kept(carried)
                await carried.tracer.flush()
            if carried.stop == "closing" and run.parent_run_id is None and not run.resumed:
                await self._runs.give_back(run.run_id, carried.owner)

    async def _is_to_stop(self, run: Run) -> bool:
        current = await self._runs.run(run.run_id)
        return current is not None and current.cancel_requested_at is not None

    async def _record(self, carried: Carried, outcome: Outcome, resources: Resources) -> Outcome | None:
        run_id, owner = carried.run.run_id, carried.owner
        if outcome.status == "waiting":
            await carried.tracer.flush()
            if await self._runs.wait(run_id, owner, outcome.interrupt):
                return outcome
            outcome = Outcome("cancelled")
            carried.tracer.note(STATUS, data={"status": "cancelled"})
        assert outcome.status != "waiting"  # noqa: S101 - seen above
        if outcome.status != "done":
            await self._turns.end(carried.run, resources)
        ending = RunEnding(outcome.status, outcome.result, outcome.error, outcome.set_aside, carried.run)
        carried.over = await carried.tracer.flush_with(lambda group: self._runs.end(run_id, owner, ending, group))
        return outcome if carried.over is not None else None

    async def _keep_progress(self, carried: Carried, seconds: float) -> None:
        """Store how far a run came: who has it tried again goes on from there.

        While its tables answer it waits so long at most for its checkpoints, which may be in another database. Those
        that were stored before stay until upkeep removes them.
        """
        run_id, now, until = carried.run.run_id, asyncio.get_running_loop().time, None
        while not await self._is_kept(carried):
            await insist(lambda: self._runs.run(run_id))
            until = now() + seconds if until is None else until
            if now() >= until:
                self._tell_unkept(StoreUnavailable.__name__)
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _is_kept(self, carried: Carried) -> bool:
        """Whether there is nothing more of a run's progress that could be stored."""
        try:
            await carried.progress.keep()
        except StoreUnavailable:
            return False
        except Exception as error:  # noqa: BLE001 - without it the run begins anew; it has to end in any case
            self._tell_unkept(type(error).__name__)
        return True

    def _tell_unkept(self, error: str) -> None:
        self._observer.notify(RunTrouble(error=error, work="keeping_progress"))
