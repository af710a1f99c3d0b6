"""Runs that this process executes now, as tasks of the event loop in which the engine was opened."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Literal

from threadkeep.runs.engine.engine import CarryOut, Stop

type Ending = Literal["done", "failed", "left", "lost"]
"""The end of an attempt: `left` was left to others by a closing engine, `lost` was taken by another process."""


class Carrying:
    """A set of tasks that call `carry_out`, at most one task per run."""

    def __init__(self, carry_out: CarryOut) -> None:
        self._carry_out = carry_out
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, Stop] = {}
        # The context in which the engine was opened: a run does not belong to the request that started it.
        self._context = contextvars.copy_context()

    async def carry(self, run_id: str) -> Ending:
        """Execute a run and return how the attempt ended."""
        while (before := self._tasks.get(run_id)) is not None:
            await asyncio.wait([before])
            await asyncio.sleep(0)
        task = asyncio.create_task(self._called(run_id), context=self._context.copy())
        self._tasks[run_id] = task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self._let_go(task)
            raise
        finally:
            del self._tasks[run_id]
            stop = self._stops.pop(run_id, None)
        return _ending(task, stop)

    def stop(self, run_id: str, stop: Stop) -> None:
        """Cancel the task of a run, once, if it is executed here."""
        task = self._tasks.get(run_id)
        if task is not None and (run_id not in self._stops or stop == "lost"):
            self._stops[run_id] = stop
            task.cancel()

    def stopping(self, run_id: str) -> Stop | None:
        """Return why the task of a run was cancelled; None if it was not."""
        return self._stops.get(run_id)

    def has(self, run_id: str) -> bool:
        """Return whether a run is executed here and was not lost."""
        return run_id in self._tasks and self._stops.get(run_id) != "lost"

    async def stop_all(self, stop: Stop, *, after_seconds: float, within_seconds: float) -> bool:
        """Wait for the tasks, cancel the rest and wait for those; return whether all have ended."""
        if self._tasks and after_seconds > 0:
            await asyncio.wait(self._tasks.values(), timeout=after_seconds)
        for run_id in list(self._tasks):
            self.stop(run_id, stop)
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(self._tasks.values(), timeout=within_seconds)
        return not pending

    async def _called(self, run_id: str) -> None:
        await self._carry_out(run_id)

    async def _let_go(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])


def _ending(task: asyncio.Task[None], stop: Stop | None) -> Ending:
    if stop == "lost":
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        return "lost"
    if not task.cancelled() and task.exception() is None:
        return "done"
    # A task that cancels itself has failed.
    return "left" if stop == "closing" else "failed"
