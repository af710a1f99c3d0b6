"""The run service: one object for HTTP, terminal, channels and schedules, and a variant that opens on first use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from contextvars import Context
from dataclasses import replace

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import InvalidInput, RunBusy, StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.records import Json, dump_json
from threadkeep.records.runs import Run, RunBudget, RunCursor, RunEvent, RunQuery, RunResult, TokenUsage
from threadkeep.runs.checkpoints import ProgressSaver
from threadkeep.runs.children import RunChildren
from threadkeep.runs.engine.opening import open_engine
from threadkeep.runs.execution import Dependencies
from threadkeep.runs.intake import Mode, RunIntake
from threadkeep.runs.maintenance import RunMaintenance
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.progress import RunCheckpoints
from threadkeep.runs.requests import RunRequest, Submitted
from threadkeep.runs.results import Followed, RunFollowing
from threadkeep.runs.run_workflows import RunWorkflows
from threadkeep.runs.streams import InFlightMessages
from threadkeep.runs.tool_idempotency import RecordedTools
from threadkeep.runs.usage import LastContexts
from threadkeep.runs.worker import Worker
from threadkeep.store.address import DatabaseAddress
from threadkeep.workflows.definition import Compiler
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import Resources

_AS_BEFORE = RunBudget()


class RunService:
    """The service for the runs of a database, opened and closed by `open_runs`."""

    def __init__(self, memory: Memory, worker: Worker, maintenance: RunMaintenance) -> None:
        self._runs = memory.runs
        self._worker = worker
        self._maintenance = maintenance
        self._intake = RunIntake(memory, worker)
        self._following = RunFollowing(memory, worker)

    async def submit(self, request: RunRequest, *, mode: Mode = "wait") -> Submitted:
        """Store a run and start it: at once in this process if the caller waits, else on any worker.

        In mode `later` the run starts when a caller requests its result, and further messages can join the run until
        then. If no caller requests the result, a worker starts the run.

        A repeated `message_id` of a session returns the same run. If that run has failed, it is retried.

        Raises:
            WorkflowNotFound: no workflow of that name is registered.
            SessionBusy: the workflow rejects messages while another turn of the session is active.
            WrongUser: the session belongs to another user.
            InvalidInput: the built-in chat was given no message.
        """
        workflow = await self._worker.workflows.newest(request.workflow)
        submitted = await self._intake.take(request, workflow, mode=mode)
        if (request.double_texting or workflow.options.double_texting) in ("interrupt", "rollback"):
            self._maintenance.watch_now()
        return submitted

    async def result(self, run_id: str, *, user_id: str | None = None) -> RunResult:
        """Return the result of a run when it is over or waits for a person. A cancelled caller does not stop the run.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        return RunResult.of(await self.end_of(run_id, user_id=user_id))

    async def end_of(self, run_id: str, *, user_id: str | None = None) -> Run:
        """Return a run when it is over or waits for a person; see `result`."""
        return await self._following.end_of(run_id, user_id)

    def follow(self, run_id: str, *, after: int = 0, user_id: str | None = None) -> AsyncIterator[Followed]:
        """Yield a run's events with numbers above `after` and its answer's tokens, then the run itself.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        return self._following.follow(run_id, after, user_id)

    async def cancel(self, run_id: str, *, user_id: str | None = None) -> list[str]:
        """Stop a run and all runs below it, in any process; return the ids of the runs that were not over.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        run = await self._following.run(run_id, user_id)
        if run.unbegun and await self._runs.order.stop_as_it_begins(run_id):
            # The run ends when its turn comes, so that its question is stored after the earlier turns.
            await self._worker.end_stopped(run_id)
            return [run_id]
        stopped = await self._runs.request_cancel(run_id)
        for each in stopped:
            if (active := self._worker.active.get(each)) is not None:
                active.cancel("cancelled")
            else:
                self._worker.streams.signal(each)
                self._worker.streams.of(each).end()
        await self._worker.start_following(run)
        if len(stopped) > 1:
            # Descendants may have blocked turns of other sessions.
            for below in await self._runs.records.tree(run_id):
                if below.run_id != run_id and below.run_id in stopped and below.over:
                    await self._worker.start_following(below)
        return stopped

    async def resume(
        self,
        run_id: str,
        value: Json,
        *,
        user_id: str | None = None,
        mode: Mode = "wait",
        message_id: str | None = None,
        questions: Collection[str] = (),
    ) -> None:
        """Answer a waiting run; if it asks several questions, `value` maps their ids to the answers.

        A child's question is answered through the run at the top, which waits for the child. With a `message_id` the
        value is a message of the session: it counts only once, and a channel sends the run's answer as a reply to it.
        With the ids of the `questions` that the value is meant for, it answers no other question.

        Raises:
            RunNotFound: there is no such run that the user may see.
            InvalidInput: the run does not wait for an answer, or it does not ask the named questions.
        """
        run = await self._top_of_waiting(await self._following.run(run_id, user_id))
        if questions:
            # Read this run after the run at the top, so that both show the same question.
            asking = await self._following.run(run_id, user_id)
            if not set(questions) <= {one.get("id") for one in RunResult.of(asking).interrupts}:
                raise InvalidInput(f"Run {run_id!r} does not ask this any more; see the run for what it asks now.")
        await self._resume(run, value, mode, message_id)

    async def resume_once(
        self,
        run_id: str,
        value: Json,
        *,
        user_id: str | None = None,
        mode: Mode = "wait",
        message_id: str | None = None,
    ) -> None:
        """Answer a waiting run at most once: a repeated request with the same `message_id` changes nothing.

        The id is unique in the session. The channel that asked the question also sends the run's answer.

        Raises:
            RunNotFound: there is no such run that the user may see.
            InvalidInput: the run does not wait for an answer, or it has a `message_id` but no session.
            RunBusy: the run at the top does not wait yet for this child; a retry is safe.
        """
        if message_id is None:
            return await self.resume(run_id, value, user_id=user_id, mode=mode)
        run = await self._following.run(run_id, user_id)
        # The message belongs to the session of the run at the top, which waits for its children.
        top = await self._following.run(run.root_run_id, None)
        try:
            await self._resume(top, value, mode, message_id, is_reply=False)
        except InvalidInput as refused:
            if await self._runs.is_resumed_by(message_id, top):
                return
            asked = RunResult.of(run).interrupts
            # The question of a waiting child is part of what the runs above it ask, at any depth.
            is_known = not asked or str(asked[0].get("id")) in dump_json(top.interrupt)
            if top.status in ("queued", "running") and not is_known:
                raise RunBusy(top.run_id) from refused
            raise

    async def _resume(
        self, run: Run, value: Json, mode: Mode, message_id: str | None, *, is_reply: bool = True
    ) -> None:
        if message_id is not None and run.session_id is None:
            raise InvalidInput("A sessionless run has no message ids; leave message_id out.")
        asked = RunResult.of(run).interrupts
        ids = {one.get("id") for one in asked}
        if len(asked) > 1 and not (isinstance(value, dict) and value and set(value) <= ids):
            raise InvalidInput(f"Run {run.run_id!r} asks several questions; answer with a map from their ids.")
        if run.status != "waiting" or not (
            await self._runs.resume(run.run_id, value, asked=run.interrupt)
            if message_id is None
            else await self._runs.resume_by(message_id, run, value, is_reply=is_reply)
        ):
            now = await self._following.run(run.run_id, None)  # another answer may have come first
            if now.status == "waiting" and message_id is None:
                raise InvalidInput(f"Run {run.run_id!r} asks another question now; see the run, and answer that.")
            if now.status == "waiting":
                raise InvalidInput(
                    f"The message_id {message_id!r} is known, or the question has changed; use a new id."
                )
            raise InvalidInput(f"Run {run.run_id!r} does not wait for an answer: it is {now.status}.")
        await self._intake.go_on(run.run_id, here=mode == "wait")

    async def retry(
        self, run_id: str, *, user_id: str | None = None, mode: Mode = "wait", budget: RunBudget = _AS_BEFORE
    ) -> None:
        """Retry a run that failed, was cancelled or interrupted, from where it stopped.

        A limit in `budget` replaces the same limit of the run. It applies to the whole run, including earlier attempts.

        Raises:
            RunNotFound: there is no such run that the user may see.
            InvalidInput: the run is in another state or is a child, or a cost is limited but no model has a price.
        """
        self._intake.check_budget(budget)
        run = await self._following.run(run_id, user_id)
        if run.parent_run_id is not None:
            raise InvalidInput(f"Run {run_id!r} is a child; retry the run at the top, {run.root_run_id!r}.")
        larger = RunBudget.from_dict({**run.budget.to_dict(), **budget.to_dict()})
        if not await self._runs.retry(run_id, budget=larger if larger != run.budget else None):
            if run.over and not run.inputs:
                raise InvalidInput(f"The input of run {run_id!r} is not stored any more; start a new run.")
            now = await self._following.run(run_id, user_id)  # another call may have come first
            raise InvalidInput(f"Run {run_id!r} is {now.status}: only failed or stopped runs can be retried.")
        await self._intake.go_on(run_id, here=mode == "wait")

    async def run(self, run_id: str, *, user_id: str | None = None) -> Run:
        """Return a run.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        return await self._following.run(run_id, user_id)

    async def list(self, query: RunQuery) -> tuple[Sequence[Run], RunCursor | None]:
        """Return runs, the newest first, and the cursor of the next page."""
        return await self._runs.records.runs(query)

    async def tree(self, run_id: str, *, user_id: str | None = None) -> Sequence[Run]:
        """Return the whole tree of a run, parents before their children.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self._following.run(run_id, user_id)
        return await self._runs.records.tree(run_id)

    async def trace(
        self, run_id: str, *, after: int = 0, limit: int = 200, user_id: str | None = None
    ) -> Sequence[RunEvent]:
        """Return the events of a run with numbers above `after`, in order.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self._following.run(run_id, user_id)
        await self._worker.flush(run_id)
        return await self._runs.trace.events(run_id, after=after, limit=limit)

    async def usage(
        self, run_id: str, *, with_children: bool = True, user_id: str | None = None
    ) -> Sequence[TokenUsage]:
        """Return the usage of a run by model, by default with all runs below it; each call is counted once.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self._following.run(run_id, user_id)
        await self._worker.flush(run_id)
        return await self._runs.trace.usage(run_id, with_children=with_children)

    def has(self, run_id: str) -> bool:
        """Return whether this process executes a run, or is about to."""
        return self._worker.has(run_id)

    def is_active(self, session_id: str) -> bool:
        """Return whether this process executes a run of a session."""
        return any(active.run.session_id == session_id for active in self._worker.active.values())

    async def ready(self) -> None:
        """Prepare the engine, so that the first run does not have to wait for it.

        Raises:
            StoreClosed: the service accepts no more runs.
        """
        await self._worker.engine.ready()

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait up to `seconds` for active ones, and leave the rest to other processes."""
        await self._worker.engine.close(seconds)

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
    in_flight: InFlightMessages | None = None,
) -> AsyncIterator[RunService]:
    """Open the run service of a memory's database. After the block, unfinished runs are left to other processes.

    Args:
        memory: the store of sessions and runs.
        address: the memory's database.
        workflows: the workflows that can be executed.
        resources: the resources of their nodes.
        checkpointer: the store of run progress; the caller opens it once.
        store: the graph store, also opened by the caller.
        options: options of execution.
        in_flight: the messages that unrecorded runs of this process's chat are answering.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has the engine of another database open.
        StoreUnavailable: the database does not answer.
    """
    options, in_flight = options or RunServiceOptions(), in_flight or InFlightMessages()
    checkpoints = RunCheckpoints(memory.runs.records, checkpointer)
    worker = Worker(memory, RunWorkflows(workflows, memory.runs.workflows), checkpoints)
    maintenance = RunMaintenance(memory, worker, checkpoints, options)
    with closing(LastContexts(memory.observers)) as contexts:
        async with (
            maintenance.running(),
            open_engine(address, worker.execute, options.engine, troubled=worker.report) as engine,
        ):
            saver = ProgressSaver(checkpointer)
            compiler = Compiler(checkpointer=saver, store=store)
            once_only = RecordedTools(memory.runs.trace, keep=saver.keep, holds=worker.holds)
            middleware = (*resources.middleware, once_only)
            given = replace(resources, children=RunChildren(memory, worker), middleware=middleware)
            worker.open(engine, Dependencies(compiler, saver, given, options, contexts, in_flight))
            yield RunService(memory, worker, maintenance)


class RunsOnDemand:
    """A run service that opens on first use. A failure to open is raised, and the next caller tries again.

    The service lives in a separate task, independent of requests, until `close`.
    """

    def __init__(self, opening: Callable[[InFlightMessages], AbstractAsyncContextManager[RunService]]) -> None:
        self.in_flight = InFlightMessages()
        self._opening = opening
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[RunService] | None = None
        self._closing = False
        self._may_end = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True if the runs are open."""
        opened = self._opened
        return opened is not None and opened.done() and opened.exception() is None

    async def service(self) -> RunService:
        """Return the open service.

        Raises:
            StoreClosed: the application is being closed.
            StoreUnavailable: the database does not answer.
        """
        if self._closing:
            raise StoreClosed("The application is closing and accepts no more runs.")
        opened = self._opened
        if opened is None or (opened.done() and opened.exception() is not None):
            opened = self._opened = self._begin()
        return await asyncio.shield(opened)

    def open_soon(self) -> None:
        """Start opening the service in the background; a later call of `service` raises a failure."""
        if not self._closing and self._opened is None:
            self._opened = self._begin()

    async def close(self, seconds: float = 0.0) -> None:
        """Close the service. Active runs may continue for `seconds`, and are then left to other processes."""
        self._closing = True
        opened = self._opened
        if opened is not None and opened.done() and opened.exception() is None:
            await opened.result().close(seconds)
        self._may_end.set()
        if self._task is not None:
            await self._task

    def _begin(self) -> asyncio.Future[RunService]:
        opened: asyncio.Future[RunService] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_open(opened), context=Context(), name="threadkeep-runs")
        return opened

    async def _keep_open(self, opened: asyncio.Future[RunService]) -> None:
        with ErrorBoundary() as attempt:
            async with self._opening(self.in_flight) as service:
                opened.set_result(service)
                await self._may_end.wait()
        if attempt.error is not None:
            if opened.done():
                raise attempt.error
            opened.set_exception(attempt.error)
            opened.exception()  # the caller may have gone away
