"""The start of an execution: the run's workflow, its budgets, and its ledger."""

from __future__ import annotations

from dataclasses import replace

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.records.runs import Run
from threadkeep.runs.carried import Carried, CarriedRuns
from threadkeep.runs.execution import Execution, RunMeans
from threadkeep.runs.progress.progress import beside_of, durability_of, thread_of
from threadkeep.runs.usage import RunLedger
from threadkeep.runs.versions import RunWorkflows
from threadkeep.runs.waiting import retry_until_available
from threadkeep.store.runs.runs import Runs
from threadkeep.workflows.definition import Workflow, has_one_speaker


class RunBeginnings:
    """A builder of executions of acquired runs; it waits until the database is available."""

    def __init__(self, runs: Runs, workflows: RunWorkflows, carried: CarriedRuns) -> None:
        self._runs = runs
        self._workflows = workflows
        self._carried = carried

    async def execution(self, carried: Carried, means: RunMeans) -> Execution:
        """Return the execution of a run; its usage is in the ledger.

        Raises:
            VersionGone: its workflow does not exist any more.
        """
        workflow = await retry_until_available(lambda: self._workflow_of(carried, means.saver))
        run = carried.run
        carried.progress.beside = beside_of(workflow)
        carried.progress.starts_again = durability_of(workflow) == "exit"
        if carried.begins and run.parent_run_id is None and has_one_speaker(workflow):
            carried.hold.joins = run.session_id
        limited = await retry_until_available(lambda: self._limited(run))
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
        """Return the runs with a budget among a run and all runs above it."""
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
