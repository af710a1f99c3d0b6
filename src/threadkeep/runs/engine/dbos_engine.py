"""The engine on dbos: runs are recorded in the database and executed by any live process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Set
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from threadkeep.errors import StoreClosed, ThreadkeepError
from threadkeep.runs.engine.carrying import Carrying, Ending
from threadkeep.runs.engine.engine import CLOSED, LETTING_GO_SECONDS, CarryOut, EngineOptions, Listener, Stop
from threadkeep.runs.engine.membership import Membership
from threadkeep.runs.waiting import shielded
from threadkeep.store.address import DatabaseAddress

if TYPE_CHECKING:
    from threadkeep.runs.engine.executor import Executor

_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 1.0
"""Seconds between two checks of a worker for queued runs, until dbos is launched."""


class DbosEngine:
    """An engine that executes runs in its own event loop; it launches dbos when the first run is enqueued."""

    def __init__(
        self, address: DatabaseAddress, carry_out: CarryOut, options: EngineOptions, listener: Listener
    ) -> None:
        self._address = address
        self._options = options
        self._carrying = Carrying(carry_out)
        self._listener = listener
        self._owner: Final = _Here(self, asyncio.get_running_loop(), listener)
        self._member: Membership | None = None
        self._executor: Executor | None = None
        self._entering = asyncio.Lock()
        self._started: dict[asyncio.Task[Ending], str] = {}
        self._closed = False
        self._letting_go = False
        self._coming_back: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name of this process; it changes after the process was declared dead."""
        if self._member is None:
            raise StoreClosed(CLOSED)
        return self._member.name

    async def ready(self) -> None:
        """Acquire the lease of this process."""
        if self._member is None or self._closed:
            async with self._entering:
                await self._entered()

    async def work(self) -> None:
        """Execute queued runs from now on; dbos is launched when a run is queued."""
        await self.ready()
        if not await self._launched_if_needed():
            self._watching = asyncio.create_task(self._watch_queue())

    async def start(self, run_id: str) -> None:
        """Execute a run in this process."""
        await self.ready()
        task = asyncio.create_task(self._carrying.carry(run_id))
        self._started[task] = run_id
        task.add_done_callback(self._ended)

    async def enqueue(self, run_id: str, *, failures: int = 0) -> None:
        """Enqueue a run for any worker."""
        executor = await self.launched()
        # A cancelled caller must not leave a run half recorded.
        await asyncio.shield(executor.enqueue(run_id, failures=failures))

    async def dead(self, names: Set[str]) -> Set[str]:
        """Return the processes among `names` that are dead."""
        await self.ready()
        return await self._member.dead(names) if self._member is not None else set()

    def stopping(self, run_id: str) -> Stop | None:
        """Return why a run is being stopped."""
        return self._carrying.stopping(run_id)

    def holds(self, run_id: str) -> bool:
        """Return whether this process certainly still owns a run."""
        return self._carrying.has(run_id) and self._member is not None and self._member.is_fresh()

    async def close(self, seconds: float) -> None:
        """Accept no more runs, wait for active ones, and leave the rest to other processes."""
        if self._closed:
            return
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._executor is not None:
            await asyncio.to_thread(self._executor.take_no_more)
        if self._coming_back:
            await asyncio.wait(self._coming_back)
        is_idle = await self._carrying.stop_all("closing", after_seconds=seconds, within_seconds=LETTING_GO_SECONDS)
        async with self._entering:
            await self._leave_started()
            await self._leave(is_idle=is_idle)

    async def launched(self) -> Executor:
        """Return the executor that processes the queue, launched if necessary."""
        async with self._entering:
            return await self._launched(await self._entered())

    async def carry(self, run_id: str) -> Ending:
        """Execute a run in this event loop; return `left` if the engine is closed."""
        return "left" if self._closed else await self._carrying.carry(run_id)

    def taken_away(self, run_id: str) -> None:
        """Release a run that another process has taken."""
        self._carrying.stop(run_id, "lost")

    def lost(self) -> None:
        """Release every run because other processes may have them, and start again under a new name."""
        if self._letting_go or self._closed:
            return
        self._letting_go = True
        task = asyncio.create_task(self._come_back())
        self._coming_back.add(task)
        task.add_done_callback(self._coming_back.discard)

    async def _entered(self) -> Membership:
        if self._closed:
            raise StoreClosed(CLOSED)
        if self._member is None:
            member = Membership(self._address, self._options, lost=self._owner.lost, troubled=self._owner.troubled)
            await member.enter()
            self._member = member
        return self._member

    async def _watch_queue(self) -> None:
        while not self._closed:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if await self._launched_if_needed():
                    return
            except ThreadkeepError as error:
                self._listener.troubled(type(error).__name__)

    async def _launched_if_needed(self) -> bool:
        """Launch dbos if its records are not empty; return whether it is launched."""
        if self._executor is None and self._member is not None and await self._member.has_records():
            await self.launched()
        return self._executor is not None

    async def _launched(self, member: Membership) -> Executor:
        if self._executor is None:
            # The import takes about 2 s of CPU.
            from threadkeep.runs.engine.executor import Executor

            executor = Executor(self._address, member, self._options, self._owner)
            # If the caller is cancelled or the engine closes, the launched dbos must still be stopped.
            await shielded(self._launch(executor))
            return executor
        return self._executor

    async def _launch(self, executor: Executor) -> None:
        await asyncio.to_thread(executor.launch)
        self._executor = executor

    async def _leave(self, *, is_idle: bool) -> None:
        executor, self._executor = self._executor, None
        member, self._member = self._member, None
        if executor is not None:
            is_idle = await asyncio.to_thread(executor.stop) and is_idle
        if member is not None:
            await member.leave(is_idle=is_idle)

    def _ended(self, task: asyncio.Task[Ending]) -> None:
        """Retry a run that failed here; `close` handles the runs that are left."""
        if task.cancelled() or task.exception() is not None:
            self._listener.troubled(type(task.exception() or asyncio.CancelledError()).__name__)
        elif task.result() == "left":
            return
        run_id = self._started.pop(task, None)
        if run_id is not None and not task.cancelled() and task.exception() is None and task.result() == "failed":
            again = asyncio.create_task(self._try_again(run_id))
            self._coming_back.add(again)
            again.add_done_callback(self._coming_back.discard)

    async def _try_again(self, run_id: str) -> None:
        while not self._closed:
            try:
                await self.enqueue(run_id, failures=1)
            except ThreadkeepError as error:
                self._listener.troubled(type(error).__name__)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    async def _leave_started(self) -> None:
        """Enqueue the runs that were stopped here, so that other processes continue them."""
        left = [run_id for task, run_id in self._started.items() if task.done() and not task.cancelled()]
        self._started.clear()
        if not left or self._member is None:
            return
        with contextlib.suppress(ThreadkeepError):  # the records of the runs also show that they are left
            executor = await self._launched(self._member)
            for run_id in left:
                await executor.enqueue(run_id)

    async def _come_back(self) -> None:
        async with self._entering:
            is_idle = await self._carrying.stop_all("lost", after_seconds=0, within_seconds=LETTING_GO_SECONDS)
            await self._leave(is_idle=is_idle)
        self._letting_go = False
        while not self._closed:
            try:
                await self.ready()
                if self._options.works and not await self._launched_if_needed() and self._watching is None:
                    self._watching = asyncio.create_task(self._watch_queue())
            except ThreadkeepError as error:
                # A process that could not renew its lease may still be unable to reach the database.
                self._listener.troubled(type(error).__name__)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


class _Here:
    """The engine's interface for other threads."""

    def __init__(self, engine: DbosEngine, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self._engine = engine
        self._loop = loop
        self._listener = listener

    def carry(self, run_id: str) -> Future[Ending]:
        """Execute a run in the engine's event loop."""
        return asyncio.run_coroutine_threadsafe(self._engine.carry(run_id), self._loop)

    def taken_away(self, run_id: str) -> None:
        """Report that another process has taken a run."""
        self._tell(self._engine.taken_away, run_id)

    def gave_up(self, run_id: str, attempts: int) -> None:
        """Report a run that will not be tried again."""
        asyncio.run_coroutine_threadsafe(self._listener.gave_up(run_id, attempts), self._loop).result()

    def lost(self) -> None:
        """Report that this process was declared dead."""
        self._tell(self._engine.lost)

    def troubled(self, error: str) -> None:
        """Report an error from which the engine continues."""
        self._tell(self._listener.troubled, error)

    def _tell[*A](self, callback: Callable[[*A], None], *arguments: *A) -> None:
        # After the loop is closed there is no listener.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)
