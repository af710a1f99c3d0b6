"""Runs that answer messages while the database is down, and that are therefore not recorded in it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from threadkeep.history.memory import Memory
from threadkeep.records.runs import Run, RunInput
from threadkeep.runs.endings import report_turn
from threadkeep.runs.execution import Dependencies, RunExecution
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.streams import Outcome, RunStream
from threadkeep.runs.tool_idempotency import IdempotentToolsOnly
from threadkeep.runs.tracing import Trace
from threadkeep.runs.usage import Ledger
from threadkeep.workflows.definition import Compiler
from threadkeep.workflows.registry import InProcessChildren, Workflows
from threadkeep.workflows.resources import Resources, RunOptions


class OfflineRuns:
    """A service that executes runs without recording them. Their turns are written to the transcript, possibly later.

    Each graph is executed once, without checkpoints and without the graph store. These runs end with the process,
    cannot wait for a person, and cannot call tools that must not run twice.
    """

    def __init__(
        self, memory: Memory, workflows: Workflows, resources: Resources, options: RunServiceOptions | None = None
    ) -> None:
        self._memory = memory
        self._workflows = workflows
        compiler = Compiler(checkpointer=False, store=None)
        alone = replace(resources, middleware=(*resources.middleware, IdempotentToolsOnly()))
        children = InProcessChildren(workflows, compiler, alone)
        self._dependencies = Dependencies(compiler, None, children.resources, options or RunServiceOptions())

    async def execute(self, request: RunRequest, stream: RunStream, session_id: str) -> tuple[Outcome, Ledger]:
        """Execute a request as the run `stream.run_id`, and report its turn; return the outcome and the token usage.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
        """
        workflow = self._workflows.get(request.workflow)
        options = workflow.options
        run = self._run(request, stream.run_id, session_id, options)
        ledger = Ledger(self._dependencies.options.prices)
        ledger.limited = [run]
        started = time.perf_counter()
        stream.wants_pieces = request.stream
        stream.begin()
        execution = RunExecution(run=run, dependencies=self._dependencies, tracer=Trace(), ledger=ledger, stream=stream)
        outcome = Outcome("interrupted")
        try:
            outcome = await execution.run_to_end(workflow)
        finally:
            milliseconds = (time.perf_counter() - started) * 1000
            report_turn(self._memory.observers, run, outcome, ledger.usages, milliseconds=milliseconds)
        return outcome, ledger

    def _run(self, request: RunRequest, run_id: str, session_id: str, options: RunOptions) -> Run:
        now, seconds = self._memory.clock(), options.deadline_seconds
        return Run(
            run_id=run_id,
            session_id=session_id,
            message_id=request.message_id,
            workflow=request.workflow,
            status="running",
            started_at=now,
            heartbeat_at=now,
            ended_at=None,
            user_id=request.user_id,
            root_run_id=run_id,
            trigger=request.trigger,
            inputs=(RunInput(request.values(), request.message_id),),
            budget=options.budget,
            # Count all attempts as used: without checkpoints a second attempt would repeat every step.
            attempts=options.max_tries,
            created_at=now,
            deadline_at=None if seconds is None else now + timedelta(seconds=seconds),
        )
