"""The run service that HTTP, terminal, channels and schedules share."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from langchain_core.utils.uuid import uuid7
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from threadkeep.agent.conversion import from_langchain
from threadkeep.boundary import shielded
from threadkeep.errors import Interrupted, InvalidInput, RunBusy, RunNotFound, WrongUser
from threadkeep.history.memory import Memory
from threadkeep.history.recollection import PAGE_ROWS
from threadkeep.observe import work_for
from threadkeep.records import Json, dump_json
from threadkeep.records.runs import (
    NO_BUDGET,
    OWN_NAMES,
    DoubleTexting,
    NewRun,
    Run,
    RunBudget,
    RunCursor,
    RunEvent,
    RunInput,
    RunQuery,
    RunResult,
    TokenUsage,
)
from threadkeep.runs.children import RunChildren
from threadkeep.runs.engine.opening import open_engine
from threadkeep.runs.execution import Dependencies
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.progress import ProgressSaver
from threadkeep.runs.requests import RunRequest, Submitted, answer_for, message_of_input
from threadkeep.runs.run_workflows import RunWorkflows, order_keys
from threadkeep.runs.session_answers import with_answer
from threadkeep.runs.streams import InFlightMessages, RunPiece, RunStream, changed
from threadkeep.runs.tool_idempotency import RecordedTools
from threadkeep.runs.worker import RunMaintenance, Worker
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import waiting_until
from threadkeep.store.runs.order import Added
from threadkeep.workflows.definition import Compiler, Workflow
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import Resources
from threadkeep.workflows.state import map_of

type Mode = Literal["wait", "background", "later"]
"""`wait`: this process executes the run. `background`: any worker executes it. `later`: it is only stored for now."""

type Followed = RunEvent | RunPiece | Run
"""An item of a followed run; the last item is the run itself, which is over or waits for a person."""

_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
_PAGE = 200


class RunService:
    """The service that starts, resumes, retries, follows, cancels and lists the runs of a database.

    Nodes, not this service, start child runs. `open_runs` opens and closes it.
    """

    _closes_at = math.inf

    def __init__(self, memory: Memory, worker: Worker, maintenance: RunMaintenance) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._worker = worker
        self._maintenance = maintenance

    async def submit(self, request: RunRequest, *, mode: Mode = "wait") -> Submitted:
        """Store a run and start it: in this process if the caller waits, otherwise on any worker.

        If another turn of the session is active, the double-texting policy decides what happens.

        In mode `later` the run starts when a caller requests its result, and until then further messages can join the
        run. If no caller requests the result, a worker starts the run later.

        If the session has a run for the `message_id` already, that run is returned. It is retried if it failed or was
        interrupted, unless it was set aside.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
            SessionBusy: the workflow rejects messages while another turn of the session is active.
            WrongUser: the session belongs to another user.
            InvalidInput: the built-in chat was given no message, or a cost is limited but no model has a price.
        """
        workflow = await self._worker.workflows.newest(request.workflow)
        if request.budget.max_cost is not None:
            self._check_prices()
        if workflow.source == "built-in" and not request.text and workflow.name not in OWN_NAMES:
            raise InvalidInput("The chat needs a message; pass it in `message`.")
        await self._worker.engine.ready()
        # If a caller waits, limit the wait for the database, because a run that is not stored can answer instead.
        until = time.monotonic() + self._memory.pending.wait_seconds if mode == "wait" else None
        with waiting_until(until):
            new = await self._new(request, workflow)
        stream = self._worker.streams.of(new.run_id)
        stream.wants_pieces, stream.has_caller = request.stream, mode == "wait"
        policy = request.double_texting or workflow.options.double_texting
        added = await shielded(self._add(new, workflow, policy, mode=mode, until=until))
        if policy in ("interrupt", "rollback"):
            self._maintenance.watch_now()
        run, over = added.run, False
        stream = self._worker.streams.of(run.run_id)
        stream.wants_pieces |= request.stream
        if added.outcome == "known":
            if not self._worker.has(run.run_id):
                stream.renew(begun=False)
            over = not await self._try_again(run, request, mode) and run.over
        return Submitted(run.run_id, run.session_id, added.outcome, stream, over=over)

    async def resume(
        self,
        run_id: str,
        value: Json,
        *,
        user_id: str | None = None,
        mode: Mode = "wait",
        message_id: str | None = None,
        questions: Collection[str] = (),
    ) -> None:
        """Answer a waiting run; if it asks several questions, `value` maps their ids to the answers.

        The answer to a child's question is passed to the topmost waiting run above the child. A `message_id` names the
        session's message that contains `value`: the message counts only once, and a channel sends the run's answer as
        a reply to it. If `questions` contains ids, the run must still ask all of these questions.

        Raises:
            RunNotFound: there is no such run that the user may see.
            InvalidInput: the run does not wait for an answer; it asks other questions; it asks several questions, but
                the answers are not in a map; the `message_id` was used before, or the run has no session.
            RunBusy: the run above this child does not wait for it yet; the call can be repeated.
        """
        run = await self._top_of_waiting(await self.run(run_id, user_id=user_id))
        if run.parent_run_id is not None and run.status == "waiting":
            raise RunBusy(run.root_run_id)
        if questions:
            # Read the run again, because its question may have changed while the topmost run was looked up.
            asking = await self.run(run_id, user_id=user_id)
            if not set(questions) <= {one.get("id") for one in RunResult.of(asking).interrupts}:
                raise InvalidInput(f"Run {run_id!r} does not ask this any more; see the run for what it asks now.")
        await self._resume(run, value, mode, message_id)

    async def resume_once(
        self,
        run_id: str,
        value: Json,
        *,
        user_id: str | None = None,
        mode: Mode = "wait",
        message_id: str | None = None,
    ) -> None:
        """Answer a waiting run at most once: a repeated request with the same `message_id` changes nothing.

        The `message_id` must be unique in the session; if None, this call is the same as `resume`. The run's answer
        is sent by the channel that asked the question.

        Raises:
            RunNotFound: there is no such run that the user may see.
            InvalidInput: `resume` would reject the value, and the request is not a repeated one.
            RunBusy: the root run does not wait for this child yet; the call can be repeated.
        """
        if message_id is None:
            return await self.resume(run_id, value, user_id=user_id, mode=mode)
        run = await self.run(run_id, user_id=user_id)
        # The message belongs to the session of the root run, which waits for its children.
        top = await self.run(run.root_run_id)
        try:
            await self._resume(top, value, mode, message_id, is_reply=False)
        except InvalidInput as refused:
            if await self._runs.is_resumed_by(message_id, top):
                return
            asked = RunResult.of(run).interrupts
            # A waiting run also asks the questions of the runs below it, at any depth.
            is_known = not asked or str(asked[0].get("id")) in dump_json(top.interrupt)
            if top.status in ("queued", "running") and not is_known:
                raise RunBusy(top.run_id) from refused
            raise

    async def _resume(
        self, run: Run, value: Json, mode: Mode, message_id: str | None, *, is_reply: bool = True
    ) -> None:
        if message_id is not None and run.session_id is None:
            raise InvalidInput("A sessionless run has no message ids; leave message_id out.")
        if RunResult.of(run).interrupts:
            value = answer_for(run, value)
        if run.status != "waiting" or not (
            await self._runs.resume(run.run_id, value, asked=run.interrupt)
            if message_id is None
            else await self._runs.resume_by(message_id, run, value, is_reply=is_reply)
        ):
            now = await self.run(run.run_id)  # another answer may have arrived first
            if now.status == "waiting" and message_id is None:
                raise InvalidInput(f"Run {run.run_id!r} asks another question now; see the run, and answer that.")
            if now.status == "waiting":
                raise InvalidInput(
                    f"The message_id {message_id!r} was used, or the question has changed; use a new id."
                )
            raise InvalidInput(f"Run {run.run_id!r} does not wait for an answer: it is {now.status}.")
        await self._go_on(run.run_id, mode)

    async def retry(
        self, run_id: str, *, user_id: str | None = None, mode: Mode = "wait", budget: RunBudget = NO_BUDGET
    ) -> None:
        """Retry a run that failed, was cancelled or was interrupted, from its last checkpoint.

        A limit in `budget` replaces the same limit of the run. It applies to the whole run, including earlier attempts.

        Raises:
            RunNotFound: there is no such run that the user may see.
            InvalidInput: the run is in another state, is a child, was rolled back, or its input is not stored any more;
                or `budget` limits the cost, but no model has a price.
        """
        if budget.max_cost is not None:
            self._check_prices()
        run = await self.run(run_id, user_id=user_id)
        if run.parent_run_id is not None:
            raise InvalidInput(f"Run {run_id!r} is a child; retry the run at the top, {run.root_run_id!r}.")
        if run.is_rolled_back:
            raise InvalidInput(f"A newer message replaced the turn of run {run_id!r}; send its message with a new id.")
        larger = RunBudget.from_dict({**run.budget.to_dict(), **budget.to_dict()})
        if not await self._runs.retry(run_id, budget=larger if larger != run.budget else None):
            if run.over and not run.inputs:
                raise InvalidInput(f"The input of run {run_id!r} is not stored any more; start a new run.")
            now = await self.run(run_id, user_id=user_id)  # another call may have retried it first
            raise InvalidInput(f"Run {run_id!r} is {now.status}: only failed or stopped runs can be retried.")
        await self._go_on(run_id, mode)

    async def run(self, run_id: str, *, user_id: str | None = None, damaged: bool = False) -> Run:
        """Return a run. If its result was deleted or replaced, the run contains the answer from its session instead.

        If `damaged` is true, a run that cannot be read is returned without its damaged records.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        run = await self._runs.run(run_id, damaged=damaged)
        if run is None or (user_id is not None and run.user_id != user_id):
            raise RunNotFound(run_id)
        return await with_answer(self._memory, run)

    def _check_prices(self) -> None:
        """Raise `InvalidInput` if no model has a price, because a limit of the cost could never be reached."""
        if not self._worker.dependencies.options.prices:
            raise InvalidInput("max_cost has no effect without prices; set THREADKEEP_PRICES, or leave max_cost out.")

    async def _go_on(self, run_id: str, mode: Mode) -> None:
        """Start a queued run in this process if its caller waits; otherwise enqueue it for any worker."""
        if mode == "wait":
            await self._worker.start(run_id)
        else:
            await self._worker.engine.enqueue(run_id)

    async def _new(self, request: RunRequest, workflow: Workflow) -> NewRun:
        options = workflow.options
        # The lower limit applies. None means no limit; a limit of 0 is rejected earlier.
        seconds = min(filter(None, (request.deadline_seconds, options.deadline_seconds)), default=None)
        max_tokens = min(filter(None, (request.budget.max_tokens, options.max_tokens)), default=None)
        max_cost = min(filter(None, (request.budget.max_cost, options.max_cost)), default=None)
        session_id, user_id = request.session_id, request.user_id
        if session_id is not None:
            self._memory.session(session_id, user_id=user_id)  # rejects ids that are not valid
        elif not request.sessionless:
            session_id = str(uuid7())
            if user_id is not None:
                active_session = self._runs.sessions.active_session
                session_id = await active_session(user_id, request.workflow, otherwise=session_id)
        store = self._worker.dependencies.compiler.store
        conversations: tuple[str, ...] = ()
        if store is not None and workflow.known_conversations:
            conversations = order_keys(workflow, request, session_id, self._memory, store)
        return NewRun(
            run_id=str(uuid7()),
            workflow=workflow.name,
            version=workflow.version,
            input=request.values(),
            session_id=session_id,
            message_id=request.message_id,
            user_id=user_id,
            trigger=request.trigger,
            budget=RunBudget(max_tokens, max_cost),
            deadline_at=None if seconds is None else self._memory.clock() + timedelta(seconds=seconds),
            conversations=conversations,
            any_session=request.session_id is None and user_id is None,
        )

    async def _add(
        self, new: NewRun, workflow: Workflow, policy: DoubleTexting, *, mode: Mode, until: float | None
    ) -> Added:
        """Store a run, and start or enqueue it. Shield this call, so that a cancellation does not prevent the start."""
        owner = self._worker.engine.name if mode == "wait" else None
        if owner is not None and (run := await self._begin_at_once(new, workflow, policy, owner)) is not None:
            return Added(run, "new")
        with waiting_until(until):
            added = await self._runs.order.add(new, policy=policy, owner=owner)
        if added.run.run_id == new.run_id and added.run.status == "running":
            # The run is new. (Maybe `_begin_at_once` has stored it already, but the database's reply was lost.)
            await self._worker.start(added.run.run_id, self._worker.owned(added.run, workflow=workflow))
        elif added.outcome != "joined" and added.run.status == "queued" and mode == "background":
            # Also enqueue a run that was stored before: the process that stored it may have died before enqueuing it.
            await self._worker.engine.enqueue(added.run.run_id)
        return added

    async def _begin_at_once(self, new: NewRun, workflow: Workflow, policy: DoubleTexting, owner: str) -> Run | None:
        """Store a run with its question in one transaction, and start it; return None if this is not possible."""
        options = self._worker.dependencies.plan(workflow).at_once
        if options is None or new.session_id is None or new.conversations or not new.input.get("text"):
            return None
        if self.is_active(new.session_id):
            return None  # the database would refuse it, because an earlier run is active
        given = RunInput(new.input, new.message_id)
        asked = from_langchain(message_of_input(given, new.message_id or new.run_id), full=options.keep_originals)
        question = asked.with_fields(run_id=new.run_id, status="complete", metadata=map_of(new.input, "metadata"))
        joined = self._runs.order.beginning(new, policy, owner, str(question.id))
        session = self._memory.session(new.session_id, user_id=new.user_id)
        limit = min(options.message_limit or PAGE_ROWS, PAGE_ROWS)
        work_for("http" if new.trigger == "http" else "other")  # only for this task, which `submit` has created
        begun = await session.begin_joined([question], joined, profile=options.profile or "", limit=limit)
        if begun is None:
            return None
        run = self._runs.order.begun(new, joined, begun.rows)
        await self._worker.start(run.run_id, self._worker.owned(run, workflow=workflow, turn=begun))
        return run

    async def _try_again(self, run: Run, request: RunRequest, mode: Mode) -> bool:
        """Retry a failed or interrupted run, because its message was sent again; return whether it is retried."""
        if request.user_id is not None and run.user_id != request.user_id and run.session_id is not None:
            raise WrongUser(run.session_id)
        if run.status not in ("failed", "interrupted") or run.set_aside or not await self._runs.retry(run.run_id):
            return False
        await self._go_on(run.run_id, mode)
        return True

    async def _top_of_waiting(self, run: Run) -> Run:
        while run.parent_run_id is not None:
            parent = await self._runs.run(run.parent_run_id)
            if parent is None or parent.status != "waiting":
                break
            run = parent
        return run

    async def result(self, run_id: str, *, user_id: str | None = None) -> RunResult:
        """Wait until a run is over or waits for a person; return its result. Cancelling the call does not stop the run.

        Raises:
            RunNotFound: there is no such run that the user may see.
            Interrupted: the service was closed before the run was over.
        """
        return RunResult.of(await self.end_of(run_id, user_id=user_id))

    async def end_of(self, run_id: str, *, user_id: str | None = None) -> Run:
        """Wait until a run is over or waits for a person; return the run. Raises the errors of `result`.

        If the run may begin and no process has started it, this process starts it.
        """
        stream = self._worker.streams.of(run_id)
        stream.waiting += 1
        pause = _FIRST_POLL_SECONDS
        try:
            while True:
                end = stream.next_end
                if self._worker.has(run_id):
                    # The stream reports the end. Poll rarely, only in case another process takes the run over.
                    pause = _LONGEST_POLL_SECONDS
                else:
                    run = await self.run(run_id, user_id=user_id)
                    if _has_stopped(run):
                        return run
                    await self._start_if_ready(run)
                if await changed(end, pause) and (ended := end.run) is not None:
                    if user_id is not None and ended.user_id != user_id:
                        raise RunNotFound(run_id)
                    return ended if stream.hold is None or not stream.hold.was_pending else await self.run(run_id)
                pause = min(pause * 2, _LONGEST_POLL_SECONDS)
        finally:
            stream.waiting -= 1

    async def follow(self, run_id: str, *, after: int = 0, user_id: str | None = None) -> AsyncGenerator[Followed]:
        """Yield a run's events with numbers above `after` and the tokens of its answer; at the end, yield the run.

        Tokens are yielded only in the process that executes the run. If the run may begin, this call starts it.

        Raises:
            RunNotFound: there is no such run that the user may see, or it was deleted with its session.
            Interrupted: the service was closed before the run was over.
        """
        stream = self._worker.streams.of(run_id)
        stream.wants_pieces = True
        stream.waiting += 1
        stream.followers += 1
        try:
            await self._worker.flush(run_id)
            async with aclosing(self._followed(stream, after, user_id)) as everything:
                async for item in everything:
                    yield item
        finally:
            stream.waiting -= 1
            stream.followers -= 1

    async def _followed(self, stream: RunStream, after: int, user_id: str | None) -> AsyncGenerator[Followed]:
        pause, run_id, now = _FIRST_POLL_SECONDS, stream.run_id, asyncio.get_running_loop().time
        # If the run has stopped already, do not yield the tokens of its answer.
        published = len(stream.pieces) if _has_stopped(await self.run(run_id, user_id=user_id)) else stream.first_piece
        look_at = now()
        while True:
            change = stream.next_change
            if fresh := stream.pieces[published:]:
                published += len(fresh)
                for piece in fresh:
                    yield piece
                if self._worker.has(run_id) and now() < look_at:
                    # Do not query the database for every token.
                    await changed(change, _FIRST_POLL_SECONDS)
                    continue
            look_at = now() + _FIRST_POLL_SECONDS
            run, before = await self.run(run_id, user_id=user_id), after
            while events := await self._runs.trace.events(run_id, after=after, limit=_PAGE):
                for event in events:
                    after = event.number
                    yield event
            if _has_stopped(run) and published == len(stream.pieces):
                yield run
                return
            await self._start_if_ready(run)
            pause = _FIRST_POLL_SECONDS if after > before else min(pause * 2, _LONGEST_POLL_SECONDS)
            await changed(change, pause)

    async def _start_if_ready(self, run: Run) -> None:
        if asyncio.get_running_loop().time() >= self._closes_at:
            raise Interrupted("The service stops; another process continues the run. Send the request again.")
        if run.status != "queued" or run.run_id in self._worker.started or run.parent_run_id is not None:
            return
        if self._closes_at == math.inf and await self._runs.order.is_next(run.run_id):
            await self._worker.start(run.run_id)

    async def cancel(self, run_id: str, *, user_id: str | None = None) -> list[str]:
        """Request that a run and all runs below it stop, in any process; return the ids of the runs that were not over.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        run = await self.run(run_id, user_id=user_id, damaged=True)
        if run.unbegun and await self._runs.order.stop_as_it_begins(run_id):
            # A run that has not begun ends when its turn comes, so that its question is stored after the earlier turns.
            await self._worker.end_stopped(run_id)
            return [run_id]
        stopped = await self._runs.request_cancel(run_id)
        for each in stopped:
            if (active := self._worker.active.get(each)) is not None:
                active.cancel("cancelled")
            else:
                self._worker.streams.of(each).end()
        await self._worker.start_following(run)
        if len(stopped) > 1:
            # Start the runs of other sessions that waited for stopped child runs.
            for below in await self._runs.records.tree(run_id):
                if below.run_id != run_id and below.run_id in stopped and below.over:
                    await self._worker.start_following(below)
        return stopped

    async def list(self, query: RunQuery) -> tuple[Sequence[Run], RunCursor | None]:
        """Return a page of runs, newest first, and the cursor of the next page, or None after the last page.

        A run that cannot be read has the error `RecordUnreadable` and lacks its damaged records.
        """
        return await self._runs.records.runs(query)

    async def tree(self, run_id: str, *, user_id: str | None = None) -> Sequence[Run]:
        """Return up to 500 runs of the tree that a run belongs to, parents before their children.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self.run(run_id, user_id=user_id)
        return await self._runs.records.tree(run_id)

    async def trace(
        self, run_id: str, *, after: int = 0, limit: int = 200, user_id: str | None = None
    ) -> Sequence[RunEvent]:
        """Return up to `limit` events of a run whose numbers are above `after`, in order.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self.run(run_id, user_id=user_id)
        await self._worker.flush(run_id)
        return await self._runs.trace.events(run_id, after=after, limit=limit)

    async def usage(self, run_id: str, *, user_id: str | None = None) -> Sequence[TokenUsage]:
        """Return the token usage of a run and of all runs below it, by model.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self.run(run_id, user_id=user_id)
        await self._worker.flush(run_id)
        return await self._runs.trace.usage(run_id)

    def has(self, run_id: str) -> bool:
        """Return whether this process executes a run or is about to execute it."""
        return self._worker.has(run_id)

    def is_active(self, session_id: str) -> bool:
        """Return whether this process executes a run of a session."""
        return any(active.run.session_id == session_id for active in self._worker.active.values())

    async def ready(self) -> None:
        """Prepare the run engine, so that the first run does not wait for it.

        Raises:
            StoreClosed: the service accepts no more runs.
            StoreUnavailable: the database does not answer.
        """
        await self._worker.engine.ready()

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait up to `seconds` for active runs, and leave unfinished runs to other processes."""
        self._closes_at = asyncio.get_running_loop().time() + seconds
        await self._worker.engine.close(seconds)


def _has_stopped(run: Run) -> bool:
    """Return True if a run is over or waits for a person."""
    return run.over or run.status == "waiting"


@asynccontextmanager
async def open_runs(
    memory: Memory,
    address: DatabaseAddress,
    workflows: Workflows,
    resources: Resources,
    *,
    checkpointer: BaseCheckpointSaver[str],
    store: BaseStore | None,
    options: RunServiceOptions | None = None,
    in_flight: InFlightMessages | None = None,
) -> AsyncIterator[RunService]:
    """Open the run service of a memory's database. After the block, unfinished runs are left to other processes.

    Args:
        memory: the store of sessions and runs.
        address: the memory's database.
        workflows: the workflows that can be executed.
        resources: the resources of their nodes.
        checkpointer: the store of run progress; the caller opens it once.
        store: the graph store, which the caller also opens; None if there is none.
        options: options of execution.
        in_flight: the messages that this process's chat is answering with unrecorded runs.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has already launched the library dbos.
        StoreUnavailable: the database does not answer.
    """
    options, in_flight = options or RunServiceOptions(), in_flight or InFlightMessages()
    expect = memory.runs.records.checkpoints_expected
    saver = ProgressSaver(checkpointer, memory.observers, expect, seconds=options.progress_seconds)
    worker = Worker(memory, RunWorkflows(workflows, memory.runs.workflows), saver)
    maintenance = RunMaintenance(memory, worker, options)
    async with (
        maintenance.running(),
        open_engine(address, worker.execute, options.engine, troubled=worker.report) as engine,
    ):
        compiler = Compiler(checkpointer=saver, store=store)
        once_only = RecordedTools(memory.runs.trace, keep=saver.keep, holds=worker.holds)
        middleware = (*resources.middleware, once_only)
        given = replace(resources, children=RunChildren(memory, worker), middleware=middleware)
        worker.open(engine, Dependencies(compiler, saver, given, options, in_flight))
        yield RunService(memory, worker, maintenance)
