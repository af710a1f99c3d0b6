"""What a life of a run begins with: its workflow, the budgets that it is under, and an account of what it takes."""

from __future__ import annotations

from dataclasses import replace

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.graphs.definition import Workflow
from threadkeep.records.runs import Run
from threadkeep.runs.carried import Carried, CarriedRuns
from threadkeep.runs.execution import Execution, RunMeans
from threadkeep.runs.insisting import insist
from threadkeep.runs.ledger import RunLedger
from threadkeep.runs.progress.checkpoints import thread_of
from threadkeep.runs.progress.durability import beside_of
from threadkeep.runs.versions import RunWorkflows
from threadkeep.store.runs.runs import Runs


class RunBeginnings:
    """Makes executions of runs that were taken up; waits for the database as long as it takes."""

    def __init__(self, runs: Runs, workflows: RunWorkflows, carried: CarriedRuns) -> None:
        self._runs = runs
        self._workflows = workflows
        self._carried = carried

    async def execution(self, carried: Carried, means: RunMeans) -> Execution:
        """The execution of a run; what it takes is in its ledger.

        Raises:
            VersionGone: its workflow is not there any more.
        """
        workflow = await insist(lambda: self._workflow_of(carried, means.saver))
        run = carried.run
        carried.progress.beside = beside_of(workflow)
        limited = await insist(lambda: self._limited(run))
        carried.ledger = RunLedger(
            self._runs.trace, carried.tracer, limited, lambda: self._carried.flush_tree(run.root_run_id)
        )
        return Execution(
            run,
            workflow,
            means,
            notes=carried.tracer,
            ledger=carried.ledger,
            live=carried.live,
            begins=carried.begins,
        )

    async def _workflow_of(self, carried: Carried, saver: BaseCheckpointSaver[str] | None) -> Workflow:
        run = carried.run

        async def is_untouched() -> bool:
            return carried.begins or saver is None or await saver.aget_tuple(thread_of(run.run_id)) is None

        workflow = await self._workflows.to_go_on_with(run, is_untouched)
        if workflow.version != run.version:
            await self._runs.begin_with(run.run_id, carried.owner, workflow.version)
            carried.run = replace(run, version=workflow.version)
        return workflow

    async def _limited(self, run: Run) -> list[Run]:
        """Those with a budget, of a run and all above it."""
        found, current = [], run
        while True:
            if current.budget.to_dict():
                found.append(current)
            if current.parent_run_id is None:
                return found
            above = self._carried.of(current.parent_run_id)
            parent = above.run if above is not None else await self._runs.run(current.parent_run_id)
            if parent is None:
                return found
            current = parent
