"""Runs that this process executes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from threadkeep.agent.holding import RunHold
from threadkeep.errors import StoreError
from threadkeep.records.runs import Run
from threadkeep.runs.engine.engine import Stop
from threadkeep.runs.progress import RunProgress
from threadkeep.runs.streams import Outcome, RunStream
from threadkeep.runs.tracing import RunTracer
from threadkeep.runs.usage import RunLedger

type RunStop = Stop | Literal["cancelled"]
"""The reason why a run was stopped: by the engine, or by a request to cancel it."""


@dataclass(eq=False)
class ActiveRun:
    """A run that this process is executing.

    `stop` is the reason why it is being stopped. `begins` is true if no process has executed the run before. `over` is
    the run as it ended here. `has_following` is false if no run waited for this one when it ended.
    """

    run: Run
    owner: str
    stream: RunStream
    tracer: RunTracer
    progress: RunProgress
    begins: bool
    task: asyncio.Task[Outcome] | None = None
    stop: RunStop | None = None
    ledger: RunLedger | None = None
    over: Run | None = None
    has_following: bool = True
    hold: RunHold = field(default_factory=RunHold)

    def cancel(self, stop: RunStop) -> None:
        """Cancel the run once. A later `lost` replaces another reason; `lost` itself is final."""
        if self.stop is None or stop == "lost":
            self.stop = stop
            self.hold.lost = stop == "lost"
            if self.task is not None:
                self.task.cancel()


class ActiveRuns:
    """The runs that this process is executing."""

    def __init__(self) -> None:
        self._runs: dict[str, ActiveRun] = {}

    def of(self, run_id: str) -> ActiveRun | None:
        """Return the run with this id; None if it is not executed here."""
        return self._runs.get(run_id)

    def all(self) -> Sequence[ActiveRun]:
        """Return a snapshot of all runs."""
        return tuple(self._runs.values())

    def add(self, active: ActiveRun) -> None:
        """Add a run."""
        self._runs[active.run.run_id] = active

    def remove(self, run_id: str) -> None:
        """Remove a run."""
        del self._runs[run_id]

    async def flush(self, run_id: str) -> None:
        """Store the events that a run has noted so far, for a reader; a database that is away changes nothing."""
        if (active := self.of(run_id)) is not None:
            with contextlib.suppress(StoreError):
                await active.tracer.flush()

    async def flush_tree(self, root_run_id: str) -> None:
        """Store the events that the runs of a tree have noted so far."""
        for each in self.all():
            if each.run.root_run_id == root_run_id:
                await each.tracer.flush()
