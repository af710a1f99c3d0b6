"""Carries runs out: takes them up, lets their graphs run, and records how they ended, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from langchain_core.runnables import RunnableConfig
from langchain_core.utils.uuid import uuid7

from threadkeep.errors import StoreClosed, StoreError
from threadkeep.graphs.definition import Workflow
from threadkeep.history.memory import Memory
from threadkeep.observe import RunTakenOver, RunTrouble, work_for
from threadkeep.records.runs import Begun, Over, Run
from threadkeep.runs.carried import Carried
from threadkeep.runs.checkpoints import RunCheckpoints
from threadkeep.runs.engine import Engine, Stop
from threadkeep.runs.execution import Execution, RunMeans
from threadkeep.runs.insisting import insist, undisturbed
from threadkeep.runs.ledger import RunLedger
from threadkeep.runs.live import LiveRun, LiveRuns
from threadkeep.runs.orphans import end_orphans
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.telling import tell_run, tell_turn
from threadkeep.runs.tracing import RunTracer
from threadkeep.runs.turn_endings import TurnEndings
from threadkeep.runs.versions import RunWorkflows, VersionGone
from threadkeep.store.runs.runs import RunEnding
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
        self.workflows = workflows
        self._memory = memory
        self._runs = memory.runs
        self._checkpoints = checkpoints
        self._endings = TurnEndings(memory, workflows)
        self._carried: dict[str, Carried] = {}
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

    def carried(self, run_id: str) -> Carried | None:
        """A run that is carried out here now."""
        return self._carried.get(run_id)

    def all_carried(self) -> Iterable[Carried]:
        """All of them."""
        return tuple(self._carried.values())

    def has(self, run_id: str) -> bool:
        """Whether a run is carried out here, or about to be."""
        return run_id in self._carried or run_id in self._expected

    def holds(self, run_id: str) -> bool:
        """Whether this process still has a run for certain."""
        carried = self._carried.get(run_id)
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
            await self._endings.end(run, self.means.resources)
            await self._runs.finish(run_id, self.owner, "failed", error="GaveUp", set_aside=True)
            outcome = Outcome("failed", error="GaveUp", set_aside=True)
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
        started, outcome = time.perf_counter(), None
        try:
            outcome = await self._carry(carried)
        finally:
            del self._carried[run.run_id]
            await carried.tracer.close()
            carried.live.end(carried.over)
        if outcome is not None:
            milliseconds = (time.perf_counter() - started) * 1000
            tell_run(self._memory.observers, run, outcome, milliseconds=milliseconds)
            tell_turn(self._memory.observers, run, outcome, carried.ledger, milliseconds=milliseconds)
            await self._clear_up(run, outcome)
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
        carried = Carried(run, self.owner, live, tracer, begins)
        self._carried[run.run_id] = carried
        live.begin()
        return carried

    async def _carry(self, carried: Carried) -> Outcome | None:
        run = carried.run
        if run.cancel_requested_at is not None:
            return await self._end(carried, Outcome("cancelled"))
        carried.tracer.note("status", data={"status": "running", "try": run.attempts})
        task = carried.task = asyncio.create_task(self._execute(carried), context=self._context.copy())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            carried.cancel(self._why_cancelled(carried))
            await asyncio.wait([task])
            await self._let_go(carried)
            raise
        if carried.stop == "lost":
            await self._endings.leave(run)
            return None
        if not task.cancelled():
            return await undisturbed(self._end(carried, task.result()))
        ending = Outcome("cancelled") if carried.stop else Outcome("failed", error="Cancelled")
        return await undisturbed(self._end(carried, ending))

    async def _execute(self, carried: Carried) -> Outcome:
        if (trigger := carried.run.trigger) != "child":
            # Whatever process it is in: somebody who works serves no channel.
            work_for("http" if trigger == "http" else "other")
        run_hold.set(carried.hold)
        try:
            workflow = await insist(lambda: self._workflow_of(carried))
        except VersionGone as gone:
            return Outcome("interrupted", error=gone.kind)
        run = carried.run
        limited = await insist(lambda: self._limited(run))

        async def flush_tree() -> None:
            for each in self.all_carried():
                if each.run.root_run_id == run.root_run_id:
                    await each.tracer.flush()

        carried.ledger = RunLedger(self._runs.trace, carried.tracer, limited, flush_tree)
        execution = Execution(
            run,
            workflow,
            self.means,
            notes=carried.tracer,
            ledger=carried.ledger,
            live=carried.live,
            begins=carried.begins,
        )
        return await execution.to_its_end()

    async def _workflow_of(self, carried: Carried) -> Workflow:
        run = carried.run
        workflow = await self.workflows.to_go_on_with(run, lambda: self._is_untouched(carried))
        if workflow.version != run.version:
            await self._runs.begin_with(run.run_id, carried.owner, workflow.version)
            carried.run = replace(run, version=workflow.version)
        return workflow

    async def _is_untouched(self, carried: Carried) -> bool:
        thread: RunnableConfig = {"configurable": {"thread_id": carried.run.run_id}}
        saver = self.means.saver
        return carried.begins or saver is None or await saver.aget_tuple(thread) is None

    async def _limited(self, run: Run) -> list[Run]:
        """Those with a budget, of a run and all above it."""
        found, current = [], run
        while True:
            if current.budget.to_dict():
                found.append(current)
            if current.parent_run_id is None:
                return found
            above = self._carried.get(current.parent_run_id)
            parent = above.run if above is not None else await self._runs.run(current.parent_run_id)
            if parent is None:
                return found
            current = parent

    def _why_cancelled(self, carried: Carried) -> Stop:
        """Why the task that carries a run out was cancelled from outside: by the engine, or by its parent's."""
        above = self._carried.get(carried.run.parent_run_id or "")
        if above is not None:
            return above.stop if above.stop in ("closing", "lost") else "cancelled"
        return self.engine.stopping(carried.run.run_id) or "closing"

    async def _let_go(self, carried: Carried) -> None:
        """Leave a run that is stopped from outside in the state that others need.

        A child stays its parent's, and one that has got an answer stays as it is: who takes it over knows that the
        answer may have been heard.
        """
        run = carried.run
        with contextlib.suppress(StoreError):
            if carried.stop == "cancelled":
                carried.tracer.note("status", data={"status": "cancelled"})
                await self._record(carried, Outcome("cancelled"))
            else:
                await self._endings.leave(run)
            if carried.stop == "closing":
                await carried.tracer.flush()
            if carried.stop == "closing" and run.parent_run_id is None and not run.resumed:
                await self._runs.give_back(run.run_id, carried.owner)

    async def _end(self, carried: Carried, outcome: Outcome) -> Outcome | None:
        """Record how a run ended; None when it is not this process's any more."""
        carried.live.came_out(outcome)
        if outcome.status == "failed" and await insist(lambda: self._is_to_stop(carried.run)):
            # It fails because a part of it has been stopped already, or would have been stopped next.
            outcome = Outcome("cancelled")
        told = {"status": outcome.status, "error": outcome.error, "interrupt": outcome.interrupt}
        carried.tracer.note("status", data={name: value for name, value in told.items() if value is not None})
        return await insist(lambda: self._record(carried, outcome))

    async def _is_to_stop(self, run: Run) -> bool:
        current = await self._runs.run(run.run_id)
        return current is not None and current.cancel_requested_at is not None

    async def _record(self, carried: Carried, outcome: Outcome) -> Outcome | None:
        run_id, owner = carried.run.run_id, carried.owner
        if outcome.status == "waiting":
            await carried.tracer.flush()
            if await self._runs.wait(run_id, owner, outcome.interrupt):
                return outcome
            outcome = Outcome("cancelled")
            carried.tracer.note("status", data={"status": "cancelled"})
        assert outcome.status != "waiting"  # noqa: S101 - seen above
        if outcome.status != "done":
            await self._endings.end(carried.run, self.means.resources)
        ending = RunEnding(outcome.status, outcome.result, outcome.error, outcome.set_aside)
        carried.over = await carried.tracer.flush_with(lambda group: self._runs.end(run_id, owner, ending, group))
        return outcome if carried.over is not None else None

    async def _clear_up(self, run: Run, outcome: Outcome) -> None:
        """What is not in anybody's way: upkeep sees to it where it fails."""
        try:
            await self.start_next(run)
            # One that was given back begins its first try once more.
            again = run.attempts > 1 or run.started_at != run.heartbeat_at
            if again and outcome.status != "waiting":
                await end_orphans(self._runs, run.run_id)
            if outcome.status == "done":
                await self._checkpoints.remove([run.run_id])
        except Exception as error:  # noqa: BLE001 - the run is over, and must not be tried again for this
            self._memory.observers.notify(RunTrouble(error=type(error).__name__, work="clearing_up"))
