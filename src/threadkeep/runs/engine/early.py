"""Runs that are carried out here before the engine's records know of them: nobody has to wait for a record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from threadkeep.runs.engine.carrying import Carrying, Ending
from threadkeep.runs.engine.engine import Listener

type Record = Callable[[str], Awaitable[None]]

_AGAIN_SECONDS = 1.0


class EarlyRuns:
    """Begins runs at once, and has them recorded beside: an attempt like others, which joins what was begun.

    Until then a run is in the records of whoever asked for it alone, and found by those if this process dies.
    """

    def __init__(self, carrying: Carrying, record: Record, listener: Listener) -> None:
        """`record` has the engine record an attempt of a run."""
        self._carrying = carrying
        self._record = record
        self._listener = listener
        self._runs: dict[str, asyncio.Task[Ending]] = {}
        self._recording: set[asyncio.Task[None]] = set()

    def begin(self, run_id: str) -> None:
        """Carry a run out from now on."""
        self._runs[run_id] = asyncio.create_task(self._carrying.carry(run_id))
        recording = asyncio.create_task(self._record_soon(run_id))
        self._recording.add(recording)
        recording.add_done_callback(self._recording.discard)

    def join(self, run_id: str) -> asyncio.Task[Ending] | None:
        """The task of a run that began before its attempt was recorded, for that attempt; None if there is none."""
        return self._runs.pop(run_id, None)

    async def leave(self) -> list[str]:
        """Record nothing more; the runs that no attempt has joined, and that did not end well."""
        recording = list(self._recording)
        for task in recording:
            task.cancel()
        await asyncio.gather(*recording, return_exceptions=True)
        left = [run_id for run_id, task in self._runs.items() if not _ended_well(task)]
        self._runs.clear()
        return left

    async def _record_soon(self, run_id: str) -> None:
        while run_id in self._runs:
            try:
                await self._record(run_id)
                return
            except Exception as error:  # noqa: BLE001 - the run goes on meanwhile; its record is tried again
                self._listener.troubled(type(error).__name__)
            if _ended_well(self._runs.get(run_id)):
                del self._runs[run_id]
                return
            await asyncio.sleep(_AGAIN_SECONDS)


def _ended_well(task: asyncio.Task[Ending] | None) -> bool:
    return task is not None and task.done() and not task.cancelled() and task.result() == "done"
