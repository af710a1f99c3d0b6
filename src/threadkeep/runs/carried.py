"""The runs that are carried out in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from threadkeep.records.runs import Run
from threadkeep.runs.engine.engine import Stop
from threadkeep.runs.ledger import RunLedger
from threadkeep.runs.live import LiveRun
from threadkeep.runs.outcome import Outcome
from threadkeep.runs.progress.progress import RunProgress
from threadkeep.runs.tracing import RunTracer
from threadkeep.workflow.holding import RunHold

type RunStop = Stop | Literal["cancelled"]
"""Why a run was stopped: by the engine, or since somebody asked for it."""


@dataclass(eq=False)
class Carried:
    """A run that is being carried out here; `stop` says why it is being stopped.

    `begins` says that it has no life behind it; `over` is the run as it ended here.
    """

    run: Run
    owner: str
    live: LiveRun
    tracer: RunTracer
    progress: RunProgress
    begins: bool
    task: asyncio.Task[Outcome] | None = None
    stop: RunStop | None = None
    ledger: RunLedger | None = None
    over: Run | None = None
    hold: RunHold = field(default_factory=RunHold)

    def cancel(self, stop: RunStop) -> None:
        """Stop it, once; what is lost to another process stays lost."""
        if self.stop is None or stop == "lost":
            self.stop = stop
            self.hold.lost = stop == "lost"
            if self.task is not None:
                self.task.cancel()


class CarriedRuns:
    """The runs that are being carried out in this process."""

    def __init__(self) -> None:
        self._runs: dict[str, Carried] = {}

    def of(self, run_id: str) -> Carried | None:
        """The run with an id; None if it is not here."""
        return self._runs.get(run_id)

    def all(self) -> Sequence[Carried]:
        """All of them, as they are now."""
        return tuple(self._runs.values())

    def enter(self, carried: Carried) -> None:
        """Be here from now on."""
        self._runs[carried.run.run_id] = carried

    def leave(self, run_id: str) -> None:
        """Be here no more."""
        del self._runs[run_id]

    async def flush_tree(self, root_run_id: str) -> None:
        """Store what the runs of a tree have noted so far."""
        for each in self.all():
            if each.run.root_run_id == root_run_id:
                await each.tracer.flush()
