"""Recording of the end of a run and its turn, by the process that the run's row names as the owner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from langchain_core.messages import AIMessage

from threadkeep.agent.conversion import text_of
from threadkeep.agent.invocation import RunHold
from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import StoreClosed, StoreError, StoreUnavailable, ThreadkeepError
from threadkeep.history.keys import channel_of
from threadkeep.history.memory import Memory
from threadkeep.observe import Observer, RunWork, TurnFinished, TurnStatus
from threadkeep.records.runs import NO_USAGE, OWN_NAMES, STATUS, Run, RunQuery, RunStatus, TokenUsage
from threadkeep.runs.engine.engine import Stop
from threadkeep.runs.execution import Dependencies, RunExecution
from threadkeep.runs.progress import ProgressSaver
from threadkeep.runs.requests import begin_state, context_of, metadata_of
from threadkeep.runs.run_workflows import RunWorkflows, VersionGone, sessions_known, sessions_reached
from threadkeep.runs.streams import retry_until_available
from threadkeep.runs.tracing import RunTracer
from threadkeep.store.codec import clean_json
from threadkeep.store.runs import Outcome, Runs
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.nodes import RecordQuestionNode
from threadkeep.workflows.nodes.base import Step
from threadkeep.workflows.turn_ends import reset_commands

type RunStop = Stop | Literal["cancelled"]
"""The reason why a run is stopped: a reason of the engine, or `cancelled` by a request."""


@dataclass(eq=False, repr=False, kw_only=True)
class ActiveRun(RunExecution):
    """A run that this process owns and executes.

    `begins` is true if no process has executed the run before. `workflow` is set only if this process created the run.
    `over` is the record of the run after its end. `has_following` is false if no other run waited for that end.
    """

    owner: str
    tracer: RunTracer
    hold: RunHold
    workflow: Workflow | None = None
    task: asyncio.Task[Outcome] | None = None
    stop: RunStop | None = None
    over: Run | None = None
    has_following: bool = True

    def cancel(self, stop: RunStop) -> None:
        """Cancel the run's task for the reason `stop`. A later call has no effect, unless its reason is `lost`."""
        if self.stop is None or stop == "lost":
            self.stop = stop
            self.hold.lost = stop == "lost"
            if self.task is not None:
                self.task.cancel()


_AT_ONCE = 200


async def end_orphans(runs: Runs, parent_run_id: str) -> None:
    """Cancel the unfinished children of a run, and the runs below each child."""
    statuses: tuple[RunStatus, ...] = ("queued", "running", "waiting")
    for status in statuses:
        children, _ = await runs.records.runs(RunQuery(parent_run_id=parent_run_id, status=status, limit=_AT_ONCE))
        for child in children:
            await end_orphan(runs, child)


async def end_orphan(runs: Runs, child: Run) -> None:
    """Cancel a child whose parent has ended, and the runs below the child."""
    if child.owner is not None:
        await runs.finish(child.run_id, child.owner, "cancelled", error="ParentOver")
    else:
        await runs.request_cancel(child.run_id, reason="parent_over")
    await end_orphans(runs, child.run_id)


def report_turn(
    observer: Observer, run: Run, outcome: Outcome, usages: Sequence[TokenUsage], *, milliseconds: float
) -> None:
    """Report the end of a turn; do nothing if the run is not a turn of a session, or if it waits for a person."""
    if run.session_id is None or run.parent_run_id is not None or outcome.status == "waiting":
        return
    if run.workflow in OWN_NAMES:
        return  # an internal workflow answers no message of a person
    status: TurnStatus = "interrupted"
    if outcome.status in ("done", "failed"):
        status = "complete" if outcome.status == "done" else "failed"
    used = sum(usages, NO_USAGE)
    observer.notify(
        TurnFinished(
            channel=channel_of(run.session_id, default="http" if run.trigger == "http" else "other"),
            status=status,
            milliseconds=milliseconds,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            estimated=used.estimated,
            workflow=run.workflow,
            run_id=run.run_id,
            session_id=run.session_id,
        )
    )


_PAUSE_SECONDS: Final = 0.25


