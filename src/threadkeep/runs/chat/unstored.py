"""Turns that are answered although no run can be recorded: the database is away, and people are not to notice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage

from threadkeep.errors import BudgetSpent
from threadkeep.graphs.children import InProcessChildren
from threadkeep.graphs.compiling import Compiler
from threadkeep.graphs.options import RunOptions
from threadkeep.graphs.registry import Workflows
from threadkeep.graphs.resources import Resources
from threadkeep.graphs.tool_marks import is_idempotent
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.records.runs import Run, RunBudget, RunInput, TokenUsage
from threadkeep.runs.execution import Execution, RunMeans
from threadkeep.runs.last_contexts import LastContexts
from threadkeep.runs.live import LiveRun
from threadkeep.runs.once_only import Handler, ToolResult
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service_options import RunServiceOptions
from threadkeep.runs.telling import tell_turn

_NOT_NOW = "This tool cannot be used for the moment: it may not run twice, and no record of it can be kept."


class UnstoredRuns:
    """Carries runs out with no record of them: their turns are kept with the transcript, or wait to be.

    The same graphs are carried out, once, without checkpoints and without the graph store. They end with the process,
    cannot wait for a person, and use no tool that may not run twice.
    """

    def __init__(
        self, memory: Memory, workflows: Workflows, resources: Resources, options: RunServiceOptions | None = None
    ) -> None:
        self._memory = memory
        self._workflows = workflows
        self._contexts = LastContexts(memory.observers)
        compiler = Compiler(checkpointer=False, store=None)
        alone = replace(resources, middleware=(*resources.middleware, NothingTwice()))
        children = InProcessChildren(workflows, compiler, alone)
        self._means = RunMeans(compiler, None, children.resources, options or RunServiceOptions(), self._contexts)

    def close(self) -> None:
        """Hear of nothing more."""
        self._contexts.close()

    async def carry_out(self, request: RunRequest, live: LiveRun, session_id: str) -> tuple[Outcome, UnstoredLedger]:
        """Carry out what is asked, under the id of the live run; what it took is in the ledger.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
        """
        workflow = self._workflows.get(request.workflow)
        options = workflow.options
        run = self._run(request, live.run_id, session_id, options)
        ledger = UnstoredLedger(run)
        started = time.perf_counter()
        live.begin()
        execution = Execution(run, workflow, self._means, notes=_NoNotes(), ledger=ledger, live=live, begins=True)
        outcome = Outcome("interrupted")
        try:
            outcome = await execution.to_its_end()
        finally:
            milliseconds = (time.perf_counter() - started) * 1000
            tell_turn(self._memory.observers, run, outcome, ledger, milliseconds=milliseconds)
        return outcome, ledger

    def _run(self, request: RunRequest, run_id: str, session_id: str, options: RunOptions) -> Run:
        now, seconds = self._memory.clock(), options.deadline_seconds
        return Run(
            run_id=run_id,
            session_id=session_id,
            message_id=request.message_id,
            workflow=request.workflow,
            status="running",
            owner=None,
            result=None,
            error=None,
            started_at=now,
            heartbeat_at=now,
            ended_at=None,
            version=None,
            user_id=request.user_id,
            parent_run_id=None,
            root_run_id=run_id,
            depth=0,
            node_id=None,
            trigger=request.trigger,
            arrival=None,
            inputs=(RunInput(request.values(), request.message_id),),
            interrupt=None,
            resume_value=None,
            resumed=False,
            budget=RunBudget(options.max_tokens, options.max_cost),
            # None is left: without checkpoints a second try would do everything twice.
            attempts=options.max_tries,
            cancel_requested_at=None,
            cancel_reason=None,
            set_aside=False,
            created_at=now,
            deadline_at=None if seconds is None else now + timedelta(seconds=seconds),
        )


class UnstoredLedger:
    """What a run takes that is recorded nowhere, held against its own budget."""

    def __init__(self, run: Run) -> None:
        self.input_tokens = self.output_tokens = 0
        self.spent: BudgetSpent | None = None
        self._run = run
        self._cost = 0.0

    async def check(self) -> None:
        """Let a call through.

        Raises:
            BudgetSpent: there is nothing left for it.
        """
        budget, tokens = self._run.budget, self.input_tokens + self.output_tokens
        if budget.max_tokens is not None and tokens >= budget.max_tokens:
            self.spent = BudgetSpent(self._run.run_id, limit="max_tokens", used=tokens, allowed=budget.max_tokens)
        elif budget.max_cost is not None and self._cost >= budget.max_cost:
            self.spent = BudgetSpent(self._run.run_id, limit="max_cost", used=self._cost, allowed=budget.max_cost)
        if self.spent is not None:
            raise self.spent

    async def add(self, usage: TokenUsage) -> None:
        """Take a call down."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self._cost += usage.cost or 0.0


class NothingTwice(AgentMiddleware[AgentState[Any], Any, Any]):
    """Keeps tools that may not run twice from being run where no record of that can be kept."""

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> ToolResult:
        """Run the tool, unless it is such a one."""
        if request.tool is None or is_idempotent(request.tool):
            return await handler(request)
        call = request.tool_call
        return ToolMessage(_NOT_NOW, name=str(call["name"]), tool_call_id=str(call["id"]), status="error")


class _NoNotes:
    """No trace."""

    def note(self, kind: str, node: str | None = None, data: Mapping[str, Json] | None = None) -> None:
        """Forget an event."""
