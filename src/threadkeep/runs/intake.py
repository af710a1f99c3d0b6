"""The service that receives requests to start, resume or retry a run."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta
from typing import Literal

from langchain_core.utils.uuid import uuid7

from threadkeep.agent.conversion import from_langchain
from threadkeep.boundary import shielded
from threadkeep.errors import InvalidInput, RunBusy, RunNotFound, WrongUser
from threadkeep.history.memory import Memory
from threadkeep.history.recollection import PAGE_ROWS
from threadkeep.observe import work_for
from threadkeep.records import Json, dump_json
from threadkeep.records.runs import NO_BUDGET, OWN_NAMES, DoubleTexting, NewRun, Run, RunBudget, RunInput, RunResult
from threadkeep.runs.requests import RunRequest, Submitted, answer_for, least, message_of_input
from threadkeep.runs.run_workflows import order_keys
from threadkeep.runs.session_answers import with_answer
from threadkeep.runs.worker import RunMaintenance, Worker
from threadkeep.store.driver import waiting_until
from threadkeep.store.runs.order import Added
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.state import map_of

type Mode = Literal["wait", "background", "later"]
"""`wait`: this process executes the run. `background`: any worker executes it. `later`: it is only stored for now."""


class RunIntake:
    """A service that starts, resumes and retries runs, except child runs."""

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
        stream.wants_pieces = request.stream
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
        seconds = least(request.deadline_seconds, options.deadline_seconds)
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
            budget=RunBudget(
                least(request.budget.max_tokens, options.max_tokens), least(request.budget.max_cost, options.max_cost)
            ),
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
        given = RunInput(new.input, new.message_id)
        asked = from_langchain(message_of_input(given, new.message_id or new.run_id), full=options.keep_originals)
        question = asked.with_fields(run_id=new.run_id, status="complete", metadata=map_of(new.input, "metadata"))
        joined = self._runs.order.beginning(new, policy, owner, str(question.id))
        session = self._memory.session(new.session_id, user_id=new.user_id)
        limit = min(options.message_limit or PAGE_ROWS, PAGE_ROWS)
        work_for("http" if new.trigger == "http" else "other")  # this is a task of its own: see `submit`
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