class RunEndings:
    """A recorder of the ends of runs and turns. It also releases runs, so that other processes resume them."""

    def __init__(
        self,
        memory: Memory,
        workflows: RunWorkflows,
        saver: ProgressSaver,
        dependencies: Dependencies,
        report: Callable[[str, RunWork], None],
    ) -> None:
        self._memory = memory
        self._report = report
        self._saver = saver
        self._runs = memory.runs
        self._workflows = workflows
        self._options = dependencies.options
        self._resources = dependencies.resources
        self._store = dependencies.compiler.store

    async def end(self, active: ActiveRun, outcome: Outcome) -> Outcome | None:
        """Record that a run has ended, or that it waits for a person.

        Return the recorded outcome, which may differ from `outcome`; return None if another process took the run over.
        """
        given = {"status": outcome.status, "error": outcome.error, "interrupt": outcome.interrupt}
        noted = {name: value for name, value in given.items() if value is not None}
        if outcome.status == "done" and active.hold.answer is not None:
            active.tracer.note(STATUS, data=noted)
            if await self._end_with_answer(active, outcome):
                active.stream.set_outcome(outcome)
                return outcome
            # Check `lost` twice: while `_is_lost` waits, a write of the trace may find that another process took over.
            if active.hold.lost or await self._is_lost(active.run) or active.hold.lost:
                active.hold.lost = True
                await self._memory.settle_run(active.run.run_id, elsewhere=True)
                return None
            outcome, noted = _instead(outcome, await active.hold.store()), {}
        else:
            await active.hold.store()
        active.stream.set_outcome(outcome)
        read = partial(self._stored, active.run)
        if outcome.status == "failed":
            found = await retry_until_available(read)
            if found is not None and found.cancel_requested_at is not None:
                # The run counts as cancelled, because the request to stop it may have caused the failure.
                outcome, noted = Outcome("cancelled"), {"status": "cancelled"}
        if noted:
            active.tracer.note(STATUS, data=noted)
        if outcome.status != "done" or not await self._deliver(active):
            await self._keep_progress(active)
        ended = await retry_until_available(lambda: self._record(active, outcome))
        if ended is None and outcome.status == "done":
            found = await retry_until_available(read)
            is_held = found is not None and (found.status, found.owner) == ("running", active.owner)
            if found is not None and is_held and found.is_rolled_back:
                return await self.end(active, Outcome("cancelled"))
        return ended

    async def _end_with_answer(self, active: ActiveRun, outcome: Outcome) -> bool:
        """Store an answer and the end of its run in one transaction, with the trace and the model calls.

        The database rejects both if another process owns the run or has answered the question. Return False if nothing
        was stored, or if this is uncertain. Then a caller that still owns the run must first store the answer, and then
        the end of the run.
        """
        hold, run, answer = active.hold, active.run, active.hold.answer
        if answer is None:
            return False
        others = [one for entry in hold.manifests for one in self._memory.manifests.joined(entry)]
        if (anchor := answer.anchor()) is not None:
            others.append(anchor)
        stored = await active.tracer.store_whole(
            lambda group: answer.session.record_joined(
                [answer.message],
                partial(self._runs.ending, run, outcome, group, others),
                answers=answer.question_id,
                told=answer.told,
            )
        )
        if stored is None:
            return False
        hold.answer = None
        hold.manifests.clear()
        hold.told_id = answer.message.id if answer.told else None
        result, now = None if outcome.result is None else clean_json(outcome.result), self._memory.clock()
        active.over = replace(run, status="done", result=result, error=None, heartbeat_at=now, ended_at=now)
        active.has_following = bool(stored[1][-1])
        with contextlib.suppress(StoreClosed):
            await answer.settle(anchored=True)
        return True

    async def set_aside(self, run: Run, owner: str) -> Outcome:
        """End a run that used up its attempts, and end its turn. The run is set aside: only a person can retry it."""
        outcome = Outcome("failed", error="GaveUp", set_aside=True)
        await self._end_turn(run)
        await self._runs.finish(run.run_id, owner, "failed", error=outcome.error, set_aside=True)
        return outcome

    async def _end_turn(self, run: Run, hold: RunHold | None = None) -> None:
        """End the turn of a run without a result: store its question and partial answer, or roll the turn back.

        Call this before the end of the run is recorded, because that end lets the session's next turn begin. A failed
        write is reported, and the run ends anyway.

        Raises:
            StoreUnavailable: the run cannot be read or rolled back, so the session's next turn must not begin yet.
        """
        found = await self._stored(run)
        try:
            # Write no message if the run was deleted with its session, or if another process owns the run.
            if found is not None and found.owner == run.owner:
                await self._keep_question(run)
            if found is not None and found.is_rolled_back:
                await self._take_back(run, hold)
                return
            await self._memory.settle_run(run.run_id)
        except StoreUnavailable:
            if found is not None and found.is_rolled_back:
                raise
            self._report(StoreUnavailable.__name__, "ending_turn")
        except ThreadkeepError as error:
            self._report(type(error).__name__, "ending_turn")

    async def _take_back(self, run: Run, hold: RunHold | None) -> None:
        """Mark all messages of a run as superseded, in its session and in its agents' separate conversations."""
        await self._memory.settle_run(run.run_id, elsewhere=True)
        sessions = [] if hold is None else list(hold.sessions)
        if run.session_id is not None:
            sessions.append(self._memory.session(run.session_id, user_id=run.user_id))
        with contextlib.suppress(VersionGone):
            workflow = await self._workflows.of(run)
            sessions += await sessions_known(workflow, run, self._memory, self._store)
        sessions += await sessions_reached(run, self._memory, self._store)
        for session in sessions:
            for question in begin_state(run).get("messages") or ():
                await session.take_back_turn(str(question.id))

    async def _keep_question(self, run: Run) -> None:
        """Store the question of a run if it is not stored yet, because later turns must see it.

        If the workflow's middleware may reject or change questions, store the question as `failed`, without its text.
        """
        if run.parent_run_id is not None:
            return
        step, metadata = Step("", context_of(run, self._resources), None), metadata_of(run)
        messages = begin_state(run).get("messages") or ()
        with contextlib.suppress(VersionGone):
            workflow = await self._workflows.of(run)
            nodes = tuple(workflow.nodes.values())
            recorder = workflow.recorder
            if recorder is not None and run.session_id is not None:
                keep = recorder.refuse if recorder.waits else recorder.store
                await keep(step, messages, metadata)
            own = RecordQuestionNode(reset_commands=reset_commands(nodes))
            for session in await sessions_known(workflow, run, self._memory, self._store):
                await own.store(step, messages, metadata, session)

    async def release(self, active: ActiveRun) -> None:
        """Wait for the task of a run. End a cancelled run; if the process closes, release the run for another process.

        A child is not released, because its parent resumes it. Neither is a resumed run: its `attempts` show whether a
        process may have used the person's reply, and a release would lower them. Store errors are ignored.
        """
        run = active.run
        if active.task is not None:
            await asyncio.wait([active.task])
        with contextlib.suppress(StoreError):
            await active.hold.store()
            if active.stop == "cancelled":
                active.tracer.note(STATUS, data={"status": "cancelled"})
                await self._is_kept(active)
                await self._record(active, Outcome("cancelled"))
            else:
                await self._memory.settle_run(run.run_id, elsewhere=True)
            if active.stop == "closing":
                await self._is_kept(active)
                await active.tracer.flush()
            if active.stop == "closing" and run.parent_run_id is None and not run.resumed:
                await self._runs.give_back(run.run_id, active.owner)

    async def _stored(self, run: Run) -> Run | None:
        """Read a run from the database, but leave out damaged records, because every run must be able to end."""
        return await self._runs.run(run.run_id, damaged=True)

    async def _is_lost(self, run: Run) -> bool:
        """Return True if it is certain that another process has taken the run over."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self._memory.pending.wait_seconds):
                current = await self._stored(run)
            return current is not None and (current.owner, current.attempts) != (run.owner, run.attempts)
        return False

    async def _record(self, active: ActiveRun, outcome: Outcome) -> Outcome | None:
        run_id, owner = active.run.run_id, active.owner
        if active.run.session_id is not None and isinstance(answer := (outcome.result or {}).get("message_id"), str):
            # Store the answer before the end of the run, because a run that is done is never executed again.
            await self._memory.pending.ensure_kept(active.run.session_id, answer)
        if outcome.status == "waiting":
            await active.tracer.flush()
            if await self._runs.wait(run_id, owner, outcome.interrupt):
                return outcome
            outcome = Outcome("cancelled")
            active.tracer.note(STATUS, data={"status": "cancelled"})
        if outcome.status != "done":
            await self._end_turn(active.run, active.hold)
            await self._deliver(active)
        active.over = await active.tracer.flush_with(
            lambda group: self._runs.end(run_id, owner, outcome, group, active.run)
        )
        return outcome if active.over is not None else None

    async def _keep_progress(self, active: ActiveRun) -> None:
        """Store what an outage has left in memory: the checkpoints of a run and the pending turns of its sessions.

        A retry continues from the checkpoints. The next turns of the sessions, perhaps in other processes, must come
        after the pending ones. The checkpointer and the messages may be in other databases than the run tables. If only
        these are down, wait at most `keep_progress_seconds`; then the run ends without them.
        """
        now, until = asyncio.get_running_loop().time, None
        while not await self._is_kept(active):
            await retry_until_available(lambda: self._stored(active.run))
            until = until or now() + self._options.keep_progress_seconds
            if now() >= until:
                self._report(StoreUnavailable.__name__, "keeping_progress")
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _is_kept(self, active: ActiveRun) -> bool:
        """Store the pending checkpoints and turns of a run; return False if a retry may help.

        A retry may help if a database is unavailable, or if the session of a pending turn is locked.
        """
        # Only report errors other than `StoreUnavailable`: the run must end, even if a retry starts from the beginning.
        with ErrorBoundary(lambda error: self._report(type(error).__name__, "keeping_progress")):
            try:
                await self._saver.keep(active.run.run_id)
            except StoreUnavailable:
                return False
        return await self._deliver(active)

    async def _deliver(self, active: ActiveRun) -> bool:
        """Try once to write the pending turns of a run's sessions; return False if some are left."""
        own = active.run.session_id
        sessions = [*active.hold.sessions, *([] if own is None else [self._memory.session(own)])]
        for session in sessions:
            if session.waiting():
                await session.deliver()
        return not any(session.waiting() for session in sessions)


def _instead(outcome: Outcome, first_stored: AIMessage | None) -> Outcome:
    """Return `outcome`, with the text of `first_stored` if this message was stored instead of the run's own answer."""
    if first_stored is None or outcome.result is None:
        return outcome
    text = text_of(first_stored)
    if text == outcome.result.get("text"):
        return replace(outcome, result={**outcome.result, "message_id": first_stored.id})
    result = {name: value for name, value in outcome.result.items() if name != "confidence"}
    if result.get("output") == {"text": result.get("text")}:
        result["output"] = {"text": text}
    return replace(outcome, result={**result, "text": text, "message_id": first_stored.id, "escalated": False})
