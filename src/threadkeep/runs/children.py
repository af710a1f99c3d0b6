"""Child runs, which are executed in the process of their parent and resumed together with the parent."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from uuid import NAMESPACE_OID, uuid5

from langgraph.config import get_config

from threadkeep.errors import ChildFailed, WorkflowNotFound
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.records.runs import NewRun, Run, RunResult
from threadkeep.runs.endings import ActiveRun
from threadkeep.runs.tool_idempotency import last_answer
from threadkeep.runs.worker import Worker
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.resources import ChildRequest, ChildResult, ChildStatus
from threadkeep.workflows.state import map_of


class RunChildren:
    """An executor of child runs, for the parent runs that this process executes.

    A child is stored below its parent, and receives only the input in the parent's request. The process that executes
    the parent also executes the child. If a child waits for a person, its parent waits too.
    """

    def __init__(self, memory: Memory, worker: Worker) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._worker = worker

    async def run(self, request: ChildRequest, /) -> ChildResult:
        """Execute or resume a child, and return its result after its end.

        Raises:
            WorkflowNotFound: the child is new, and no workflow of that name is registered.
            ChildFailed: this process does not execute the parent, or the child was deleted.
            BudgetSpent: the child has used the rest of its parent's budget.
        """
        parent = self._worker.active.get(request.parent_run_id)
        if parent is None:
            raise ChildFailed(
                f"{request.workflow!r} was requested by a run that is not active here; start that run first.",
                workflow=request.workflow,
                status="refused",
            )
        parent.tracer.has_children = True
        run, begun = await self._create_or_retry(request, parent)
        while not run.over:
            run, begun = await self._go_on(run, begun), None
        ended: dict[str, Json] = {"run_id": run.run_id, "status": run.status, "error": run.error}
        data = {name: value for name, value in ended.items() if value is not None}
        parent.tracer.note("child_finished", request.node_id, data)
        if run.error == "BudgetSpent":
            await parent.tracer.check()
        return _result_of(run)

    async def _create_or_retry(self, request: ChildRequest, parent: ActiveRun) -> tuple[Run, ActiveRun | None]:
        run_id = _child_id(request)
        run = await self._runs.run(run_id)
        if run is None:
            workflow = await self._worker.workflows.newest(request.workflow)
            run = (await self._runs.order.add(self._new(run_id, request, workflow, parent), owner=parent.owner)).run
            data: dict[str, Json] = {"run_id": run_id, "workflow": workflow.name}
            parent.tracer.note("child_started", request.node_id, data)
            return run, self._worker.owned(run, workflow=workflow) if run.status == "running" else None
        # If a child was cancelled while its parent waited for a person, only a retry of the parent repeats the child.
        is_final = run.status == "done" or (run.status == "cancelled" and parent.run.resumed)
        if run.over and not is_final:
            budget = run.budget
            with contextlib.suppress(WorkflowNotFound):  # the child continues with its stored version
                budget = (await self._worker.workflows.newest(request.workflow)).options.budget
            if await self._runs.retry(run_id, budget=budget):
                run = await self._seen(run)
        return run, None

    async def _go_on(self, run: Run, begun: ActiveRun | None) -> Run:
        """Execute a child, or pass it a person's answer; return its new record. With `begun`, this process owns it."""
        if run.status == "waiting":
            await self._runs.resume(run.run_id, _answer_to(run))
            return await self._seen(run)
        if begun := begun or await self._worker.acquire(run.run_id):
            await self._worker.execute_owned(begun)
        return await self._seen(run)

    async def _seen(self, run: Run) -> Run:
        found = await self._runs.run(run.run_id)
        if found is None:
            raise ChildFailed(
                f"The run of {run.workflow!r} was deleted with its session.",
                workflow=run.workflow,
                status="cancelled",
                run_id=run.run_id,
            )
        return found

    def _new(self, run_id: str, request: ChildRequest, workflow: Workflow, parent: ActiveRun) -> NewRun:
        given = dict(request.input)
        values: dict[str, Json] = {
            "text": given.get("text"),
            "inputs": given,
            "user_context": map_of(given, "user_context"),
            "ancestors": list(request.ancestors),
        }
        limits = request.deadline_seconds, workflow.options.deadline_seconds
        seconds = min(filter(None, limits), default=None)
        return NewRun(
            run_id=run_id,
            workflow=workflow.name,
            version=workflow.version,
            input={name: value for name, value in values.items() if value},
            session_id=f"child:{run_id}" if request.with_session else None,
            user_id=parent.run.user_id,
            parent_run_id=request.parent_run_id,
            node_id=request.node_id,
            trigger="child",
            budget=workflow.options.budget,
            deadline_at=None if seconds is None else self._memory.clock() + timedelta(seconds=seconds),
        )


def _child_id(request: ChildRequest) -> str:
    """Return the id of a child run, which is the same if the parent repeats its step."""
    task = get_config()["metadata"].get("langgraph_checkpoint_ns", "")
    return str(uuid5(NAMESPACE_OID, f"{request.parent_run_id}/{request.node_id}/{task}"))


def _answer_to(run: Run) -> Json:
    """Return a person's answer for a waiting child. If there is none yet, interrupt the parent to ask for it."""
    number = run.interrupt.get("number") if isinstance(run.interrupt, dict) else None
    asked: dict[str, Json] = {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "interrupts": [dict(one) for one in RunResult.of(run).interrupts],
    }
    return last_answer(asked, number if isinstance(number, int) else 1)


def _result_of(run: Run) -> ChildResult:
    result = RunResult.of(run)
    status: ChildStatus = "failed"
    match run.status:
        case "done" | "cancelled" | "interrupted" as ended:
            status = ended
        case _ if run.error == "DeadlinePassed":
            status = "deadline"
    if status == "done":
        return ChildResult(run.run_id, result.output, result.text, "done")
    return ChildResult(run.run_id, None, "", status)
