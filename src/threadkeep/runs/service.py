"""Runs as every face asks for them: one object under HTTP, terminal, channels and schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from threadkeep.errors import InvalidInput
from threadkeep.graphs.compiling import Compiler
from threadkeep.graphs.registry import Workflows
from threadkeep.graphs.resources import Resources
from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.records.runs import Run, RunBudget, RunCursor, RunEvent, RunQuery, TokenUsage
from threadkeep.runs.children import RunChildren
from threadkeep.runs.engine.opening import open_engine
from threadkeep.runs.execution import RunMeans
from threadkeep.runs.following import Followed, RunFollowing
from threadkeep.runs.intake import RunIntake
from threadkeep.runs.last_contexts import LastContexts
from threadkeep.runs.once_only import OnceOnly
from threadkeep.runs.progress.checkpoints import RunCheckpoints
from threadkeep.runs.progress.saver import ProgressSaver
from threadkeep.runs.requests import RunRequest, RunResult, Submitted
from threadkeep.runs.runner import Runner
from threadkeep.runs.service_options import RunServiceOptions
from threadkeep.runs.unrecorded import UnrecordedTurns
from threadkeep.runs.upkeep import RunUpkeep
from threadkeep.runs.versions import RunWorkflows
from threadkeep.store.address import DatabaseAddress

type Mode = Literal["wait", "background"]

_AS_BEFORE = RunBudget()


class RunService:
    """The runs of a database, as this process sees them. Made by `open_runs`, which also closes it."""

    def __init__(self, memory: Memory, runner: Runner, upkeep: RunUpkeep) -> None:
        self._runs = memory.runs
        self._runner = runner
        self._upkeep = upkeep
        self._intake = RunIntake(memory, runner)
        self._following = RunFollowing(memory, runner)

    async def submit(self, request: RunRequest, *, mode: Mode = "wait") -> Submitted:
        """Store a run, and have it carried out: at once in this process for a caller who waits, else by any that works.

        The same `message_id` of a session is the same run; one that failed is tried again.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
            SessionBusy: the workflow takes no message while another turn of the session goes on.
            WrongUser: the session is another user's.
            InvalidInput: the built-in chat was given no message.
        """
        workflow = await self._runner.workflows.newest(request.workflow)
        submitted = await self._intake.take(request, workflow, here=mode == "wait")
        if workflow.options.double_texting == "interrupt":
            self._upkeep.look_now()
        return submitted

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
            if (carried := self._runner.carried.of(each)) is not None:
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
        await self._intake.go_on(run.run_id, here=mode == "wait")

    async def retry(
        self, run_id: str, *, user_id: str | None = None, mode: Mode = "wait", budget: RunBudget = _AS_BEFORE
    ) -> None:
        """Have a run tried again that failed, was cancelled or interrupted, from where it stopped.

        A limit of `budget` stands in the place of what the run was given: it may take so much in all.

        Raises:
            RunNotFound: there is none that the user may see.
            InvalidInput: it is not such a one, or a child, or a cost is limited where nothing has a price.
        """
        self._intake.check_budget(budget)
        run = await self._following.run(run_id, user_id)
        if run.parent_run_id is not None:
            raise InvalidInput(f"Run {run_id!r} is a child; retry the run at the top, {run.root_run_id!r}.")
        larger = RunBudget.from_dict({**run.budget.to_dict(), **budget.to_dict()})
        if not await self._runs.retry(run_id, budget=larger if larger != run.budget else None):
            if run.over and not run.inputs:
                raise InvalidInput(f"Nothing is kept of what run {run_id!r} was asked; start a new run.")
            raise InvalidInput(f"Run {run_id!r} is {run.status}: only what failed or was stopped is tried again.")
        await self._intake.go_on(run_id, here=mode == "wait")

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
    unrecorded: UnrecordedTurns | None = None,
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
        unrecorded: what the chat of this process answers without runs.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has the engine of another database open.
        StoreUnavailable: the database does not answer.
    """
    options, unrecorded = options or RunServiceOptions(), unrecorded or UnrecordedTurns()
    checkpoints = RunCheckpoints(memory.runs.records, checkpointer)
    runner = Runner(memory, RunWorkflows(workflows, memory.runs.workflows), checkpoints)
    upkeep = RunUpkeep(memory, runner, checkpoints, options)
    with closing(LastContexts(memory.observers)) as contexts:
        async with (
            upkeep.looking_after(),
            open_engine(address, runner.carry_out, options.engine, listener=runner) as engine,
        ):
            saver = ProgressSaver(checkpointer)
            compiler = Compiler(checkpointer=saver, store=store)
            once_only = OnceOnly(memory.runs.trace, keep=saver.keep, holds=runner.holds)
            middleware = (*resources.middleware, once_only)
            given = replace(resources, children=RunChildren(memory, runner), middleware=middleware)
            runner.open(engine, RunMeans(compiler, saver, given, options, contexts, unrecorded))
            yield RunService(memory, runner, upkeep)
