"""Carries runs out: takes them up, lets their graphs run, sees to what comes after, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.observe import RunTakenOver, RunTrouble, work_for
from threadkeep.records.runs import STATUS, Begun, Over, Run
from threadkeep.runs.carried import Carried, CarriedRuns, RunStop
from threadkeep.runs.engine.engine import Engine
from threadkeep.runs.execution import RunMeans
from threadkeep.runs.insisting import insist, undisturbed
from threadkeep.runs.live import LiveRun, LiveRuns
from threadkeep.runs.orphans import end_orphans
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.progress.checkpoints import RunCheckpoints
from threadkeep.runs.progress.progress import ProgressKeeping, RunProgress
from threadkeep.runs.run_beginnings import RunBeginnings
from threadkeep.runs.run_endings import RunEndings
from threadkeep.runs.telling import tell_run, tell_turn
from threadkeep.runs.tracing import RunTracer
from threadkeep.runs.versions import RunWorkflows, VersionGone
from threadkeep.workflow.holding import run_hold

_TAKE_OVERS = 3


class Runner:
    """The runs of this process: `carry_out` is what the engine calls, and it is the engine's listener.

    A run that another process has in its name is taken over when the engine hands it over: then that one is dead, or
    has been taken for dead, and the database lets it write nothing more of the run.
    """

    def __init__(self, memory: Memory, workflows: RunWorkflows, checkpoints: RunCheckpoints) -> None:
        self.owner = str(uuid7())
        self.live = LiveRuns()
        self.carried = CarriedRuns()
        self.workflows = workflows
        self._memory = memory
        self._runs = memory.runs
        self._checkpoints = checkpoints
        self._beginnings = RunBeginnings(memory.runs, workflows, self.carried)
        self._endings = RunEndings(memory, workflows)
        self._keeping = ProgressKeeping(memory.observers)
        self._expected: dict[str, Run] = {}
        # Held from the start on: whoever asks meanwhile must see that it was started.
        self._started: dict[str, LiveRun] = {}
        self._opened = asyncio.Event()
        self._context = contextvars.copy_context()
        self._engine: Engine | None = None
        self._means: RunMeans | None = None

    def open(self, engine: Engine, means: RunMeans) -> None:
        """Begin: the engine calls before it can be known."""
        self._engine, self._means = engine, means
        self._opened.set()

    async def opened(self) -> None:
        """Wait until it has begun."""
        await self._opened.wait()

    @property
    def engine(self) -> Engine:
        """The engine."""
        if self._engine is None:
            raise StoreClosed("Runs were asked for before their engine was open.")
        return self._engine

    @property
    def means(self) -> RunMeans:
        """What all runs share."""
        if self._means is None:
            raise StoreClosed("Runs were asked for before their engine was open.")
        return self._means

    def has(self, run_id: str) -> bool:
        """Whether a run is carried out here, or about to be."""
        return self.carried.of(run_id) is not None or run_id in self._expected

    def holds(self, run_id: str) -> bool:
        """Whether this process still has a run for certain."""
        carried = self.carried.of(run_id)
        return carried is not None and carried.stop is None and self.engine.holds(carried.run.root_run_id)

    async def start_begun(self, run: Run) -> None:
        """Have a run carried out here that was begun in this process's name.

        Raises:
            StoreError: the engine does not take it; it is given back.
        """
        if self.live.of(run.run_id).started:
            return
        self._expected[run.run_id] = run
        try:
            await self._start(run.run_id, self.engine.begin)
        except BaseException:
            if self._expected.pop(run.run_id, None) is not None:
                await self._runs.give_back(run.run_id, self.owner)
            raise

    async def start(self, run_id: str) -> None:
        """Have a run carried out here, if that is not under way."""
        await self._start(run_id, self.engine.start)

    async def _start(self, run_id: str, starting: Callable[[str], Awaitable[None]]) -> None:
        live = self.live.of(run_id)
        if live.started:
            return
        live.started = True
        self._started[run_id] = live
        try:
            await starting(run_id)
        except BaseException:
            live.started = False
            self._started.pop(run_id, None)
            raise

    async def carry_out(self, run_id: str) -> None:
        """Carry a run out, if it may begin now; otherwise whoever is before it sees to it."""
        await self.opened()
        live = self.live.of(run_id)
        try:
            run = self._expected.pop(run_id, None)
            begins = run is not None
            if run is None:
                run = await insist(lambda: self.take_up(run_id))
            if run is not None:
                await self.carry(run, begins=begins)
        finally:
            live.started = False
            self._started.pop(run_id, None)
            live.end()

    async def take_up(self, run_id: str) -> Run | None:
        """Begin a run, or take it over from a process that is dead; None if there is nothing to carry out now."""
        for _ in range(_TAKE_OVERS):
            taken = await self._runs.order.begin(run_id, self.owner)
            if isinstance(taken, Begun):
                return taken.run
            if isinstance(taken, Over) or taken.behind != run_id or taken.run.owner is None:
                return None
            await self._runs.disown(taken.run.owner)
        return None

    async def gave_up(self, run_id: str, attempts: int) -> None:
        """Set a run aside that the engine does not try any more."""
        run = await self.take_up(run_id)
        if run is not None:
            outcome = await self._endings.set_aside(run, self.owner, self.means.resources)
            tell_run(self._memory.observers, run, outcome, milliseconds=0.0)
            tell_turn(self._memory.observers, run, outcome, None, milliseconds=0.0)
            await self._clear_up(run, outcome)
        self.live.of(run_id).end()

    def troubled(self, error: str) -> None:
        """Tell of what keeps the engine from its work for now."""
        self._memory.observers.notify(RunTrouble(error=error, work="engine"))

    async def carry(self, run: Run, *, begins: bool = False) -> Outcome | None:
        """Carry a run out that is this process's; None if it is not, in the end."""
        carried = self._enter(run, begins=begins)
        if run.attempts > 1:
            self._memory.observers.notify(
                RunTakenOver(workflow=run.workflow, attempt=run.attempts, run_id=run.run_id, session_id=run.session_id)
            )
        started, outcome, unstored = time.perf_counter(), None, False
        try:
            with self._progress_known(carried):
                outcome = await self._carry(carried)
        finally:
            # Whoever is cancelled once more by now still lets go of all of it.
            unstored = await undisturbed(self._leave(carried))
        if outcome is not None:
            milliseconds = (time.perf_counter() - started) * 1000
            tell_run(self._memory.observers, run, outcome, milliseconds=milliseconds)
            if not self.means.unrecorded.has_answered(run):
                tell_turn(self._memory.observers, run, outcome, carried.ledger, milliseconds=milliseconds)
            await self._clear_up(run, outcome, unstored=unstored)
        return outcome

    async def start_next(self, run: Run) -> None:
        """See to the run that may begin now that another one of its session is over, or waits."""
        if run.session_id is None or run.arrival is None:
            return
        following = await self._runs.order.next_of(run.session_id)
        if following is None:
            return
        if self.live.is_waited_for(following):
            await self.start(following)
        else:
            await self.engine.enqueue(following)

    def _enter(self, run: Run, *, begins: bool) -> Carried:
        def lost() -> None:
            carried.cancel("lost")

        live = self.live.of(run.run_id)
        tracer = RunTracer(
            self._runs.trace,
            live,
            self.owner,
            lost=lost,
            seconds=self.means.options.trace_seconds,
            begins=begins,
        )
        progress = RunProgress(self._keeping, fresh=begins, seconds=self.means.options.progress_seconds)
        carried = Carried(run, self.owner, live, tracer, progress, begins)
        self.carried.enter(carried)
        live.begin()
        return carried

    async def _leave(self, carried: Carried) -> bool:
        """Let go of a run; whether it has no checkpoints."""
        self.carried.leave(carried.run.run_id)
        await carried.tracer.close()
        carried.live.end(carried.over)
        return await carried.progress.leave()

    def _progress_known(self, carried: Carried) -> AbstractContextManager[None]:
        saver = self.means.saver
        return nullcontext() if saver is None else saver.knowing(carried.run.run_id, carried.progress)

    async def _carry(self, carried: Carried) -> Outcome | None:
        run = carried.run
        if run.cancel_requested_at is not None:
            return await self._endings.end(carried, Outcome("cancelled"), self.means)
        carried.tracer.note(STATUS, data={"status": "running", "try": run.attempts})
        task = carried.task = asyncio.create_task(self._execute(carried), context=self._context.copy())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            carried.cancel(self._why_cancelled(carried))
            await asyncio.wait([task])
            await self._endings.let_go(carried, self.means.resources)
            raise
        if carried.stop == "lost":
            await self._endings.leave(run)
            return None
        if not task.cancelled():
            outcome = task.result()
        else:
            outcome = Outcome("cancelled") if carried.stop else Outcome("failed", error="Cancelled")
        return await undisturbed(self._endings.end(carried, outcome, self.means))

    async def _execute(self, carried: Carried) -> Outcome:
        if (trigger := carried.run.trigger) != "child":
            # Whatever process it is in: somebody who works serves no channel.
            work_for("http" if trigger == "http" else "other")
        run_hold.set(carried.hold)
        try:
            execution = await self._beginnings.execution(carried, self.means)
        except VersionGone as gone:
            return Outcome("interrupted", error=gone.kind)
        return await execution.to_its_end()

    def _why_cancelled(self, carried: Carried) -> RunStop:
        """Why the task that carries a run out was cancelled from outside: by the engine, or by its parent's."""
        above = self.carried.of(carried.run.parent_run_id or "")
        if above is not None:
            return above.stop if above.stop in ("closing", "lost") else "cancelled"
        return self.engine.stopping(carried.run.run_id) or "closing"

    async def _clear_up(self, run: Run, outcome: Outcome, *, unstored: bool = False) -> None:
        """What is not in anybody's way: upkeep sees to it where it fails. One `unstored` has no checkpoints."""
        try:
            await self.start_next(run)
            # One that was given back begins its first try once more.
            again = run.attempts > 1 or run.started_at != run.heartbeat_at
            if again and outcome.status != "waiting":
                await end_orphans(self._runs, run.run_id)
            if outcome.status == "done":
                await self._checkpoints.remove([run.run_id], unstored=unstored)
        except Exception as error:  # noqa: BLE001 - the run is over, and must not be tried again for this
            self._memory.observers.notify(RunTrouble(error=type(error).__name__, work="clearing_up"))
