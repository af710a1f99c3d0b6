"""Takes runs in: they are stored as what was asked for, and begin at once in this process where somebody waits."""

from __future__ import annotations

from datetime import timedelta

from langchain_core.utils.uuid import uuid7

from threadkeep.errors import InvalidInput, WrongUser
from threadkeep.graphs.definition import Workflow
from threadkeep.graphs.options import RunOptions
from threadkeep.history.memory import Memory
from threadkeep.records.runs import OWN_NAMES, NewRun, Run, RunBudget
from threadkeep.runs.insisting import undisturbed
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.runner import Runner
from threadkeep.store.runs.order import Added


class RunIntake:
    """The way in of all runs but children. With `here` a run is carried out by this process, else by any that works."""

    def __init__(self, memory: Memory, runner: Runner) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._runner = runner

    async def take(self, request: RunRequest, workflow: Workflow, *, here: bool) -> Submitted:
        """Store a run, and have it carried out; one that is there already is tried again if it did not succeed.

        Raises:
            SessionBusy: the workflow takes no message while another turn of the session goes on.
            WrongUser: the session is another user's.
            InvalidInput: the built-in chat was given no message, or a cost is limited where nothing has a price.
        """
        self.check_budget(request.budget)
        if workflow.source == "built-in" and not request.text and workflow.name not in OWN_NAMES:
            raise InvalidInput("The chat answers messages: give it one in `message`.")
        new = await self._new(request, workflow)
        live = self._runner.live.of(new.run_id)
        live.wants_pieces = request.stream
        added = await undisturbed(self._add(new, workflow, here=here))
        run = added.run
        live, over = self._runner.live.of(run.run_id), run.over
        live.wants_pieces |= request.stream
        if added.outcome == "known":
            if not self._runner.has(run.run_id):
                live.renew()
            over = not await self._try_again(run, request, here=here) and over
        return Submitted(run.run_id, run.session_id, added.outcome, live, over=over)

    def check_budget(self, asked: RunBudget) -> None:
        """Refuse a limit that nothing would ever reach.

        Raises:
            InvalidInput: a cost is limited where nothing has a price.
        """
        if asked.max_cost is not None and not self._runner.means.options.prices:
            raise InvalidInput("max_cost holds nothing back without prices: set THREADKEEP_PRICES, or leave it out.")

    async def go_on(self, run_id: str, *, here: bool) -> None:
        """Have a run carried out that is queued."""
        if here:
            await self._runner.start(run_id)
        else:
            await self._runner.engine.enqueue(run_id)

    async def _new(self, request: RunRequest, workflow: Workflow) -> NewRun:
        options = workflow.options
        seconds = _least(request.deadline_seconds, options.deadline_seconds)
        return NewRun(
            run_id=str(uuid7()),
            workflow=workflow.name,
            version=workflow.version,
            input=request.values(),
            session_id=await self._session_of(request),
            message_id=request.message_id,
            user_id=request.user_id,
            trigger=request.trigger,
            budget=_budget(request.budget, options),
            deadline_at=None if seconds is None else self._memory.clock() + timedelta(seconds=seconds),
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

    async def _add(self, new: NewRun, workflow: Workflow, *, here: bool) -> Added:
        """Store a run, and have it carried out; whoever asks is not to be cancelled between the two."""
        owner = self._runner.owner if here else None
        added = await self._runs.order.add(new, policy=workflow.options.double_texting, owner=owner)
        if added.outcome == "new" and added.run.status == "running":
            await self._runner.start_begun(added.run)
        elif added.outcome == "new" and not here:
            await self._runner.engine.enqueue(new.run_id)
        return added

    async def _try_again(self, run: Run, request: RunRequest, *, here: bool) -> bool:
        """Have a run that did not succeed tried again, since its message was sent again; whether it is."""
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
    """The tighter of both limits."""
    tokens = _least(asked.max_tokens, options.max_tokens)
    return RunBudget(None if tokens is None else int(tokens), _least(asked.max_cost, options.max_cost))
