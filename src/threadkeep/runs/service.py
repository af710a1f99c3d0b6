"""The run service that HTTP, terminal, channels and schedules share, and a wrapper that opens it on first use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from contextvars import Context
from dataclasses import replace

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import Interrupted, RunNotFound, StoreClosed
from threadkeep.history.memory import Memory
from threadkeep.records.runs import Run, RunCursor, RunEvent, RunQuery, RunResult, TokenUsage
from threadkeep.runs.children import RunChildren
from threadkeep.runs.engine.opening import open_engine
from threadkeep.runs.execution import Dependencies
from threadkeep.runs.intake import RunIntake
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.progress import ProgressSaver
from threadkeep.runs.run_workflows import RunWorkflows
from threadkeep.runs.streams import InFlightMessages, RunPiece, RunStream, changed
from threadkeep.runs.tool_idempotency import RecordedTools
from threadkeep.runs.worker import RunMaintenance, Worker
from threadkeep.store.address import DatabaseAddress
from threadkeep.workflows.definition import Compiler
from threadkeep.workflows.registry import Workflows
from threadkeep.workflows.resources import Resources

type Followed = RunEvent | RunPiece | Run
"""An item of a followed run; the last item is the run itself, which is over or waits for a person."""

_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
_PAGE = 200


class RunService(RunIntake):
    """The service that starts, follows, cancels and lists the runs of a database. `open_runs` opens and closes it."""

    _closes_at = math.inf

    async def result(self, run_id: str, *, user_id: str | None = None) -> RunResult:
        """Wait until a run is over or waits for a person; return its result. Cancelling the call does not stop the run.

        Raises:
            RunNotFound: there is no such run that the user may see.
            Interrupted: the service was closed before the run was over.
        """
        return RunResult.of(await self.end_of(run_id, user_id=user_id))

    async def end_of(self, run_id: str, *, user_id: str | None = None) -> Run:
        """Wait until a run is over or waits for a person; return the run. Raises the errors of `result`.

        If the run may begin and no process has started it, this process starts it.
        """
        stream = self._worker.streams.of(run_id)
        stream.waiting += 1
        pause = _FIRST_POLL_SECONDS
        try:
            while True:
                end = stream.next_end
                if self._worker.has(run_id):
                    # The stream reports the end. Poll rarely, only in case another process takes the run over.
                    pause = _LONGEST_POLL_SECONDS
                else:
                    run = await self.run(run_id, user_id=user_id)
                    if _has_stopped(run):
                        return run
                    await self._start_if_ready(run)
                if await changed(end, pause) and (ended := end.run) is not None:
                    if user_id is not None and ended.user_id != user_id:
                        raise RunNotFound(run_id)
                    return ended if stream.hold is None or not stream.hold.was_pending else await self.run(run_id)
                pause = min(pause * 2, _LONGEST_POLL_SECONDS)
        finally:
            stream.waiting -= 1

    async def follow(self, run_id: str, *, after: int = 0, user_id: str | None = None) -> AsyncGenerator[Followed]:
        """Yield a run's events with numbers above `after` and the tokens of its answer; at the end, yield the run.

        Tokens are yielded only in the process that executes the run. If the run may begin, this call starts it.

        Raises:
            RunNotFound: there is no such run that the user may see, or it was deleted with its session.
            Interrupted: the service was closed before the run was over.
        """
        stream = self._worker.streams.of(run_id)
        stream.wants_pieces = True
        stream.waiting += 1
        stream.followers += 1
        try:
            await self._worker.flush(run_id)
            async with aclosing(self._followed(stream, after, user_id)) as everything:
                async for item in everything:
                    yield item
        finally:
            stream.waiting -= 1
            stream.followers -= 1

    async def _followed(self, stream: RunStream, after: int, user_id: str | None) -> AsyncGenerator[Followed]:
        pause, run_id, now = _FIRST_POLL_SECONDS, stream.run_id, asyncio.get_running_loop().time
        # If the run has stopped already, do not yield the tokens of its answer.
        published = len(stream.pieces) if _has_stopped(await self.run(run_id, user_id=user_id)) else stream.first_piece
        look_at = now()
        while True:
            change = stream.next_change
            if fresh := stream.pieces[published:]:
                published += len(fresh)
                for piece in fresh:
                    yield piece
                if self._worker.has(run_id) and now() < look_at:
                    # Do not query the database for every token.
                    await changed(change, _FIRST_POLL_SECONDS)
                    continue
            look_at = now() + _FIRST_POLL_SECONDS
            run, before = await self.run(run_id, user_id=user_id), after
            while events := await self._runs.trace.events(run_id, after=after, limit=_PAGE):
                for event in events:
                    after = event.number
                    yield event
            if _has_stopped(run) and published == len(stream.pieces):
                yield run
                return
            await self._start_if_ready(run)
            pause = _FIRST_POLL_SECONDS if after > before else min(pause * 2, _LONGEST_POLL_SECONDS)
            await changed(change, pause)

    async def _start_if_ready(self, run: Run) -> None:
        if asyncio.get_running_loop().time() >= self._closes_at:
            raise Interrupted("The service stops; another process continues the run. Send the request again.")
        if run.status != "queued" or run.run_id in self._worker.started or run.parent_run_id is not None:
            return
        if self._closes_at == math.inf and await self._runs.order.is_next(run.run_id):
            await self._worker.start(run.run_id)

    async def cancel(self, run_id: str, *, user_id: str | None = None) -> list[str]:
        """Request that a run and all runs below it stop, in any process; return the ids of the runs that were not over.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        run = await self.run(run_id, user_id=user_id, damaged=True)
        if run.unbegun and await self._runs.order.stop_as_it_begins(run_id):
            # A run that has not begun ends when its turn comes, so that its question is stored after the earlier turns.
            await self._worker.end_stopped(run_id)
            return [run_id]
        stopped = await self._runs.request_cancel(run_id)
        for each in stopped:
            if (active := self._worker.active.get(each)) is not None:
                active.cancel("cancelled")
            else:
                self._worker.streams.of(each).end()
        await self._worker.start_following(run)
        if len(stopped) > 1:
            # Start the runs of other sessions that waited for stopped child runs.
            for below in await self._runs.records.tree(run_id):
                if below.run_id != run_id and below.run_id in stopped and below.over:
                    await self._worker.start_following(below)
        return stopped

    async def list(self, query: RunQuery) -> tuple[Sequence[Run], RunCursor | None]:
        """Return a page of runs, newest first, and the cursor of the next page, or None after the last page.

        A run that cannot be read has the error `RecordUnreadable` and lacks its damaged records.
        """
        return await self._runs.records.runs(query)

    async def tree(self, run_id: str, *, user_id: str | None = None) -> Sequence[Run]:
        """Return up to 500 runs of the tree that a run belongs to, parents before their children.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self.run(run_id, user_id=user_id)
        return await self._runs.records.tree(run_id)

    async def trace(
        self, run_id: str, *, after: int = 0, limit: int = 200, user_id: str | None = None
    ) -> Sequence[RunEvent]:
        """Return up to `limit` events of a run whose numbers are above `after`, in order.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self.run(run_id, user_id=user_id)
        await self._worker.flush(run_id)
        return await self._runs.trace.events(run_id, after=after, limit=limit)

    async def usage(self, run_id: str, *, user_id: str | None = None) -> Sequence[TokenUsage]:
        """Return the token usage of a run and of all runs below it, by model.

        Raises:
            RunNotFound: there is no such run that the user may see.
        """
        await self.run(run_id, user_id=user_id)
        await self._worker.flush(run_id)
        return await self._runs.trace.usage(run_id)

    def has(self, run_id: str) -> bool:
        """Return whether this process executes a run or is about to execute it."""
        return self._worker.has(run_id)

    def is_active(self, session_id: str) -> bool:
        """Return whether this process executes a run of a session."""
        return any(active.run.session_id == session_id for active in self._worker.active.values())

    async def ready(self) -> None:
        """Prepare the run engine, so that the first run does not wait for it.

        Raises:
            StoreClosed: the service accepts no more runs.
            StoreUnavailable: the database does not answer.
        """
        await self._worker.engine.ready()

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait up to `seconds` for active runs, and leave unfinished runs to other processes."""
        self._closes_at = asyncio.get_running_loop().time() + seconds
        await self._worker.engine.close(seconds)


def _has_stopped(run: Run) -> bool:
    """Return True if a run is over or waits for a person."""
    return run.over or run.status == "waiting"


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
        store: the graph store, which the caller also opens; None if there is none.
        options: options of execution.
        in_flight: the messages that this process's chat is answering with unrecorded runs.

    Raises:
        InvalidInput: the extra `engine` is not installed, or this process has already launched the library dbos.
        StoreUnavailable: the database does not answer.
    """
    options, in_flight = options or RunServiceOptions(), in_flight or InFlightMessages()
    expect = memory.runs.records.checkpoints_expected
    saver = ProgressSaver(checkpointer, memory.observers, expect, seconds=options.progress_seconds)
    worker = Worker(memory, RunWorkflows(workflows, memory.runs.workflows), saver)
    maintenance = RunMaintenance(memory, worker, options)
    async with (
        maintenance.running(),
        open_engine(address, worker.execute, options.engine, troubled=worker.report) as engine,
    ):
        compiler = Compiler(checkpointer=saver, store=store)
        once_only = RecordedTools(memory.runs.trace, keep=saver.keep, holds=worker.holds)
        middleware = (*resources.middleware, once_only)
        given = replace(resources, children=RunChildren(memory, worker), middleware=middleware)
        worker.open(engine, Dependencies(compiler, saver, given, options, in_flight))
        yield RunService(memory, worker, maintenance)


