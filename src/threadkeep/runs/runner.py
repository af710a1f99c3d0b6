"""Execution of runs: acquire them, run their graphs, and clean up afterwards in every case."""

from __future__ import annotations

import asyncio
import contextvars
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from threadkeep.agent.holding import run_hold
from threadkeep.errors import StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.history.session import BegunTurn
from threadkeep.observe import RunTakenOver, RunTrouble, work_for
from threadkeep.records.runs import STATUS, Begun, Over, Run
from threadkeep.runs.carried import Carried, CarriedRuns, RunStop
from threadkeep.runs.endings import RunEndings, end_orphans, report_run, report_turn
from threadkeep.runs.engine.engine import Engine
from threadkeep.runs.execution import RunMeans
from threadkeep.runs.live import LiveRun, LiveRuns, Outcome
from threadkeep.runs.progress.progress import ProgressKeeping, RunCheckpoints, RunProgress
from threadkeep.runs.run_beginnings import RunBeginnings
from threadkeep.runs.tracing import RunTracer
from threadkeep.runs.versions import RunWorkflows, VersionGone
from threadkeep.runs.waiting import retry_until_available, shielded

_TAKE_OVERS = 3


class Runner:
    """The runs of this process. The engine calls `carry_out`; the runner is also the engine's listener.

    A run that another process owns is taken over only if that process is dead or was declared dead. From then on the
    database rejects its writes to the run.
    """

    def __init__(self, memory: Memory, workflows: RunWorkflows, checkpoints: RunCheckpoints) -> None:
        self.live = LiveRuns()
        self.carried = CarriedRuns()
        self.workflows = workflows
        self._memory = memory
        self._runs = memory.runs
        self._checkpoints = checkpoints
        self._beginnings = RunBeginnings(memory.runs, workflows, self.carried)
        self._endings = RunEndings(memory, workflows)
        self._keeping = ProgressKeeping(memory.observers)
        self._expected: dict[str, tuple[Run, BegunTurn | None]] = {}
        # Held from the start, so that concurrent callers see that the run was started.
        self._started: dict[str, LiveRun] = {}
        self._opened = asyncio.Event()
        self._context = contextvars.copy_context()
        self._engine: Engine | None = None
        self._means: RunMeans | None = None

    def open(self, engine: Engine, means: RunMeans) -> None:
        """Set the engine and the dependencies; the engine may call before this."""
        self._engine, self._means = engine, means
        self._opened.set()

    async def opened(self) -> None:
        """Wait until `open` was called."""
        await self._opened.wait()

    @property
    def engine(self) -> Engine:
        """The engine."""
        if self._engine is None:
            raise StoreClosed("Runs were asked for before their engine was open.")
        return self._engine

    @property
    def means(self) -> RunMeans:
        """The dependencies that all runs share."""
        if self._means is None:
            raise StoreClosed("Runs were asked for before their engine was open.")
        return self._means

    @property
    def owner(self) -> str:
        """The name of this process as owner of runs; the engine must be ready."""
        return self.engine.name

    def has(self, run_id: str) -> bool:
        """Return whether a run is executed here or about to be."""
        return self.carried.of(run_id) is not None or run_id in self._expected

    def holds(self, run_id: str) -> bool:
        """Return whether this process certainly still owns a run."""
        carried = self.carried.of(run_id)
        return carried is not None and carried.stop is None and self.engine.holds(carried.run.root_run_id)

    async def start_begun(self, run: Run, begun: BegunTurn | None = None) -> None:
        """Execute a run here that was begun in this process's name, maybe with its question.

        Raises:
            StoreError: the engine does not accept it; the run is given back.
        """
        if self.live.of(run.run_id).started:
            return
        self._expected[run.run_id] = run, begun
        try:
            await self.start(run.run_id)
        except BaseException:
            if self._expected.pop(run.run_id, None) is not None and run.owner is not None:
                await self._runs.give_back(run.run_id, run.owner)
            raise

    async def start(self, run_id: str) -> None:
        """Execute a run here, unless it was started already."""
        live = self.live.of(run_id)
        if live.started:
            return
        live.started = True
        self._started[run_id] = live
        try:
            await self.engine.start(run_id)
        except BaseException:
            live.started = False
            self._started.pop(run_id, None)
            raise

    async def carry_out(self, run_id: str) -> None:
        """Execute a run if it may begin now; otherwise the run before it in the order starts it."""
        await self.opened()
        live = self.live.of(run_id)
        try:
            expected = self._expected.pop(run_id, None)
            if expected is not None:
                await self.carry(expected[0], begins=True, begun=expected[1])
            elif (run := await retry_until_available(lambda: self.take_up(run_id))) is not None:
                await self.carry(run)
        finally:
            live.started = False
            self._started.pop(run_id, None)
            live.end()

    async def end_stopped(self, run_id: str) -> None:
        """End a run that is to be stopped before it begins; if other turns are before it, it ends after them."""
        await self.engine.ready()
        if not self.has(run_id) and (run := await self.take_up(run_id)) is not None:
            await self.carry(run)

    async def take_up(self, run_id: str) -> Run | None:
        """Begin a run, or take it over from a dead process; return None if there is nothing to execute now."""
        for _ in range(_TAKE_OVERS):
            taken = await self._runs.order.begin(run_id, self.owner)
            if isinstance(taken, Begun):
                return taken.run
            if isinstance(taken, Over) or taken.behind != run_id or taken.run.owner is None:
                return None
            if not await self.engine.dead({taken.run.owner}):
                return None
            await self._runs.disown(taken.run.owner)
        return None

    async def gave_up(self, run_id: str, attempts: int) -> None:
        """Set a run aside that the engine does not try any more."""
        run = await self.take_up(run_id)
        if run is not None:
            outcome = await self._endings.set_aside(run, self.owner, self.means)
            report_run(self._memory.observers, run, outcome, milliseconds=0.0)
            report_turn(self._memory.observers, run, outcome, None, milliseconds=0.0)
            await self._clear_up(run, outcome)
        self.live.of(run_id).end()

    def troubled(self, error: str) -> None:
        """Report an error that keeps the engine from its work for now."""
        self._memory.observers.notify(RunTrouble(error=error, work="engine"))

    async def carry(self, run: Run, *, begins: bool = False, begun: BegunTurn | None = None) -> Outcome | None:
        """Execute a run that this process owns; return None if it lost the run."""
        carried = self._enter(run, begins=begins)
        carried.hold.begun = begun
        if run.attempts > 1:
            self._memory.observers.notify(
                RunTakenOver(workflow=run.workflow, attempt=run.attempts, run_id=run.run_id, session_id=run.session_id)
            )
        started, outcome, unstored = time.perf_counter(), None, False
        try:
            with self._progress_known(carried):
                outcome = await self._carry(carried)
        finally:
            # A second cancellation must not skip the clean-up.
            unstored = await shielded(self._leave(carried))
        if outcome is not None:
            milliseconds = (time.perf_counter() - started) * 1000
            report_run(self._memory.observers, run, outcome, milliseconds=milliseconds)
            if not self.means.unrecorded.has_answered(run):
                report_turn(self._memory.observers, run, outcome, carried.ledger, milliseconds=milliseconds)
            await self._clear_up(run, outcome, unstored=unstored, has_following=carried.has_following)
        return outcome

    async def start_next(self, run: Run) -> None:
        """Start the runs that may begin now that another run of their conversations is over or waits."""
        self._runs.places.tell_freed()
        for following in await self._runs.order.following(run.run_id):
            if self.live.is_waited_for(following):
                await self.start(following)
            else:
                await self.engine.enqueue(following)

    def _enter(self, run: Run, *, begins: bool) -> Carried:
        def lost() -> None:
            carried.cancel("lost")

        live, owner = self.live.of(run.run_id), run.owner or self.owner
        tracer = RunTracer(
            self._runs.trace,
            live,
            owner,
            lost=lost,
            seconds=self.means.options.trace_seconds,
            late_seconds=self.means.options.late_trace_seconds,
            begins=begins,
        )
        seconds = self.means.options.progress_seconds
        progress = RunProgress(
            self._keeping, lambda: self._checkpoints.expect(run.run_id), fresh=begins, seconds=seconds
        )
        carried = Carried(run, owner, live, tracer, progress, begins)
        # A run that begins here has a caller that waits; one that is taken over has none.
        carried.hold.told = begins
        live.hold = carried.hold
        self.carried.enter(carried)
        live.begin()
        return carried

    async def _leave(self, carried: Carried) -> bool:
        """Release a run; return whether it has no checkpoints."""
        self.carried.leave(carried.run.run_id)
        await carried.tracer.close()
        for entry in carried.hold.manifests:
            # Stored already if the reply to the end of the run was lost.
            self._memory.manifests.queue(replace(entry, again=True))
        ledger = carried.ledger
        if carried.begins and ledger is not None and not ledger.has_children:
            carried.live.usage = ledger.usages
        carried.live.end(carried.over)
        return await carried.progress.leave()

    def _progress_known(self, carried: Carried) -> AbstractContextManager[None]:
        saver = self.means.saver
        return nullcontext() if saver is None else saver.knowing(carried.run.run_id, carried.progress)

    async def _carry(self, carried: Carried) -> Outcome | None:
        run = carried.run
        _set_channel(run)
        if run.cancel_requested_at is not None:
            return await self._endings.end(carried, Outcome("cancelled"), self.means)
        carried.tracer.note(STATUS, data={"status": "running", "try": run.attempts})
        task = carried.task = asyncio.create_task(self._execute(carried), context=self._context.copy())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            carried.cancel(self._why_cancelled(carried))
            await asyncio.wait([task])
            await self._endings.let_go(carried, self.means)
            raise
        if carried.stop == "lost":
            await self._endings.leave(run)
            return None
        if not task.cancelled():
            outcome = task.result()
        else:
            outcome = Outcome("cancelled") if carried.stop else Outcome("failed", error="Cancelled")
        return await shielded(self._endings.end(carried, outcome, self.means))

    async def _execute(self, carried: Carried) -> Outcome:
        _set_channel(carried.run)
        run_hold.set(carried.hold)
        if carried.run.attempts > 1 and carried.run.session_id is not None:
            await self._memory.pending.adopt(carried.run.session_id)
        try:
            execution = await self._beginnings.execution(carried, self.means)
        except VersionGone as gone:
            return Outcome("interrupted", error=gone.kind)
        return await execution.to_its_end()

    def _why_cancelled(self, carried: Carried) -> RunStop:
        """Return why the executing task was cancelled from outside: by the engine, or by its parent's task."""
        above = self.carried.of(carried.run.parent_run_id or "")
        if above is not None:
            return above.stop if above.stop in ("closing", "lost") else "cancelled"
        return self.engine.stopping(carried.run.run_id) or "closing"

    async def _clear_up(
        self, run: Run, outcome: Outcome, *, unstored: bool = False, has_following: bool = True
    ) -> None:
        """Clean up after a run; maintenance repairs failures. An `unstored` run has no checkpoints."""
        try:
            if has_following:
                await self.start_next(run)
            else:
                self._runs.places.tell_freed()
            # A run that was given back begins its first attempt once more.
            again = run.attempts > 1 or run.started_at != run.heartbeat_at
            if again and outcome.status != "waiting":
                await end_orphans(self._runs, run.run_id)
            if outcome.status == "done":
                await self._checkpoints.remove([] if unstored else [run.run_id])
        except Exception as error:  # noqa: BLE001 - the run is over, and must not be tried again for this
            self._memory.observers.notify(RunTrouble(error=type(error).__name__, work="clearing_up"))


def _set_channel(run: Run) -> None:
    """Set the channel for which the current task works, in any process: a worker serves none. A child keeps it."""
    if run.trigger != "child":
        work_for("http" if run.trigger == "http" else "other")
