"""What a run that has no result leaves in its session: what it was asked, and what it had said."""

from __future__ import annotations

from threadkeep.errors import ThreadkeepError
from threadkeep.graphs.nodes.base import Step
from threadkeep.graphs.questions import question_recorder
from threadkeep.graphs.resources import Resources
from threadkeep.history.memory import Memory
from threadkeep.observe import RunTrouble
from threadkeep.records.runs import Run
from threadkeep.runs.requests import begin_state, context_of, metadata_of
from threadkeep.runs.versions import RunWorkflows, VersionGone


class TurnEndings:
    """Ends the turns of runs that were cut off, before the next turns of their sessions begin."""

    def __init__(self, memory: Memory, workflows: RunWorkflows) -> None:
        self._memory = memory
        self._workflows = workflows

    async def end(self, run: Run, resources: Resources) -> None:
        """Store what was asked, if no node came to that, and what was said.

        What cannot be stored now is told of, and the run ends all the same.
        """
        try:
            await self._keep_question(run, resources)
            await self._memory.settle_run(run.run_id)
        except ThreadkeepError as error:
            self._memory.observers.notify(RunTrouble(error=type(error).__name__, work="ending_turn"))

    async def leave(self, run: Run) -> None:
        """Keep nothing of what was said: the run goes on elsewhere, and says it there."""
        await self._memory.settle_run(run.run_id, elsewhere=True)

    async def _keep_question(self, run: Run, resources: Resources) -> None:
        """The message was taken: whoever comes after it has to see it, though nothing was done with it."""
        if run.session_id is None or run.parent_run_id is not None:
            return
        try:
            workflow = await self._workflows.of(run)
        except VersionGone:
            return
        recorder = question_recorder(workflow.nodes.values())
        # What went with its session, or is another process's by now, is not brought back.
        there = await self._memory.runs.run(run.run_id) if recorder is not None else None
        if recorder is not None and there is not None and there.owner == run.owner:
            step = Step("", context_of(run, resources), None)
            await recorder.store(step, begin_state(run).get("messages") or (), metadata_of(run))
