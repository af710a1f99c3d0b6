"""Runs as every face asks for them: one object under HTTP, terminal, channels and schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from langchain_core.utils.uuid import uuid7
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from threadkeep.errors import InvalidInput, WrongUser
from threadkeep.graphs.compiling import Compiler
from threadkeep.graphs.definition import Workflow
from threadkeep.graphs.options import RunOptions
from threadkeep.graphs.registry import Workflows
from threadkeep.graphs.resources import Resources
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.records.runs import NewRun, Run, RunBudget, RunCursor, RunEvent, RunQuery, TokenUsage
from threadkeep.runs.checkpoints import RunCheckpoints
from threadkeep.runs.children import RunChildren
from threadkeep.runs.execution import RunMeans
from threadkeep.runs.following import Followed, RunFollowing
from threadkeep.runs.insisting import undisturbed
from threadkeep.runs.last_contexts import LastContexts
from threadkeep.runs.once_only import OnceOnly
from threadkeep.runs.opening import open_engine
from threadkeep.runs.requests import RunRequest, RunResult, Submitted
from threadkeep.runs.runner import Runner
from threadkeep.runs.service_options import RunServiceOptions
from threadkeep.runs.upkeep import RunUpkeep
from threadkeep.runs.versions import RunWorkflows
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.runs.order import Added

type Mode = Literal["wait", "background"]


class RunService:
    """The runs of a database, as this process sees them. Made by `open_runs`, which also closes it."""

    def __init__(self, memory: Memory, runner: Runner, upkeep: RunUpkeep) -> None:
        self._memory = memory
        self._runs = memory.runs
        self._runner = runner
        self._upkeep = upkeep
        self._following = RunFollowing(memory, runner)

    async def submit(self, request: RunRequest, *, mode: Mode = "wait") -> Submitted:
        """Store a run, and have it carried out: at once in this process for a caller who waits, else by any that works.

        The same `message_id` of a session is the same run; one that failed is tried again.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
            SessionBusy: the workflow takes no message while another turn of the session goes on.
            WrongUser: the session is another user's.
        """
        workflow = await self._runner.workflows.newest(request.workflow)
        new = await self._new(request, workflow)
        live = self._runner.live.of(new.run_id)
        live.wants_pieces = request.stream
        added = await undisturbed(self._add(new, workflow, mode))
        run = added.run
        live, over = self._runner.live.of(run.run_id), run.over
        live.wants_pieces |= request.stream
        if added.outcome == "known":
            if not self._runner.has(run.run_id):
                live.renew()
            over = not await self._try_again(run, request, mode) and over
        if workflow.options.double_texting == "interrupt":
            self._upkeep.look_now()
        return Submitted(run.run_id, run.session_id, added.outcome, live, over=over)

    async def result(self, run_id: str, *, user_id: str | None = None) -> RunResult:
        """What became of a run, when it is over or waits for a person. A caller that goes away does not stop it.

        Raises:
            RunNotFound: there is none that the user may see.
        """
        return RunResult.of(await self._following.end_of(run_id, user_id))

    def follow(self, run_id: str, *, after: int = 0, user_id: str | None = None) -> AsyncIterator[Followed]:
        """The events of a run from a number on, and the pieces of its answer as they come; the run itself at the end.

        Raises:
            RunNotFound: there is none that the user may see.
        """
        return self._following.follow(run_id, after, user_id)

    async def cancel(self, run_id: str, *, user_id: str | None = None) -> list[str]:
        """Stop a run and all below it, wherever they are; answers those that were not over.

        Raises:
            RunNotFound: there is none that the user may see.
        """
        run = await self._following.run(run_id, user_id)
        stopped = await self._runs.request_cancel(run_id)
        for each in stopped:
            if (carried := self._runner.carried(each)) is not None:
                carried.cancel("cancelled")
            else:
                self._runner.live.signal(each)
                self._runner.live.of(each).end()
        await self._runner.start_next(run)
        if len(stopped) > 1:
            # What was below it may have stood before turns of other sessions.
            for below in await self._runs.records.tree(run_id):
                if below.run_id != run_id and below.run_id in stopped and below.over:
                    await self._runner.start_next(below)
        return stopped

    async def resume(self, run_id: str, value: Json, *, user_id: str | None = None, mode: Mode = "wait") -> None:
        """Give a run that waits its answer; with several questions, a map from their ids.

        What a child asks is answered by way of the run at the top, which waits for it.

        Raises:
            RunNotFound: there is none that the user may see.
            InvalidInput: it waits for nobody.
        """
        run = await self._top_of_waiting(await self._following.run(run_id, user_id))
        asked = RunResult.of(run).interrupts
        ids = {one.get("id") for one in asked}
        if len(asked) > 1 and not (isinstance(value, dict) and value and set(value) <= ids):
            raise InvalidInput(f"Run {run.run_id!r} asks several questions; answer with a map from their ids.")
        if run.status != "waiting" or not await self._runs.resume(run.run_id, value):
            raise InvalidInput(f"Run {run.run_id!r} waits for nobody: it is {run.status}.")
        await self._go_on(run.run_id, mode)

    async def retry(self, run_id: str, *, user_id: str | None = None, mode: Mode = "wait") -> None:
        """Have a run tried again that failed, was cancelled or interrupted, from where it stopped.

        Raises:
            RunNotFound: there is none that the user may see.
            InvalidInput: it is not such a one, or a child.
        """
        run = await self._following.run(run_id, user_id)
        if run.parent_run_id is not None:
            raise InvalidInput(f"Run {run_id!r} is a child; retry the run at the top, {run.root_run_id!r}.")
        if not await self._runs.retry(run_id):
            if run.over and not run.inputs:
                raise InvalidInput(f"Nothing is kept of what run {run_id!r} was asked; start a new run.")
            raise InvalidInput(f"Run {run_id!r} is {run.status}: only what failed or was stopped is tried again.")
        await self._go_on(run_id, mode)

    async def run(self, run_id: str, *, user_id: str | None = None) -> Run:
        """A run.

        Raises:
            RunNotFound: there is none that the user may see.
        """
        return await self._following.run(run_id, user_id)

    async def list(self, query: RunQuery) -> tuple[Sequence[Run], RunCursor | None]:
        """Some runs, the newest first, and the cursor of those that follow."""
        return await self._runs.records.runs(query)

    async def tree(self, run_id: str, *, user_id: str | None = None) -> Sequence[Run]:
        """The whole tree that a run is in, parents before their children.

        Raises:
            RunNotFound: there is none that the user may see.
        """
        await self._following.run(run_id, user_id)
        return await self._runs.records.tree(run_id)

    async def trace(
        self, run_id: str, *, after: int = 0, limit: int = 200, user_id: str | None = None
    ) -> Sequence[RunEvent]:
        """The events of a run that follow a number, in order.

        Raises:
            RunNotFound: there is none that the user may see.
        """
        await self._following.run(run_id, user_id)
        return await self._runs.trace.events(run_id, after=after, limit=limit)

    async def usage(
        self, run_id: str, *, with_children: bool = True, user_id: str | None = None
    ) -> Sequence[TokenUsage]:
        """What a run took, by model; with all below it, each once.

        Raises:
            RunNotFound: there is none that the user may see.
        """
        await self._following.run(run_id, user_id)
        return await self._runs.trace.usage(run_id, with_children=with_children)

    async def ready(self) -> None:
        """Do now what the first run would have to wait for.

        Raises:
            StoreClosed: the service takes no more runs.
        """
        await self._runner.engine.ready()

    async def close(self, seconds: float) -> None:
        """Take no more runs, let those at work end for so long, and leave the rest to others."""
        await self._runner.engine.close(seconds)

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

    async def _add(self, new: NewRun, workflow: Workflow, mode: Mode) -> Added:
        """Store a run, and have it carried out; whoever asks is not to be cancelled between the two."""
        owner = self._runner.owner if mode == "wait" else None
        added = await self._runs.order.add(new, policy=workflow.options.double_texting, owner=owner)
        if added.outcome == "new" and added.run.status == "running":
            await self._runner.start_begun(added.run)
        elif added.outcome == "new" and mode == "background":
            await self._runner.engine.enqueue(new.run_id)
        return added

    async def _try_again(self, run: Run, request: RunRequest, mode: Mode) -> bool:
        """Have a run that did not succeed tried again, since its message was sent again; whether it is."""
        if request.user_id is not None and run.user_id != request.user_id and run.session_id is not None:
            raise WrongUser(run.session_id)
        if run.status not in ("failed", "interrupted") or run.set_aside or not await self._runs.retry(run.run_id):
            return False
        await self._go_on(run.run_id, mode)
        return True

    async def _go_on(self, run_id: str, mode: Mode) -> None:
        if mode == "wait":
            await self._runner.start(run_id)
        else:
            await self._runner.engine.enqueue(run_id)

    async def _top_of_waiting(self, run: Run) -> Run:
        while run.parent_run_id is not None:
            parent = await self._runs.run(run.parent_run_id)
            if parent is None or parent.status != "waiting":
                break
            run = parent
        return run


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
) -> AsyncIterator[RunService]:
    """The runs of a memory's database: carried out, looked after and given back when the block ends.

    Args:
        memory: where sessions and runs are kept.
        address: the memory's database.
        workflows: what can be run.
        resources: what their nodes may use.
        checkpointer: where runs keep how far they came; opened once, at the top.
        store: the graph store, likewise.
        options: how runs are carried out.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has the engine of another database open.
        StoreUnavailable: the database does not answer.
    """
    options = options or RunServiceOptions()
    checkpoints = RunCheckpoints(memory.runs.records, checkpointer)
    runner = Runner(memory, RunWorkflows(workflows, memory.runs.workflows), checkpoints)
    upkeep = RunUpkeep(memory, runner, checkpoints, options)
    with closing(LastContexts(memory.observers)) as contexts:
        async with (
            upkeep.looking_after(),
            open_engine(address, runner.carry_out, options.engine, listener=runner) as engine,
        ):
            compiler = Compiler(checkpointer=checkpointer, store=store)
            once_only = OnceOnly(memory.runs.trace, runner.holds)
            middleware = (*resources.middleware, once_only)
            given = replace(resources, children=RunChildren(memory, runner), middleware=middleware)
            runner.open(engine, RunMeans(compiler, checkpointer, given, options, contexts))
            yield RunService(memory, runner, upkeep)


def _least(first: float | None, second: float | None) -> float | None:
    given = [one for one in (first, second) if one is not None]
    return min(given) if given else None


def _budget(asked: RunBudget, options: RunOptions) -> RunBudget:
    """The tighter of both limits."""
    tokens = _least(asked.max_tokens, options.max_tokens)
    return RunBudget(None if tokens is None else int(tokens), _least(asked.max_cost, options.max_cost))
