"""Intake of runs: a run is stored with its request, and starts at once in this process if a caller waits for it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Literal

from langchain_core.utils.uuid import uuid7

from threadkeep.agent.conversion import from_langchain
from threadkeep.errors import InvalidInput, WrongUser
from threadkeep.history.memory import Memory
from threadkeep.history.recollection import PAGE_ROWS
from threadkeep.observe import working_for
from threadkeep.records.runs import OWN_NAMES, DoubleTexting, NewRun, Run, RunBudget, RunInput
from threadkeep.runs.requests import RunRequest, Submitted, map_of, message_of_input
from threadkeep.runs.retries import shielded
from threadkeep.runs.run_workflows import order_keys
from threadkeep.runs.worker import Beginning, Worker
from threadkeep.store.driver import waiting_until
from threadkeep.store.runs.order import Added
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.resources import RunOptions

type Mode = Literal["wait", "background", "later"]
"""`wait`: this process executes the run. `background`: any worker executes it. `later`: it is only stored now."""


class RunIntake:
    """The intake of all runs except children."""

    def __init__(self, memory: Memory, worker: Worker) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._worker = worker

    async def take(self, request: RunRequest, workflow: Workflow, *, mode: Mode) -> Submitted:
        """Store a run and start it. If the run exists already and has failed or was interrupted, retry it.

        Raises:
            SessionBusy: the workflow rejects messages while another turn of the conversation is active.
            WrongUser: the session belongs to another user.
            InvalidInput: the built-in chat got no message, or a cost is limited but no model has a price.
        """
        self.check_budget(request.budget)
        if workflow.source == "built-in" and not request.text and workflow.name not in OWN_NAMES:
            raise InvalidInput("The chat needs a message; pass it in `message`.")
        await self._worker.engine.ready()
        # Limit the time of a caller that waits, because an unrecorded run can answer instead.
        here = mode == "wait"
        until = time.monotonic() + self._memory.pending.wait_seconds if here else None
        with waiting_until(until):
            new = await self._new(request, workflow)
        stream = self._worker.streams.of(new.run_id)
        stream.wants_pieces = request.stream
        policy = request.double_texting or workflow.options.double_texting
        added = await shielded(self._add(new, workflow, policy, mode=mode, until=until))
        run = added.run
        stream, over = self._worker.streams.of(run.run_id), run.over
        stream.wants_pieces |= request.stream
        if added.outcome == "known":
            if not self._worker.has(run.run_id):
                stream.renew()
            over = not await self._try_again(run, request, here=here) and over
        return Submitted(run.run_id, run.session_id, added.outcome, stream, over=over)

    def check_budget(self, asked: RunBudget) -> None:
        """Reject a cost limit if no model has a price, because the limit could never be reached.

        Raises:
            InvalidInput: a cost is limited but no model has a price.
        """
        if asked.max_cost is not None and not self._worker.dependencies.options.prices:
            raise InvalidInput("max_cost has no effect without prices; set THREADKEEP_PRICES, or leave max_cost out.")

    async def go_on(self, run_id: str, *, here: bool) -> None:
        """Start or enqueue a run that is queued."""
        if here:
            await self._worker.start(run_id)
        else:
            await self._worker.engine.enqueue(run_id)

    async def _new(self, request: RunRequest, workflow: Workflow) -> NewRun:
        options = workflow.options
        seconds = _least(request.deadline_seconds, options.deadline_seconds)
        session_id = await self._session_of(request)
        store = self._worker.dependencies.compiler.store
        return NewRun(
            run_id=str(uuid7()),
            workflow=workflow.name,
            version=workflow.version,
            input=request.values(),
            session_id=session_id,
            message_id=request.message_id,
            user_id=request.user_id,
            trigger=request.trigger,
            budget=_budget(request.budget, options),
            deadline_at=None if seconds is None else self._memory.clock() + timedelta(seconds=seconds),
            places=order_keys(workflow, request, session_id, self._memory, store),
            any_session=request.session_id is None and request.user_id is None,
        )

    async def _session_of(self, request: RunRequest) -> str | None:
        if request.sessionless:
            return None
        if request.session_id is not None:
            return self._memory.session(request.session_id, user_id=request.user_id).session_id
        new = str(uuid7())
        if request.user_id is None:
            return new
        return await self._runs.sessions.active_session(request.user_id, request.workflow, otherwise=new)

    async def _add(
        self, new: NewRun, workflow: Workflow, policy: DoubleTexting, *, mode: Mode, until: float | None
    ) -> Added:
        """Store a run and start it. Shield this call, so that a stored run is always started."""
        owner = self._worker.engine.name if mode == "wait" else None
        if owner is not None and (run := await self._begin_at_once(new, workflow, policy, owner)) is not None:
            return Added(run, "new")
        with waiting_until(until):
            added = await self._runs.order.add(new, policy=policy, owner=owner)
        if added.run.run_id == new.run_id and added.run.status == "running":
            # The run is new, or the transaction above stored it and only the reply was lost.
            await self._worker.start(added.run.run_id, Beginning(added.run, workflow))
        elif added.outcome == "new" and mode == "background":
            await self._worker.engine.enqueue(new.run_id)
        return added

    async def _begin_at_once(self, new: NewRun, workflow: Workflow, policy: DoubleTexting, owner: str) -> Run | None:
        """Store a run with its question in one transaction, and start it; return None if that is not possible."""
        options = self._worker.dependencies.plan(workflow).at_once
        if options is None or new.session_id is None or new.places or not new.input.get("text"):
            return None
        given = RunInput(new.input, new.message_id)
        asked = from_langchain(message_of_input(given, new.message_id or new.run_id), full=options.keep_originals)
        question = asked.with_fields(run_id=new.run_id, status="complete", metadata=map_of(new.input, "metadata"))
        joined = self._runs.order.beginning(new, policy, owner, str(question.id))
        session = self._memory.session(new.session_id, user_id=new.user_id)
        limit = min(options.message_limit or PAGE_ROWS, PAGE_ROWS)
        with working_for("http" if new.trigger == "http" else "other"):
            begun = await session.begin_joined([question], joined, profile=options.profile or "", limit=limit)
        if begun is None:
            return None
        run = self._runs.order.begun(new, joined, begun.rows)
        await self._worker.start(run.run_id, Beginning(run, workflow, begun))
        return run

    async def _try_again(self, run: Run, request: RunRequest, *, here: bool) -> bool:
        """Retry an unsuccessful run because its message was sent again; return whether it is retried."""
        if request.user_id is not None and run.user_id != request.user_id and run.session_id is not None:
            raise WrongUser(run.session_id)
        if run.status not in ("failed", "interrupted") or run.set_aside or not await self._runs.retry(run.run_id):
            return False
        await self.go_on(run.run_id, here=here)
        return True


def _least(first: float | None, second: float | None) -> float | None:
    given = [one for one in (first, second) if one is not None]
    return min(given) if given else None


def _budget(asked: RunBudget, options: RunOptions) -> RunBudget:
    """Return the lower of the two limits, for tokens and for cost."""
    tokens = _least(asked.max_tokens, options.max_tokens)
    return RunBudget(None if tokens is None else int(tokens), _least(asked.max_cost, options.max_cost))
