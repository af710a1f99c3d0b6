"""Execution of runs by this process: it becomes the owner of a run, runs its graph, and always cleans up.

Background maintenance stops runs of this process on request, and recovers runs of dead processes.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from threadkeep.agent.invocation import RunHold, run_hold
from threadkeep.boundary import ErrorBoundary, running, shielded
from threadkeep.errors import RecordTooNew, RecordUnreadable, StoreClosed, StoreError, StoreUnavailable
from threadkeep.history.memory import Memory
from threadkeep.history.session import BegunTurn
from threadkeep.observe import Channel, RunFinished, RunTakenOver, RunTrouble, RunWork, work_for
from threadkeep.records.runs import STATUS, Begun, Over, Run, TokenUsage
from threadkeep.runs.endings import ActiveRun, RunEndings, RunStop, end_orphan, end_orphans, report_turn
from threadkeep.runs.engine.engine import Engine
from threadkeep.runs.execution import Dependencies
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.progress import ProgressSaver, RunProgress, remove_checkpoints, remove_old_checkpoints, thread_of
from threadkeep.runs.run_workflows import RunWorkflows, VersionGone
from threadkeep.runs.streams import RunStream, RunStreams, changed, retry_until_available
from threadkeep.runs.tracing import RunTracer
from threadkeep.store.codec import time_text
from threadkeep.store.runs import Outcome
from threadkeep.workflows.definition import Workflow

_TAKEOVERS = 3
_LACKING = "workflow_gone"
_REPORTED_AGAIN_AFTER_SECONDS = 60.0


class Worker:
    """An executor of the runs of this process. The engine calls `execute`.

    A run of another process is taken over only if that process is dead or was declared dead. After a takeover, the
    database rejects the former owner's writes to the run. The record of a run counts how often the run was acquired. A
    run that was acquired too often is set aside for a person.

    `open` sets the `engine` and the `dependencies`, and then the event `opened`. Runs of this process are stored with
    the engine's name as their owner.
    """

    engine: Engine
    dependencies: Dependencies

    def __init__(self, memory: Memory, workflows: RunWorkflows, saver: ProgressSaver) -> None:
        self.streams = RunStreams()
        self.active: dict[str, ActiveRun] = {}
        self.workflows = workflows
        self._memory = memory
        self._runs = memory.runs
        self.saver = saver
        self._begun: dict[str, ActiveRun] = {}
        # The streams of started runs. They are kept here, because `streams` has only weak references.
        self.started: dict[str, RunStream] = {}
        # Unfinished runs whose workflow this process lacks, and since when.
        self.lacking: dict[str, datetime] = {}
        self._reported: dict[RunWork, float] = {}
        self.opened = asyncio.Event()
        self._context = contextvars.copy_context()

    def open(self, engine: Engine, dependencies: Dependencies) -> None:
        """Set the engine and the dependencies. `execute` waits for them, because the engine may call it earlier."""
        self.engine, self.dependencies = engine, dependencies
        self._endings = RunEndings(self._memory, self.workflows, self.saver, dependencies, self.report)
        self.opened.set()

    def has(self, run_id: str) -> bool:
        """Return whether this process executes a run or is about to execute it."""
        return run_id in self.active or run_id in self._begun

    def holds(self, run_id: str) -> bool:
        """Return True if it is certain that this process still owns a run."""
        active = self.active.get(run_id)
        return active is not None and active.stop is None and self.engine.holds(active.run.root_run_id)

    async def flush(self, run_id: str) -> None:
        """Store the events of a run that are still in memory, so that a reader gets them; ignore store errors."""
        if (active := self.active.get(run_id)) is not None:
            with suppress(StoreError):
                await active.tracer.flush()

    async def _usage_in_tree(self, root_run_id: str, run_id: str) -> Sequence[TokenUsage]:
        """Store the usage of the active runs of a tree; return the usage of the run `run_id` and all runs below it."""
        for each in list(self.active.values()):
            if each.run.root_run_id == root_run_id:
                await each.tracer.flush()
        return await self._runs.trace.usage(run_id)

    async def start(self, run_id: str, begun: ActiveRun | None = None) -> None:
        """Start executing a run in this process, unless it was started already; do not wait for its end.

        If `begun` is passed, this process already owns the run.

        Raises:
            StoreError: the engine does not accept the run. If `begun` was passed, the run is released.
        """
        stream = self.streams.of(run_id)
        # If the reply to the insert of a new run was late, maintenance may have started the run already.
        if run_id in self.started or (begun is not None and stream.outcome is not None):
            return
        self.started[run_id] = stream
        if begun is not None:
            self._begun[run_id] = begun
        is_accepted = False
        try:
            await self.engine.start(run_id)
            is_accepted = True
        finally:
            if not is_accepted:
                self.started.pop(run_id, None)
                if begun is not None and self._begun.pop(run_id, None) is not None:
                    await self._runs.give_back(run_id, begun.owner)

    async def execute(self, run_id: str) -> None:
        """Execute a run, if it may begin now.

        An unexpected error is reported, and the run is retried after a pause. After `max_attempts` it is set aside.
        """
        await self.opened.wait()
        stream, options = self.streams.of(run_id), self.dependencies.options
        try:
            for failures in range(1, options.max_attempts + 1):
                # Catch all errors, because while this process owns the run, nothing else would retry it.
                with ErrorBoundary(lambda error: self.report(type(error).__name__)):
                    begun = self._begun.pop(run_id, None)
                    if begun is None and not await retry_until_available(lambda: self.leaves(run_id)):
                        begun = await retry_until_available(lambda: self.acquire(run_id))
                    if begun is None:
                        return
                    if begun.run.attempts > options.max_attempts:
                        await self._set_aside(begun.run)
                    else:
                        await self.execute_owned(begun)
                    return
                await asyncio.sleep(options.pause_seconds * 2 ** (failures - 1))
            if (begun := await retry_until_available(lambda: self.acquire(run_id))) is not None:
                await self._set_aside(begun.run)
        finally:
            self.started.pop(run_id, None)
            stream.end()

    async def leaves(self, run_id: str) -> bool:
        """Return True if this process must leave a run to others because it lacks the workflow; record this.

        After `workflow_gone_seconds`, return False: the run is executed and ends as `interrupted`.
        """
        run = await self._runs.run(run_id, damaged=True)
        if run is None or run.cancel_requested_at is not None:
            return False
        try:
            await self.workflows.of(run)
            return False
        except VersionGone as gone:
            if gone.kind != "WorkflowGone":
                return False
        if run.error != "WorkflowGone":
            await self._runs.note_workflow_gone(run_id)
        # Insert the run again as the last one, so that `recover` looks at the others first.
        self.lacking[run_id] = since = self.lacking.pop(run_id, None) or await self._lacking_since(run)
        return self._memory.clock() - since < timedelta(seconds=self.dependencies.options.workflow_gone_seconds)

    async def _lacking_since(self, run: Run) -> datetime:
        """Return since when processes have lacked the workflow of a run; the first of them stores this time."""
        state, now = self._memory.channels.state, self._memory.clock()
        if run.error == "WorkflowGone" and (stored := await state.value(_LACKING, run.run_id)) is not None:
            return datetime.fromisoformat(stored)
        expires_at = now + timedelta(seconds=2 * self.dependencies.options.workflow_gone_seconds)
        await state.keep(_LACKING, run.run_id, time_text(now), expires_at=expires_at)
        return now

    async def end_stopped(self, run_id: str) -> None:
        """End a run that was cancelled before it began. If earlier turns are active, the run ends after them."""
        await self.engine.ready()
        if not self.has(run_id) and (begun := await self.acquire(run_id)) is not None:
            await self.execute_owned(begun)

    async def acquire(self, run_id: str) -> ActiveRun | None:
        """Make this process the owner of a run: begin the run, or take it over from a dead process.

        Return None if the run is over, must wait, belongs to a live process, or is being executed in this process.
        """
        for _ in range(_TAKEOVERS):
            found = await self._runs.order.begin(run_id, self.engine.name)
            if isinstance(found, Begun):
                # `begin` succeeds again for a run that this process owns, so check that no other task executes it.
                return None if run_id in self.active else self.owned(found.run, new=found.new)
            if isinstance(found, Over) or found.behind != run_id or found.run.owner is None:
                return None
            if not await self.engine.dead({found.run.owner}):
                return None
            await self._runs.disown(found.run.owner)
        return None

    def report(self, error: str, work: RunWork = "engine") -> None:
        """Report to the observer the class name of an error that interrupts the work of this process.

        That the database is unavailable is reported once a minute for each kind of work.
        """
        if error == StoreUnavailable.__name__:
            now = time.monotonic()
            if now - self._reported.get(work, -_REPORTED_AGAIN_AFTER_SECONDS) < _REPORTED_AGAIN_AFTER_SECONDS:
                return
            self._reported[work] = now
        self._memory.observers.notify(RunTrouble(error=error, work=work))

    def report_end(
        self, run: Run, outcome: Outcome, usages: Sequence[TokenUsage] = (), *, milliseconds: float = 0.0
    ) -> None:
        """Report to the observer that a run and its turn ended, or that the run waits for a person."""
        self._memory.observers.notify(
            RunFinished(
                workflow=run.workflow,
                status=outcome.status,
                error=outcome.error,
                milliseconds=milliseconds,
                set_aside=outcome.set_aside,
                run_id=run.run_id,
                session_id=run.session_id,
            )
        )
        # If a run that the database does not record has answered the messages, it has also reported the turn.
        if not self.dependencies.in_flight.has_answered(run):
            report_turn(self._memory.observers, run, outcome, usages, milliseconds=milliseconds)

    async def execute_owned(self, active: ActiveRun) -> None:
        """Execute a run that this process owns, and record and report its end."""
        run, active.stream.hold = active.run, active.hold
        self.active[run.run_id] = active
        active.stream.renew(begun=True)
        if run.attempts > 1:
            self._memory.observers.notify(
                RunTakenOver(workflow=run.workflow, attempt=run.attempts, run_id=run.run_id, session_id=run.session_id)
            )
        # Events name the channel of their run; a child has the channel of the run at the top.
        above = self.active.get(run.root_run_id, active)
        channel: Channel = "http" if above.run.trigger == "http" else "other"
        work_for(channel)
        started = time.perf_counter()
        if run.cancel_requested_at is None:
            active.tracer.note(STATUS, data={"status": "running", "try": run.attempts})
            context = self._context.copy()
            context.run(work_for, channel)
            active.task = asyncio.create_task(self._run_graph(active), context=context)
            try:
                await asyncio.wait([active.task])
            except asyncio.CancelledError:
                active.cancel(self._why_cancelled(active))
                # Shield the release from a second cancellation; otherwise the run would stay with this process.
                await shielded(self._leave(active, self._endings.release(active), started))
                raise
        await shielded(self._leave(active, self._end(active), started))

    async def _end(self, active: ActiveRun) -> Outcome | None:
        """Record the end of a run whose task is over; return the recorded outcome, or None if the run was lost."""
        if active.stop == "lost":
            await self._memory.settle_run(active.run.run_id, elsewhere=True)
            return None
        outcome, task = Outcome("cancelled"), active.task
        if task is not None and not task.cancelled():
            outcome = task.result()
        elif task is not None and active.stop is None:
            outcome = Outcome("failed", error="Cancelled")
        return await self._endings.end(active, outcome)

    async def _leave(self, active: ActiveRun, ending: Awaitable[Outcome | None], started: float) -> None:
        """Await the `ending` of a run, which returns its recorded outcome; forget the run, and report its end."""
        run, outcome = active.run, None
        try:
            outcome = await ending
        finally:
            has_children, progress = active.tracer.has_children, self.saver.active.pop(run.run_id, None)
            if outcome is not None and outcome.status != "waiting" and (has_children or not active.begins):
                # Cancel the children before a caller learns of the end, because a retry would continue them.
                await self._end_orphans(active.run)
            del self.active[run.run_id]
            await active.tracer.close()
            for entry in active.hold.manifests:
                # Set `again`: a transaction whose reply was lost may have stored the record of the model call.
                self._memory.manifests.queue(replace(entry, again=True))
            if active.begins and not has_children:
                active.stream.usage = active.tracer.usages
            active.stream.end(active.over)
            unstored = active.begins if progress is None else await progress.leave()
        if outcome is not None:
            milliseconds = (time.perf_counter() - started) * 1000
            self.report_end(run, outcome, active.tracer.usages, milliseconds=milliseconds)
            await self._clear_up(run, outcome, unstored=unstored, has_following=active.has_following)

    async def start_following(self, run: Run) -> None:
        """Start the runs that waited for `run`, because it is over or waits for a person."""
        self._runs.positions.notify_freed()
        for following in await self._runs.order.following(run.run_id):
            if self.streams.is_waited_for(following):
                await self.start(following)
            else:
                await self.engine.enqueue(following)

    def owned(
        self, run: Run, *, new: bool = True, workflow: Workflow | None = None, turn: BegunTurn | None = None
    ) -> ActiveRun:
        """Create the `ActiveRun` for a run that this process owns; a `new` run was never executed before.

        Pass the `workflow` if this process created the run, and the `turn` if the run's question is stored already.
        """
        stream, owner = self.streams.of(run.run_id), run.owner or self.engine.name
        # If `workflow` is set, this process has just created the run, and returns its answer.
        told, stream.has_caller = workflow is not None or (stream.has_caller and stream.waiting > 0), False
        tracer = RunTracer(
            self._runs.trace,
            stream,
            owner,
            self.dependencies.options,
            lost=partial(self._stop_lost, run.run_id),
            used=partial(self._usage_in_tree, run.root_run_id),
            begins=new,
        )
        return ActiveRun(
            run=run,
            dependencies=self.dependencies,
            tracer=tracer,
            stream=stream,
            begins=new,
            hold=RunHold(told=told, begun=turn),
            owner=owner,
            workflow=workflow,
        )

    def _stop_lost(self, run_id: str) -> None:
        # Look the run up: a reference to it would form a cycle, which would keep ended runs in memory.
        if (active := self.active.get(run_id)) is not None:
            active.cancel("lost")

    async def _run_graph(self, active: ActiveRun) -> Outcome:
        run = active.run
        run_hold.set(active.hold)
        if run.attempts > 1 and run.session_id is not None:
            # The process that executed the run before may have left its answer in a file: write it to the database now.
            await self._memory.pending.adopt(run.session_id)
        if (workflow := active.workflow) is None:
            try:
                workflow = await retry_until_available(partial(self._workflow_of, active))
            except VersionGone as gone:
                return Outcome("interrupted", error=gone.kind)
        if self.dependencies.plan(workflow).chat is None:
            self.saver.active[run.run_id] = RunProgress(
                self.saver,
                run.run_id,
                fresh=active.begins,
                in_background=workflow.is_stored_in_background,
                starts_again=workflow.durability == "exit",
            )
        if active.begins and run.parent_run_id is None and workflow.speaker is not None:
            active.hold.joins = run.session_id
        limited = [run]
        if run.parent_run_id is not None:
            limited += await retry_until_available(lambda: self._above(run))
        active.tracer.limit(limited)
        return await active.run_to_end(workflow)

    async def _workflow_of(self, active: ActiveRun) -> Workflow:
        """Return the workflow of a run. If its version is gone and the run has done nothing, return the newest.

        So a run that waits in the queue while changed code is deployed still answers its message.
        """
        run = active.run
        try:
            workflow = await self.workflows.of(run)
        except VersionGone as gone:
            begins = active.begins or await self.saver.aget_tuple(thread_of(run.run_id)) is None
            if gone.kind == "WorkflowGone" or not begins:
                raise
            workflow = await self.workflows.newest(run.workflow)
        if workflow.version != run.version:
            await self._runs.begin_with(run.run_id, active.owner, workflow.version)
            active.run = replace(run, version=workflow.version)
        return workflow

    async def _above(self, run: Run) -> list[Run]:
        """Return the ancestors of a run."""
        found: list[Run] = []
        current: Run | None = run
        while current is not None and (parent_run_id := current.parent_run_id) is not None:
            above = self.active.get(parent_run_id)
            current = above.run if above is not None else await self._runs.run(parent_run_id)
            if current is not None:
                found.append(current)
        return found

    def _why_cancelled(self, active: ActiveRun) -> RunStop:
        """Return why the engine or the parent's task cancelled the task of a run."""
        above = self.active.get(active.run.parent_run_id or "")
        if above is not None:
            return above.stop if above.stop in ("closing", "lost") else "cancelled"
        return self.engine.stopping(active.run.run_id) or "closing"

    async def _set_aside(self, run: Run) -> None:
        """End a run that was acquired or failed too often. It is set aside: only a person can retry it."""
        outcome = await self._endings.set_aside(run, self.engine.name)
        self.report_end(run, outcome)
        await self._end_orphans(run)
        await self._clear_up(run, outcome)

    async def _end_orphans(self, run: Run) -> None:
        """Cancel the children of a run that is over. If this fails, maintenance ends them later."""
        try:
            await end_orphans(self._runs, run.run_id)
        except (StoreError, TimeoutError) as error:
            self.report(type(error).__name__, "clearing_up")

    async def _clear_up(
        self, run: Run, outcome: Outcome, *, unstored: bool = False, has_following: bool = True
    ) -> None:
        """Start the runs that waited for `run`; if the outcome is `done`, remove the checkpoints of `run`."""
        # Catch all errors, because the run must not be retried. Maintenance does the missing work.
        with ErrorBoundary(lambda error: self.report(type(error).__name__, "clearing_up")):
            if has_following:
                await self.start_following(run)
            else:
                self._runs.positions.notify_freed()
            if outcome.status == "done" and not unstored:
                await remove_checkpoints(self.saver.saver, self._runs.records, [run.run_id])