class RunsOnDemand:
    """A run service that is opened on first use. If opening fails, the error is raised; the next call tries again.

    The service stays open in a separate task until `close`. `opened` is None until the service is open.
    """

    def __init__(self, opening: Callable[[InFlightMessages], AbstractAsyncContextManager[RunService]]) -> None:
        self.in_flight = InFlightMessages()
        self.opened: RunService | None = None
        self._opening = opening
        self._task: asyncio.Task[None] | None = None
        self._future: asyncio.Future[RunService] | None = None
        self._closing = False
        self._may_end = asyncio.Event()

    async def service(self) -> RunService:
        """Return the open service; open it first if necessary.

        Raises:
            StoreClosed: the application is being closed.
            StoreUnavailable: the database does not answer.
            InvalidInput: the engine cannot be opened, for a reason that `open_runs` lists.
        """
        if self._closing:
            raise StoreClosed("The application is closing and accepts no more runs.")
        future = self._future
        if future is None or (future.done() and future.exception() is not None):
            future = self._future = self._begin()
        return await asyncio.shield(future)

    def open_soon(self) -> None:
        """Start opening the service in the background, at most once. If that fails, `service` tries again."""
        if not self._closing and self._future is None:
            self._future = self._begin()

    async def close(self, seconds: float = 0.0) -> None:
        """Close the service. Active runs may continue for `seconds`; the rest is then left to other processes."""
        self._closing = True
        if self.opened is not None:
            await self.opened.close(seconds)
        self._may_end.set()
        if self._task is not None:
            await self._task

    def _begin(self) -> asyncio.Future[RunService]:
        opened: asyncio.Future[RunService] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_open(opened), context=Context(), name="threadkeep-runs")
        return opened

    async def _keep_open(self, opened: asyncio.Future[RunService]) -> None:
        with ErrorBoundary() as attempt:
            async with self._opening(self.in_flight) as self.opened:
                opened.set_result(self.opened)
                await self._may_end.wait()
        if attempt.error is not None:
            if opened.done():
                raise attempt.error
            opened.set_exception(attempt.error)
            opened.exception()  # otherwise asyncio logs the error if the caller has gone away
