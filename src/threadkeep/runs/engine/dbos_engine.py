"""The engine on dbos: runs are recorded in the database, and carried out by whatever process lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from threadkeep.errors import StoreClosed, ThreadkeepError
from threadkeep.runs.engine.carrying import Carrying, Ending
from threadkeep.runs.engine.early import EarlyRuns
from threadkeep.runs.engine.engine import CLOSED, LETTING_GO_SECONDS, CarryOut, EngineOptions, Listener, Stop
from threadkeep.runs.engine.executor import Executor
from threadkeep.store.address import DatabaseAddress

_PAUSE_SECONDS = 0.5


class DbosEngine:
    """Carries runs out in the event loop that it was made in. It launches dbos when it is first needed."""

    def __init__(
        self, address: DatabaseAddress, carry_out: CarryOut, options: EngineOptions, listener: Listener
    ) -> None:
        self._address = address
        self._options = options
        self._carrying = Carrying(carry_out)
        self._listener = listener
        self._early = EarlyRuns(self._carrying, self.start, listener)
        self._owner: Final = _Here(self, asyncio.get_running_loop(), listener)
        self._executor: Executor | None = None
        self._launching = asyncio.Lock()
        self._closed = False
        self._letting_go = False
        self._coming_back: set[asyncio.Task[None]] = set()

    async def ready(self) -> None:
        """Launch dbos."""
        await self.launched()

    async def start(self, run_id: str) -> None:
        """Carry a run out in this process, from now on."""
        executor = await self.launched()
        # Whoever is cancelled here must not cut off what is half recorded.
        await asyncio.shield(executor.start(run_id))

    async def begin(self, run_id: str) -> None:
        """Carry a run out in this process at once, and record it meanwhile."""
        await self.launched()
        self._early.begin(run_id)

    async def enqueue(self, run_id: str) -> None:
        """Have a run carried out by any process that works."""
        executor = await self.launched()
        await asyncio.shield(executor.enqueue(run_id))

    def stopping(self, run_id: str) -> Stop | None:
        """Why a run is being stopped."""
        return self._carrying.stopping(run_id)

    def holds(self, run_id: str) -> bool:
        """Whether this process still has a run for certain."""
        return self._carrying.has(run_id) and self._executor is not None and self._executor.holds()

    async def close(self, seconds: float) -> None:
        """Take no more runs, wait for those at work, and leave the rest to others."""
        if self._closed:
            return
        self._closed = True
        if self._executor is not None:
            await asyncio.to_thread(self._executor.take_no_more)
        if self._coming_back:
            await asyncio.wait(self._coming_back)
        await self._carrying.stop_all("closing", after_seconds=seconds, within_seconds=LETTING_GO_SECONDS)
        async with self._launching:
            if (executor := self._executor) is not None:
                self._executor = None
                for run_id in await self._early.leave():
                    with contextlib.suppress(ThreadkeepError):  # its own records tell of it, too
                        await executor.enqueue(run_id)
                await asyncio.to_thread(executor.stop)

    async def launched(self) -> Executor:
        """This process among those that carry runs out."""
        async with self._launching:
            if self._closed:
                raise StoreClosed(CLOSED)
            if self._executor is None:
                executor = Executor(self._address, self._options, self._owner)
                await asyncio.to_thread(executor.launch)
                self._executor = executor
            return self._executor

    async def carry(self, run_id: str) -> Ending:
        """Carry a run out in this event loop, unless the engine closes; one that began before its record goes on."""
        if (early := self._early.join(run_id)) is not None:
            return await asyncio.shield(early)
        return "left" if self._closed else await self._carrying.carry(run_id)

    def taken_away(self, run_id: str) -> None:
        """Let go of a run, since another process has it."""
        self._carrying.stop(run_id, "lost")

    def lost(self) -> None:
        """Let go of every run, since others have them, and begin anew under another name."""
        if self._letting_go or self._closed:
            return
        self._letting_go = True
        task = asyncio.create_task(self._come_back())
        self._coming_back.add(task)
        task.add_done_callback(self._coming_back.discard)

    async def _come_back(self) -> None:
        async with self._launching:
            await self._carrying.stop_all("lost", after_seconds=0, within_seconds=LETTING_GO_SECONDS)
            left = await self._early.leave()
            if (executor := self._executor) is not None:
                self._executor = None
                await asyncio.to_thread(executor.stop)
        self._letting_go = False
        while (self._options.works or left) and not self._closed:
            try:
                executor = await self.launched()
                while left:
                    await executor.enqueue(left[-1])
                    left.pop()
            except ThreadkeepError as error:
                # Who could not show itself to the database may not reach it yet.
                self._listener.troubled(type(error).__name__)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


class _Here:
    """The engine as other threads reach it."""

    def __init__(self, engine: DbosEngine, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self._engine = engine
        self._loop = loop
        self._listener = listener

    def carry(self, run_id: str) -> Future[Ending]:
        """Carry a run out."""
        return asyncio.run_coroutine_threadsafe(self._engine.carry(run_id), self._loop)

    def taken_away(self, run_id: str) -> None:
        """Tell that another process has a run."""
        self._tell(self._engine.taken_away, run_id)

    def gave_up(self, run_id: str, attempts: int) -> None:
        """Tell of a run that is not tried any more."""
        asyncio.run_coroutine_threadsafe(self._listener.gave_up(run_id, attempts), self._loop).result()

    def lost(self) -> None:
        """Tell that this process was taken for dead."""
        self._tell(self._engine.lost)

    def troubled(self, error: str) -> None:
        """Tell of an error that the engine goes on from."""
        self._tell(self._listener.troubled, error)

    def _tell[*A](self, callback: Callable[[*A], None], *arguments: *A) -> None:
        # Once its loop is closed nobody is there to hear.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)