_AT_ONCE = 50
_ENQUEUED_AGAIN_AFTER_SECONDS = 60.0
_MOST_REMEMBERED = 10_000


class RunMaintenance:
    """Background tasks that stop, start and take over runs at intervals. Errors are reported, and the tasks go on."""

    def __init__(self, memory: Memory, worker: Worker, options: RunServiceOptions) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._worker = worker
        self._options = options
        self._look = asyncio.Event()
        self._enqueued: dict[str, float] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background tasks inside the block."""
        options = self._options
        async with (
            running(self._repeat(self.take_over, options.owner_check_seconds, "takeover"), "threadkeep-takeover"),
            running(self._repeat(self.watch, options.watch_seconds, "watch", self._look), "threadkeep-watch"),
            running(self._repeat(self.recover, options.upkeep_seconds, "upkeep"), "threadkeep-upkeep"),
        ):
            yield

    def watch_now(self) -> None:
        """Check at once which runs of this process must be stopped."""
        self._look.set()

    async def watch(self) -> None:
        """Stop active runs of this process that were cancelled or now belong to another process."""
        before = [active for active in self._worker.active.values() if active.stop is None]
        if not before:
            return
        held: dict[str, str | None] = {}
        for owner in {active.owner for active in before}:
            held |= await self._runs.held_by(owner)
        for active in before:
            run_id = active.run.run_id
            if self._worker.active.get(run_id) is not active:
                continue
            if run_id not in held:
                active.cancel("lost")
            elif held[run_id] is not None:
                active.cancel("cancelled")

    async def recover(self) -> None:
        """Start or enqueue runs that no process executes, and remove checkpoints of finished runs."""
        await self._start_unknown()
        # Runs that this process leaves to others must not use up the limit. Look at only some of them again.
        order, lacking = self._runs.order, self._worker.lacking
        limit = _AT_ONCE + min(len(lacking), _MOST_REMEMBERED)
        found = await order.ready(limit=limit, waited_seconds=self._options.forgotten_seconds)
        found += await order.abandoned(limit=limit)
        for run_id in lacking.keys() - set(found):
            del lacking[run_id]
        skipped = set(list(lacking)[_AT_ONCE:])
        for run_id in found:
            if not self._worker.has(run_id) and run_id not in skipped:
                await self._enqueue(run_id)
        age = timedelta(seconds=self._options.keep_checkpoints_seconds)
        before, saver = self._memory.clock() - age, self._worker.saver.saver
        await remove_old_checkpoints(saver, self._runs.records, before, limit=_AT_ONCE)

    async def _start_unknown(self) -> None:
        """Execute runs that this process owns without knowing it, because the database's reply was lost.

        No other process may take over such a run while this process lives.
        """
        for run_id in await self._runs.held_by(self._worker.engine.name):
            run = None if self._worker.has(run_id) else await self._runs.run(run_id, damaged=True)
            if run is not None and run.parent_run_id is None:
                await self._worker.start(run_id)

    async def take_over(self) -> None:
        """Enqueue the runs that dead processes owned, or that they had taken from the queue.

        A run that was active during the deaths of two processes is executed alone, because it may be the cause.
        """
        engine = self._worker.engine
        for run_id in await engine.take_from_dead():
            run = await self._runs.run(run_id, damaged=True)
            if run is not None and run.status == "queued":
                await self._enqueue(run_id, at_once=True)
        owners = await self._runs.owners()
        for owner in await engine.dead(owners) if owners else ():
            for run_id in await self._runs.disown(owner):
                await self._enqueue(run_id, at_once=True)

    async def _enqueue(self, run_id: str, *, at_once: bool = False) -> None:
        """Enqueue a run that no process executes, at most once a minute unless `at_once` is true.

        A child is left to its parent. If the parent is over or was deleted, the child is ended. A run with a damaged
        record is set aside, so that the later runs of its session can begin. A run is left to other processes if only a
        newer Threadkeep can read it, or if this process lacks its workflow.
        """
        run = await self._runs.run(run_id, damaged=True)
        if run is None:
            return
        if run.parent_run_id is not None:
            parent = await self._runs.run(run.parent_run_id, damaged=True)
            if parent is None or parent.over:
                await end_orphan(self._runs, run)
            return
        if run.error in (RecordUnreadable.__name__, RecordTooNew.__name__):
            self._worker.report(run.error, "upkeep")
            if run.error == RecordUnreadable.__name__ and await self._runs.set_aside(run_id, run.error):
                self._worker.report_end(run, Outcome("failed", error=run.error, set_aside=True))
                await self._worker.start_following(run)
            return
        if await self._worker.leaves(run_id):
            return
        now, at_once = time.monotonic(), at_once or run.error == "WorkflowGone"
        before = self._enqueued.get(run_id, -_ENQUEUED_AGAIN_AFTER_SECONDS)
        if not at_once and now - before < _ENQUEUED_AGAIN_AFTER_SECONDS:
            return
        if len(self._enqueued) >= _MOST_REMEMBERED:
            self._enqueued.clear()
        self._enqueued[run_id] = now
        await self._worker.engine.enqueue(run_id, alone=run.attempts > 1)

    async def _repeat(
        self, work: Callable[[], Awaitable[None]], seconds: float, name: RunWork, sooner: asyncio.Event | None = None
    ) -> None:
        sooner = sooner or asyncio.Event()
        await self._worker.opened.wait()
        while True:
            await changed(sooner, seconds)
            sooner.clear()
            # Catch all errors, because the work is repeated as long as the process lives.
            with ErrorBoundary() as attempt:
                await work()
            # Do not report StoreClosed: the engine raises it during shutdown, and while it registers again.
            if attempt.error is not None and not isinstance(attempt.error, StoreClosed):
                self._worker.report(type(attempt.error).__name__, name)
